"""Turn recorded outcomes into scores: `python -m evals.score RUN`. No model, no retriever, no
network.

evals/measuring/scoring.py does it. Metrics that are asked for come after the task's own.
"""

import argparse
from pathlib import Path

from evals.measuring.metrics import LANGUAGE
from tools.console import Parser, run_and_leave


def parser() -> Parser:
    """Return the command line."""
    made = Parser(prog="python -m evals.score", description="Score a run again; nothing is run.")
    made.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    made.add_argument(
        "--qrels", default="", metavar="NAME", help="which judgements lead; those of the run"
    )
    made.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help=f"one more; repeatable: {LANGUAGE}",
    )
    made.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Score and print; exit code 7 when queries of the run have failed."""
    from evals.measuring.scoring import rescore  # NumPy: not for --help
    from evals.showing.tables import show_scores  # rich: not for --help

    scores = rescore(arguments.run, arguments.qrels, arguments.metric)
    show_scores(scores, as_json=arguments.json)
    return 7 if scores["failed"] else 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
