"""One row of a benchmark's table."""

from typing import Any, NamedTuple


class Row(NamedTuple):
    """One of our figures and the reference's, measured in the same run."""

    what: str  # e.g. "query of 800 characters, k=1000"
    unit: str  # e.g. "ms a query", "documents/s", "recall@100"
    ours: float
    against: str  # e.g. "bm25s, numba"
    theirs: float
    bound: float | None = (
        None  # what ours / theirs is held to, at most (at least, where larger is better)
    )
    larger_is_better: bool = False
    note: str = ""  # e.g. "identical ranking on 50 of 50 queries"

    @property
    def ratio(self) -> float:
        """Ours over theirs."""
        return self.ours / self.theirs

    @property
    def holds(self) -> bool:
        """Whether the bound is kept; true where there is none."""
        if self.bound is None:
            return True
        return self.ratio >= self.bound if self.larger_is_better else self.ratio <= self.bound

    def text(self) -> str:
        """The row as a person reads it."""
        bound = ""
        verdict = ""
        if self.bound is not None:
            bound = f"  {'at least' if self.larger_is_better else 'at most'} {self.bound:g}"
            verdict = "  ok" if self.holds else "  MISSED"
        figures = (
            f"{self.ours:>10.4g}  {self.theirs:>10.4g} {self.unit:<16} ratio "
            f"{self.ratio:<8.3g}{bound}{verdict}"
        )
        note = f"\n    {self.note}" if self.note else ""
        return f"{self.what}, against {self.against}\n    {figures}{note}\n"

    def json(self) -> dict[str, Any]:
        """The row as a program reads it."""
        return {**self._asdict(), "ratio": self.ratio, "holds": self.holds}
