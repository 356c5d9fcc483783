"""The result of a compilation (optimizers/result_summary.py) as a person reads it, and the list of
teleprompters.
"""

import shlex
import sys
from collections.abc import Sequence

from sextant.evals.reporting.comparison_tables import lay_out_comparison
from sextant.evals.reporting.findings import findings_table, make_finding
from sextant.optimizers.result_summary import SHORT, shorten
from sextant.optimizers.teleprompters import TELEPROMPTERS, Teleprompter, find_teleprompter
from sextant.tools import plugins
from sextant.tools.errors import UsageError
from sextant.tools.platform.cli import (
    line_width,
    print_json,
    print_stdout,
    strip_control_characters,
)
from sextant.tools.platform.number_format import count_of, number, plural, queries
from sextant.tools.platform.result_table import (
    DefinitionList,
    ResultTable,
    TextBlock,
    render_terminal,
    show,
)
from sextant.tools.platform.wrapping import command_lines
from sextant.tools.records import JsonMapping

ROWS = 12  # candidates in the table; learnt.json has all
# The queries of a run by its split.
SPLITS = {"dev": "validation queries", "test": "test queries"}
MOVED = 5  # queries with the largest gains, and with the largest losses; learnt.json has all


def print_result(learnt: JsonMapping, *, as_json: bool = False) -> None:
    """Print the result on stdout; `learnt` is as learnt.json has it."""
    if as_json:
        print_json(learnt, kept="in learnt.json")
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
        print_json(table)
        return
    items = []
    for name, row in rows.items():
        items.append((name, row.summary))
        if accepted := _accepted_options(row):
            items.append(("", " ".join(accepted)))
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


def _tasks(title: str, rows: Sequence[JsonMapping]) -> list[TextBlock]:
    if not rows:
        return []
    named = []
    for row in rows:
        remark = "" if row.get("compiled_on", True) else ", not compiled on"
        named.append(make_finding(row, task=f"{row['task']}{remark}"))
    return [findings_table(title, named, "tasks", [])]


def _headings(learnt: JsonMapping) -> list[str]:
    data = learnt["data"]
    note = "mini: bundled, invented" if data == "mini" else data
    student = learnt["lm"]
    model = "offline, no language model" if student == "offline" else student
    for name, key in (("teacher", "teacher"), ("prompts by", "prompt_lm")):
        spec = learnt[key]
        if spec and spec != student:
            model += f", {name}: {spec}"
    counts = learnt["queries"]
    sizes = f"{counts['train']} train, {counts['validation']} validation"
    if "folds" in counts:
        sizes += f", in each of {counts['folds']} folds"
    start = f", from {learnt['start']}" if learnt["start"] else ""
    return [
        f"{learnt['task']}  dev split: {sizes}  ({note})",
        f"{learnt['program']} over {learnt['pool'] or learnt['retriever']}, model: {model}",
        f"{learnt['optimizer']}, by {learnt['objective']}{start}",
    ]


def _candidates(learnt: JsonMapping) -> ResultTable:
    is_tuned = any(row["parameters"] for row in learnt["candidates"])
    has_folds = any("change" in row for row in learnt["candidates"])
    heads = ["candidate", "validation (queries)", "95 % interval"]
    if has_folds:
        heads.append("change")
    heads += ["train (queries)", "parameters" if is_tuned else "demos", "calls", "tokens", "price"]
    rows = []
    for row in learnt["candidates"][:ROWS]:
        validation = row["validation"]
        cells = [
            _candidate_name(row, learnt["candidate"]),
            _mean(validation),
            _interval(validation),
        ]
        if has_folds:
            cells.append(number(row.get("change"), "{:+.4f}", ""))
        cells.append(_mean(row["train"]))
        if is_tuned:
            cells.append(_list_parameters(row["parameters"]))
        else:
            cells.append(str(row["demos"]))
        cells.append(str(row["calls"]))
        cells.append(str(row["tokens"]))
        cells.append(number(row["list_usd"], "${:.4f}"))
        rows.append(cells)
    names = (0, heads.index("parameters")) if is_tuned else (0,)
    return ResultTable("", heads, rows, names=names)


def _candidate_name(row: JsonMapping, kept_candidate: str) -> str:
    name = str(row["candidate"])
    if row["before"]:
        name += " (before)"
    elif row["start"]:
        name += " (start)"
    if row["candidate"] == kept_candidate:
        name += " (kept)"
    return name


def _list_parameters(parameters: JsonMapping) -> str:
    return " ".join(f"{name}={shorten(str(value))}" for name, value in parameters.items())


def _interval(measured: JsonMapping, form: str = "{low:.4f} to {high:.4f}") -> str:
    return "" if measured["low"] is None else form.format(**measured)


def _mean(measured: JsonMapping) -> str:
    # In folds, each candidate has queries of its own; elsewhere an optimizer may give one up.
    return number(measured["mean"], f"{{:.4f}} ({measured['queries']})", "")


def _notes(learnt: JsonMapping) -> list[str]:
    hidden_count = len(learnt["candidates"]) - ROWS
    if hidden_count > 0:
        return [f"learnt.json has {plural(hidden_count, 'more candidate')}"]
    return []


