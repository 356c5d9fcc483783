"""The result of a compilation as a person reads it: what was kept, what it changes, and the
comparison of the runs; and the list of teleprompters.
"""

import shlex

from sextant.evals.reporting.comparison_tables import lay_out_comparison
from sextant.evals.run_descriptions import describe_system, describe_task
from sextant.optimizers.teleprompters import TELEPROMPTERS, Teleprompter, find_teleprompter
from sextant.tools import plugins
from sextant.tools.errors import UsageError
from sextant.tools.platform.cli import print_json
from sextant.tools.platform.number_format import abbreviate, count_of, number, plural, queries
from sextant.tools.platform.result_table import CommandLine, DefinitionList, TerminalBlock, show
from sextant.tools.records import JsonMapping

SHOWN_LEAKS = 12  # learnt.json has all


def print_result(learnt: JsonMapping, *, as_json: bool = False) -> None:
    """Print the result on stdout; `learnt` is as learnt.json has it."""
    if as_json:
        print_json(learnt, kept="in learnt.json")
        return
    blocks = [*_headings(learnt), *_changes(learnt), *_leaks_found(learnt), *_footings(learnt)]
    for comparison in learnt.get("held_out") or learnt.get("on_validation") or ():
        blocks += ["", *lay_out_comparison(comparison)]
    show(blocks, kept="in learnt.json")


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
        levels = "|".join(shlex.quote(str(value)) for value in dict.fromkeys(values))
        accepted.append(f"-O {option}={levels}")
    return accepted


def _headings(learnt: JsonMapping) -> list[TerminalBlock]:
    sizes = dict(learnt["queries"])
    left_out = [query["query_id"] for query in sizes.pop("left_out")]
    counts = ", ".join(f"{count} {part_name}" for part_name, count in sizes.items())
    names = {"teacher": "teacher", "prompts by": "prompt_lm", "from": "start"}
    roles = [f", {words} {learnt[key]}" for words, key in names.items() if learnt[key]]
    before = learnt["before"]
    kept = {
        "before": f"no gain{' so far' if learnt['stopped'] else ''}, the program is kept as it was",
        "start": "nothing is better than the start, which is kept",
        "compiled": f"candidate {learnt['candidate']} is kept",
    }
    lines: list[TerminalBlock] = [
        f"{describe_task({**learnt, 'split': 'dev'})}: {counts}",
        describe_system(
            {**learnt, "retriever": learnt["pool"] or learnt["retriever"], "compiled": None}
        ),
        f"{learnt['optimizer']}, by {learnt['objective']}{''.join(roles)}",
        f"{kept[learnt['kept']]}, of {plural(learnt['candidates'], 'other candidate')} on "
        f"validation: {before['mean']:.4f} to {learnt['after']['mean']:.4f} over "
        f"{queries(before['queries'])}",
    ]
    if left_out:
        ids = abbreviate(", ".join(left_out))
        lines.append(
            f"dev queries left out as near repeats of test queries: {len(left_out)} ({ids})"
        )
    if learnt["kept"] != "before" and "on_validation" not in learnt:
        lines.append("the difference is not tested, because no runs compare the two yet")
    return lines


def _changes(learnt: JsonMapping) -> list[TerminalBlock]:
    lines: list[TerminalBlock] = []
    for name, (old, new) in learnt["parameters"].items():
        lines.append(f"{name}: {' '.join(str(old).split())} to {new}")
    for name, difference in learnt["changes"].items():
        lines += ["", f"prompt of {name}", *difference.splitlines()]
    return [*lines, ""]


def _leaks_found(learnt: JsonMapping) -> list[TerminalBlock]:
    leaks = sorted(learnt["leaks"], key=lambda leak: leak["split"] != "test")
    of_test = sum(leak["split"] == "test" for leak in leaks)
    lines: list[TerminalBlock] = []
    if leaks:
        lines.append(
            f"prompts that repeat judged texts: {len(leaks)}, {of_test} of them of the test split"
        )
    for leak in leaks[:SHOWN_LEAKS]:
        lines.append(
            f"  {leak['piece']} has {plural(leak['length'], 'word')} in a row of the {leak['split']} "
            f'{leak["kind"]} {leak["owner"]}: "{leak["text"][:80]}"'
        )
    return lines


def _footings(learnt: JsonMapping) -> list[TerminalBlock]:
    usage = learnt["usage"]
    lines: list[TerminalBlock] = [
        f"looks at the test queries with {learnt['program']} so far: {learnt['looks']}",
        f"{count_of(usage['calls'], 'call')}, {count_of(usage['input_tokens'], 'token')} in, "
        f"{usage['output_tokens']} out, {number(usage['list_usd'], '${:.4f}', 'price unknown')}, "
        f"{learnt['seconds']:.1f} s",
        f"compiled: {learnt['compiled']}",
    ]
    if instruction := learnt["instruction"]:
        lines.append(f"what queries say of the task: {instruction}")
    if learnt["kept"] != "before" and not learnt.get("held_out"):
        lines.append(CommandLine("take it up with:", learnt["take_up"]))
    for comparison in (*learnt.get("on_validation", ()), *learnt.get("held_out", ())):
        folders = shlex.join([comparison["baseline"], *comparison["runs"]])
        lead = f"runs of {comparison['task']}, {comparison['split']} split:"
        lines.append(CommandLine(lead, f"sextant view {folders}"))
    return lines
