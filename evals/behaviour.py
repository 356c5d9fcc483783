"""What searchers do: `python -m evals.behaviour RUN [RUN ...]`, from traces alone. Nothing is run.

evals/measuring/behaviour.py counts; docs/guide/behaviour.md says what the figures mean.
"""

import argparse
import json
from importlib import import_module
from pathlib import Path

from tools.console import Parser, put_out, run_and_leave


def parser() -> Parser:
    """Return the command line."""
    made = Parser(prog="python -m evals.behaviour", description="Say what searchers do, and where documents are lost.")
    made.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="scored runs, or folders that have some in them"
    )
    made.add_argument("--json", action="store_true", help="print one JSON object, with the steps of each figure")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Count and print."""
    behaviour = import_module("evals.measuring.behaviour")  # NumPy and rich: not for --help
    found = behaviour.behave(arguments.runs)
    put_out(json.dumps(found) + "\n" if arguments.json else behaviour.render(found))
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
