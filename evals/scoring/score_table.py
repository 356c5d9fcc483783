"""The table of a run's scores, as `sextant score` and the end of a run print it.

Tables of several runs are in evals/reporting.
"""

from collections.abc import Iterator, Mapping

from sextant.evals.run_descriptions import describe_system, describe_task
from sextant.evals.run_schemas import FATE_LABELS
from sextant.evals.scoring.reference_runs import list_bounds
from sextant.programs import DEVIATES, SCHEMES
from sextant.tools import pool_kinds
from sextant.tools.platform.cli import print_json, print_stdout
from sextant.tools.platform.number_format import count_of, number, plural, queries
from sextant.tools.platform.result_table import (
    Cell,
    ResultTable,
    TextBlock,
    figure_cell,
    figure_cells,
    render_terminal,
    tabulate,
)
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.session import UNFOUND_ID

# Characters of a bar that stand for all of the recall.
BAR = 18
# Counts of the scores, or of their usage, that are told if they are not 0.
COUNTED = {
    "repairs": "answers asked for again",
    "fallbacks": "calls that went on without an answer (salvage steps of the traces)",
    "invented_ids": f"ids dropped that no search of their query brought ({UNFOUND_ID})",
    "searches_cut": "searches cut to what the retriever's model takes",
    "followed": "documents that speak to the model, and were kept or obeyed",
    "shortened": "prompts shortened to fit the model",
}
# Heads, keys and forms of means under other assumptions.
OTHER_MEANS = (
    ("mean of 1,000 resamples", "mean", "{:.4f}"),
    ("its error", "error", "{:.4f}"),
    ("judged (pooled)", "judged", "{:.4f}"),
    ("if the rest were right", "right", "{:.4f}"),
)
# Of usage, said if it is not 0.
DETAILS = {
    "reasoning_tokens": "of the tokens out are thinking",
    "cached_tokens": "tokens in cached by the provider",
    "cached_calls": "calls answered from runs before",
    "unmetered": "calls without usage reported",
}

Scores = JsonMapping


def show_scores(scores: Scores, *, as_json: bool = False, deviations: int = 0) -> None:
    """Print a run's scores, or the partial scores of an unfinished run, on stdout.

    A number of `deviations` from the paper's program stands for their list.
    """
    if as_json:
        print_json(scores, kept="in the run folder")
    else:
        print_stdout(render_terminal(lay_out_scores(scores, deviations)), kept="in the run folder")


def lay_out_scores(scores: JsonMapping, deviations: int = 0) -> list[TextBlock]:
    """Lay out a run's scores: the task, the system, metrics, lost documents, bounds, usage."""
    blocks: list[TextBlock] = [*_headings(scores)]
    measured = scores
    partial = scores.get("partial", {})
    if partial.get("queries"):
        measured = partial
        answered = f"{partial['queries']} of {queries(scores['queries'])}"
        blocks.append(f"partial: over the {answered} that are answered; no score of the run")
    if measured["metrics"]:
        blocks.append(_metrics_table(measured))
    losses = scores.get("losses", {})
    if losses.get("queries"):
        blocks.append(_losses_table(losses))
    bounds = scores.get("bounds", {})
    for label, reference in list_bounds(bounds):
        mean = f"{reference['mean']:.4f}"
        blocks.append(f"{label} of {bounds['metric']}: {mean} ({reference['what']})")
    for note in scores.get("notes", []):
        program, deviates, _ = note.partition(DEVIATES)
        if deviations and deviates:
            count = plural(deviations, "point")
            note = f"{program} differs from the paper's in {count}, which sextant score RUN lists"
        blocks.append(note)
    return [*blocks, *_footings(scores), *_usage_lines(scores), f"run: {scores['run']}"]


def _headings(scores: Scores) -> Iterator[str]:
    yield describe_task(scores)
    yield describe_system(scores)
    compiled = scores.get("compiled") or {}
    if scores["split"] != "test" and scores["task"] in compiled.get("task", "").split(","):
        yield "dev queries are among these: it was compiled on them"
    if pool := scores["pool"]:
        content = {
            pool_kinds.ORACLE: "and every relevant document that they lack: a ceiling",
            pool_kinds.HIDDEN: "with every relevant document among neighbours: a ceiling",
        }.get(pool_kinds.read_kind(scores), "of what was found")
        yield f"pools of {pool['size']} {content}, from {', '.join(pool['of'])}"


