"""Many runs as a report: `sextant report RUN [RUN ...] --out report/`. Nothing is run.

Tables as in the four papers, for the same tasks and metrics, with the published rows if ours are
comparable with them; plots in the form of the papers' figures; floor and ceiling of each program. A
page without script, Markdown, a CSV file for each table and an SVG file for each plot
(docs/guide/see-and-export.md). Run folders are all that is read. `sextant compare` has the tests of
differences, and `sextant view` shows each query.
"""

import argparse
from pathlib import Path

from sextant.evals.compare import add_comparison_options
from sextant.evals.run_descriptions import printable
from sextant.tools.platform.cli import CommandParser, add_json_option, print_json, run_and_leave
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import show
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """The command line."""
    command_line = CommandParser(
        prog="sextant report", description="Tables and plots of many runs; nothing is run."
    )
    add = command_line.add_argument
    add(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="run folders, or folders that have some in them",
    )
    add(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="where the report goes; an earlier one is replaced",
    )
    add_comparison_options(
        command_line, "take runs over different data into one column, and say so"
    )
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Make the report, write it, print its path."""
    from sextant.evals.scoring.scored_run import find_folders  # pydantic: not for --help

    find_folders(arguments.runs)  # before what follows is imported
    with announced("loading libraries"):
        from sextant.evals.reporting import (  # matplotlib, NumPy, pydantic: not for --help
            report,
            report_page,
        )

    out: Path = arguments.out
    report_page.check(out)
    metrics = list(dict.fromkeys(arguments.metric))
    with announced("reading and comparing the runs"):
        result = report.build(arguments.runs, metrics, force=arguments.force)
    with announced(f"writing {out}"):
        files = [path.relative_to(out).as_posix() for path in report_page.write(result, out)]
    index = out / "index.html"
    if arguments.json:
        print_json(
            {
                "report": str(index),
                "files": files,
                "runs": result.runs,
                "left_out": result.left_out,
                "notes": result.warnings,
            }
        )
        return 0
    left_out = [f"left out: {reason}" for reason in result.left_out.values()]
    counts = f"{plural(len(result.tables), 'table')}, {plural(len(result.plots), 'plot')}: {index}"
    show([printable(line) for line in [result.summary, *result.warnings, *left_out, counts]])
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
