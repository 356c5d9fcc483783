"""What moves a study's score: `sextant variance RUNS/studies/NAME`. Nothing is run.

Shares of the variance of factors, queries, seeds and their pairs (evals/scoring/variance.py); the page
of the study has the same, with plots.
"""

import argparse
from pathlib import Path

from sextant.tools.errors import UsageError
from sextant.tools.platform.cli import CommandParser, add_json_option, print_json, run_and_leave
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant variance", description="Say which factors of a study move its score."
    )
    add = command_line.add_argument
    add("study", type=Path, metavar="STUDY", help="the folder of a study, RUNS/studies/NAME")
    add("--metric", default="", metavar="NAME", help="instead of each task's headline metric")
    add("--svg", type=Path, metavar="DIR", help="write the plots there")
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Analyse, write the plots that are asked for, print."""
    with announced("loading libraries"):
        from sextant.evals.studies import variance  # NumPy, SciPy and matplotlib: not for --help
        from sextant.tools.platform import files  # as above
        from sextant.tools.platform.result_table import ResultTable, show  # rich: not for --help

    runs = variance.read_runs(arguments.study)
    with announced(f"decomposing the scores of {len(runs)} runs"):
        found = variance.analyse(runs, arguments.metric)
    if not found:
        raise UsageError("no two finished runs of a task differ in a factor; nothing moves a score")
    if arguments.svg:
        arguments.svg.mkdir(parents=True, exist_ok=True)
        for plot in variance.draw_plots(found):
            files.replace(arguments.svg / f"{plot.stem}.svg", plot.svg.encode())
    if arguments.json:
        print_json({"tasks": [task.json() for task in found]})
    else:
        blocks: list[ResultTable | str] = []
        for table in variance.lay_out(found):
            blocks += [table, *table.notes, ""]
        show(blocks)
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
