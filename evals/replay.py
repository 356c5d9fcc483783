"""The results that another retriever would have brought: `sextant replay RUN --retriever SPEC`. No model
is called.

evals/running/replay.py issues the searches of the run again. This shows documents that a retriever
could have given the searcher, not a score: with other results the searches would have differed.
"""

import argparse
from pathlib import Path

from sextant.evals.run_folder import read_config
from sextant.tools.platform.cli import (
    CommandParser,
    add_json_option,
    positive,
    print_result,
    run_and_leave,
)
from sextant.tools.platform.waiting import announced
from sextant.tools.retrievers import check_kinds


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant replay",
        description="Issue the searches of a run again; no model is called.",
    )
    add = command_line.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder that has been scored")
    add(
        "--retriever",
        default="",
        metavar="SPEC",
        help="for all searches; without it each has its own again",
    )
    add(
        "--depth", type=positive, metavar="K", help="documents a search; without it as many as then"
    )
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Replay and print."""
    read_config(arguments.run)  # before what follows is imported
    if arguments.retriever:
        check_kinds(arguments.retriever)
    with announced("loading libraries"):
        from sextant.evals.reporting.comparison_tables import render_replay  # rich: not for --help
        from sextant.evals.running.replay import replay  # NumPy and retrievers: not for --help

    with announced(f"issuing the searches of {arguments.run} again"):
        result = replay(arguments.run, arguments.retriever, arguments.depth)
    print_result(result, render_replay, as_json=arguments.json)
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
