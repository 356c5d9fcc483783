"""A run's scores as they are printed: its table, where relevant documents were lost, what it used."""

import json
from typing import Any

from evals.measuring.attribution import WORDS
from evals.measuring.bounds import LABELS
from evals.showing.headings import system_line, task_line
from evals.showing.tables import Grid, Part, printed
from tools.console import number, plural, put_out, queries


def show(scores: dict[str, Any], *, as_json: bool = False) -> None:
    """Print a run's scores, or what is known of an unfinished one, on stdout."""
    if as_json:
        put_out(json.dumps(scores) + "\n", kept="in the run folder")
        return
    tables: list[Part] = [_metrics_table(scores["metrics"], scores["judgements"])] if scores["metrics"] else []
    if (part := scores.get("partial", {})).get("queries"):
        done = f"{part['queries']} of {queries(scores['queries'])}"
        head = f"partial: over the {done} that are answered; no score of the run"
        tables = [head, _metrics_table(part["metrics"], part["judgements"])]
    if scores.get("losses", {}).get("queries"):
        tables += [_losses_table(scores["losses"])]
    put_out(printed([*_headings(scores), *tables, *_footings(scores)]), kept="in the run folder")


def _headings(scores: dict[str, Any]) -> list[str]:
    lines = [task_line(scores), system_line(scores)]
    compiled = scores.get("compiled")
    if compiled and compiled.get("task") == scores["task"] and scores["split"] != "test":
        lines.append("dev queries are among these: it was compiled on them")
    if scores.get("isolated"):
        lines.append(f"the program ran {scores['isolated']}")
    if pool := scores["pool"]:
        what = "with every relevant document put in: a ceiling" if pool["kind"] == "oracle" else "of what was found"
        lines.append(f"pools of {pool['size']} {what}, from {', '.join(pool['of'])}")
    return lines


def _metrics_table(metrics: dict[str, dict[str, Any]], judgements: str) -> Grid:
    """One row a metric; other judgements of the same metric, "nDCG@10 [pooled]", are columns of its row."""
    names = [name for name in metrics if "[" not in name]
    others = list(dict.fromkeys(name[name.index("[") + 1 : -1] for name in metrics if "[" in name))
    resampled = any("resampled" in metrics[name] for name in names)
    heads = ["metric", judgements if others else "mean", "95 % interval"]
    heads += [*(["mean of 1,000 resamples"] if resampled else []), *others]
    rows = []
    for name in names:
        value = metrics[name]
        if value["mean"] is None:
            row = [name, "undefined", "for all of these queries"]
            rows.append([*row, *[""] * (len(heads) - len(row))])
            continue
        low, high = value["low"], value["high"]
        row = [name + (f" ({queries(value['queries'])})" if "queries" in value else ""), f"{value['mean']:.4f}"]
        row += ["too few queries" if low is None or high is None else f"{low:.4f} to {high:.4f}"]
        if resampled:
            means = value.get("resampled")
            row.append(f"{means['mean']:.4f} +- {means['error']:.4f}" if means else "")
        beside = [metrics.get(f"{name} [{other}]", {}).get("mean") for other in others]
        rows.append([*row, *(number(mean, unknown="") for mean in beside)])
    return Grid("", heads, rows)


BAR = 30  # characters of a waterfall: all of the recall


def _losses_table(losses: dict[str, Any]) -> Grid:
    """A waterfall: what of recall was found, and where the rest was lost; fates that no document had are left out."""
    k = losses["cutoff"]
    shares, documents = losses["at"][str(k)], losses["documents"]
    rows, reached = [], 0.0
    for fate, words in WORDS.items():
        if documents[fate]:
            start, end = (round(BAR * edge) for edge in (reached, reached + shares[fate]))
            reached += shares[fate]
            bar = " " * start + "█" * max(end - start, 1)
            rows.append([words.format(k=k), f"{shares[fate]:.4f}", str(documents[fate]), bar])
    return Grid("", [f"R@{k}: what became of relevant documents", "share", "documents", ""], rows, names=(0, 3))


