"""Many systems on many tasks as a table: `sextant study FILE.toml`; docs/guide/study.md
has the file's form.

    from sextant.evals import study
    found = study.run("study.toml")

Each cell is a run as `sextant run` makes it, and the same command goes on with the unfinished cells.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from sextant.evals.studies.command_result import CommandResult
from sextant.tools.platform.callable_module import make_callable
from sextant.tools.platform.cli import CommandParser, add_json_option, print_stdout, run_and_leave
from sextant.tools.platform.installation import find_page
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import (
    add_latex_options,
    read_latex_style,
    to_latex,
)
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant study",
        description="Run many systems on many tasks, and compare them.",
    )
    add = command_line.add_argument
    add(
        "file",
        type=Path,
        metavar="FILE",
        help=f"the study, in TOML: {find_page('docs/guide/study.md')}",
    )
    add(
        "--dry-run",
        action="store_true",
        help="say how many calls it will make at most, and estimate tokens and list price; nothing is sent",
    )
    add(
        "--runs",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="where run folders go, and studies/NAME",
    )
    form = command_line.add_mutually_exclusive_group()
    add_json_option(form)
    add_latex_options(command_line, form)
    return command_line


def run(
    file: Path | str, runs: Path = Path("runs"), *, dry_run: bool = False, quiet: bool = True
) -> CommandResult:
    """Run the cells of a study that are not finished, and write its results; or, as a dry run,
    estimate the cost.
    """
    from sextant.evals.studies import study_file  # pydantic: not for --help

    study = study_file.read_study(Path(file))
    cells = study_file.expand_cells(study, runs)
    with announced("loading libraries"):
        from sextant.evals.studies import (  # NumPy, matplotlib: only once names are right
            results,
            run_cells,
        )

    with announced(f"looking up the names of {study.name}"):
        run_cells.validate_rows(cells)
    if dry_run:
        with announced(f"estimating {plural(len(cells), 'cell')}"):
            ahead, estimated = run_cells.estimate_cells(cells)
        problem = run_cells.explain_cells(estimated)
        return CommandResult(
            {"study": study.name, **ahead}, run_cells.lay_out_ahead(ahead), problem
        )
    cell_results = run_cells.run_cells(cells, study.metric, quiet=quiet)
    page = None
    blocks: list[Any] = []
    with announced("writing the report"):
        gathered = results.gather(study, cell_results)
        if gathered.runs:
            figures = results.lay_out(gathered)
            page = results.write(gathered, figures, runs)
            for table in (figures.to_table(), *results.lay_out_tests(gathered)):
                blocks += [table, *table.notes, ""]
            blocks.append(results.lay_out_costs(gathered))
    blocks += [
        *results.list_missing(cell_results),
        *gathered.notes,
        *gathered.deviations,
        f"report: {page}" if page else "no cell is finished",
    ]
    return CommandResult(
        gathered.json() | {"report": page and str(page)},
        blocks,
        run_cells.explain_cells(cell_results),
        gathered.failed,
        partial(results.draw_means, gathered),
    )


def command(arguments: argparse.Namespace) -> int:
    """Run, write, print; exit code 7 if queries failed, and the code of the problem if cells are
    unfinished.
    """
    style = read_latex_style(vars(arguments))
    result = run(arguments.file, arguments.runs, dry_run=arguments.dry_run, quiet=arguments.json)
    text = json.dumps(result.json) + "\n" if arguments.json else result.text
    if arguments.latex and result.json.get("report"):
        text = to_latex(result.blocks, style)
    print_stdout(text, kept="in the folder of the study")
    return result.end()


make_callable(__name__, "sextant.evals.python_interface:study")

if __name__ == "__main__":
    run_and_leave(parser(), command)
