"""The output of `sextant reproduce`: the list of tables and figures, and a table's cells next to the
paper's, for the terminal, as a page, and as Markdown, CSV and LaTeX.

Each form says under the table what stands in for a part of a system, and how the programs, pools
and prompts of its rows differ from the paper's. The cells are made in reproduced_table.py, a figure
is drawn in reproduced_figures.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sextant import environments
from sextant.evals.papers.dataset_statistics import Value
from sextant.evals.papers.measured import CATEGORIES
from sextant.evals.papers.missing import lay_out_missing, list_missing
from sextant.evals.papers.sections import PaperTable, find, sections
from sextant.evals.papers.settings import ReproductionSettings
from sextant.evals.reporting import report_page
from sextant.evals.reporting.report_page import Report, ReportSection
from sextant.evals.studies.command_result import CommandResult
from sextant.evals.studies.reproduced_figures import draw_figure
from sextant.evals.studies.reproduced_table import MINIATURES, ROUNDING, ReproducedTable, TableCell
from sextant.evals.studies.run_cells import estimate_cells, explain, lay_out_ahead
from sextant.evals.studies.study_file import list_tasks
from sextant.tools import retrievers
from sextant.tools.errors import UnknownName
from sextant.tools.models.model_spec import parse
from sextant.tools.platform import files as disk
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import Cell, DefinitionList, ResultTable, TerminalBlock
from sextant.tools.platform.waiting import announced
from sextant.tools.records import JsonMapping, JsonObject

HEADS = ("task", "system", "metric", "published", "ours", "difference", "remarks")


def reproduce_table(
    name: str | None, *, dry_run: bool, missing: bool = False, **conditions: Any
) -> CommandResult:
    """Make the table called `name`, or the list of tables; a dry run estimates the cost.

    `missing`: list what is not here, of a table or of all.
    """
    if missing:
        lacking = list_missing(name or "")
        return CommandResult({"missing": [row.json() for row in lacking]}, lay_out_missing(lacking))
    if name is None:
        rows = [_describe(section) for section in sections().values()]
        return CommandResult({"sections": rows}, _list(rows))
    if conditions["lm"]:
        parse(conditions["lm"])
    if conditions["retriever"]:
        retrievers.canonicalize(conditions["retriever"])
    section = find(name)
    conditions["tasks"] = tuple(conditions.get("tasks", ()))
    for option in ("facets", "contamination"):
        conditions[option] = _match_tasks(section, conditions.get(option, ()))
    table = ReproducedTable(section, ReproductionSettings(**conditions))
    if not dry_run:
        return _make(table)
    if not table.runs:
        return CommandResult({}, ["it takes no run"])
    with announced(f"estimating {plural(len(table.runs), 'cell')}"):
        estimate, _ = estimate_cells(table.runs)
    return CommandResult(estimate, lay_out_ahead(estimate))


def _make(table: ReproducedTable) -> CommandResult:
    """Make the cells, and write them and print them."""
    name = table.section.name
    about = table.section.about
    title = about["title"]
    notes = [*table.warnings(), *about.get("notes", [])]
    if "lacks" in about:
        notes.append(f"it cannot be made: {about['lacks']}")
    cells = table.cells()
    count = describe_count(notes, cells)
    blocks: list[TerminalBlock] = [f"{name}: {title}", *notes]
    files = []
    if cells:
        laid_out = make_table(name, title, cells)
        folder = table.settings.runs / "studies" / laid_out.stem
        alone = replace(laid_out, notes=[*notes, *laid_out.notes])
        extra: dict[str, str | bytes] = {f"tables/{laid_out.stem}.tex": alone.to_latex()}
        extra |= draw_figure(laid_out.stem, f"{name}: {title}", cells, about.get("drawn", {}))
        report = Report(count, notes, [ReportSection(laid_out.stem, title, [laid_out])])
        report.title = f"{name}: {title}"
        report.legend = False
        disk.mkdir_private(folder)
        files = report_page.write(report, folder, extra)
        blocks += [laid_out, *laid_out.notes, count]
        blocks.append(f"written: {folder} (index.html, report.md, tables/)")
    failed = table.count_failed()
    result: JsonObject = {
        "name": name,
        "title": title,
        "notes": notes,
        "cells": [cell.json() for cell in cells],
        "files": list(map(str, files)),
        "failed": failed,
        "deviations": list(dict.fromkeys(line for cell in cells for line in cell.deviations)),
    }
    return CommandResult(result, blocks, explain(table.problems, len(cells)), failed)


def make_table(name: str, title: str, cells: Sequence[TableCell]) -> ResultTable:
    """Return the cells as a table, with each remark once in its notes; its CSV has all of a cell."""
    numbers = dict[str, int]()
    rows = []
    for cell in cells:
        texts = filter(None, (cell.remark, cell.note, " / ".join(cell.deviations)))
        remarks = [f"({numbers.setdefault(text, len(numbers) + 1)})" for text in texts]
        values = [
            _number(cell.published),
            _number(cell.ours),
            _number(cell.difference, sign="+"),
        ]
        metric = f"{cell.metric} [{cell.judgements}]" if cell.judgements else cell.metric
        rows.append([cell.task, cell.system, metric, *values, " ".join(remarks)])
    notes = [f"({number}) {text}" for text, number in numbers.items()]
    csv_rows = [cell.json() for cell in cells]
    return ResultTable(
        title,
        HEADS,
        rows,
        names=(0, 1, 2, 6),
        notes=notes,
        stem=name.replace("/", "-"),
        csv_rows=[list(csv_rows[0]), *(row.values() for row in csv_rows)],
    )


def _number(value: Value, sign: str = "") -> Cell:
    if not isinstance(value, int | float):
        return Cell(value or "-", value)
    # "z" writes a difference that is rounded to nothing as +0.000.
    form = f"{{:{sign}z.3f}}"
    if abs(value) >= 1000:
        form = f"{{:{sign},.0f}}"
    elif not sign and 0 < abs(value) < ROUNDING:
        # For example p of a regression.
        form = "{:.1e}"
    return Cell(form, value, figures=[value])


def describe_count(notes: Sequence[str], cells: Sequence[TableCell]) -> str:
    """Say how many cells are made, and how many of the paper's values ours are."""
    made = sum(cell.ours is not None for cell in cells)
    line = f"{plural(len(cells), 'cell')}, {made} of them made"
    differences = [cell.difference for cell in cells if cell.difference is not None]
    if differences and MINIATURES not in notes:
        equal = sum(abs(difference) <= ROUNDING for difference in differences)
        line += f"; {equal} of {len(differences)} values of ours are the paper's, to three decimals"
    return line


