"""Several systems by several metrics: the best, and the systems that do not differ from it."""

import pytest

from sextant.evals.scoring.statistics import run_tests, subtract_columns
from sextant.evals.scoring.system_ranking import rank_systems

QUERIES = [f"q{number}" for number in range(20)]


def column(values):
    return dict(zip(QUERIES, values, strict=True))


LOW = [0.1 + 0.01 * number for number in range(20)]
HIGH = [value + 0.3 + (0.05 if number % 2 else -0.05) for number, value in enumerate(LOW)]
NEAR = [value + (0.1 if number % 2 else -0.1) for number, value in enumerate(HIGH)]


def test_the_best_leads_and_only_a_system_that_differs_from_it_is_told_apart():
    [row] = rank_systems([{"m": column(values)} for values in (LOW, HIGH, NEAR)], ["m"])
    assert row["leader"] == 1 and row["queries"] == 20
    assert row["means"] == [pytest.approx(sum(values) / 20) for values in (LOW, HIGH, NEAR)]
    assert row["differs"] == [True, None, False]
    assert row["p"][1] is None and row["p_holm"][1] is None


def test_p_is_of_paired_tests_against_the_best_and_corrected_within_its_family():
    systems = [{name: column(values) for name in "mno"} for values in (LOW, HIGH, NEAR)]
    ranked = rank_systems(systems, list("mno"), headline="m")
    contrast = [[subtract_columns(HIGH, other)] for other in (LOW, NEAR)]
    for row, family in zip(ranked, (contrast, contrast * 2, contrast * 2), strict=True):
        tests = run_tests(family)[:2]
        assert [row["p"][0], row["p"][2]] == [test.p for test in tests]
        assert [row["p_holm"][0], row["p_holm"][2]] == [test.p_holm for test in tests]
    assert [row["tests"] for row in ranked] == [2, 4, 4]


def test_of_a_metric_of_which_less_is_better_the_lowest_leads():
    [row] = rank_systems([{"Flip": column(values)} for values in (HIGH, LOW)], ["Flip"])
    assert row["leader"] == 1


def test_a_metric_that_is_not_tested_has_means_alone():
    [row] = rank_systems([{"m": column(values)} for values in (LOW, HIGH)], ["m"], ["m"])
    assert row["leader"] == 1 and row["p"] == row["differs"] == [None, None]


def test_only_queries_that_all_systems_have_count():
    short = {"m": {"q0": 1.0, "q1": 0.0}}
    [row] = rank_systems([{"m": column(LOW)}, short], ["m"])
    assert row["queries"] == 2 and row["means"] == [pytest.approx(0.105), 0.5]
    [empty] = rank_systems([{"m": column(LOW)}, {"m": {}}], ["m"])
    assert empty["queries"] == 0 and empty["means"] == [None, None] and empty["leader"] is None
