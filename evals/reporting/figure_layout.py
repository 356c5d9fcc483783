"""Figures of systems as a table: a row for each system, under a heading for each kind of system.

The table shows each figure in its text; its CSV has a row for each figure, with all that is known of
it.

A figure is a number here; drawings are in plots.py.
"""

from sextant.evals.reporting.report_tables import HEADS, ResultCell, ResultColumn, SystemFigures
from sextant.evals.reporting.run_groups import short_task_name
from sextant.tools.platform.result_table import Cell, Head, ResultTable

_CSV_HEADS = [
    "kind",
    "system",
    "task",
    "judgements",
    "metric",
    "value",
    "low",
    "high",
    "error",
    "queries",
    "failed",
    "best",
    "source",
    "note",
    "resampled_mean",
    "resampled_error",
    "answers",
]


def lay_out(figures: SystemFigures) -> ResultTable:
    """Return figures as a table."""
    heads = ["system"]
    for column in figures.columns:
        heads.append(Head(column.label, column.below))
    rows: list[list[str]] = []
    headings = {}
    csv_rows: list[list[object]] = [[*_CSV_HEADS]]
    for kind, heading in HEADS.items():
        members = figures.of_kind(kind)
        if members and heading:
            headings[len(rows)] = heading
        for row in members:
            rows.append([row.label, *map(_show, row.cells)])
            for column, cell in zip(figures.columns, row.cells, strict=True):
                if cell is not None:
                    csv_rows.append([kind, row.label, *_column_cells(column), *_figures(cell)])
    return ResultTable(
        figures.title,
        heads,
        rows,
        notes=figures.notes,
        stem=figures.stem,
        headings=headings,
        csv_rows=csv_rows,
    )


def _show(cell: ResultCell | None) -> str:
    if cell is None:
        return ""
    figures = [cell.value, cell.low, cell.high]
    return Cell(cell.form, cell.value, bold=cell.best, source=cell.title, figures=figures)


def _column_cells(column: ResultColumn) -> list[str]:
    task = column.tasks[0]
    if len(column.tasks) > 1:
        task = f"mean of {', '.join(map(short_task_name, column.tasks))}"
    return [task, column.judgements, column.metric]


def _figures(cell: ResultCell) -> list[object]:
    resampled_mean, resampled_error = cell.resampled or (None, None)
    return [
        cell.value,
        cell.low,
        cell.high,
        cell.error,
        cell.queries,
        cell.failed,
        "yes" if cell.best else "",
        cell.source,
        cell.note,
        resampled_mean,
        resampled_error,
        cell.answers,
    ]