def _metrics_table(scores: Scores) -> ResultTable:
    """Return a row for each metric; "nDCG@10 [gold]" is nDCG@10 by the judgements "gold".

    A metric has a number of queries if it is not of all of them.
    """
    rows = []
    for name, value in scores["metrics"].items():
        interval = Cell("" if value["mean"] is None else "too few queries")
        if value["low"] is not None:
            interval = Cell("{:.4f} to {:.4f}", figures=[value["low"], value["high"]])
        others = {**scores.get("unjudged", {}).get(name, {}), **value.get("resampled", {})}
        cells = {
            "metric": name,
            "mean": figure_cell(value["mean"], unknown="undefined"),
            "95 % interval": interval,
            "of queries": value.get("queries"),
        }
        rows.append(cells | figure_cells(others, OTHER_MEANS, ""))
    return tabulate("", rows)


def _losses_table(losses: JsonObject) -> ResultTable:
    cutoff = losses["cutoff"]
    shares = losses["at"][str(cutoff)]
    rows = []
    for fate, words in FATE_LABELS.items():
        if documents := losses["documents"][fate]:
            rows.append(
                {
                    f"R@{cutoff}: what became of relevant documents": words.format(k=cutoff),
                    "share, mean over queries": figure_cell(shares[fate]),
                    "documents": documents,
                    "": "█" * max(round(BAR * shares[fate]), 1),
                }
            )
    return tabulate("", rows)


def _footings(scores: Scores) -> Iterator[str]:
    """Yield the failures, the answers that could not be used, and the cuts."""
    text = queries(scores["queries"])
    if scores["failed"]:
        text += f", {scores['failed']} failed (scored 0; their errors are in outcomes.jsonl)"
    if scores["owed"]:
        text += f", {scores['owed']} unanswered, so there is no score yet"
    yield text
    for failure in scores.get("failures", ()):
        error = failure["error"]
        if failure["at"] and ", line " not in error:
            error += f", at {failure['at']}"
        yield f"failed: {queries(failure['queries'])}, first {failure['first']}, with {error}"
    answers = scores["usage"]["calls"]
    if unusable := scores["unusable"]:
        share = plural(answers, "answer") if answers else "an unknown number of answers"
        yield f"{sum(unusable.values())} of {share} could not be used: {_counts(unusable)}"
    if used := scores.get("used_in_part"):
        yield f"answers used in part: {_counts(used)}"
    for key, label in COUNTED.items():
        if count := scores.get(key) or scores["usage"].get(key):
            yield f"{label}: {count}"
    if scores.get("looks", 0) > 1 and scores["split"] != "dev":
        yield (
            f"evaluation {scores['looks']} of {scores['program']} on these test queries "
            f"of {scores['task']} ({scores['data']})"
        )


def _usage_lines(scores: Scores) -> Iterator[str]:
    """Yield the requests, calls, tokens and seconds of the run, in words."""
    ledger = scores.get("ledger", {})
    sent = plural(ledger.get("sent", 0), "request")
    answered = ""
    if ledger and scores["owed"]:
        answered = "for the answered ones: "
        yield f"in all, unanswered queries included: {sent} sent, {_usage(ledger)}"
    if "tokens_a_second" in ledger:
        first_token = f"first token after {ledger['first_token_seconds']:.2f} s (median)"
        yield f"{first_token}, then {ledger['tokens_a_second']:,.0f} tokens a second"
    if faults := ledger.get("faults"):
        yield f"{sum(faults.values())} of {sent} left without an answer ({_counts(faults)})"
    usage = scores["usage"]
    calls = usage["calls"]
    words = ["what it used is not known" if calls is None else count_of(calls, "call")]
    metered = scores["lm"] != "offline" or scores["program"].partition(":")[0] in SCHEMES
    if calls and (metered or usage.get("unmetered")):
        words.append(_usage(usage))
    if "seconds" in scores:
        words.append(f"{scores['seconds']:.1f} s")
    yield f"{answered}{', '.join(words)}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {label}" for label, count in counts.items())


def _usage(usage: JsonMapping) -> str:
    """Return tokens and prices: what was paid, and the list price of the work."""
    words = [
        f"{plural(usage['input_tokens'], 'token')} in",
        f"{usage['output_tokens']:,} out",
        f"{number(usage['paid_usd'], '${:.4f}')} paid",
        number(usage["list_usd"], "${:.4f} at list price", "price unknown"),
    ]
    return ", ".join(
        words + [f"{usage[key]:,} {label}" for key, label in DETAILS.items() if usage.get(key)]
    )
