"""A reproduced table for the terminal, as a page, and as Markdown, CSV and LaTeX.

Each form says under the table what stands in for a part of a system, and how the programs, pools
and prompts of its rows differ from the paper's. The cells are made in tables.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sextant.evals.papers.dataset_statistics import Value
from sextant.evals.reporting import report_page
from sextant.evals.reporting.report_page import Report, ReportSection
from sextant.evals.studies.reproduced_table import MINIATURES, ROUNDING, TableCell, count_equal
from sextant.tools.platform import files as disk
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import Cell, ResultTable, TextBlock, tabulate


def lay_out(
    name: str, title: str, notes: Sequence[str], cells: Sequence[TableCell]
) -> list[TextBlock]:
    """Return the notes and a table of the cells, with its remarks, and how many cells are made."""
    blocks: list[TextBlock] = [f"{name}: {title}", *notes]
    if cells:
        table = make_table(name, title, cells)
        blocks += [table, *table.notes]
    return [*blocks, _count(notes, cells)]


def make_table(name: str, title: str, cells: Sequence[TableCell]) -> ResultTable:
    """Return the cells as a table, with each remark once in its notes."""
    numbers = dict[str, int]()
    rows = []
    for cell in cells:
        texts = {"remark": cell.remark, "note": cell.note, "deviations": cell.deviations}
        remarks = []
        for text in filter(None, texts.values()):
            remarks.append(f"({numbers.setdefault(text, len(numbers) + 1)})")
        rows.append(
            {
                "task": cell.task,
                "system": cell.system,
                "metric": f"{cell.metric} [{cell.judgements}]" if cell.judgements else cell.metric,
                "published": _number(cell.published),
                "ours": _number(cell.ours, mark=cell.mark),
                "difference": _number(cell.difference, sign="+"),
                "remarks": " ".join(remarks),
                # In the CSV only.
                **texts,
            }
        )
    notes = [f"({number}) {text}" for text, number in numbers.items()]
    return tabulate(title, rows, stem=name.replace("/", "-"), notes=notes, in_file=3)


def _number(value: Value, sign: str = "", mark: str = "") -> Cell:
    if not isinstance(value, int | float):
        return Cell(value or "-", value)
    # "z" writes a difference that is rounded to nothing as +0.000.
    form = f"{{:{sign}z.3f}}"
    if abs(value) >= 1000:
        form = f"{{:{sign},.0f}}"
    elif not sign and 0 < abs(value) < ROUNDING:
        # For example p of a regression.
        form = "{:.1e}"
    return Cell(f"{form} {mark}".rstrip(), value, figures=[value])


def _count(notes: Sequence[str], cells: Sequence[TableCell]) -> str:
    made = sum(cell.ours is not None for cell in cells)
    line = f"{plural(len(cells), 'cell')}, {made} of them made"
    compared, equal = count_equal(cells)
    if compared and MINIATURES not in notes:
        line += f"; {equal} of {compared} values of ours are the paper's, to three decimals"
    return line


def save_page(
    name: str, title: str, notes: Sequence[str], cells: Sequence[TableCell], folder: Path
) -> list[Path]:
    """Write the table as index.html, report.md, and as CSV and LaTeX in tables/; return the files."""
    table = make_table(name, title, cells)
    section = ReportSection(table.stem, title, [table])
    report = Report(
        _count(notes, cells),
        [*notes],
        [section],
        title=f"{name}: {title}",
    )
    report.legend = False
    alone = replace(table, notes=[*notes, *table.notes])
    disk.mkdir_private(folder)
    return report_page.write(
        report,
        folder,
        {f"tables/{table.stem}.tex": alone.to_latex()},
    )
