"""Findings: how systems differ from a baseline, a row for each test.

The tests are in evals/scoring/comparison.py and statistics.py.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sextant.evals.scoring.metrics import orient
from sextant.evals.scoring.statistics import ALPHA, TIE
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import Cell, ResultTable, figure_cell, tabulate
from sextant.tools.records import JsonMapping

# Below which p is not written out.
SMALLEST_P = 0.001
EXPLAINED = (
    "interval: 95 %, of the change; p: two-sided sign-flip permutation test, paired by query",
    "w t l: queries won, tied, lost; shows: the change that so many queries show in 80 % of cases, "
    "as the first of the tests that Holm adjusts for; too few: fewer queries differ than that takes",
)


class Finding(NamedTuple):
    """A system less the baseline in a metric; an empty text is not shown."""

    system: str
    task: str
    metric: str
    baseline: Cell
    run: Cell
    change: Cell
    interval: Cell
    p: Cell
    Holm: Cell
    w_t_l: Cell
    shows: Cell
    verdict: str
    # In the CSV only.
    queries: int
    low: float | None
    high: float | None


def findings_table(
    title: str, findings: Sequence[Finding], stem: str, notes: Sequence[str]
) -> ResultTable:
    """Return findings as a table; what its columns mean comes after the notes."""
    return tabulate(title, findings, stem=stem, notes=[*notes, *EXPLAINED], in_file=3)


def make_finding(test: JsonMapping, system: str = "", task: str = "") -> Finding:
    """Return a finding from a row of `compare`, or from a test of a study, which has no means."""
    before = test.get("baseline_mean")
    after = test.get("mean")
    means = figure_cell(before, unknown=""), figure_cell(after, unknown="")
    if before is not None and after is not None and abs(after - before) >= TIE:
        means[orient(test["metric"], after - before) > 0].bold = True
    return Finding(
        system,
        task,
        test["metric"],
        *means,
        figure_cell(test["difference"], "{:+z.4f}"),
        interval_cell(test),
        p_cell(test["p"]),
        p_cell(test["p_holm"]),
        Cell(f"{test['wins']}/{test['ties']}/{test['losses']}"),
        figure_cell(test["detectable"], "{:.3f}", "-" if test["p"] is None else "too few"),
        judge(test),
        test["queries"],
        test["low"],
        test["high"],
    )


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
    """Return a p value with three decimals; "-" for a difference that was not tested."""
    if p is not None and p < SMALLEST_P:
        return Cell(f"<{SMALLEST_P}", p)
    return figure_cell(p, "{:.3f}")