def _bounds(bounds: dict[str, Any]) -> list[str]:
    """The floor and the ceiling that lie beside the run, where they have been run."""
    named = [kind for kind in LABELS if kind != "best" or bounds.get("best") != bounds.get("floor")]
    known = [(LABELS[kind], bounds[kind]) for kind in named if bounds.get(kind)]
    return [f"{label} of {bounds['metric']}: {one['mean']:.4f} ({one['what']})" for label, one in known]


def _footings(scores: dict[str, Any]) -> list[str]:
    asked, usage, ledger = queries(scores["queries"]), scores["usage"], scores.get("ledger", {})
    if scores["failed"]:
        asked += f", {scores['failed']} failed (scored 0; {_failure(scores)})"
    if scores["owed"]:
        asked += f", {scores['owed']} unanswered, so there is no score yet"
    lines = [*_bounds(scores.get("bounds", {})), *scores.get("notes", []), asked]
    used = "what it used is not known" if usage["calls"] is None else f"{usage['calls']} calls"
    if scores["lm"] != "offline" and usage["calls"]:  # of nothing that was answered, nothing is known
        used += _used(usage)
    if usage["repairs"]:
        used += f", {usage['repairs']} answers asked for again"
    if scores["invented_ids"]:
        used += f", {scores['invented_ids']} invented ids dropped"
    if scores["searches_cut"]:
        used += f", {scores['searches_cut']} searches cut to what the retriever's model takes"
    if "seconds" in scores:
        used += f", {scores['seconds']:.1f} s"
    if scores["unusable"]:
        lines.append(f"answers that could not be used: {_kinds(scores['unusable'])}")
    if scores["followed"]:
        lines.append(f"documents that speak to the model, and were kept or obeyed: {scores['followed']}")
    if scores["shortened"]:
        lines.append(f"prompts shortened to fit the model: {scores['shortened']}")
    if scores.get("looks", 0) > 1 and scores["split"] != "dev":
        lines.append(
            f"look {scores['looks']} at test queries of {scores['task']} ({scores['data']}) with {scores['program']}"
        )
    if ledger and scores["owed"]:
        used = f"for the answered ones: {used}"
        lines.append(f"in all, unanswered queries included: {plural(ledger['sent'], 'request')} sent{_used(ledger)}")
    if faults := ledger.get("faults"):
        lines.append(f"requests left without an answer: {_kinds(faults)}, of {ledger['sent']} sent")
    return [*lines, used, f"run: {scores['run']}"]


def _kinds(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _failure(scores: dict[str, Any]) -> str:
    """The commonest error of those queries that failed; older runs do not have it."""
    if not (one := scores.get("failure")):
        return "their errors are in outcomes.jsonl"
    at = f", at {one['at']}" if one["at"] else ""
    return f"{one['queries']} of them with {one['error']!r}{at}; all errors are in outcomes.jsonl"


def _used(usage: dict[str, Any]) -> str:
    """Tokens and dollars; what is none is not said."""
    cached, thinking = usage.get("cached_tokens"), usage.get("reasoning_tokens")
    parts = [f", {usage['input_tokens']} tokens in" + (f" ({cached} cached by the provider)" if cached else "")]
    parts.append(f"{usage['output_tokens']} out" + (f" ({thinking} of them thinking)" if thinking else ""))
    paid, listed = usage["paid_usd"], usage["list_usd"]
    if listed is None:
        parts.append("price unknown")
    elif paid is not None and f"{paid:.4f}" != f"{listed:.4f}":
        parts.append(f"${paid:.4f} paid, ${listed:.4f} at list price")
    else:
        parts.append(f"${listed:.4f}")
    if usage.get("cached_calls"):
        parts.append(f"{usage['cached_calls']} calls answered from runs before")
    if usage.get("unmetered"):
        parts.append(f"{usage['unmetered']} calls without usage reported")
    return ", ".join(parts)
