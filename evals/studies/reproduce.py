"""The output of `sextant reproduce`: the list of tables and figures, and a table's cells next to the
paper's.

The cells are made in tables.py and laid out in table_layout.py.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sextant import environments
from sextant.evals.papers.measured import CATEGORIES
from sextant.evals.papers.missing import lay_out_missing, list_missing
from sextant.evals.papers.sections import PaperTable, find, sections
from sextant.evals.papers.settings import ReproductionSettings
from sextant.evals.studies.command_result import CommandResult
from sextant.evals.studies.reproduced_figures import save_figure
from sextant.evals.studies.reproduced_layout import lay_out, save_page
from sextant.evals.studies.reproduced_table import ReproducedTable
from sextant.evals.studies.run_cells import estimate_cells, explain, lay_out_ahead
from sextant.evals.studies.study_file import list_tasks
from sextant.tools import retrievers
from sextant.tools.errors import UnknownName
from sextant.tools.models.model_spec import parse
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import DefinitionList, TerminalBlock
from sextant.tools.platform.waiting import announced
from sextant.tools.records import JsonMapping, JsonObject

MARKS = "* the highest of ours; = does not differ from it by a paired permutation test (p > .05)"


def reproduce_table(
    name: str | None,
    *,
    dry_run: bool,
    missing: bool = False,
    **conditions: Any,
) -> CommandResult:
    """Make the table called `name`, or the list of tables; a dry run estimates the cost.

    `missing`: list what is not here, of a table or of all.
    """
    if missing:
        lacking = list_missing([find(name)] if name else sections().values())
        return CommandResult(
            {"missing": [row.json() for row in lacking]},
            lay_out_missing(lacking),
        )
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
    if dry_run:
        if not table.runs:
            return CommandResult({}, ["it takes no run"])
        with announced(f"estimating {plural(len(table.runs), 'cell')}"):
            estimate, _ = estimate_cells(table.runs)
        return CommandResult(estimate, lay_out_ahead(estimate))
    head = table.section.about
    notes = [*table.warnings(), *head.get("notes", [])]
    if "marked" in head:
        notes.append(MARKS)
    if "lacks" in head:
        notes.append(f"it cannot be made: {head['lacks']}")
    cells = list(table.cells())
    about = (name, head["title"], notes, cells)
    blocks = lay_out(*about)
    files = []
    if cells:
        folder = table.conditions.runs / "studies" / name.replace("/", "-")
        files = save_page(*about, folder)
        files += save_figure(name, head["title"], cells, head.get("drawn", {}), folder)
        blocks.append(f"written: {folder} (index.html, report.md, tables/)")
    lines = [line for cell in cells for line in cell.deviations.split(" / ") if line]
    failed = table.count_failed()
    result: JsonObject = {
        "name": name,
        "title": head["title"],
        "notes": notes,
        "cells": [cell._asdict() for cell in cells],
        "files": list(map(str, files)),
        "failed": failed,
        "deviations": list(dict.fromkeys(lines)),
    }
    reasons, problem = explain(table.unfinished, len(cells))
    return CommandResult(result, blocks, problem, failed, reasons)


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
        missing = [task for task, fetched in row["data"].items() if not fetched]
        details = {
            "data to fetch": ", ".join(missing),
            "it cost the authors": row["price"],
            "it cannot be made": row["why"],
        }
        items.append((row["name"], f"{row['title']} ({plural(row['cells'], 'cell')})"))
        items += [("", f"{label}: {text}") for label, text in details.items() if text]
    return [
        DefinitionList(items),
        "keys and weights that are not here, and for how much: --missing",
    ]
