"""A paper's table next to ours, cell by cell: `sextant reproduce [obliq/table2]`; without a
name, the list.

evals/papers/*.toml say which systems make a table. Each of its runs is an ordinary run folder:
earlier runs are taken as they are. A cell that is not made has its reason, and the others are
made.
"""

import argparse
import json
from dataclasses import fields
from pathlib import Path

from sextant.evals.papers.sections import find
from sextant.evals.running.request import SharedRequest
from sextant.tools.platform import cli_options
from sextant.tools.platform.cli import (
    CommandParser,
    add_json_option,
    print_stdout,
    run_and_leave,
)
from sextant.tools.platform.cli_options import parse_name_value
from sextant.tools.platform.waiting import announced

# Options that are those of a run.
_SHARED = {"data", "limit", "budget_usd", "budget_calls", "prices", "runs"}


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant reproduce",
        description="Make a paper's table again, beside its figures; budgets are over all its runs.",
    )
    add = command_line.add_argument
    add(
        "name",
        nargs="?",
        metavar="NAME",
        help="a table or figure, e.g. obliq/table2; without it, a list of them",
    )
    cli_options.add_options(
        command_line,
        SharedRequest,
        without={field.name for field in fields(SharedRequest)} - _SHARED,
    )
    add(
        "--lm",
        default="",
        metavar="SPEC",
        help="this model in place of those of the paper; its rows say so",
    )
    add(
        "--retriever",
        default="",
        metavar="SPEC",
        help="this retriever in place of those that need a key or weights; its rows say so",
    )
    add(
        "--solutions",
        type=Path,
        metavar="FILE",
        help="solutions of documents and queries, in JSON Lines, for OBLIQ-Bench's Tournament+Soln",
    )
    add(
        "--instruction",
        choices=("paper", "ours"),
        default="paper",
        help="what models are told of a task: what the paper prints, or our words; its rows say so",
    )
    add(
        "--task",
        action="append",
        default=[],
        metavar="TASK",
        dest="tasks",
        help="one more task, or data of your own, in a figure over tasks; repeatable",
    )
    add(
        "--facets",
        type=parse_name_value,
        action="append",
        default=[],
        metavar="TASK=FOLDER",
        help="a build that lists the facets of a task's queries, for BIRCO's Table 4 and H.2",
    )
    add(
        "--contamination",
        type=parse_name_value,
        action="append",
        default=[],
        metavar="TASK=FILE",
        help="what sextant build contamination --json printed, for BIRCO's Table 3",
    )
    add(
        "--missing",
        action="store_true",
        help="list rows that cannot be made here: what is missing, and the command for who has it",
    )
    add(
        "--dry-run",
        action="store_true",
        help="say how many calls its runs make at most, and what they cost; nothing is sent",
    )
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """List, or make a table, and print.

    Cells that cannot be made anywhere are no failure, but cells not made here are.
    """
    if arguments.name:  # before what follows is imported
        find(arguments.name)
    with announced("loading libraries"):
        from sextant.evals.studies.reproduce import (
            reproduce_table,  # what these import takes time that --help has not
        )

    result = reproduce_table(
        arguments.name,
        **{key: value for key, value in vars(arguments).items() if key not in ("name", "json")},
        quiet=arguments.json,
    )
    print_stdout(json.dumps(result.json) + "\n" if arguments.json else result.text)
    return result.end()


if __name__ == "__main__":
    run_and_leave(parser(), command)
