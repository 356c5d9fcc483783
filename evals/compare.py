"""Which run is better, by how much, and why: `sextant compare RUN RUN [RUN ...]`. Nothing
is run.

The first run is the baseline; evals/scoring/comparison.py compares the others with it.
"""

import argparse
from functools import partial
from pathlib import Path

from sextant.evals.query_id_files import write_query_ids
from sextant.evals.run_folder import read_config
from sextant.evals.scoring.gates import check_gates, read_gate
from sextant.evals.scoring.metrics import LANGUAGE
from sextant.tools.errors import GateFailed, UsageError
from sextant.tools.platform.callable_module import make_callable
from sextant.tools.platform.cli import (
    CommandParser,
    add_json_option,
    print_json,
    print_stderr,
    print_stdout,
    run_and_leave,
)
from sextant.tools.platform.number_format import plural, queries
from sextant.tools.platform.result_table import (
    LatexStyle,
    add_latex_options,
    read_latex_style,
    render_terminal,
    to_latex,
    to_markdown,
)
from sextant.tools.platform.waiting import announced
from sextant.tools.records import JsonMapping, JsonObject


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
    add(
        "--write-ids",
        type=Path,
        metavar="FILE",
        help="write the ids of the queries in which the second system is worse than the baseline, "
        "worst first, by the headline metric or by --metric; for sextant run --query-ids FILE",
    )
    for option, read, help_text in (
        (
            "--fail-if",
            read_gate,
            (
                "end with exit code 1 if the mean difference of a metric from the baseline is below a threshold, "
                "as 'nDCG@10 < -0.02', or above it, as 'Flip > 0.02'; repeatable"
            ),
        ),
        (
            "--fail-if-sure",
            partial(read_gate, sure=True),
            (
                "the same, but only if the whole 95 %% interval of the difference is below the threshold, which "
                "is where its upper end is (above it: its lower end); without an interval nothing is sure"
            ),
        ),
    ):
        add(
            option,
            dest="gates",
            action="append",
            default=[],
            type=read,
            metavar="GATE",
            help=help_text,
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
    result["gates"] = check_gates(arguments.gates, result["comparisons"])
    if arguments.write_ids:
        _write_worse(arguments.write_ids, result)
    _print(arguments, result, style)
    if failed := [row["metric"] for row in result["gates"] if not row["passed"]]:
        raise GateFailed(f"{plural(len(failed), 'gate')} failed: {', '.join(failed)}")
    return 0


def _write_worse(path: Path, result: JsonMapping) -> None:
    if len(result["worse"]) > 1:
        raise UsageError(f"--write-ids compares two systems, not {len(result['systems'])}")
    [worse] = result["worse"]
    count = queries(len(worse["query_ids"]))
    said = f"{count}, worst first, by {worse['metric']}"
    write_query_ids(path, worse["query_ids"], said)
    print_stderr(f"{path}: {said}")


def _print(arguments: argparse.Namespace, result: JsonObject, style: LatexStyle) -> None:
    if arguments.json:
        print_json(result)
        return
    from sextant.evals.reporting import comparison_tables  # not for --help or --json

    blocks = comparison_tables.lay_out_comparison(
        result, pairs=arguments.pairs or len(result["runs"]) == 1
    )
    if arguments.latex:
        print_stdout(to_latex(blocks, style))
        return
    print_stdout(to_markdown(blocks) if arguments.markdown else render_terminal(blocks))


make_callable(__name__, "sextant.evals.python_interface:compare")

if __name__ == "__main__":
    run_and_leave(parser(), command)
