"""Which run is better, by how much, and why: `sextant compare RUN RUN [RUN ...]`. Nothing
is run.

The first run is the baseline; evals/scoring/comparison.py compares the others with it.
"""

import argparse
from pathlib import Path

from sextant.evals.run_folder import read_config
from sextant.evals.scoring.metrics import LANGUAGE
from sextant.tools.platform.callable_module import make_callable
from sextant.tools.platform.cli import (
    CommandParser,
    add_json_option,
    print_json,
    print_stdout,
    run_and_leave,
)
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import (
    add_latex_options,
    read_latex_style,
    render_terminal,
    to_latex,
    to_markdown,
)
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant compare", description="Compare runs with a baseline, paired by query."
    )
    add = command_line.add_argument
    add(
        "baseline",
        type=Path,
        metavar="RUN",
        help="the run folder that the others are compared with",
    )
    add("runs", type=Path, nargs="+", metavar="RUN", help="run folders; repeats may be among them")
    add_comparison_options(
        command_line, "compare runs that were not asked the same; the tables say so"
    )
    add(
        "--pairs",
        action="store_true",
        help="print each comparison with the baseline, as for two runs",
    )
    form = command_line.add_mutually_exclusive_group()
    add_json_option(form)
    form.add_argument(
        "--markdown", action="store_true", help="print the tables for GitHub and the like"
    )
    add_latex_options(command_line, form)
    return command_line


def add_comparison_options(command_line: CommandParser, force_help: str) -> None:
    """Add --metric and --force, the options of commands over several runs."""
    command_line.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help=f"only this metric; repeatable: {LANGUAGE}",
    )
    command_line.add_argument("--force", action="store_true", help=force_help)


def command(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    style = read_latex_style(vars(arguments))
    paths = [arguments.baseline, *arguments.runs]
    for path in paths:  # before what follows is imported
        read_config(path)
    from sextant.evals.scoring.comparison import compare  # NumPy: not for --help

    with announced(f"comparing {plural(len(paths), 'run')}"):
        result = compare(paths, arguments.metric, force=arguments.force)
    if arguments.json:
        print_json(result)
        return 0
    from sextant.evals.reporting import comparison_tables  # not for --help or --json

    blocks = comparison_tables.lay_out_comparison(
        result, pairs=arguments.pairs or len(result["runs"]) == 1
    )
    if arguments.latex:
        repeats = [path for system in result["systems"] for path in system["repeats"]]
        print_stdout(to_latex(blocks, style, repeats))
        return 0
    print_stdout(to_markdown(blocks) if arguments.markdown else render_terminal(blocks))
    return 0


make_callable(__name__, "sextant.evals.python_interface:compare")

if __name__ == "__main__":
    run_and_leave(parser(), command)
