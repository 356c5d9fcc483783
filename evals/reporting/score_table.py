"""The table of one run's scores: what `python -m evals.score` and the end of a run print."""

import json
from typing import Any

from evals.run_schemas import FATE_LABELS
from evals.scoring.reference_runs import list_bounds
from evals.text_tables import TextBlock, TextTable, describe_system, describe_task, render_terminal
from programs import SCHEMES
from tools.cli import print_stdout
from tools.number_format import number, ordinal, plural, queries

BAR = 30  # characters of a waterfall: all of the recall


def show_scores(scores: dict[str, Any], *, as_json: bool = False) -> None:
    """Print a run's scores, or what is known of an unfinished one, on stdout."""
    if as_json:
        print_stdout(json.dumps(scores) + "\n", kept="in the run folder")
        return
    tables: list[TextBlock] = (
        [_metrics_table(scores["metrics"], scores)] if scores["metrics"] else []
    )
    if (part := scores.get("partial", {})).get("queries"):
        done = f"{part['queries']} of {queries(scores['queries'])}"
        head = f"partial: over the {done} that are answered; no score of the run"
        tables = [head, _metrics_table(part["metrics"], part)]
    if scores.get("losses", {}).get("queries"):
        tables += [_losses_table(scores["losses"])]
    print_stdout(
        render_terminal([*_headings(scores), *tables, *_footings(scores)]), kept="in the run folder"
    )


def _headings(scores: dict[str, Any]) -> list[str]:
    lines = [describe_task(scores), describe_system(scores)]
    if scores["split"] != "test" and scores["task"] in (scores.get("compiled") or {}).get(
        "task", ""
    ).split(","):
        lines.append("dev queries are among these: it was compiled on them")
    if scores.get("isolated"):
        lines.append(f"the program ran {scores['isolated']}")
    if pool := scores["pool"]:
        what = (
            "with every relevant document put in: a ceiling"
            if pool["kind"] == "oracle"
            else "of what was found"
        )
        lines.append(f"pools of {pool['size']} {what}, from {', '.join(pool['of'])}")
    return lines


def _metrics_table(metrics: dict[str, dict[str, Any]], scores: dict[str, Any]) -> TextTable:
    names = [name for name in metrics if "[" not in name]
    others = list(dict.fromkeys(name[name.index("[") + 1 : -1] for name in metrics if "[" in name))
    resampled = any("resampled" in metrics[name] for name in names)
    heads = ["metric", scores["judgements"] if others else "mean", "95 % interval"]
    heads += [*(["mean of 1,000 resamples"] if resampled else []), *others]
    unjudged = scores.get("unjudged", {})
    heads += ["judged (pooled)", "if the rest were right"] if unjudged else []
    rows = []
    for name in names:
        value = metrics[name]
        low = value["low"]
        high = value["high"]
        means = value.get("resampled")
        if value["mean"] is None:
            rows.append([name, "undefined", "for all of these queries", *[""] * (len(heads) - 3)])
            continue
        row = [
            name + (f" ({queries(value['queries'])})" if "queries" in value else ""),
            f"{value['mean']:.4f}",
        ]
        row += ["too few queries" if low is None or high is None else f"{low:.4f} to {high:.4f}"]
        if resampled:
            row.append(f"{means['mean']:.4f} +- {means['error']:.4f}" if means else "")
        beside = [metrics.get(f"{name} [{other}]", {}).get("mean") for other in others]
        left = unjudged.get(name, {})
        beside += [left.get(key) for key in ("judged", "right")] if unjudged else []
        rows.append([*row, *(number(mean, unknown="") for mean in beside)])
    return TextTable("", heads, rows)


def _losses_table(losses: dict[str, Any]) -> TextTable:
    k = losses["cutoff"]
    shares = losses["at"][str(k)]
    documents = losses["documents"]
    rows = []
    reached = 0.0
    for fate, words in FATE_LABELS.items():
        if documents[fate]:
            start, end = (round(BAR * edge) for edge in (reached, reached + shares[fate]))
            reached += shares[fate]
            bar = " " * start + "█" * max(end - start, 1)
            rows.append([words.format(k=k), f"{shares[fate]:.4f}", str(documents[fate]), bar])
    return TextTable(
        "",
        [f"R@{k}: what became of relevant documents", "share", "documents", ""],
        rows,
        names=(0, 3),
    )


