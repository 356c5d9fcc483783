"""What a person sees of a compilation: candidates, gain, what changed in the prompts, queries that moved, leaks."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

import rich.box
from rich.markup import escape
from rich.table import Table

from evals.showing.compare_tables import lay_out
from evals.showing.tables import printed
from optimizers.teleprompters import TELEPROMPTERS
from tools.console import clean, put_out, queries

ROWS = 12  # candidates in the table; learnt.json has all
MOVED = 5  # queries with the largest gains, and with the largest losses; learnt.json has all


def show(found: Mapping[str, Any], *, as_json: bool = False) -> None:
    """Print what was learnt, on stdout."""
    if as_json:
        put_out(json.dumps(found) + "\n", kept="in learnt.json")
        return
    parts: list[str | Table] = [*_headings(found), _candidates(found), *_gain(found), *_changes(found), *_moved(found)]
    parts += [*_leaks(found), *_footings(found)]
    held_out = lay_out(found["held_out"]) if found.get("held_out") else []
    put_out(printed([*parts, *held_out]), kept="in learnt.json")


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
        options = [f"-O {option}={_levels(values)}" for option, values in row.options.items()]
        if takes or options:
            lines.append(f"{'':<{width}}  " + " ".join([*takes, *options]))
    put_out(
        "\n".join([*lines, "", "values at --budget light|medium|heavy; one that stands alone is for all three", ""])
    )


def _levels(values: tuple[Any, Any, Any]) -> str:
    """Write an option at light, medium and heavy effort; quoted where a shell would take it for something else."""
    return "|".join(map(str, values)) if len(set(values)) > 1 else shlex.quote(str(values[0]))


def _headings(found: Mapping[str, Any]) -> list[str]:
    note = "mini: bundled, invented" if found["data"] == "mini" else found["data"]
    model = "offline, no language model" if found["lm"] == "offline" else found["lm"]
    named = (("teacher", found["teacher"]), ("prompts by", found["prompt_lm"]))
    others = [f"{name}: {spec}" for name, spec in named if spec and spec != found["lm"]]
    counts = found["queries"]
    return [
        f"{found['task']}  dev split: {counts['train']} train, {counts['validation']} validation  ({note})",
        f"{found['program']} over {found['retriever']}, model: {', '.join([model, *others])}",
        f"{found['optimizer']}, by {found['objective']}",
    ]


def _candidates(found: Mapping[str, Any]) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    tuned = any(row["parameters"] for row in found["candidates"])
    what = "parameters" if tuned else "demos"
    for name in ("candidate", "validation", "95 % interval", "train", what, "calls", "tokens", "price"):
        table.add_column(name, justify="left" if name in ("candidate", "parameters") else "right")
    for row in found["candidates"][:ROWS]:
        kept = row["candidate"] == found["candidate"]
        marks = [text for text, has in (("before", row["before"]), ("kept", kept)) if has]
        low, high = row["validation"]["low"], row["validation"]["high"]
        table.add_row(
            " ".join([row["candidate"], *(f"({mark})" for mark in marks)]),
            _mean(row["validation"], whole=row["whole"]),
            "" if low is None else f"{low:.4f} to {high:.4f}",
            _mean(row["train"], whole=row["train"]["queries"] == found["queries"]["train"]),
            escape(_parameters(row["parameters"])) if tuned else str(row["demos"]),
            str(row["calls"]),
            str(row["tokens"]),
            "unknown" if row["list_usd"] is None else f"${row['list_usd']:.4f}",
        )
    return table


def _parameters(parameters: Mapping[str, Any]) -> str:
    return clean(" ".join(f"{name}={value}" for name, value in parameters.items()))


def _mean(measured: Mapping[str, Any], *, whole: bool) -> str:
    if measured["mean"] is None:
        return ""
    return f"{measured['mean']:.4f}" + ("" if whole else f" ({measured['queries']})")


def _gain(found: Mapping[str, Any]) -> list[str]:
    gain, more = found["gain"], len(found["candidates"]) - ROWS
    lines = [f"{more} more candidates are in learnt.json"] if more > 0 else []
    if any(
        0 < row[part]["queries"] < found["queries"][part]
        for row in found["candidates"][:ROWS]
        for part in ("train", "validation")
    ):
        lines.append("(n): evaluated on n of the queries")
    if found["kept"] == "before":
        why = (
            "no candidate is better on the validation queries"
            if gain["candidates"]
            else "no other candidate came to validation"
        )
        so_far = " so far" if found["stopped"] else ""
        return [*lines, f"no gain{so_far}: {why}, so the program is kept as it was; there is nothing to ask test about"]
    interval = "" if gain["low"] is None else f" ({gain['low']:+.4f} to {gain['high']:+.4f})"
    verdict = "significant" if gain["significant"] else "not significant"
    of = f", times {gain['candidates']} candidates {gain['p_corrected']:.3g}" if gain["candidates"] > 1 else ""
    if gain["detectable"] is not None and not gain["significant"]:
        verdict += f", so many queries show {gain['detectable']:.4f}"
    before, after = found["before"]["mean"], found["after"]["mean"]
    return [
        *lines,
        f"validation {before:.4f} to {after:.4f}: {gain['difference']:+.4f}{interval}, "
        f"p {gain['p']:.3g}{of}: {verdict}; {gain['wins']} won, {gain['ties']} tied, {gain['losses']} lost",
    ]


def _changes(found: Mapping[str, Any]) -> list[str]:
    lines = [f"{name}: {_value(old)} to {_value(new)}" for name, (old, new) in found["parameters"].items()]
    for name, difference in found["changes"].items():
        lines += ["", f"prompt of {name}", *difference.splitlines()[2:]]
    return [*lines, ""] if lines else []


def _value(value: Any) -> str:
    return clean(str(value)) or '""'


def _moved(found: Mapping[str, Any]) -> list[str]:
    gains = [row for row in found["moved"] if row["difference"] > 0][:MOVED]
    losses = [row for row in found["moved"] if row["difference"] < 0][-MOVED:]
    rows = [f"  {row['query_id']}  {row['before']:.4f} to {row['after']:.4f}" for row in [*gains, *losses]]
    return ["queries that moved most", *rows] if rows else []


def _leaks(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"  {leak['piece']} has {leak['length']} words in a row of the {leak['split']} {leak['kind']} {leak['owner']}: "
        f'"{leak["text"][:80]}"'
        for leak in sorted(found["leaks"], key=lambda leak: leak["split"] != "test")[:ROWS]
    ]
    test = sum(leak["split"] == "test" for leak in found["leaks"])
    if not lines:
        return []
    return [f"prompts that repeat judged texts: {len(found['leaks'])}, {test} of them of the test split", *lines]


def _footings(found: Mapping[str, Any]) -> list[str]:
    usage, left_out = found["usage"], found["queries"]["left_out"]
    used = f"{usage['calls']} calls"
    if found["lm"] != "offline":
        price = "price unknown" if usage["list_usd"] is None else f"${usage['list_usd']:.4f}"
        used += f", {usage['input_tokens']} tokens in, {usage['output_tokens']} out, {price}"
    lines = [f"dev {queries(len(left_out))} left out as near repeats of test queries"] if left_out else []
    if found["looks"]:
        lines.append(f"looks at the test queries with {found['program']} so far: {found['looks']}")
    lines.append(f"{used}, {found['seconds']:.1f} s")
    lines.append(f"compiled: {found['compiled']}")
    if found["kept"] == "compiled" and not found.get("held_out"):
        lines.append(f"take it up with: {found['take_up']}")
    return lines
