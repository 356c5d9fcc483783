"""The result of a compilation as a person reads it: what was kept, what it changes, and the
comparison of the runs; and the list of teleprompters.
"""

import shlex
from collections.abc import Iterator, Sequence

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
    blocks: list[TerminalBlock] = [
        describe_task({**learnt, "split": "dev"}),
        describe_system(
            {**learnt, "retriever": learnt["pool"] or learnt["retriever"], "compiled": None}
        ),
        DefinitionList([(words, text) for words, text in _list_facts(learnt) if text]),
    ]
    for name, prompt in learnt["changes"].items():
        blocks += ["", f"prompt of {name}, with {plural(prompt['demos'], 'demonstration')}:"]
        blocks += [f"  {line}" for line in prompt["instructions"].splitlines()]
        blocks += [f"  {name}: {text}" for name, text in prompt["descriptions"].items()]
    blocks += ["", *_leaks_found(learnt["leaks"])]
    if learnt["kept"] != "before" and not learnt.get("held_out"):
        blocks.append(CommandLine("take it up with:", learnt["take_up"]))
    for comparison in (*learnt.get("on_validation", ()), *learnt.get("held_out", ())):
        blocks += ["", *lay_out_comparison(comparison)]
    show(blocks, kept="in learnt.json")


def _list_facts(learnt: JsonMapping) -> Iterator[tuple[str, str]]:
    """Yield facts with their names; a fact that is "" is not told."""
    sizes = dict(learnt["queries"])
    left_out = [query["query_id"] for query in sizes.pop("left_out")]
    usage = learnt["usage"]
    yield "optimizer", f"{learnt['optimizer']}, by {learnt['objective']}"
    for words, key in (("teacher", "teacher"), ("prompts by", "prompt_lm"), ("start", "start")):
        yield words, learnt[key] or ""
    yield "queries", ", ".join(f"{count} {part_name}" for part_name, count in sizes.items())
    repeats = f"{len(left_out)}, as near repeats of test queries: {abbreviate(', '.join(left_out))}"
    yield "left out", repeats if left_out else ""
    kept = {
        "before": f"the program as it was, no gain{' so far' if learnt['stopped'] else ''}",
        "start": "the start, nothing is better",
        "compiled": f"candidate {learnt['candidate']}",
    }
    yield (
        "kept",
        f"{kept[learnt['kept']]}, of {plural(learnt['candidates'], 'other candidate')} on validation",
    )
    untested = learnt["kept"] != "before" and "on_validation" not in learnt
    yield (
        "validation",
        f"{learnt['before']['mean']:.4f} to {learnt['after']['mean']:.4f} over "
        f"{queries(learnt['after']['queries'])}{', not tested yet' if untested else ''}",
    )
    for name, (old, new) in learnt["parameters"].items():
        yield name, f"{' '.join(str(old).split())} to {new}"
    yield "looks", f"{learnt['looks']} at the test queries with {learnt['program']} so far"
    price = number(usage["list_usd"], "${:.4f}", "price unknown")
    yield (
        "used",
        f"{count_of(usage['calls'], 'call')}, {count_of(usage['input_tokens'], 'token')} in, "
        f"{usage['output_tokens']} out, {price}, {learnt['seconds']:.1f} s",
    )
    yield "compiled", learnt["compiled"]
    yield "instruction", learnt["instruction"] or ""


def _leaks_found(leaks: Sequence[JsonMapping]) -> list[str]:
    of_test = sum(leak["split"] == "test" for leak in leaks)
    lines = [
        f"  {leak['piece']} has {plural(leak['length'], 'word')} in a row of the {leak['split']} "
        f'{leak["kind"]} {leak["owner"]}: "{leak["text"][:80]}"'
        for leak in sorted(leaks, key=lambda leak: leak["split"] != "test")[:SHOWN_LEAKS]
    ]
    head = f"prompts that repeat judged texts: {len(leaks)}, {of_test} of them of the test split"
    return [head, *lines] if lines else []


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
