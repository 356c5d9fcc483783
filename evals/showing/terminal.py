"""What a person sees of a run that has ended, on stdout: the table of its scores. Computes nothing.

Colours on a terminal, none elsewhere; rich itself honours NO_COLOR. Ids and errors come from data and models, so they
are stripped of control characters before they are printed.
"""

import io
import json
from collections.abc import Iterable
from typing import Any

import rich.box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evals.measuring.scored import told
from tools.console.command import clean, put_out


def queries(count: int) -> str:
    """So many queries, in words."""
    return f"{count} {'query' if count == 1 else 'queries'}"


def show(scores: dict[str, Any], *, as_json: bool = False) -> None:
    """Print a run's scores, or what is known of an unfinished one, on stdout."""
    if as_json:
        put_out(json.dumps(scores) + "\n", kept="in the run folder")
        return
    tables: list[str | Table] = [_table(scores["metrics"], scores["judgements"])] if scores["metrics"] else []
    if (part := scores.get("partial", {})).get("queries"):
        done = f"{part['queries']} of {queries(scores['queries'])}"
        head = f"partial: over the {done} that are answered; no score of the run"
        tables = [head, _table(part["metrics"], part["judgements"])]
    if scores.get("losses", {}).get("queries"):
        tables += [losses_table(scores["losses"])]
    put_out(printed([*_headings(scores), *tables, *_footings(scores)]), kept="in the run folder")


def printed(parts: Iterable[str | Table]) -> str:
    """Lines and tables as they are printed on stdout; control characters and markup in lines are made harmless."""
    text = io.StringIO()
    # Rich looks at the real stdout for width and colours, but writes into the text, so that it meets no closed pipe.
    # A file or pipe has no width; rich takes 80 then, and would fold the cells of a wide table.
    real = Console()
    console = Console(
        file=text,
        highlight=False,
        soft_wrap=True,
        width=real.width if real.is_terminal else max(real.width, 200),
        force_terminal=real.is_terminal,
        color_system=real.color_system,  # type: ignore[arg-type]
    )
    for part in parts:
        console.print(plain(part) if isinstance(part, str) else part)
    return text.getvalue()


def plain(text: str) -> str:
    """Text of the data in a cell: no markup, no control characters."""
    return escape(clean(text))


