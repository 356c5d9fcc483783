"""Systems by columns: the figures of a report, of a study and of a comparison, in typed cells.

A column is a metric on a task, or its mean over tasks; a row is a system, under the heading of its
kind. `to_table` shows each figure with its mark; the table's CSV has a row for each figure, with all that
is known of it. Which rows and columns there are is chosen in report_tables.py, in
evals/studies/results.py and in comparison_tables.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sextant.evals.reporting.plots import Point
from sextant.evals.scoring.metrics import is_lower_better, orient
from sextant.evals.scoring.statistics import TIE
from sextant.evals.scoring.system_names import System
from sextant.tools.platform.result_table import Cell, ResultTable

RowKind = Literal["ours", "union", "gold", "computed", "published"]
# Kinds in their order in a table, and what is said of a row after its name; published rows name
# their paper.
KINDS: dict[RowKind, str] = {
    "ours": "",
    "union": " (lower bound)",
    "gold": " (upper bound)",
    "computed": " (computed from the judgements, not run)",
    "published": "",
}


class ResultColumn(NamedTuple):
    """A task by some judgements in a metric, or the mean of such over tasks."""

    tasks: tuple[str, ...]
    metric: str
    judgements: str
    label: str
    # The name of the task in sextant.evals.papers.published.
    figure_task: str = ""
    # Whether these judgements lead the task.
    leads: bool = True
    # Whether one of its figures is the best.
    ranked: bool = True
    # Documents in the pool, if the table is by them.
    size: int = 0

    def describe(self) -> tuple[str, str, str]:
        """Return its task, or the tasks of a mean, its judgements and its metric."""
        return ", ".join(self.tasks), self.judgements, self.metric


@dataclass(slots=True)
class ResultCell:
    """A figure with its source."""

    value: float
    # As it is shown, as in str.format: its places are those of value, low and high.
    form: str
    # A run folder, or a paper's table and row.
    source: str
    low: float | None = None
    high: float | None = None
    # The standard error that a paper prints.
    error: float | None = None
    queries: int | None = None
    failed: int | None = None
    # BIRCO's mean over bootstrap resamples, and its error.
    resampled_mean: float | None = None
    resampled_error: float | None = None
    note: str = ""
    best: bool = False
    # Stands after the figure.
    mark: str = ""
    # Answers to the queries, of which each seed gives one.
    answers: int | None = None


@dataclass(slots=True)
class ResultRow:
    """A system's figures, a cell for each column."""

    kind: RowKind
    label: str
    cells: list[ResultCell | None]
    # None for a system of a paper.
    system: System | None = None
    # Whether it may be the best of its column, as a bound may not.
    ranked: bool = True

    def points(self, columns: Sequence[int], shift: float = 0.0) -> list[Point]:
        """Return its figures in some columns, at 0, 1, ... on an axis, without those that it lacks."""
        points = []
        for place, index in enumerate(columns):
            if cell := self.cells[index]:
                points.append(Point(place + shift, cell.value, cell.low, cell.high))
        return points


# What the CSV has of a cell, in addition to its row and column.
_KNOWN = (
    "value",
    "low",
    "high",
    "error",
    "queries",
    "failed",
    "source",
    "note",
    "resampled_mean",
    "resampled_error",
    "answers",
)
CSV_HEADS = ("kind", "system", "task", "judgements", "metric", *_KNOWN, "best")


@dataclass(slots=True)
class SystemTable:
    """Figures of systems by columns."""

    # The beginning of the names of their files.
    stem: str
    title: str
    columns: list[ResultColumn]
    rows: list[ResultRow]
    notes: list[str] = field(default_factory=list)
    # Whether its columns are in an order: conditions, or sizes of pools.
    is_ordered: bool = False

    def of_kind(self, row_kind: RowKind) -> list[ResultRow]:
        """Its rows of a kind."""
        return [row for row in self.rows if row.kind == row_kind]

    def mark_best(self) -> None:
        """Mark the best of ours and of the published figures in each column."""
        for rows in (self.of_kind("ours"), self.of_kind("published")):
            for index, column in enumerate(self.columns):
                cells = [row.cells[index] for row in rows if row.ranked and column.ranked]
                known = [cell for cell in cells if cell is not None]
                choose = min if is_lower_better(column.metric) else max
                best = choose((cell.value for cell in known), default=0.0)
                for cell in known:
                    cell.best = len(known) > 1 and abs(cell.value - best) < TIE

    def to_table(self) -> ResultTable:
        """Lay it out, the rows of each kind below each other."""
        rows = []
        csv_rows: list[Sequence[object]] = [CSV_HEADS]
        for row in sorted(self.rows, key=lambda row: list(KINDS).index(row.kind)):
            shown: list[str] = [f"{row.label}{KINDS[row.kind]}"]
            for column, cell in zip(self.columns, row.cells, strict=True):
                text = Cell("")
                if cell is not None:
                    figures = [cell.value, cell.low, cell.high]
                    text = Cell(f"{cell.form}{cell.mark}", cell.value, figures=figures)
                    text.bold = cell.best
                    known = [getattr(cell, name) for name in _KNOWN]
                    best = "yes" if cell.best else ""
                    csv_rows.append([row.kind, row.label, *column.describe(), *known, best])
                shown.append(text)
            rows.append(shown)
        heads = ["system", *(column.label for column in self.columns)]
        return ResultTable(
            self.title, heads, rows, notes=self.notes, stem=self.stem, csv_rows=csv_rows
        )


def order_by_score(rows: Sequence[ResultRow], columns: Sequence[ResultColumn]) -> list[ResultRow]:
    """Return rows by their kind, and within it those with the most figures first, then by the mean
    of their figures, the best first.
    """

    def key(row: ResultRow) -> tuple[int, int, float]:
        values = []
        for cell, column in zip(row.cells, columns, strict=True):
            if cell is not None:
                values.append(orient(column.metric.partition(",")[0], cell.value))
        return list(KINDS).index(row.kind), -len(values), -sum(values)

    return sorted(rows, key=key)
