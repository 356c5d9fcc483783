"""Compared systems in one table: a row for each, a column for each metric.

The other tables of a comparison are in comparison_tables.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sextant.evals.reporting.verdicts import describe_families
from sextant.tools.platform.result_table import Cell, ResultTable

Result = Mapping[str, Any]
MARKS = "* the best by a metric; = does not differ from it"


def overview_table(result: Result, names: Sequence[str] = ()) -> ResultTable:
    """Return the systems of a comparison by its metrics; the best is bold and has a star."""
    ranked = result["by_metric"]
    rows = list[list[str]]()
    if not names:
        names = system_names(result)
    for place, name in enumerate(names):
        cells: list[str] = [name]
        for row in ranked:
            cells.append(_cell(row, place))
        rows.append(cells)
    metrics = [row["metric"] for row in ranked]
    heads = ["system", *metrics]
    return ResultTable("", heads, rows, notes=[explain_marks(result)], stem="overview")


def explain_marks(result: Result) -> str:
    """Return the meaning of the marks, with the number of tests."""
    families = describe_families(result["by_metric"])
    return (
        f"{MARKS} (paired sign-flip permutation test of each system against the best, p >= .05 "
        f"after Holm for {families})"
    )


def system_names(result: Result) -> list[str]:
    """Return the name of each system of a comparison (evals/scoring/system_names.py)."""
    return [system["name"] for system in result["systems"]]


def _cell(row: Result, place: int) -> Cell:
    mean = row["means"][place]
    if mean is None:
        return Cell("-")
    leader = row["leader"]
    is_best = leader is not None and mean == row["means"][leader]
    is_equal = row["differs"][place] is False
    mark = "*" if is_best else "=" if is_equal else " "
    return Cell(f"{{:.4f}} {mark}", mean, bold=is_best, figures=[mean])
