"""Which run is better for the same budget: `sextant curves RUN [RUN ...]`. Nothing is run.

evals/scoring/budget_curves.py computes a metric after each search, call, token and cent, from stored
traces alone.
"""

import argparse
from pathlib import Path

from sextant.evals.run_folder import check_output
from sextant.tools.errors import UsageError
from sextant.tools.platform import files
from sextant.tools.platform.callable_module import make_callable
from sextant.tools.platform.cli import CommandParser, add_json_option, print_json, run_and_leave
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import show
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant curves",
        description="A metric after each search, call, token and cent.",
    )
    add = command_line.add_argument
    add(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="run folders, or folders with run folders in them",
    )
    metric_help = (
        "the task's headline where none is named; any of a ranking, e.g. AP@100; also surfaced "
        "and shown: "
    )
    metric_help += "recall of what came back so far, and of what a model was shown"
    add("--metric", default="", metavar="NAME", help=metric_help)
    add("--by", default="all", metavar="WHAT", help="searches, calls, tokens, usd or all")
    add("--svg", type=Path, metavar="FILE", help="write a plot, one panel for each axis")
    add("--csv", type=Path, metavar="FILE", help="write every point")
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Compute, write the files that are asked for, print."""
    from sextant.evals.scoring.scored_run import find_folders  # pydantic: not for --help

    find_folders(arguments.runs)  # before what follows is imported
    with announced("loading libraries"):
        from sextant.evals.reporting.comparison_tables import (  # not for --help
            curves_csv,
            lay_out_curves,
        )
        from sextant.evals.reporting.plots import curves_svg  # matplotlib: not for --help
        from sextant.evals.scoring.budget_curves import AXES, curves  # NumPy: not for --help

    for path in filter(None, (arguments.csv, arguments.svg)):
        check_output(path)
    axes = tuple(AXES) if arguments.by == "all" else [arguments.by]
    with announced(f"computing the curves of {plural(len(arguments.runs), 'path')}"):
        result = curves(arguments.runs, arguments.metric, axes)
    for path, write in ((arguments.csv, curves_csv), (arguments.svg, curves_svg)):
        try:
            if path:
                with announced(f"writing {path}"):
                    files.replace(path, write(result))
        except OSError as error:
            raise UsageError(
                f"{path} cannot be written: {error.strerror or error}; name another file"
            ) from None
    if arguments.json:
        print_json(result)
    else:
        show(lay_out_curves(result))
    return 0


make_callable(__name__, "sextant.evals.python_interface:curves")

if __name__ == "__main__":
    run_and_leave(parser(), command)
