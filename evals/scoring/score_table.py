"""The table of a run's scores, as `sextant score` and the end of a run print it.

Tables of several runs are in evals/reporting.
"""

from collections.abc import Iterator

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
    render_terminal,
    tabulate,
)
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.session import UNFOUND_ID

# Characters of a waterfall that stand for all of the recall.
BAR = 30

Scores = JsonMapping


def show_scores(scores: Scores, *, as_json: bool = False, deviations: int = 0) -> None:
    """Print a run's scores, or the partial scores of an unfinished run, on stdout.

    A number of `deviations` from the paper's program stands for their list.
    """
    if as_json:
        print_json(scores, kept="in the run folder")
    else:
        print_stdout(
            render_terminal(lay_out_scores(scores, deviations)),
            kept="in the run folder",
        )


def lay_out_scores(scores: JsonMapping, deviations: int = 0) -> list[TextBlock]:
    """Lay out a run's scores: the task, the system, metrics, lost documents, bounds, usage."""
    blocks: list[TextBlock] = [*_headings(scores)]
    partial = scores.get("partial", {})
    if partial.get("queries"):
        answered = f"{partial['queries']} of {queries(scores['queries'])}"
        blocks.append(f"partial: over the {answered} that are answered; no score of the run")
        blocks.append(_metrics_table(partial["metrics"], partial))
    elif scores["metrics"]:
        blocks.append(_metrics_table(scores["metrics"], scores))
    losses = scores.get("losses", {})
    if losses.get("queries"):
        blocks.append(
            _losses_table(
                losses,
                losses["at"][str(losses["cutoff"])],
            )
        )
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
    return [
        *blocks,
        *_footings(scores),
        *_usage_lines(scores),
        f"run: {scores['run']}",
    ]


def _headings(scores: Scores) -> Iterator[str]:
    yield describe_task(scores)
    yield describe_system(scores)
    compiled_on = (
        (scores.get("compiled") or {})
        .get(
            "task",
            "",
        )
        .split(",")
    )
    if scores["split"] != "test" and scores["task"] in compiled_on:
        yield "dev queries are among these: it was compiled on them"
    if pool := scores["pool"]:
        content = {
            pool_kinds.ORACLE: "and every relevant document that they lack: a ceiling",
            pool_kinds.HIDDEN: "with every relevant document among neighbours: a ceiling",
        }.get(pool_kinds.read_kind(scores), "of what was found")
        yield f"pools of {pool['size']} {content}, from {', '.join(pool['of'])}"


def _metrics_table(metrics: dict[str, JsonObject], scores: Scores) -> ResultTable:
    """Return a row for each metric.

    "nDCG@10 [gold]" is the metric nDCG@10 by the judgements "gold", which get a column.
    """
    names = [name for name in metrics if "[" not in name]
    judgements = dict.fromkeys(name[name.index("[") + 1 : -1] for name in metrics if "[" in name)
    rows = []
    for name in names:
        value = metrics[name]
        count = f" ({queries(value['queries'])})" if "queries" in value else ""
        interval = Cell("too few queries")
        if value["mean"] is None:
            interval = Cell("for all of these queries")
        elif value["low"] is not None:
            interval = Cell(
                "{:.4f} to {:.4f}",
                figures=[value["low"], value["high"]],
            )
        resampled = Cell("")
        if means := value.get("resampled"):
            resampled = Cell(
                "{:.4f} +- {:.4f}",
                figures=[means["mean"], means["error"]],
            )
        row: JsonObject = {
            "metric": f"{name}{count}",
            scores["judgements"] if judgements else "mean": figure_cell(
                value["mean"], unknown="undefined"
            ),
            "95 % interval": interval,
            "mean of 1,000 resamples": resampled,
        }
        for judged_by in judgements:
            other = metrics.get(f"{name} [{judged_by}]", {})
            row[judged_by] = figure_cell(other.get("mean"), unknown="")
        unjudged = scores.get("unjudged", {}).get(name, {})
        row["judged (pooled)"] = figure_cell(unjudged.get("judged"), unknown="")
        row["if the rest were right"] = figure_cell(unjudged.get("right"), unknown="")
        rows.append(row)
    return tabulate("", rows)


