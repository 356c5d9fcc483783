"""Which searches earned a run's score, and the cost of the others: `sextant credit RUN [RUN ...]`.

evals/scoring/credit.py computes it from stored traces alone; nothing is run.
"""

import argparse
from pathlib import Path

from sextant.tools.platform.callable_module import make_callable
from sextant.tools.platform.cli import CommandParser, add_json_option, print_json, run_and_leave
from sextant.tools.platform.result_table import show
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant credit", description="Say which searches earned a run's score."
    )
    add = command_line.add_argument
    add(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="scored runs, or folders that have some in them",
    )
    add(
        "--metric",
        default="surfaced",
        metavar="NAME",
        help="surfaced (the default), the share of relevant documents that a search returned, or a "
        "metric of rankings",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the orders of over 12 searches")
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Compute, and print."""
    from sextant.evals.scoring.scored_run import find_folders  # pydantic: not for --help

    find_folders(arguments.runs)  # before what follows is imported
    from sextant.evals.scoring import credit  # NumPy: not for --help

    with announced("dividing the score among searches"):
        result = credit.compare_credit(arguments.runs, arguments.metric, arguments.seed)
    if arguments.json:
        print_json(result)
    else:
        show(credit.lay_out_credit(result))
    return 0


make_callable(__name__, "sextant.evals.python_interface:credit")

if __name__ == "__main__":
    run_and_leave(parser(), command)