def empty(*heads: str, words: int = 1) -> Table:
    """A table without rows; the first columns hold `words`, the others numbers."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < words else "right")
    return table


def task_line(scores: dict[str, Any]) -> str:
    """What was asked: task, split, judgements, and whether it is invented data."""
    kind = scores["data"]
    note = "mini: bundled, invented; not comparable with published figures" if kind == "mini" else kind
    judgements = f", {scores['judgements']} judgements" if scores.get("judgements", "gold") != "gold" else ""
    return f"{scores['task']}  {scores['split']} split{judgements}  ({note})"


def system_line(scores: dict[str, Any]) -> str:
    """What answered: program, retriever, model."""
    model = "offline, no language model" if scores["lm"] == "offline" else scores["lm"]
    compiled = scores.get("compiled")
    prompts = f", compiled by {compiled['optimizer']} ({compiled['digest']})" if compiled else ""
    return f"{scores['program']} over {scores['retriever']}, model: {model}{prompts}"


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


def _table(metrics: dict[str, dict[str, Any]], judgements: str) -> Table:
    """One row a metric; other judgements of the same metric, "nDCG@10 [pooled]", are columns of its row."""
    names = [name for name in metrics if "[" not in name]
    others = list(dict.fromkeys(name[name.index("[") + 1 : -1] for name in metrics if "[" in name))
    resampled = any("resampled" in metrics[name] for name in names)
    heads = ["metric", judgements if others else "mean", "95 % interval"]
    heads += ["mean of 1,000 resamples"] if resampled else []
    table = empty(*heads, *map(escape, others))
    for name in names:
        value = metrics[name]
        low, high = value["low"], value["high"]
        if value["mean"] is None:
            table.add_row(escape(name), "undefined", "for all of these queries")
            continue
        cells = ["too few queries" if low is None or high is None else f"{low:.4f} to {high:.4f}"]
        if resampled:
            means = value.get("resampled")
            cells.append(f"{means['mean']:.4f} +- {means['error']:.4f}" if means else "")
        cells += [told(metrics.get(f"{name} [{other}]", {}).get("mean"), unknown="") for other in others]
        few = f" ({queries(value['queries'])})" if "queries" in value else ""
        table.add_row(escape(name) + few, f"{value['mean']:.4f}", *cells)
    return table


WIDTH = 30  # characters of a waterfall: all of the recall


def losses_table(losses: dict[str, Any]) -> Table:
    """A waterfall: what of recall was found, and where the rest was lost; fates that no document had are left out."""
    from evals.measuring.attribution import WORDS

    k = losses["cutoff"]
    shares, documents = losses["at"][str(k)], losses["documents"]
    table = empty(f"R@{k}: what became of relevant documents", "share", "documents")
    table.add_column("", no_wrap=True)
    reached = 0.0
    for fate, words in WORDS.items():
        if documents[fate]:
            start, end = (round(WIDTH * edge) for edge in (reached, reached + shares[fate]))
            reached += shares[fate]
            bar = " " * start + "█" * max(end - start, 1)
            table.add_row(words.format(k=k), f"{shares[fate]:.4f}", str(documents[fate]), bar)
    return table


def _bounds(bounds: dict[str, Any]) -> list[str]:
    """The floor and the ceiling that lie beside the run, where they have been run."""
    from evals.measuring.bounds import LABELS

    named = [kind for kind in LABELS if kind != "best" or bounds.get("best") != bounds.get("floor")]
    known = [(LABELS[kind], bounds[kind]) for kind in named if bounds.get(kind)]
    return [f"{label} of {bounds['metric']}: {one['mean']:.4f} ({one['what']})" for label, one in known]


def _footings(scores: dict[str, Any]) -> list[str]:
    usage = scores["usage"]
    asked = queries(scores["queries"])
    if scores["failed"]:
        asked += f", {scores['failed']} failed (scored 0; {_failure(scores)})"
    if scores["owed"]:
        asked += f", {scores['owed']} still owed: unfinished, so there is no score"
    lines = [*_bounds(scores.get("bounds", {})), *scores.get("notes", []), asked]
    used = "what it used is not known" if usage["calls"] is None else f"{usage['calls']} calls"
    if scores["lm"] != "offline" and usage["calls"]:  # of nothing that was answered, nothing is known
        used += _used(usage)
    if usage["repairs"]:
        used += f", {usage['repairs']} answers asked for again"
    if scores["invented_ids"]:
        used += f", {scores['invented_ids']} invented ids dropped"
    if scores["unusable"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in scores["unusable"].items())
        lines.append(f"answers that could not be used: {kinds}")
    if scores["followed"]:
        lines.append(f"documents that speak to the model, and were kept or obeyed: {scores['followed']}")
    if scores["shortened"]:
        lines.append(f"prompts shortened to fit the model: {scores['shortened']}")
    if scores["searches_cut"]:
        used += f", {scores['searches_cut']} searches cut to what the retriever's model takes"
    if scores.get("looks", 0) > 1 and scores["split"] != "dev":
        lines.append(
            f"look {scores['looks']} at test queries of {scores['task']} ({scores['data']}) with {scores['program']}"
        )
    if "seconds" in scores:
        used += f", {scores['seconds']:.1f} s"
    ledger = scores.get("ledger", {})
    if ledger and scores["owed"]:
        used = f"for the answered ones: {used}"
        lines.append(f"in all, for what is owed as well: {ledger['sent']} requests sent{_used(ledger)}")
    if faults := ledger.get("faults"):
        kinds = ", ".join(f"{count} {kind}" for kind, count in faults.items())
        lines.append(f"requests left without an answer: {kinds}, of {ledger['sent']} sent")
    return [*lines, used, f"run: {scores['run']}"]


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