def _losses_table(losses: JsonObject, shares: JsonMapping) -> ResultTable:
    cutoff = losses["cutoff"]
    rows = []
    total = 0.0
    for fate, words in FATE_LABELS.items():
        if documents := losses["documents"][fate]:
            start = round(BAR * total)
            total += shares[fate]
            rows.append(
                {
                    f"R@{cutoff}: what became of relevant documents": words.format(k=cutoff),
                    "share, mean over queries": figure_cell(shares[fate]),
                    "documents": documents,
                    "": " " * start
                    + "█"
                    * max(
                        round(BAR * total) - start,
                        1,
                    ),
                }
            )
    return tabulate("", rows)


def _footings(scores: Scores) -> Iterator[str]:
    """Yield what went wrong: failures, answers that could not be used, and what was cut."""
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
        share = f"{sum(unusable.values())} of {plural(answers, 'answer')}" if answers else "answers"
        yield f"{share} could not be used: {_counts(unusable)}"
    counted = {
        "answers used in part": _counts(scores.get("used_in_part") or {}),
        "answers asked for again": scores["usage"]["repairs"],
        "calls that went on without an answer (salvage steps of the traces)": scores.get(
            "fallbacks"
        ),
        f"ids dropped that no search of their query brought ({UNFOUND_ID})": scores["invented_ids"],
        "searches cut to what the retriever's model takes": scores["searches_cut"],
        "documents that speak to the model, and were kept or obeyed": scores["followed"],
        "prompts shortened to fit the model": scores["shortened"],
    }
    for label, count in counted.items():
        if count:
            yield f"{label}: {count}"
    if scores.get("looks", 0) > 1 and scores["split"] != "dev":
        yield (
            f"evaluation {scores['looks']} of {scores['program']} on these test queries "
            f"of {scores['task']} ({scores['data']})"
        )


def _usage_lines(scores: Scores) -> Iterator[str]:
    """Yield the requests, calls, tokens and seconds of the run, in words."""
    ledger = scores.get("ledger", {})
    answered = ""
    if ledger and scores["owed"]:
        answered = "for the answered ones: "
        requests = plural(ledger["sent"], "request")
        yield f"in all, unanswered queries included: {requests} sent{_usage(ledger)}"
    if "tokens_a_second" in ledger:
        first_token = f"first token after {ledger['first_token_seconds']:.2f} s (median)"
        yield f"{first_token}, then {ledger['tokens_a_second']:,.0f} tokens a second"
    if faults := ledger.get("faults"):
        requests = plural(ledger["sent"], "request")
        yield f"{sum(faults.values())} of {requests} left without an answer ({_counts(faults)})"
    usage = scores["usage"]
    calls = usage["calls"]
    text = "what it used is not known" if calls is None else count_of(calls, "call")
    metered = scores["lm"] != "offline" or scores["program"].partition(":")[0] in SCHEMES
    if calls and (metered or usage.get("unmetered")):
        text += _usage(usage)
    if "seconds" in scores:
        text += f", {scores['seconds']:.1f} s"
    yield f"{answered}{text}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {label}" for label, count in counts.items())


def _usage(usage: JsonObject) -> str:
    """Return tokens and prices, with a comma before each."""
    words = [f"{plural(usage['input_tokens'], 'token')} in", f"{usage['output_tokens']:,} out"]
    if cached := usage.get("cached_tokens"):
        words[0] += f" ({cached:,} cached by the provider)"
    if thinking := usage.get("reasoning_tokens"):
        words[1] += f" ({thinking:,} of them thinking)"
    paid = number(usage["paid_usd"], "${:.4f}")
    listed = number(usage["list_usd"], "${:.4f}", "price unknown")
    is_known = None not in (usage["paid_usd"], usage["list_usd"])
    words.append(f"{paid} paid, {listed} at list price" if is_known and paid != listed else listed)
    counts = {
        "answered from runs before": usage.get("cached_calls"),
        "without usage reported": usage.get("unmetered"),
    }
    words += [f"{plural(count, 'call')} {label}" for label, count in counts.items() if count]
    return ", " + ", ".join(words)
