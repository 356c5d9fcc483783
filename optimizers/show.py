"""What a person sees of a compilation: candidates, gain, what changed in the prompts, queries that moved, leaks."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

import rich.box
from rich.markup import escape
from rich.table import Table

from evals.showing.compare_tables import lay_out_comparison
from evals.showing.tables import printed
from optimizers.teleprompters import TELEPROMPTERS
from tools.console import clean, number, put_out, queries

ROWS = 12  # candidates in the table; learnt.json has all
MOVED = 5  # queries with the largest gains, and with the largest losses; learnt.json has all


def show(found: Mapping[str, Any], *, as_json: bool = False) -> None:
    """Print what was learnt, on stdout."""
    if as_json:
        put_out(json.dumps(found) + "\n", kept="in learnt.json")
        return
    lines = [*_notes(found), _gain(found), *_changes(found), *_moved(found), *_leaks(found), *_footings(found)]
    held_out = lay_out_comparison(found["held_out"]) if found.get("held_out") else []
    put_out(printed([*_headings(found), _candidates(found), *lines, *held_out]), kept="in learnt.json")


def show_table(*, as_json: bool) -> None:
    """Print the teleprompters that there are."""
    if as_json:
        rows = {name: {"what": row.what, "options": dict(row.options)} for name, row in TELEPROMPTERS.items()}
        put_out(json.dumps(rows) + "\n")
        return
    width = max(map(len, TELEPROMPTERS))
    lines = []
    for name, row in TELEPROMPTERS.items():
        lines.append(f"{name:<{width}}  {row.what}")
        takes = [text for text, has in (("--teacher", row.teacher), ("--prompt-lm", row.proposes)) if has]
        for option, values in row.options.items():
            # Quoted where a shell would take it for something else.
            levels = "|".join(map(str, values)) if len(set(values)) > 1 else shlex.quote(str(values[0]))
            takes.append(f"-O {option}={levels}")
        lines += [f"{'':<{width}}  {' '.join(takes)}"] if takes else []
    lines += ["", "values at --budget light|medium|heavy; one that stands alone is for all three", ""]
    put_out("\n".join(lines))


def _headings(found: Mapping[str, Any]) -> list[str]:
    note = "mini: bundled, invented" if found["data"] == "mini" else found["data"]
    model = "offline, no language model" if found["lm"] == "offline" else found["lm"]
    for name, spec in (("teacher", found["teacher"]), ("prompts by", found["prompt_lm"])):
        model += f", {name}: {spec}" if spec and spec != found["lm"] else ""
    counts = found["queries"]
    return [
        f"{found['task']}  dev split: {counts['train']} train, {counts['validation']} validation  ({note})",
        f"{found['program']} over {found['retriever']}, model: {model}",
        f"{found['optimizer']}, by {found['objective']}",
    ]


def _candidates(found: Mapping[str, Any]) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    tuned = any(row["parameters"] for row in found["candidates"])
    what = "parameters" if tuned else "demos"
    for name in ("candidate", "validation", "95 % interval", "train", what, "calls", "tokens", "price"):
        table.add_column(name, justify="left" if name in ("candidate", "parameters") else "right")
    for row in found["candidates"][:ROWS]:
        before = " (before)" if row["before"] else ""
        kept = " (kept)" if row["candidate"] == found["candidate"] else ""
        low, high = row["validation"]["low"], row["validation"]["high"]
        parameters = clean(" ".join(f"{name}={value}" for name, value in row["parameters"].items()))
        table.add_row(
            f"{row['candidate']}{before}{kept}",
            _mean(row["validation"], whole=row["whole"]),
            "" if low is None else f"{low:.4f} to {high:.4f}",
            _mean(row["train"], whole=row["train"]["queries"] == found["queries"]["train"]),
            escape(parameters) if tuned else str(row["demos"]),
            str(row["calls"]),
            str(row["tokens"]),
            number(row["list_usd"], "${:.4f}"),
        )
    return table


def _mean(measured: Mapping[str, Any], *, whole: bool) -> str:
    if measured["mean"] is None:
        return ""
    return f"{measured['mean']:.4f}" + ("" if whole else f" ({measured['queries']})")


def _notes(found: Mapping[str, Any]) -> list[str]:
    more, rows = len(found["candidates"]) - ROWS, found["candidates"][:ROWS]
    lines = [f"{more} more candidates are in learnt.json"] if more > 0 else []
    of = found["queries"]
    if any(0 < row[part]["queries"] < of[part] for row in rows for part in ("train", "validation")):
        lines.append("(n): evaluated on n of the queries")
    return lines


def _gain(found: Mapping[str, Any]) -> str:
    gain = found["gain"]
    if found["kept"] == "before":
        better = "no candidate is better on the validation queries"
        why = better if gain["candidates"] else "no other candidate came to validation"
        so_far = " so far" if found["stopped"] else ""
        return f"no gain{so_far}: {why}, so the program is kept as it was; there is nothing to ask test about"
    interval = "" if gain["low"] is None else f" ({gain['low']:+.4f} to {gain['high']:+.4f})"
    verdict = "significant" if gain["significant"] else "not significant"
    of = f", times {gain['candidates']} candidates {gain['p_corrected']:.3g}" if gain["candidates"] > 1 else ""
    if gain["detectable"] is not None and not gain["significant"]:
        verdict += f", so many queries show {gain['detectable']:.4f}"
    means = f"{found['before']['mean']:.4f} to {found['after']['mean']:.4f}"
    return (
        f"validation {means}: {gain['difference']:+.4f}{interval}, "
        f"p {gain['p']:.3g}{of}: {verdict}; {gain['wins']} won, {gain['ties']} tied, {gain['losses']} lost"
    )


def _changes(found: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, values in found["parameters"].items():
        old, new = (clean(str(value)) or '""' for value in values)
        lines.append(f"{name}: {old} to {new}")
    for name, difference in found["changes"].items():
        lines += ["", f"prompt of {name}", *difference.splitlines()[2:]]
    return [*lines, ""] if lines else []


def _moved(found: Mapping[str, Any]) -> list[str]:
    gains = [row for row in found["moved"] if row["difference"] > 0][:MOVED]
    losses = [row for row in found["moved"] if row["difference"] < 0][-MOVED:]
    rows = [f"  {row['query_id']}  {row['before']:.4f} to {row['after']:.4f}" for row in [*gains, *losses]]
    return ["queries that moved most", *rows] if rows else []


def _leaks(found: Mapping[str, Any]) -> list[str]:
    leaks = sorted(found["leaks"], key=lambda leak: leak["split"] != "test")
    lines = [
        f"  {leak['piece']} has {leak['length']} words in a row of the {leak['split']} {leak['kind']} {leak['owner']}: "
        f'"{leak["text"][:80]}"'
        for leak in leaks[:ROWS]
    ]
    test = sum(leak["split"] == "test" for leak in leaks)
    heading = f"prompts that repeat judged texts: {len(leaks)}, {test} of them of the test split"
    return [heading, *lines] if lines else []


def _footings(found: Mapping[str, Any]) -> list[str]:
    usage, left_out = found["usage"], found["queries"]["left_out"]
    used = f"{usage['calls']} calls"
    if found["lm"] != "offline":
        price = number(usage["list_usd"], "${:.4f}", "price unknown")
        used += f", {usage['input_tokens']} tokens in, {usage['output_tokens']} out, {price}"
    lines = [f"dev {queries(len(left_out))} left out as near repeats of test queries"] if left_out else []
    if found["looks"]:
        lines.append(f"looks at the test queries with {found['program']} so far: {found['looks']}")
    lines += [f"{used}, {found['seconds']:.1f} s", f"compiled: {found['compiled']}"]
    if found["kept"] == "compiled" and not found.get("held_out"):
        lines.append(f"take it up with: {found['take_up']}")
    return lines