def _match_tasks(section: PaperTable, given: Iterable[tuple[str, str]]) -> dict[str, Path]:
    """Return the files by the full names of the table's tasks; UnknownName for another task."""
    tasks = list(dict.fromkeys(cell.task for cell in section.cells))
    matched = {}
    for name, path in given:
        full_names = [task for task in tasks if name in (task, task.partition("/")[2])]
        if not full_names:
            raise UnknownName(f"task of {section.name}", name, tasks)
        matched[full_names[0]] = Path(path)
    return matched


def _describe(section: PaperTable) -> JsonObject:
    names = {
        cell.task for cell in section.cells if not cell.lacks and cell.metric not in CATEGORIES
    }
    tasks = {task.partition(":")[0] for name in names for task in list_tasks(name)}
    return {
        "name": section.name,
        "title": section.about["title"],
        "cells": len(section.cells),
        "data": {task: environments.fetch_marker(task).exists() for task in sorted(tasks)},
        "price": section.about.get("price"),
        # Why none of its cells can be made.
        "why": section.about.get("lacks"),
    }


def _list(rows: Iterable[JsonMapping]) -> list[TerminalBlock]:
    items = []
    for row in rows:
        items.append((row["name"], f"{row['title']} ({plural(row['cells'], 'cell')})"))
        details = {
            "data to fetch": ", ".join(task for task, there in row["data"].items() if not there),
            "it cost the authors": row["price"],
            "it cannot be made": row["why"],
        }
        items += [("", f"{label}: {text}") for label, text in details.items() if text]
    return [
        DefinitionList(items),
        "keys and weights that are not here, and for how much: --missing",
    ]
