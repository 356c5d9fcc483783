"""Many runs as one report: `python -m evals.report RUN [RUN ...] --out report/`. Nothing is run.

Tables as in the four papers, for the same tasks and metrics, with the published rows where ours are comparable with
them; plots in the form of the papers' figures; floor and ceiling of each program. A page without script, Markdown, a
CSV file for each table and an SVG file for each plot (docs/decisions/reports.md). Run folders are all that is read.
Tests of differences are those of `evals.compare`, and what happened to a query is shown by `evals.view`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evals.measuring.metrics import LANGUAGE
from tools.console import Parser, plural, put_out, run_and_leave

if TYPE_CHECKING:
    from evals.showing.report.page import Report


def report(
    runs: Sequence[Path], out: Path, metrics: Sequence[str] = (), *, force: bool = False
) -> "tuple[Report, list[str]]":
    """(the report, the names of its files in `out`); an earlier report there is replaced.

    UsageError where `out` has something else in it; the other errors are those of `build`.
    """
    from evals.showing.report.build import build  # matplotlib and NumPy: not for --help
    from evals.showing.report.page import check, write  # matplotlib: not for --help

    check(out)
    made = build(runs, list(dict.fromkeys(metrics)), force=force)
    return made, [path.relative_to(out).as_posix() for path in write(made, out)]


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.report", description="Tables and plots of many runs; nothing is run.")
    add = made.add_argument
    add("runs", type=Path, nargs="+", metavar="RUN", help="run folders, or folders that have some in them")
    add("--out", type=Path, required=True, metavar="DIR", help="where the report goes; an earlier one is replaced")
    add("--metric", action="append", default=[], metavar="NAME", help=f"only this metric; repeatable: {LANGUAGE}")
    add("--force", action="store_true", help="take runs over different data into one column, and say so")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Make the report, write it, say where it is."""
    made, files = report(arguments.runs, arguments.out, arguments.metric, force=arguments.force)
    page = arguments.out / "index.html"
    if arguments.json:
        result = {
            "report": str(page),
            "files": files,
            "runs": made.runs,
            "left_out": made.left_out,
            "notes": made.warnings,
            "absent": [one.title for one in made.absent],
        }
        put_out(json.dumps(result) + "\n")
        return 0
    from evals.showing.report.groups import readable  # pydantic: not for --help

    lines = [made.summary, *made.warnings, *(f"left out: {why}" for why in made.left_out.values())]
    lines += [f"{plural(len(made.tables), 'table')}, {plural(len(made.plots), 'plot')}: {page}"]
    put_out("".join(f"{readable(line)}\n" for line in lines))
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
