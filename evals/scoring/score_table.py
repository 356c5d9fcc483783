"""The table of a run's scores, as `sextant score` and the end of a run print it.

Tables of several runs are in evals/reporting.
"""

from collections.abc import Iterator

from sextant.evals.run_descriptions import describe_system, describe_task
from sextant.evals.run_schemas import FATE_LABELS
from sextant.evals.scoring.reference_runs import list_bounds
from sextant.programs import SCHEMES
from sextant.tools import pool_kinds
from sextant.tools.platform.cli import print_json, print_stdout
from sextant.tools.platform.number_format import count_of, number, plural, queries
from sextant.tools.platform.result_table import ResultTable, TextBlock, render_terminal
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.session import UNFOUND_ID

# Characters of a waterfall that stand for all of the recall.
BAR = 30

Scores = JsonMapping


def show_scores(scores: Scores, *, as_json: bool = False) -> None:
    """Print a run's scores, or the partial scores of an unfinished run, on stdout."""
    if as_json:
        print_json(scores, kept="in the run folder")
    else:
        print_stdout(render_terminal(lay_out_scores(scores)), kept="in the run folder")


def lay_out_scores(scores: JsonMapping) -> list[TextBlock]:
    """Lay out a run's scores: the task, the system, metrics, lost documents, bounds, usage."""
    blocks: list[TextBlock] = [*_headings(scores)]
    partial = scores.get("partial", {})
    if partial.get("queries"):
        answered = f"{partial['queries']} of {queries(scores['queries'])}"
        blocks.append(f"partial: over the {answered} that are answered; no score of the run")
        blocks.append(_metrics_table(partial["metrics"], partial))
    elif scores["metrics"]:
        blocks.append(_metrics_table(scores["metrics"], scores))
    if scores.get("losses", {}).get("queries"):
        blocks.append(_losses_table(scores["losses"]))
    blocks += _footings(scores)
    return blocks


def _headings(scores: Scores) -> Iterator[str]:
    yield describe_task(scores)
    yield describe_system(scores)
    compiled_on = (scores.get("compiled") or {}).get("task", "").split(",")
    if scores["split"] != "test" and scores["task"] in compiled_on:
        yield "dev queries are among these: it was compiled on them"
    if pool := scores["pool"]:
        content = "of what was found"
        kind = pool_kinds.read_kind(scores)
        if kind == pool_kinds.ORACLE:
            content = "and every relevant document that they lack: a ceiling"
        elif kind == pool_kinds.HIDDEN:
            content = "with every relevant document among neighbours: a ceiling"
        yield f"pools of {pool['size']} {content}, from {', '.join(pool['of'])}"


def _metrics_table(metrics: dict[str, JsonObject], scores: Scores) -> ResultTable:
    """Return a row for each metric.

    "nDCG@10 [gold]" is the metric nDCG@10 by the judgements "gold", which get a column.
    """
    names = [name for name in metrics if "[" not in name]
    judgements = dict.fromkeys(name[name.index("[") + 1 : -1] for name in metrics if "[" in name)
    resampled = any("resampled" in metrics[name] for name in names)
    heads = [
        "metric",
        scores["judgements"] if judgements else "mean",
        "95 % interval",
    ]
    if resampled:
        heads.append("mean of 1,000 resamples")
    heads += judgements
    unjudged = scores.get("unjudged", {})
    if unjudged:
        heads += ["judged (pooled)", "if the rest were right"]
    rows = []
    for name in names:
        value = metrics[name]
        if value["mean"] is None:
            blanks = [""] * (len(heads) - 3)
            rows.append(
                [
                    name,
                    "undefined",
                    "for all of these queries",
                    *blanks,
                ]
            )
            continue
        row = _metric_cells(name, value)
        if resampled:
            row.append(_resampled(value.get("resampled")))
        means = [metrics.get(f"{name} [{judged_by}]", {}).get("mean") for judged_by in judgements]
        if unjudged:
            shares = unjudged.get(name, {})
            means += [
                shares.get("judged"),
                shares.get("right"),
            ]
        rows.append(
            [
                *row,
                *(number(mean, unknown="") for mean in means),
            ]
        )
    return ResultTable("", heads, rows)


def _metric_cells(name: str, value: JsonObject) -> list[str]:
    low = value["low"]
    high = value["high"]
    interval = "too few queries"
    if low is not None and high is not None:
        interval = f"{low:.4f} to {high:.4f}"
    if "queries" in value:
        name += f" ({queries(value['queries'])})"
    return [
        name,
        f"{value['mean']:.4f}",
        interval,
    ]


def _resampled(means: dict[str, float] | None) -> str:
    return f"{means['mean']:.4f} +- {means['error']:.4f}" if means else ""


def _losses_table(losses: JsonObject) -> ResultTable:
    cutoff = losses["cutoff"]
    shares = losses["at"][str(cutoff)]
    documents = losses["documents"]
    rows = []
    total = 0.0
    for fate, words in FATE_LABELS.items():
        if documents[fate]:
            start = round(BAR * total)
            total += shares[fate]
            end = round(BAR * total)
            bar = " " * start + "█" * max(end - start, 1)
            label = words.format(k=cutoff)
            rows.append(
                [
                    label,
                    f"{shares[fate]:.4f}",
                    str(documents[fate]),
                    bar,
                ]
            )
    heads = [
        f"R@{cutoff}: what became of relevant documents",
        "share, mean over queries",
        "documents",
        "",
    ]
    return ResultTable(
        "",
        heads,
        rows,
        names=(0, 3),
    )


