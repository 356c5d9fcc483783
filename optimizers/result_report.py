"""The result of a compilation (optimizers/result_summary.py) as a person reads it, and the list of
teleprompters.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from evals.reporting.comparison_tables import HEADS, lay_out_comparison, metric_rows
from evals.text_tables import TextBlock, TextTable, render_terminal
from optimizers.result_summary import SHORT, shorten
from optimizers.teleprompters import TELEPROMPTERS, Teleprompter, find_teleprompter
from tools import plugins
from tools.cli import print_stdout, strip_control_characters
from tools.errors import UsageError
from tools.number_format import number, queries

ROWS = 12  # candidates in the table; learnt.json has all
MOVED = 5  # queries with the largest gains, and with the largest losses; learnt.json has all


def print_result(learnt: Mapping[str, Any], *, as_json: bool = False) -> None:
    """Print the result on stdout; `learnt` is as learnt.json has it."""
    if as_json:
        print_stdout(json.dumps(learnt) + "\n", kept="in learnt.json")
        return
    blocks: list[TextBlock] = [*_headings(learnt), _candidates(learnt)]
    blocks += _tasks("validation by task", learnt.get("tasks", ()))
    for section in (_notes, _gain, _changes, _queries_moved, _leaks_found, _footings):
        blocks += section(learnt)
    held_out = learnt.get("held_out", {"tasks": ()})
    if "tasks" in held_out:
        blocks += _tasks("test by task", held_out["tasks"])
    else:
        blocks += lay_out_comparison(held_out)
    print_stdout(render_terminal(blocks), kept="in learnt.json")


def show_table(*, as_json: bool) -> None:
    """Print the teleprompters of the table and of installed packages."""
    rows = dict(TELEPROMPTERS)
    faults = {}
    for name, package in plugins.list_names(TELEPROMPTERS, plugins.TELEPROMPTERS).items():
        if not package:
            continue
        try:
            rows[name] = find_teleprompter(name)
        except UsageError as error:  # an installed package may be broken
            faults[name] = f"cannot be used: {error}"
    if as_json:
        table = {}
        for name, row in rows.items():
            table[name] = {"what": row.summary, "options": dict(row.options)}
        print_stdout(json.dumps(table) + "\n")
        return
    width = max(map(len, rows))
    lines = []
    for name, row in rows.items():
        lines.append(f"{name:<{width}}  {row.summary}")
        if accepted := _accepted_options(row):
            lines.append(f"{'':<{width}}  {' '.join(accepted)}")
    lines += [strip_control_characters(f"{name:<{width}}  {faults[name]}") for name in faults]
    lines += [
        "",
        "values at --budget light|medium|heavy; one that stands alone is for all three",
        "your own: --optimizer FILE.py:NAME or package.module:NAME",
        "",
    ]
    print_stdout("\n".join(lines))


def _accepted_options(row: Teleprompter) -> list[str]:
    accepted = []
    if row.teacher:
        accepted.append("--teacher")
    if row.proposes:
        accepted.append("--prompt-lm")
    for option, values in row.options.items():
        # Quoted, because a shell would read `->` as a redirection.
        single_value = shlex.quote(str(values[0]))
        levels = "|".join(map(str, values)) if len(set(values)) > 1 else single_value
        accepted.append(f"-O {option}={levels}")
    return accepted


def _tasks(title: str, rows: Sequence[Mapping[str, Any]]) -> list[TextBlock]:
    if not rows:
        return []
    named = []
    for row in rows:
        remark = "" if row.get("compiled_on", True) else ", not compiled on"
        named.append({**row, "metric": f"{row['task']}{remark}"})
    return [TextTable(title, ["task", *HEADS], metric_rows(named))]


def _headings(learnt: Mapping[str, Any]) -> list[str]:
    note = "mini: bundled, invented" if learnt["data"] == "mini" else learnt["data"]
    model = "offline, no language model" if learnt["lm"] == "offline" else learnt["lm"]
    for name, spec in (("teacher", learnt["teacher"]), ("prompts by", learnt["prompt_lm"])):
        if spec and spec != learnt["lm"]:
            model += f", {name}: {spec}"
    counts = learnt["queries"]
    folds = f", in each of {counts['folds']} folds" if "folds" in counts else ""
    start = f", from {learnt['start']}" if learnt["start"] else ""
    return [
        f"{learnt['task']}  dev split: {counts['train']} train, {counts['validation']} "
        f"validation{folds}  ({note})",
        f"{learnt['program']} over {learnt['pool'] or learnt['retriever']}, model: {model}",
        f"{learnt['optimizer']}, by {learnt['objective']}{start}",
    ]


def _candidates(learnt: Mapping[str, Any]) -> TextTable:
    is_tuned = any(row["parameters"] for row in learnt["candidates"])
    has_folds = any("change" in row for row in learnt["candidates"])
    heads = ["candidate", "validation", "95 % interval"]
    if has_folds:
        heads.append("change")
    heads += ["train", "parameters" if is_tuned else "demos", "calls", "tokens", "price"]
    rows = []
    for row in learnt["candidates"][:ROWS]:
        cells = [_candidate_name(row, learnt["candidate"])]
        cells += [_mean(row["validation"], is_complete=row["whole"]), _interval(row["validation"])]
        if has_folds:
            cells.append(number(row.get("change"), "{:+.4f}", ""))
        is_trained_on_all = row["train"]["queries"] >= learnt["queries"]["train"]
        cells.append(_mean(row["train"], is_complete=is_trained_on_all))
        cells.append(_list_parameters(row["parameters"]) if is_tuned else str(row["demos"]))
        cells += [str(row["calls"]), str(row["tokens"]), number(row["list_usd"], "${:.4f}")]
        rows.append(cells)
    return TextTable("", heads, rows, names=(0, 4) if is_tuned else (0,))


def _candidate_name(row: Mapping[str, Any], kept_candidate: str) -> str:
    name = str(row["candidate"])
    if row["before"]:
        name += " (before)"
    elif row["start"]:
        name += " (start)"
    if row["candidate"] == kept_candidate:
        name += " (kept)"
    return name


def _list_parameters(parameters: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={shorten(str(value))}" for name, value in parameters.items())


def _interval(measured: Mapping[str, Any]) -> str:
    if measured["low"] is None:
        return ""
    return f"{measured['low']:.4f} to {measured['high']:.4f}"


def _mean(measured: Mapping[str, Any], *, is_complete: bool) -> str:
    if measured["mean"] is None:
        return ""
    return f"{measured['mean']:.4f}" + ("" if is_complete else f" ({measured['queries']})")


def _notes(learnt: Mapping[str, Any]) -> list[str]:
    lines = []
    hidden_count = len(learnt["candidates"]) - ROWS
    if hidden_count > 0:
        lines.append(f"{hidden_count} more candidates are in learnt.json")
    sizes = learnt["queries"]
    for row in learnt["candidates"][:ROWS]:
        for part_name in ("train", "validation"):
            if 0 < row[part_name]["queries"] < sizes[part_name]:
                return [*lines, "(n): evaluated on n of the queries"]
    return lines


def _gain(learnt: Mapping[str, Any]) -> list[str]:
    gain = learnt["gain"]
    if learnt["kept"] == "before":
        reason = "no other candidate came to validation"
        if gain["candidates"]:
            reason = "no candidate is better on the validation queries"
        so_far = " so far" if learnt["stopped"] else ""
        return [
            f"no gain{so_far}: {reason}, so the program is kept as it was; there is nothing to ask "
            f"test about"
        ]
    interval = "" if gain["low"] is None else f" ({gain['low']:+.4f} to {gain['high']:+.4f})"
    verdict = "significant" if gain["significant"] else "not significant"
    correction = ""
    if gain["candidates"] > 1:
        correction = f", times {gain['candidates']} candidates {gain['p_corrected']:.3g}"
    if gain["detectable"] is not None and not gain["significant"]:
        verdict += f", so many queries show {gain['detectable']:.4f}"
    start = "nothing is better than the start, which is kept; " if learnt["kept"] == "start" else ""
    means = f"{learnt['before']['mean']:.4f} to {learnt['after']['mean']:.4f}"
    return [
        f"{start}validation {means}: {gain['difference']:+.4f}{interval}, p {gain['p']:.3g}"
        f"{correction}: {verdict}; {gain['wins']} won, {gain['ties']} tied, {gain['losses']} lost"
    ]


def _changes(learnt: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, values in learnt["parameters"].items():
        old, new = (strip_control_characters(str(value)) or '""' for value in values)
        between = " to " if len(old + new) < SHORT else "\nto "
        lines += f"{name}: {old}{between}{new}".splitlines()
    for name, difference in learnt["changes"].items():
        lines += ["", f"prompt of {name}", *difference.splitlines()[2:]]
    return [*lines, ""] if lines else []


def _queries_moved(learnt: Mapping[str, Any]) -> list[str]:
    gains = [row for row in learnt["moved"] if row["difference"] > 0][:MOVED]
    losses = [row for row in learnt["moved"] if row["difference"] < 0][-MOVED:]
    lines = []
    for row in [*gains, *losses]:
        lines.append(f"  {row['query_id']}  {row['before']:.4f} to {row['after']:.4f}")
    return ["queries that moved most", *lines] if lines else []


def _leaks_found(learnt: Mapping[str, Any]) -> list[str]:
    leaks = sorted(learnt["leaks"], key=lambda leak: leak["split"] != "test")
    if not leaks:
        return []
    of_test = sum(leak["split"] == "test" for leak in leaks)
    lines = [f"prompts that repeat judged texts: {len(leaks)}, {of_test} of them of the test split"]
    for leak in leaks[:ROWS]:
        lines.append(
            f"  {leak['piece']} has {leak['length']} words in a row of the {leak['split']} "
            f"{leak['kind']} {leak['owner']}: "
            f'"{leak["text"][:80]}"'
        )
    return lines


def _footings(learnt: Mapping[str, Any]) -> list[str]:
    lines = []
    if left_out := learnt["queries"]["left_out"]:
        lines.append(f"dev {queries(len(left_out))} left out as near repeats of test queries")
    if learnt["looks"]:
        lines.append(
            f"looks at the test queries with {learnt['program']} so far: {learnt['looks']}"
        )
    usage = learnt["usage"]
    cost = f"{usage['calls']} calls"
    if learnt["lm"] != "offline":
        price = number(usage["list_usd"], "${:.4f}", "price unknown")
        cost += f", {usage['input_tokens']} tokens in, {usage['output_tokens']} out, {price}"
    lines += [f"{cost}, {learnt['seconds']:.1f} s", f"compiled: {learnt['compiled']}"]
    if learnt["instruction"]:
        lines.append(f"what queries say of the task: {learnt['instruction']}")
    if learnt["kept"] != "before" and not learnt.get("held_out"):
        lines.append(f"take it up with: {learnt['take_up']}")
    return lines
