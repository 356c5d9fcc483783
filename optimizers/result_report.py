"""The result of a compilation (optimizers/result_summary.py) as a person reads it, and the list of
teleprompters.
"""

import shlex
import sys
from collections.abc import Sequence

from sextant.evals.reporting.comparison_tables import lay_out_comparison
from sextant.evals.reporting.findings import findings_table, make_finding
from sextant.evals.run_descriptions import describe_system, describe_task
from sextant.optimizers.result_summary import shorten
from sextant.optimizers.teleprompters import TELEPROMPTERS, Teleprompter, find_teleprompter
from sextant.tools import plugins
from sextant.tools.errors import UsageError
from sextant.tools.platform.cli import (
    line_width,
    print_json,
    print_stdout,
    strip_control_characters,
)
from sextant.tools.platform.number_format import abbreviate, count_of, number, plural, queries
from sextant.tools.platform.result_table import (
    DefinitionList,
    ResultTable,
    TextBlock,
    render_terminal,
    show,
)
from sextant.tools.platform.wrapping import command_lines
from sextant.tools.records import JsonMapping

ROWS = 12  # candidates and leaks that are shown; learnt.json has all


def print_result(learnt: JsonMapping, *, as_json: bool = False) -> None:
    """Print the result on stdout; `learnt` is as learnt.json has it."""
    if as_json:
        print_json(learnt, kept="in learnt.json")
        return
    blocks: list[TextBlock] = [
        *_headings(learnt),
        _candidates(learnt),
        _gain(learnt),
        *_changes(learnt),
        *_leaks_found(learnt),
        *_footings(learnt),
    ]
    compared = learnt.get("held_out") or learnt.get("on_validation")
    if compared and "tasks" in compared:
        blocks.append(_tasks(compared["tasks"]))
    elif compared:
        blocks += lay_out_comparison(compared)
    print_stdout(render_terminal(blocks), kept="in learnt.json")


def show_table(*, as_json: bool) -> None:
    """Print the teleprompters of the table and of installed packages."""
    rows = {}
    faults = {}
    for name in TELEPROMPTERS | plugins.list_names(TELEPROMPTERS, plugins.TELEPROMPTERS):
        try:
            rows[name] = find_teleprompter(name)
        except UsageError as error:  # an installed package may be broken
            faults[name] = f"cannot be used: {error}"
    if as_json:
        print_json(
            {name: {"what": row.summary, "options": row.options} for name, row in rows.items()}
        )
        return
    items = []
    for name, row in rows.items():
        items += [(name, row.summary), ("", " ".join(_accepted_options(row)))]
    items += faults.items()
    show(
        [
            DefinitionList(items),
            "",
            "values at --budget light|medium|heavy; one that stands alone is for all three",
            "your own: --optimizer FILE.py:NAME or package.module:NAME",
        ]
    )


def _accepted_options(row: Teleprompter) -> list[str]:
    accepted = ["--teacher"] * row.teacher + ["--prompt-lm"] * row.proposes
    for option, values in row.options.items():
        # Quoted, because a shell would read `->` as a redirection.
        single_value = shlex.quote(str(values[0]))
        levels = "|".join(map(str, values)) if len(set(values)) > 1 else single_value
        accepted.append(f"-O {option}={levels}")
    return accepted


def _tasks(rows: Sequence[JsonMapping]) -> ResultTable:
    findings = [
        make_finding(row, task=row["task"] + ("" if row["compiled_on"] else ", not compiled on"))
        for row in rows
    ]
    return findings_table(rows[0]["metric"], findings, "tasks", [])


def _headings(learnt: JsonMapping) -> list[str]:
    queries_of = learnt["queries"]
    counts = f"{queries_of['train']} train, {queries_of['validation']} validation"
    if "folds" in queries_of:
        counts += f", in each of {queries_of['folds']} folds"
    searched = learnt["pool"] or learnt["retriever"]
    compiling = f"{learnt['optimizer']}, by {learnt['objective']}"
    for words, key in (("teacher", "teacher"), ("prompts by", "prompt_lm"), ("from", "start")):
        if learnt[key] and learnt[key] != learnt["lm"]:
            compiling += f", {words} {learnt[key]}"
    return [
        f"{describe_task({**learnt, 'split': 'dev'})}: {counts}",
        describe_system({**learnt, "retriever": searched, "compiled": None}),
        compiling,
    ]


