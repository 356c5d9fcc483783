"""Findings: how systems differ from a baseline, a row for each test.

The tests are in evals/scoring/comparison.py and statistics.py.
"""

from collections.abc import Iterable, Sequence

from sextant.evals.scoring.metrics import orient
from sextant.evals.scoring.statistics import ALPHA, TIE
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import (
    Cell,
    ResultTable,
    figure_cell,
    figure_cells,
    tabulate,
)
from sextant.tools.records import JsonMapping, JsonObject

# Below which p is not written out.
SMALLEST_P = 0.001
MEANS = (("baseline", "baseline_mean", "{:.4f}"), ("run", "mean", "{:.4f}"))
EXPLAINED = (
    "interval: 95 %, of the change; p: two-sided sign-flip permutation test, paired by query",
    "w t l: queries won, tied, lost; shows: the change that so many queries show in 80 % of cases, "
    "as the first of the tests that Holm adjusts for; too few: fewer queries differ than that takes",
)


def findings_table(
    title: str, findings: Sequence[JsonMapping], stem: str, notes: Sequence[str]
) -> ResultTable:
    """Return findings as a table; the meaning of its columns comes after the notes.

    Queries and the ends of the interval are in the CSV only.
    """
    return tabulate(title, findings, stem=stem, notes=[*notes, *EXPLAINED], in_file=3)


def make_finding(test: JsonMapping, system: str = "", task: str = "") -> JsonObject:
    """Return how a system differs from the baseline, as a row of a table.

    `test` is a row of `compare`, or a test of a study, which has no means. A column in which all
    rows have an empty text is not shown.
    """
    means = figure_cells(test, MEANS, "")
    if test.get("mean") is not None and abs(test["difference"]) >= TIE:
        better = "run" if orient(test["metric"], test["difference"]) > 0 else "baseline"
        means[better].bold = True
    return {
        "system": system,
        "task": task,
        "metric": test["metric"],
        **means,
        "change": figure_cell(test["difference"], "{:+z.4f}"),
        "interval": interval_cell(test),
        "p": p_cell(test["p"]),
        "Holm": p_cell(test["p_holm"]),
        "w t l": Cell(f"{test['wins']}/{test['ties']}/{test['losses']}"),
        "shows": figure_cell(test["detectable"], "{:.3f}", "-" if test["p"] is None else "too few"),
        "verdict": judge(test),
        "queries": test["queries"],
        "low": test["low"],
        "high": test["high"],
    }


def interval_cell(test: JsonMapping) -> Cell:
    """Return the interval of a difference; "too few" if too few queries differ."""
    if test["low"] is None:
        return Cell("too few")
    return Cell("{:z.3f} to {:z.3f}", figures=[test["low"], test["high"]])


def judge(test: JsonMapping) -> str:
    """Return what a test says of a system: "better", "worse", or why neither can be said."""
    if not test["queries"]:
        return "undefined"
    if test["p_holm"] is None:
        return "not tested"
    if not test["wins"] + test["losses"]:
        return "the same"
    if test["p_holm"] >= ALPHA:
        return "no difference shown"
    return "better" if orient(test["metric"], test["difference"]) > 0 else "worse"


def describe_families(rows: Iterable[JsonMapping]) -> str:
    """Return the families of tests in which p is adjusted in the rows of `compare`."""
    families = {row["family"]: row["tests"] for row in rows if row["tests"]}
    counts = [f"{plural(tests, 'test')} of {family}" for family, tests in families.items()]
    return ", and for ".join(counts) or "no test"


def p_cell(p: float | None) -> Cell:
    """Return a p value with three decimals, never in percent; "-" for a difference that was not tested."""
    if p is None:
        return Cell("-")
    return Cell(f"<{SMALLEST_P}" if p < SMALLEST_P else f"{p:.3f}", p)
