"""Verdicts in words: whether a comparison shows a difference.

The tests are in evals/scoring/comparison.py and statistics.py.
"""

from collections.abc import Iterable

from sextant.evals.scoring.metrics import is_lower_better
from sextant.evals.scoring.statistics import ALPHA
from sextant.tools.platform.number_format import number, plural, queries
from sextant.tools.records import JsonMapping

# Below which p is not written out.
SMALLEST_P = 0.001


def describe_families(rows: Iterable[JsonMapping]) -> str:
    """Return the families of tests in which p is adjusted in the rows of `compare`."""
    families = {row["family"]: row["tests"] for row in rows if row["tests"]}
    counts = [f"{plural(tests, 'test')} of {family}" for family, tests in families.items()]
    return ", and for ".join(counts) or "no test"


def describe_verdict(row: JsonMapping, name: str, baseline: str, where: str = "") -> str:
    """Say in a sentence whether a system differs from a baseline, by a row of `compare`.

    `where` follows the name of the metric.
    """
    metric = f"{row['metric']}{where}"
    pair = f"{name} and {baseline}"
    adjusted = row["p_holm"]
    if adjusted is None:
        return f"{metric} of {pair} is not tested"
    if not row["wins"] + row["losses"]:
        count = queries(row["queries"])
        return f"no difference between {pair} in {metric}: the same value for each of {count}"
    tests = row["tests"]
    family = "in a single test"
    as_first = ""
    if tests > 1:
        family = f"after Holm for {plural(tests, 'test')} of {row['family']}"
        as_first = f", as the first of {plural(tests, 'test')}"
    p = round_p(adjusted)
    equals = "" if p.startswith("<") else "= "
    test = f"(p {equals}{p} {family}; {queries(row['queries'])})"
    if adjusted >= ALPHA:
        power = number(
            row["detectable"],
            f"a difference of {{:.3f}} would have been shown in 80 % of cases{as_first}",
            "too few queries differ to show any difference",
        )
        return f"no difference between {pair} in {metric} could be shown {test}; {power}"
    difference = row["difference"]
    better = "better"
    if (difference > 0) is is_lower_better(row["metric"]):
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
