"""The result of a compilation as a person reads it: the kept candidate, its changes, and the
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
from sextant.tools.platform.result_table import (
    CommandLine,
    DefinitionList,
    TerminalBlock,
    show,
    tabulate,
)
from sextant.tools.records import JsonMapping

SHOWN_LEAKS = 12  # learnt.json has all
# Keys of learnt.json that are printed as they are, if they have a value.
_FACTS = {
    "optimizer": "optimizer",
    "objective": "maximises",
    "teacher": "teacher",
    "prompt_lm": "prompts by",
    "start": "start",
    "stopped": "ended early by",
    "candidate": "kept candidate",
    "candidates": "others on validation",
    "looks": "looks at test so far",
}
_KEPT = {
    "before": "no gain, the program is kept as it was",
    "start": "nothing is better than the start, which is kept",
    "compiled": "the best on validation is kept, so its gain there leans upwards, and a p there counts "
    "all other candidates as tests",
}


def print_result(learnt: JsonMapping, *, as_json: bool = False) -> None:
    """Print the result on stdout; `learnt` is as learnt.json has it."""
    if as_json:
        print_json(learnt, kept="in learnt.json")
        return
    untested = "" if "on_validation" in learnt else "; nothing was tested"
    blocks: list[TerminalBlock] = [
        describe_task({**learnt, "split": "dev"}),
        describe_system(
            {**learnt, "retriever": learnt["pool"] or learnt["retriever"], "compiled": None}
        ),
        DefinitionList(_list_facts(learnt)),
        _KEPT[learnt["kept"]] + untested,
    ]
    for name, prompt in learnt["changes"].items():
        blocks += ["", f"prompt of {name}, with {plural(prompt['demos'], 'demonstration')}:"]
        blocks += [f"  {line}" for line in prompt["instructions"].splitlines()]
        blocks += [f"  {field}: {text}" for field, text in prompt["descriptions"].items()]
    if leaks := learnt["leaks"]:
        of_test = sum(leak["split"] == "test" for leak in leaks)
        title = f"prompts that repeat judged texts: {len(leaks)}, {of_test} of the test split"
        blocks.append(tabulate(title, leaks[:SHOWN_LEAKS]))
    blocks += ["", *(f"{key}: {learnt[key]}" for key in ("compiled", "instruction") if learnt[key])]
    if learnt["kept"] != "before" and not learnt.get("held_out"):
        blocks.append(CommandLine("take it up with:", learnt["take_up"]))
    for comparison in (*learnt.get("on_validation", ()), *learnt.get("held_out", ())):
        blocks += ["", *lay_out_comparison(comparison)]
    show(blocks, kept="in learnt.json")


def _list_facts(learnt: JsonMapping) -> list[tuple[str, str]]:
    left_out = learnt["left_out"]
    before, after = learnt["before"], learnt["after"]
    usage = learnt["usage"]
    facts = {
        **{words: learnt[key] for key, words in _FACTS.items()},
        "queries": ", ".join(
            f"{count} {part_name}" for part_name, count in learnt["queries"].items()
        ),
        "left out, near repeats of test": left_out
        and f"{len(left_out)}: {abbreviate(', '.join(left_out))}",
        "validation": f"{before['mean']:.4f} to {after['mean']:.4f} ({queries(after['queries'])})",
        **{name: f"{old} to {new}" for name, (old, new) in learnt["parameters"].items()},
        "used": f"{count_of(usage['calls'], 'call')}, {usage['input_tokens']} tokens in, "
        f"{usage['output_tokens']} out, {number(usage['list_usd'], '${:.4f}', 'price unknown')}, "
        f"{learnt['seconds']:.1f} s",
    }
    return [(words, str(fact)) for words, fact in facts.items() if fact not in ("", None, {})]


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
