"""Turn recorded outcomes into scores: `sextant score RUN`. No model, no retriever, no
network.

evals/scoring/score_run.py does it. Metrics that are asked for come after the task's own.
"""

import argparse
from pathlib import Path

from sextant.evals.run_folder import read_config
from sextant.evals.scoring.metrics import LANGUAGE
from sextant.tools.platform.cli import CommandParser, add_json_option, grade, run_and_leave
from sextant.tools.platform.cli_options import RELEVANT_FROM
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant score", description="Score a run again; nothing is run."
    )
    command_line.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    command_line.add_argument(
        "--qrels", default="", metavar="NAME", help="which judgements lead; those of the run"
    )
    command_line.add_argument("--relevant-from", type=grade, metavar="N", help=RELEVANT_FROM)
    command_line.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help=f"one more; repeatable: {LANGUAGE}",
    )
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Score and print; exit code 7 when queries of the run have failed."""
    read_config(arguments.run)  # before what follows is imported
    with announced("loading libraries"):
        from sextant.evals.scoring.score_run import rescore  # NumPy: not for --help
        from sextant.evals.scoring.score_table import show_scores  # rich: not for --help

    with announced(f"scoring {arguments.run}"):
        scores = rescore(arguments.run, arguments.qrels, arguments.metric, arguments.relevant_from)
    show_scores(scores, as_json=arguments.json)
    return 7 if scores["failed"] else 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
