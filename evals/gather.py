"""Join the shards of a run, and score it: `sextant gather RUN`. No model, no
retriever; shards.py does it.
"""

import argparse
from pathlib import Path

from sextant.tools.platform.cli import CommandParser, add_json_option, run_and_leave
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant gather", description="Join the shards of a run, and score it."
    )
    command_line.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="RUNS/TASK/NAME, where the run goes, or one of its shards",
    )
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Join, score, print; exit code 7 when queries are pending, or have failed."""
    with announced("loading libraries"):
        from sextant.evals.running.workers.shards import gather  # NumPy: not for --help
        from sextant.evals.scoring.score_table import show_scores  # rich: not for --help

    with announced(f"joining the parts of {arguments.run}"):
        scores = gather(arguments.run)
    show_scores(scores, as_json=arguments.json)
    return 7 if scores["failed"] else 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