def _footings(scores: dict[str, Any]) -> list[str]:
    found = scores.get("bounds", {})
    usage = scores["usage"]
    ledger = scores.get("ledger", {})
    lines = [
        f"{label} of {found['metric']}: {one['mean']:.4f} ({one['what']})"
        for label, one in list_bounds(found)
    ]
    many = queries(scores["queries"])
    if scores["failed"]:
        many += f", {scores['failed']} failed (scored 0; their errors are in outcomes.jsonl)"
    if scores["owed"]:
        many += f", {scores['owed']} unanswered, so there is no score yet"
    lines += [*scores.get("notes", []), many]
    for one in scores.get("failures", ()):
        at = f", at {one['at']}" if one["at"] and ", line " not in one["error"] else ""
        lines.append(
            f"failed: {queries(one['queries'])}, first {one['first']}, with {one['error']}{at}"
        )
    used = "what it used is not known" if usage["calls"] is None else f"{usage['calls']} calls"
    metered = scores["lm"] != "offline" or scores["program"].partition(":")[0] in SCHEMES
    if usage["calls"] and (metered or usage.get("unmetered")):
        used += _used(usage)
    used += f", {usage['repairs']} answers asked for again" if usage["repairs"] else ""
    used += f", {scores['invented_ids']} invented ids dropped" if scores["invented_ids"] else ""
    cut = scores["searches_cut"]
    used += f", {cut} searches cut to what the retriever's model takes" if cut else ""
    used += f", {scores['seconds']:.1f} s" if "seconds" in scores else ""
    if scores["unusable"]:
        lines.append(f"answers that could not be used: {_kinds(scores['unusable'])}")
    if scores["followed"]:
        lines.append(
            f"documents that speak to the model, and were kept or obeyed: {scores['followed']}"
        )
    if scores["shortened"]:
        lines.append(f"prompts shortened to fit the model: {scores['shortened']}")
    if scores.get("looks", 0) > 1 and scores["split"] != "dev":
        task = f"{scores['task']} ({scores['data']})"
        lines.append(
            f"{ordinal(scores['looks'])} evaluation of {scores['program']} on these test queries "
            f"of {task}"
        )
    if ledger and scores["owed"]:
        used = f"for the answered ones: {used}"
        lines.append(
            f"in all, unanswered queries included: {plural(ledger['sent'], 'request')} "
            f"sent{_used(ledger)}"
        )
    if "tokens_a_second" in ledger:
        speed = f"first token after {ledger['first_token_seconds']:.2f} s (median)"
        lines.append(f"{speed}, then {ledger['tokens_a_second']:,.0f} tokens a second")
    if faults := ledger.get("faults"):
        lines.append(f"requests left without an answer: {_kinds(faults)}, of {ledger['sent']} sent")
    return [*lines, used, f"run: {scores['run']}"]


def _kinds(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _used(usage: dict[str, Any]) -> str:
    cached = usage.get("cached_tokens")
    thinking = usage.get("reasoning_tokens")
    paid = usage["paid_usd"]
    listed = usage["list_usd"]
    # What answers of runs before would have cost is in the list price, too.
    told = None not in (paid, listed) and not (usage.get("cached_calls") or usage.get("cached"))
    saved = f", which saved ${listed - paid:.4f}" if told and listed > paid else ""
    parts = [
        f", {usage['input_tokens']} tokens in"
        + (f" ({cached} cached by the provider{saved})" if cached else "")
    ]
    parts.append(
        f"{usage['output_tokens']} out" + (f" ({thinking} of them thinking)" if thinking else "")
    )
    price = "price unknown" if listed is None else f"${listed:.4f}"
    both = None not in (paid, listed) and f"${paid:.4f}" != price
    parts.append(f"${paid:.4f} paid, {price} at list price" if both else price)
    others = {
        "cached_calls": "calls answered from runs before",
        "unmetered": "calls without usage reported",
    }
    return ", ".join(
        [*parts, *(f"{usage[key]} {words}" for key, words in others.items() if usage.get(key))]
    )
