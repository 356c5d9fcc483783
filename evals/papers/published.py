"""The result tables of the four papers.

A CSV a paper, a line a figure, with the table and the row that it was read from. Values are
fractions as printed (43.5 % is 0.435); `error` is the standard error, if it is printed; `note`
explains oddities: a misprint, a printed average that its own rows do not give. Tasks and metrics
have our names. `crumb/*` and the like are averages over tasks.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sextant.tools.records import JsonObject


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """A number of a paper."""

    task: str
    system: str
    metric: str
    # "gold" or "pooled" if the paper has both, else "".
    judgements: str
    split: str
    value: float
    error: float | None
    table: str
    row: str
    note: str


@cache
def figures() -> tuple[PaperFigure, ...]:
    """Every figure of the four papers, in the order of the files."""
    collected = []
    for path in sorted(Path(__file__).parent.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows: list[JsonObject] = list(csv.DictReader(file))
        for row in rows:
            row |= {
                "value": float(row["value"]),
                "error": float(row["error"]) if row["error"] else None,
            }
            collected.append(PaperFigure(**{name: row[name] for name in PaperFigure.__slots__}))
    return tuple(collected)