def _footings(scores: Scores) -> Iterator[str]:
    bounds = scores.get("bounds", {})
    for label, bound in list_bounds(bounds):
        yield f"{label} of {bounds['metric']}: {bound['mean']:.4f} ({bound['what']})"
    yield from scores.get("notes", [])
    yield _query_counts(scores)
    for failure in scores.get("failures", ()):
        yield _describe_failure(failure)
    yield from _model_troubles(scores)
    if scores.get("looks", 0) > 1 and scores["split"] != "dev":
        yield (
            f"evaluation {scores['looks']} of {scores['program']} on these test queries "
            f"of {scores['task']} ({scores['data']})"
        )
    ledger = scores.get("ledger", {})
    work = _work(scores)
    if ledger and scores["owed"]:
        work = f"for the answered ones: {work}"
        requests = plural(ledger["sent"], "request")
        yield f"in all, unanswered queries included: {requests} sent{_usage(ledger)}"
    if "tokens_a_second" in ledger:
        first_token = f"first token after {ledger['first_token_seconds']:.2f} s (median)"
        yield f"{first_token}, then {ledger['tokens_a_second']:,.0f} tokens a second"
    if faults := ledger.get("faults"):
        kinds = ", ".join(f"{fault}: {count}" for fault, count in faults.items())
        requests = plural(ledger["sent"], "request")
        yield f"{sum(faults.values())} of {requests} left without an answer ({kinds})"
    yield work
    yield f"run: {scores['run']}"


def _query_counts(scores: Scores) -> str:
    text = queries(scores["queries"])
    if scores["failed"]:
        text += f", {scores['failed']} failed (scored 0; their errors are in outcomes.jsonl)"
    if scores["owed"]:
        text += f", {scores['owed']} unanswered, so there is no score yet"
    return text


def _describe_failure(failure: JsonObject) -> str:
    error = failure["error"]
    if failure["at"] and ", line " not in error:
        error += f", at {failure['at']}"
    return f"failed: {queries(failure['queries'])}, first {failure['first']}, with {error}"


def _model_troubles(scores: Scores) -> Iterator[str]:
    answers = scores["usage"]["calls"]
    if unusable := scores["unusable"]:
        share = "answers that"
        if answers:
            share = f"{sum(unusable.values())} of {plural(answers, 'answer')}"
        yield f"{share} could not be used: {_counts(unusable)}"
    if used_in_part := scores.get("used_in_part"):
        partial = sum(used_in_part.values())
        verb = "was" if partial == 1 else "were"
        yield f"{plural(partial, 'answer')} {verb} used in part: {_counts(used_in_part)}"
    if fallbacks := scores.get("fallbacks"):
        yield f"{plural(fallbacks, 'call')} went on without an answer (salvage steps of the traces)"
    if scores["followed"]:
        yield f"documents that speak to the model, and were kept or obeyed: {scores['followed']}"
    if scores["shortened"]:
        yield f"prompts shortened to fit the model: {scores['shortened']}"


def _work(scores: Scores) -> str:
    """Return the calls, tokens and seconds of the run, in words."""
    usage = scores["usage"]
    calls = usage["calls"]
    text = "what it used is not known" if calls is None else count_of(calls, "call")
    metered = scores["lm"] != "offline" or scores["program"].partition(":")[0] in SCHEMES
    if calls and (metered or usage.get("unmetered")):
        text += _usage(usage)
    if usage["repairs"]:
        text += f", {plural(usage['repairs'], 'answer')} asked for again"
    if scores["invented_ids"]:
        dropped = plural(scores["invented_ids"], "id")
        text += f", {dropped} dropped that no search of their query brought ({UNFOUND_ID})"
    if cut := scores["searches_cut"]:
        text += f", {plural(cut, 'search', 'searches')} cut to what the retriever's model takes"
    if "seconds" in scores:
        text += f", {scores['seconds']:.1f} s"
    return text


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {label}" for label, count in counts.items())


def _usage(usage: JsonObject) -> str:
    """Return tokens and prices, with a comma before each."""
    tokens_in = f"{plural(usage['input_tokens'], 'token')} in"
    if cached := usage.get("cached_tokens"):
        tokens_in += f" ({cached:,} cached by the provider)"
    tokens_out = f"{usage['output_tokens']:,} out"
    if thinking := usage.get("reasoning_tokens"):
        tokens_out += f" ({thinking:,} of them thinking)"
    words = [tokens_in, tokens_out, _price(usage)]
    if cached_calls := usage.get("cached_calls"):
        words.append(f"{plural(cached_calls, 'call')} answered from runs before")
    if unmetered := usage.get("unmetered"):
        words.append(f"{plural(unmetered, 'call')} without usage reported")
    return ", " + ", ".join(words)


def _price(usage: JsonObject) -> str:
    paid = usage["paid_usd"]
    listed = usage["list_usd"]
    if listed is None:
        return "price unknown"
    price = f"${listed:.4f}"
    if paid is None or f"${paid:.4f}" == price:
        return price
    return f"${paid:.4f} paid, {price} at list price"