def _gain(learnt: JsonMapping) -> list[str]:
    if learnt["kept"] == "before":
        return [_no_gain(learnt)]
    gain = learnt["gain"]
    before = learnt["before"]["mean"]
    after = learnt["after"]["mean"]
    start = ""
    if learnt["kept"] == "start":
        start = "nothing is better than the start, which is kept; "
    return [
        f"{start}validation {before:.4f} to {after:.4f} over {queries(learnt['after']['queries'])}: "
        f"{gain['difference']:+.4f}{_interval(gain, ' ({low:+.4f} to {high:+.4f})')}, "
        f"p {gain['p']:.3g}{_correction(gain)}: {_verdict(gain)}; "
        f"{gain['wins']} won, {gain['ties']} tied, {gain['losses']} lost"
    ]


def _no_gain(learnt: JsonMapping) -> str:
    reason = "no other candidate came to validation"
    if learnt["gain"]["candidates"]:
        reason = "no candidate is better on the validation queries"
    so_far = " so far" if learnt["stopped"] else ""
    return (
        f"no gain{so_far}: {reason}, so the program is kept as it was; there is nothing to ask "
        f"test about"
    )


def _correction(gain: JsonMapping) -> str:
    count = gain["candidates"]
    corrected = gain["p_corrected"]
    return f", times {plural(count, 'candidate')} {corrected:.3g}" if count > 1 else ""


def _verdict(gain: JsonMapping) -> str:
    if gain["significant"]:
        return "significant"
    detectable = gain["detectable"]
    if detectable is None:
        return "not significant"
    return f"not significant, so many queries show {detectable:.4f} after this correction"


def _changes(learnt: JsonMapping) -> list[str]:
    lines = []
    for name, (old_value, new_value) in learnt["parameters"].items():
        old = strip_control_characters(str(old_value)) or '""'
        new = strip_control_characters(str(new_value)) or '""'
        is_short = len(old + new) < SHORT
        between = " to " if is_short else "\nto "
        change = f"{name}: {old}{between}{new}"
        lines += change.splitlines()
    for name, difference in learnt["changes"].items():
        # Without the two lines that name the sides.
        changed_lines = difference.splitlines()[2:]
        lines += ["", f"prompt of {name}", *changed_lines]
    if lines:
        lines.append("")
    return lines


def _queries_moved(learnt: JsonMapping) -> list[str]:
    moved = learnt["moved"]
    if not moved:
        return []
    gains = [row for row in moved if row["difference"] > 0]
    losses = [row for row in moved if row["difference"] < 0]
    lines = ["queries that moved most"]
    for row in [*gains[:MOVED], *losses[-MOVED:]]:
        lines.append(f"  {row['query_id']}  {row['before']:.4f} to {row['after']:.4f}")
    return lines


def _leaks_found(learnt: JsonMapping) -> list[str]:
    leaks = learnt["leaks"]
    if not leaks:
        return []
    of_test = [leak for leak in leaks if leak["split"] == "test"]
    of_dev = [leak for leak in leaks if leak["split"] != "test"]
    lines = [
        f"prompts that repeat judged texts: {len(leaks)}, {len(of_test)} of them of the test split"
    ]
    for leak in [*of_test, *of_dev][:ROWS]:
        source = f"{leak['split']} {leak['kind']} {leak['owner']}"
        words = plural(leak["length"], "word")
        lines.append(
            f'  {leak["piece"]} has {words} in a row of the {source}: "{leak["text"][:80]}"'
        )
    return lines


def _footings(learnt: JsonMapping) -> list[str]:
    lines = []
    if left_out := learnt["queries"]["left_out"]:
        count = queries(len(left_out))
        lines.append(f"dev {count} left out as near repeats of test queries")
    if looks := learnt["looks"]:
        program = learnt["program"]
        lines.append(f"looks at the test queries with {program} so far: {looks}")
    lines.append(f"{_cost(learnt)}, {learnt['seconds']:.1f} s")
    lines.append(f"compiled: {learnt['compiled']}")
    if instruction := learnt["instruction"]:
        lines.append(f"what queries say of the task: {instruction}")
    is_improved = learnt["kept"] != "before"
    if is_improved and not learnt.get("held_out"):
        width = line_width(sys.stdout)
        lines += command_lines("take it up with:", learnt["take_up"], width)
    return lines + _runs(learnt)


def _runs(learnt: JsonMapping) -> list[str]:
    """Return the commands that show the runs of each task and split."""
    force = " --force" if learnt["instruction"] else ""
    width = line_width(sys.stdout)
    lines = []
    for row in learnt.get("runs", ()):
        folders = shlex.join(row["folders"].values())
        view = f"sextant view {folders}"
        compare = f"sextant compare {folders}{force}"
        lines.append(f"runs of {row['task']}, {SPLITS[row['split']]}: {', '.join(row['folders'])}")
        lines += command_lines("  look at them:", view, width)
        lines += command_lines("  compare them:", compare, width)
    return lines


def _cost(learnt: JsonMapping) -> str:
    usage = learnt["usage"]
    calls = count_of(usage["calls"], "call")
    if learnt["lm"] == "offline":
        return calls
    input_tokens = plural(usage["input_tokens"], "token")
    price = number(usage["list_usd"], "${:.4f}", "price unknown")
    return f"{calls}, {input_tokens} in, {usage['output_tokens']} out, {price}"
