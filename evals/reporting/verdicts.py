"""Verdicts in words: whether a comparison shows a difference.

The tests are in evals/scoring/comparison.py and statistics.py.
"""

from collections.abc import Sequence
from typing import Any

from evals.scoring.metrics import is_lower_better
from tools.number_format import number, plural, queries

Result = dict[str, Any]
# Below which a difference is taken for shown.
ALPHA = 0.05
# Below which p is not written out.
SMALLEST_P = 0.001


def describe_family(rows: Sequence[Result]) -> str:
    """Say for which tests p is adjusted in the rows of `compare`: each metric of each system."""
    tests = sum(row["p"] is not None for row in rows)
    if tests == 1:
        return "in a single test"
    return f"after Holm for {plural(tests, 'test')}, each metric of each run"


def describe_verdict(row: Result, name: str, baseline: str, family: str) -> str:
    """Say in a sentence whether a system differs from a baseline, by a row of `compare`.

    `family` is of `describe_family`.
    """
    metric = row["metric"]
    adjusted = row["p_holm"]
    if adjusted is None:
        return f"{metric} of {name} and {baseline} is not tested"
    p = round_p(adjusted)
    equals = "= "
    if p.startswith("<"):
        equals = ""
    test = f"(p {equals}{p} {family}; {queries(row['queries'])})"
    if adjusted >= ALPHA:
        power = number(
            row["detectable"],
            "; a difference of {:.3f} would have been shown in 80 % of cases",
            "",
        )
        pair = f"{name} and {baseline}"
        return f"no difference between {pair} in {metric} could be shown {test}{power}"
    difference = row["difference"]
    better = "better"
    if (difference > 0) is is_lower_better(metric):
        better = "worse"
    size = f"{abs(difference):.3f}"
    return f"{name} is {better} than {baseline} by {size} {metric} {test}"


def round_p(p: float | None) -> str:
    """Write a p value with three decimals; "-" for a difference that was not tested."""
    if p is None:
        return "-"
    if p < SMALLEST_P:
        return f"<{SMALLEST_P}"
    return f"{p:.3f}"