def _candidates(learnt: JsonMapping) -> ResultTable:
    rows = []
    for row in learnt["candidates"][:ROWS]:
        name = row["candidate"]
        if row["before"] or row["start"]:
            name += " (before)" if row["before"] else " (start)"
        if row["candidate"] == learnt["candidate"]:
            name += " (kept)"
        content = [f"{key}={shorten(str(value))}" for key, value in row["parameters"].items()]
        if row["demos"]:
            content.append(plural(row["demos"], "demo"))
        # In folds, each candidate has queries of its own; elsewhere an optimizer may give one up.
        validation, train = (
            number(measured["mean"], f"{{:.4f}} ({measured['queries']})", "")
            for measured in (row["validation"], row["train"])
        )
        change = number(row["change"], "{:+.4f}", "")
        rows.append([name, validation, change, train, " ".join(content)])
    notes = []
    if (hidden_count := len(learnt["candidates"]) - ROWS) > 0:
        notes.append(f"learnt.json has {plural(hidden_count, 'more candidate')}")
    heads = ["candidate", "validation (queries)", "change", "train (queries)", "of it"]
    return ResultTable("", heads, rows, names=(0, 4), notes=notes)


def _gain(learnt: JsonMapping) -> str:
    gain = learnt["gain"]
    if learnt["kept"] == "before":
        so_far = " so far" if learnt["stopped"] else ""
        return (
            f"no gain{so_far}: of {plural(gain['candidates'], 'other candidate')} on validation none "
            f"is better, so the program is kept as it was"
        )
    start = "nothing is better than the start, which is kept; " if learnt["kept"] == "start" else ""
    interval = "" if gain["low"] is None else f" ({gain['low']:+.4f} to {gain['high']:+.4f})"
    return (
        f"{start}validation {learnt['before']['mean']:.4f} to {learnt['after']['mean']:.4f} over "
        f"{queries(gain['queries'])}: {gain['difference']:+.4f}{interval}, p {gain['p']:.3g}, "
        f"times {plural(gain['candidates'], 'candidate')} {gain['p_corrected']:.3g}: "
        f"{'' if gain['significant'] else 'not '}significant"
    )


def _changes(learnt: JsonMapping) -> list[str]:
    lines = []
    for name, values in learnt["parameters"].items():
        old, new = (strip_control_characters(str(value)) or '""' for value in values)
        lines.append(f"{name}: {old} to {new}")
    for name, difference in learnt["changes"].items():
        lines += ["", f"prompt of {name}", *difference.splitlines()]
    return [*lines, ""]


def _leaks_found(learnt: JsonMapping) -> list[str]:
    leaks = sorted(learnt["leaks"], key=lambda leak: leak["split"] != "test")
    if not leaks:
        return []
    of_test = sum(leak["split"] == "test" for leak in leaks)
    lines = [f"prompts that repeat judged texts: {len(leaks)}, {of_test} of them of the test split"]
    for leak in leaks[:ROWS]:
        lines.append(
            f"  {leak['piece']} has {plural(leak['length'], 'word')} in a row of the {leak['split']} "
            f'{leak["kind"]} {leak["owner"]}: "{leak["text"][:80]}"'
        )
    return lines


def _footings(learnt: JsonMapping) -> list[str]:
    width = line_width(sys.stdout)
    usage = learnt["usage"]
    lines = []
    if left_out := learnt["queries"]["left_out"]:
        ids = abbreviate(", ".join(query["query_id"] for query in left_out))
        lines.append(
            f"dev queries left out as near repeats of test queries: {len(left_out)} ({ids})"
        )
    if looks := learnt["looks"]:
        lines.append(f"looks at the test queries with {learnt['program']} so far: {looks}")
    lines += [
        f"{count_of(usage['calls'], 'call')}, {count_of(usage['input_tokens'], 'token')} in, "
        f"{usage['output_tokens']} out, {number(usage['list_usd'], '${:.4f}', 'price unknown')}, "
        f"{learnt['seconds']:.1f} s",
        f"compiled: {learnt['compiled']}",
    ]
    if instruction := learnt["instruction"]:
        lines.append(f"what queries say of the task: {instruction}")
    if learnt["kept"] != "before" and not learnt.get("held_out"):
        lines += command_lines("take it up with:", learnt["take_up"], width)
    force = " --force" if learnt["instruction"] else ""
    for row in learnt.get("runs", ()):
        folders = shlex.join(row["folders"].values())
        lines.append(f"runs of {row['task']}, {row['split']} split: {', '.join(row['folders'])}")
        lines += command_lines("  look at them:", f"sextant view {folders}", width)
        lines += command_lines("  compare them:", f"sextant compare {folders}{force}", width)
    return lines
