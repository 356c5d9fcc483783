"""A table of a report: columns, rows and cells, each cell with where it comes from."""

from dataclasses import dataclass, field
from typing import Literal

from evals.showing.report.groups import System

Kind = Literal["ours", "union", "gold", "published"]
# What stands above the rows of a kind.
HEADS: dict[Kind, str] = {
    "ours": "",
    "union": "Over pools as retrieved: lower bounds",
    "gold": "Over pools with gold put in: upper bounds",
    "published": "Published, as printed",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A task by some judgements in a metric, or the mean of such over tasks."""

    tasks: tuple[str, ...]
    metric: str
    judgements: str
    label: str
    below: str = ""  # a second line under it
    figure_task: str = ""  # what evals.published calls it
    leads: bool = True  # by the judgements that lead its task; others stand beside them


@dataclass(slots=True)
class Cell:
    """One figure with where it comes from."""

    value: float
    text: str
    source: str  # a run folder, or a paper's table and row
    low: float | None = None
    high: float | None = None
    error: float | None = None  # the standard error that a paper prints
    queries: int | None = None
    failed: int | None = None
    resampled: tuple[float, float] | None = None  # BIRCO's mean over bootstrap resamples, and its error
    note: str = ""
    best: bool = False

    @property
    def title(self) -> str:
        """What is behind the figure, in a line."""
        interval = "" if self.low is None else f"95 % interval {self.low:.4f} to {self.high:.4f}"
        error = "" if self.error is None else f"standard error {self.error}"
        many = "" if self.queries is None else f"{self.queries} queries"
        failed = f"{self.failed} of them failed and count 0" if self.failed else ""
        return "; ".join(filter(None, [interval, error, many, failed, self.note, self.source]))


@dataclass(slots=True)
class Row:
    """A system's figures, a cell for each column."""

    kind: Kind
    label: str
    cells: list[Cell | None]
    system: System | None = None  # None for a paper's
    ranked: bool = True  # may be the best of its column: not a bound


@dataclass(slots=True)
class Table:
    """One table of a report."""

    stem: str  # of its file's name
    title: str
    columns: list[Column]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def of_kind(self, kind: Kind) -> list[Row]:
        """Its rows of one kind."""
        return [row for row in self.rows if row.kind == kind]
