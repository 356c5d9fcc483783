"""The findings of a study in words: which rows differ from the baseline, over the tasks and on
each, by which test.

Values in, sentences out; nothing is read. The test is the paired permutation test of
evals/scoring/statistics.py. Tasks are tested together if their metrics are of the same family (nDCG
at any depth): a mean of nDCG and Flip is the mean of nothing. Such a test is stratified by task:
the statistic is the mean over tasks of the mean difference of their queries, and the signs of the
queries of all tasks are flipped. All tests of a study are corrected together by Holm, so that a
study in which nothing differs says so in 95 % of cases (docs/guide/study.md has the rates).
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

# task -> row -> query -> value, which is a mean over seeds.
Values = Mapping[str, Mapping[str, Mapping[str, float]]]
# task -> its metric; a task without an entry has a metric of which more is better.
Metrics = Mapping[str, str]


class RowTest(NamedTuple):
    """A row less the baseline.

    A difference above 0 is an improvement, also in a metric of which less is better.
    """

    row: str
    tasks: tuple[str, ...]
    # The mean over tasks of the mean over queries.
    difference: float
    # The ends of its 95 % interval.
    low: float
    high: float
    p: float
    queries: int
    # Its family, if the study has several.
    metric: str = ""
    # The difference that is shown in 80 % of cases; None if none could be shown.
    detectable: float | None = None
    # p, corrected by Holm for all tests of the study.
    p_holm: float = 1.0

    @property
    def significant(self) -> bool:
        """Whether it differs, all tests together considered."""
        return self.p_holm < ALPHA

    def __str__(self) -> str:
        p = "p<0.0001" if self.p_holm < 0.0001 else f"p={self.p_holm:.4f}"
        return f"{self.difference:+.4f}, n={self.queries}, {p}"


class Contrast(NamedTuple):
    """Two rows on tasks of a family of metrics, before they are tested."""

    row: str
    tasks: tuple[str, ...]
    # Differences of queries by task; above 0 is an improvement.
    groups: list[list[float]]
    metric: str = ""


def group_by_family(tasks: Iterable[str], metrics: Metrics) -> dict[str, tuple[str, ...]]:
    """Return the tasks by the family of their metrics, in their order."""
    families: dict[str, list[str]] = {}
    for task in tasks:
        families.setdefault(metric_family(metrics.get(task, "")), []).append(task)
    return {family: tuple(members) for family, members in families.items()}


def test_rows(values: Values, baseline: str, metrics: Metrics | None = None) -> list[RowTest]:
    """Test each row against the baseline, on each task and over all tasks of a family of metrics."""
    metrics = metrics or {}
    contrasts = []
    rows = dict.fromkeys(row for by_row in values.values() for row in by_row)
    rows.pop(baseline, None)
    for row in rows:
        tasks = [task for task in values if _differences(values, task, baseline, row, metrics)]
        families = group_by_family(tasks, metrics)
        for family, members in families.items():
            if len(members) > 1:
                label = family if len(families) > 1 else ""
                contrasts.append(_contrast(values, baseline, row, members, metrics, label))
        contrasts += [
            _contrast(
                values,
                baseline,
                row,
                (task,),
                metrics,
            )
            for task in tasks
        ]
    return _test_together(contrasts)


def find_best(values: Values, metrics: Metrics | None = None) -> tuple[str, dict[str, RowTest]]:
    """Return the row with the best mean over all tasks, and the test of each other row against it.

    "" if no row has values on all tasks.
    """
    metrics = metrics or {}
    first_task: Mapping[str, Mapping[str, float]] = next(iter(values.values()), {})
    rows = [row for row in first_task if all(by_row.get(row) for by_row in values.values())]

    def signed_mean(row: str) -> float:
        means = []
        for task, by_row in values.items():
            means.append(_sign(metrics, task) * fmean(by_row[row].values()))
        return fmean(means)

    best = max(rows, key=signed_mean, default="")
    contrasts = []
    for row in rows:
        paired_on_all = all(_differences(values, task, best, row, metrics) for task in values)
        if row != best and paired_on_all:
            contrasts.append(
                _contrast(
                    values,
                    best,
                    row,
                    tuple(values),
                    metrics,
                )
            )
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
    groups = [_differences(values, task, baseline, row, metrics) for task in tasks]
    return Contrast(row, tasks, groups, label)


def _test_together(contrasts: Sequence[Contrast]) -> list[RowTest]:
    """Test the contrasts as a family, corrected by Holm."""
    tests = []
    for row, tasks, groups, metric in contrasts:
        # Each query's part of the mean over tasks of the mean over queries.
        shares = []
        for group in groups:
            weight = len(group) * len(tasks)
            shares += [difference / weight for difference in group]
        low, high = stratified(groups)
        test = RowTest(
            row,
            tasks,
            difference=math.fsum(shares),
            low=low,
            high=high,
            p=sign_flip(shares, tests=len(contrasts)),
            queries=len(shares),
            metric=metric,
            detectable=detectable_over([np.asarray(group) for group in groups], len(contrasts)),
        )
        tests.append(test)
    corrected = holm([test.p for test in tests])
    return [test._replace(p_holm=p) for test, p in zip(tests, corrected, strict=True)]


def describe_tests(tests: Sequence[RowTest], baseline: str, metric: str = "") -> list[str]:
    """Return the results in words: a sentence for each row that differs, and a sentence for all
    others.
    """
    if not tests:
        return []
    by_row: dict[str, list[RowTest]] = {}
    for test in tests:
        by_row.setdefault(test.row, []).append(test)
    lines = []
    equal = []
    for row, row_tests in by_row.items():
        if any(test.significant for test in row_tests):
            lines.append(_say_row(row, row_tests, baseline))
        else:
            equal.append(row_tests)
    if equal:
        subject = f"{plural(len(equal), 'row')} cannot be told from"
        if not lines:
            subject = "No row differs from"
        results = "; ".join(map(_say_equal, equal))
        power = _say_power([row_tests[0] for row_tests in equal], len(tests))
        lines.append(f"{subject} {baseline} {_scope(equal[0])}: {results}. {power}")
    by = f"by {metric}" if metric else "each task by its own metric"
    lines.append(
        f"{plural(len(tests), 'paired permutation test')}, {by}: signs flipped query by query, "
        "within each task where they are over several; p is Holm's for all of them"
    )
    return lines


def _scope(tests: Sequence[RowTest]) -> str:
    if len(tests) == 1:
        return f"on {tests[0].tasks[0]}"
    over_several = any(len(test.tasks) > 1 for test in tests)
    return "over the tasks or on any of them" if over_several else "on any of the tasks"


def _say_equal(tests: Sequence[RowTest]) -> str:
    over_several = [test for test in tests if len(test.tasks) > 1]
    if not over_several and len(tests) > 1:
        results = [f"{test.tasks[0]} {test}" for test in tests]
    else:
        results = [_with_metric(test) for test in over_several or tests]
    return f"{tests[0].row} ({'; '.join(results)})"


def _with_metric(test: RowTest) -> str:
    return f"{test.metric} {test}".strip()


def _say_row(row: str, tests: Sequence[RowTest], baseline: str) -> str:
    over_several = [test for test in tests if len(test.tasks) > 1]
    on_one = [test for test in tests if len(test.tasks) == 1 and test.significant]
    verdicts = [_say_verdict(test, baseline) for test in over_several]
    helped = [f"{test.tasks[0]} ({test})" for test in on_one if test.difference > 0]
    hurt = [f"{test.tasks[0]} ({test})" for test in on_one if test.difference < 0]
    if helped:
        verdicts.append(f"helps on {', '.join(helped)}")
    if hurt:
        verdicts.append(f"hurts on {', '.join(hurt)}")
    start = row if over_several else f"{row}, compared with {baseline},"
    return f"{start} {'; it '.join(verdicts)}"


def _say_verdict(test: RowTest, baseline: str) -> str:
    verdict = "does not differ from"
    if test.significant:
        verdict = "is better than" if test.difference > 0 else "is worse than"
    return f"{verdict} {baseline} over {plural(len(test.tasks), 'task')} ({_with_metric(test)})"


def _say_power(tests: Sequence[RowTest], test_count: int) -> str:
    detectable = sorted(test.detectable for test in tests if test.detectable is not None)
    if not detectable:
        size = queries(max(test.queries for test in tests))
        count = plural(test_count, "test")
        return f"With {size} at most, and {count}, no difference could have been shown"
    span = f"{detectable[0]:.4f}"
    if len(detectable) > 1:
        span += f" to {detectable[-1]:.4f}, by row,"
    return f"A difference of {span} would have been shown in 80 % of cases"
