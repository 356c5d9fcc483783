"""The findings of a study in words: which rows differ from the baseline, over the tasks and on
each, by which test.

Values in, sentences out; nothing is read. The test is the paired permutation test of
evals/scoring/statistics.py. Tasks are tested together if their metrics are of one family (nDCG at any
depth): a mean of nDCG and Flip is the mean of nothing. Such a test is stratified by task: the
statistic is the mean over tasks of the mean difference of their queries, and the signs of the
queries of all tasks are flipped. All tests of a study are corrected together by Holm, so that a
study in which nothing differs says so in 95 % of cases (docs/decisions/studies.md has the rates).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from evals.reporting.report_tables import stratified
from evals.scoring.metrics import is_lower_better, metric_family
from evals.scoring.statistics import ALPHA, TIE, detectable_over, holm, sign_flip
from tools.number_format import plural, queries

Values = Mapping[
    str, Mapping[str, Mapping[str, float]]
]  # task -> row -> query -> value, which is a mean over seeds
Metrics = Mapping[
    str, str
]  # task -> its metric; a task that is not named has one of which more is better


class RowTest(NamedTuple):
    """A row less the baseline. A difference above 0 is for the better, also in a metric of which less is better."""

    row: str
    tasks: tuple[str, ...]
    difference: float  # the mean over tasks of the mean over queries
    low: float  # of its 95 % interval
    high: float
    p: float
    queries: int
    metric: str = ""  # its family, if the study has several
    detectable: float | None = (
        None  # the difference that is shown in 80 % of cases; None if none could be
    )
    p_holm: float = 1.0

    @property
    def significant(self) -> bool:
        """Whether it differs, all tests together considered."""
        return self.p_holm < ALPHA

    def __str__(self) -> str:
        p = "p<0.0001" if self.p_holm < 0.0001 else f"p={self.p_holm:.4f}"
        return f"{self.difference:+.4f}, n={self.queries}, {p}"


class Contrast(NamedTuple):
    """Two rows on tasks of one family of metrics, before they are tested."""

    row: str
    tasks: tuple[str, ...]
    groups: list[list[float]]  # differences of queries by task, above 0 for the better
    metric: str = ""


def group_by_family(tasks: Iterable[str], metrics: Metrics) -> dict[str, tuple[str, ...]]:
    """Return the tasks by the family of their metrics, in their order."""
    families: dict[str, list[str]] = {}
    for task in tasks:
        families.setdefault(metric_family(metrics.get(task, "")), []).append(task)
    return {family: tuple(members) for family, members in families.items()}


def test_rows(values: Values, baseline: str, metrics: Metrics | None = None) -> list[RowTest]:
    """Test each row against the baseline: over its tasks of each family of metrics, if
    several, and on each task.
    """
    metrics = metrics or {}
    contrasts = []
    rows = dict.fromkeys(row for by_row in values.values() for row in by_row if row != baseline)
    for row in rows:
        tasks = [task for task in values if _differences(values, task, baseline, row, metrics)]
        families = group_by_family(tasks, metrics)
        for family, members in families.items():
            if len(members) > 1:
                label = family if len(families) > 1 else ""
                contrasts.append(_contrast(values, baseline, row, members, metrics, label))
        contrasts += [_contrast(values, baseline, row, (task,), metrics) for task in tasks]
    return _test_together(contrasts)


def find_best(values: Values, metrics: Metrics | None = None) -> tuple[str, dict[str, RowTest]]:
    """Return the row with the best mean over all tasks, and the test of each other row
    against it; "" for no row.
    """
    metrics = metrics or {}
    first_task: Mapping[str, Mapping[str, float]] = next(iter(values.values()), {})
    rows = [row for row in first_task if all(by_row.get(row) for by_row in values.values())]

    def signed_mean(row: str) -> float:
        return fmean(
            _sign(metrics, task) * fmean(by_row[row].values()) for task, by_row in values.items()
        )

    best = max(rows, key=signed_mean, default="")
    contrasts = []
    for row in rows:
        paired_on_all = all(_differences(values, task, best, row, metrics) for task in values)
        if row != best and paired_on_all:
            contrasts.append(_contrast(values, best, row, tuple(values), metrics))
    return best, {test.row: test for test in _test_together(contrasts)}


def _sign(metrics: Metrics, task: str) -> int:
    return -1 if is_lower_better(metrics.get(task, "")) else 1


def _differences(
    values: Values, task: str, baseline: str, row: str, metrics: Metrics
) -> list[float]:
    before = values[task].get(baseline, {})
    after = values[task].get(row, {})
    sign = _sign(metrics, task)
    differences = [sign * (after[query] - before[query]) for query in before if query in after]
    return [0.0 if abs(difference) < TIE else difference for difference in differences]


def _contrast(
    values: Values,
    baseline: str,
    row: str,
    tasks: tuple[str, ...],
    metrics: Metrics,
    label: str = "",
) -> Contrast:
    return Contrast(
        row, tasks, [_differences(values, task, baseline, row, metrics) for task in tasks], label
    )


def _test_together(contrasts: Sequence[Contrast]) -> list[RowTest]:
    """Test the contrasts as one family, corrected by Holm."""
    tests = []
    for row, tasks, groups, metric in contrasts:
        parts = [difference / (len(group) * len(tasks)) for group in groups for difference in group]
        tests.append(
            RowTest(
                row,
                tasks,
                math.fsum(parts),
                *stratified(groups),
                sign_flip(parts, tests=len(contrasts)),
                len(parts),
                metric,
                detectable_over([np.asarray(group) for group in groups], len(contrasts)),
            )
        )
    corrected = holm([test.p for test in tests])
    return [test._replace(p_holm=p) for test, p in zip(tests, corrected, strict=True)]


def describe_tests(tests: Sequence[RowTest], baseline: str, metric: str = "") -> list[str]:
    """Return what the tests say, a sentence for each row that differs and one for all that do
    not.
    """
    by_row: dict[str, list[RowTest]] = {}
    for test in tests:
        by_row.setdefault(test.row, []).append(test)
    differing = {row: own for row, own in by_row.items() if any(test.significant for test in own)}
    lines = [_say_row(row, own, baseline) for row, own in differing.items()]
    rest = [own for row, own in by_row.items() if row not in differing]
    if rest:
        known = "; ".join(_say_equal(own) for own in rest)
        who = (
            "No row differs from"
            if not differing
            else f"{plural(len(rest), 'row')} cannot be told from"
        )
        power = _say_power([own[0] for own in rest], len(tests))
        lines.append(f"{who} {baseline} {_scope(rest[0])}: {known}. {power}")
    by = f"by {metric}" if metric else "each task by its own metric"
    method = "signs flipped query by query, within each task where they are over several"
    told = (
        f"{plural(len(tests), 'paired permutation test')}, {by}: {method}; p is Holm's for all of "
        f"them"
    )
    return [*lines, told] if tests else []


def _scope(tests: Sequence[RowTest]) -> str:
    if len(tests) == 1:
        return f"on {tests[0].tasks[0]}"
    over_several = any(len(test.tasks) > 1 for test in tests)
    return "over the tasks or on any of them" if over_several else "on any of the tasks"


def _say_equal(tests: Sequence[RowTest]) -> str:
    over = [test for test in tests if len(test.tasks) > 1]
    if not over and len(tests) > 1:
        return f"{tests[0].row} ({'; '.join(f'{test.tasks[0]} {test}' for test in tests)})"
    shown = over or tests
    return f"{tests[0].row} ({'; '.join(_with_metric(test) for test in shown)})"


def _with_metric(test: RowTest) -> str:
    return f"{test.metric} {test}".strip()


def _say_row(row: str, own: Sequence[RowTest], baseline: str) -> str:
    over = [test for test in own if len(test.tasks) > 1]
    parts = []
    for test in over:
        better = "better" if test.difference > 0 else "worse"
        verdict = f"is {better} than" if test.significant else "does not differ from"
        parts.append(f"{verdict} {baseline} over {len(test.tasks)} tasks ({_with_metric(test)})")
    single = [test for test in own if len(test.tasks) == 1 and test.significant]
    for word, sign in (("helps", 1), ("hurts", -1)):
        if some := [f"{test.tasks[0]} ({test})" for test in single if sign * test.difference > 0]:
            parts.append(f"{word} on {', '.join(some)}")
    start = row if over else f"{row}, compared with {baseline},"
    return f"{start} {'; it '.join(parts)}"


def _say_power(tests: Sequence[RowTest], many: int) -> str:
    shown = sorted(test.detectable for test in tests if test.detectable is not None)
    if not shown:
        about = f"{queries(max(test.queries for test in tests))} at most"
        return f"With {about}, and {plural(many, 'test')}, no difference could have been shown"
    span = f"{shown[0]:.4f}" if len(shown) == 1 else f"{shown[0]:.4f} to {shown[-1]:.4f}, by row,"
    return f"A difference of {span} would have been shown in 80 % of cases"
