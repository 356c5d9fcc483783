"""Tests of a study's rows against the baseline, on each task and over all.

Values in, tests out; nothing is read. The test is the paired permutation test of
evals/scoring/statistics.py. Tasks are tested together if their metrics are of the same kind (nDCG
at any depth): a mean of nDCG and Flip is the mean of nothing. Such a test is stratified by task:
the statistic is the mean over tasks of the mean difference of their queries, and the signs of the
queries of all tasks are flipped. All tests of a study are a family, corrected together by Holm, so
that a study in which nothing differs says so in 95 % of cases (docs/guide/study.md has the rates).
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from sextant.evals.scoring.metrics import metric_family, orient
from sextant.evals.scoring.statistics import ALPHA, PairedTest, run_tests, subtract_columns
from sextant.tools.platform.number_format import plural
from sextant.tools.records import JsonObject

# task -> row -> query -> value, which is a mean over seeds.
Values = Mapping[str, Mapping[str, Mapping[str, float]]]
# task -> its metric; a task without an entry has a metric of which more is better.
Metrics = Mapping[str, str]


class RowTest(NamedTuple):
    """A row less the baseline over tasks.

    A difference above 0 is an improvement, also in a metric of which less is better.
    """

    row: str
    tasks: tuple[str, ...]
    # Or the kind of metric, if the tasks have several of a kind.
    metric: str
    result: PairedTest

    @property
    def significant(self) -> bool:
        """Whether it differs, all tests together considered."""
        return self.result.p_holm < ALPHA

    @property
    def place(self) -> str:
        """The task, or how many."""
        if len(self.tasks) == 1:
            return self.tasks[0]
        return f"mean of {plural(len(self.tasks), 'task')}"

    def json(self) -> JsonObject:
        """Return the test as plain data."""
        about = {"row": self.row, "tasks": self.tasks, "metric": self.metric}
        return about | self.result._asdict()


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
        tasks = []
        for task in values:
            if len(_differences(values, task, baseline, row, metrics)):
                tasks.append(task)
        families = group_by_family(tasks, metrics).values()
        contrasts += [(row, members) for members in families if len(members) > 1]
        contrasts += [(row, (task,)) for task in tasks]
    return _test_together(values, baseline, contrasts, metrics)


def find_best(values: Values, metrics: Metrics | None = None) -> tuple[str, dict[str, RowTest]]:
    """Return the row with the best mean over all tasks, and the test of each other row against it.

    "" if no row has values on all tasks.
    """
    metrics = metrics or {}
    first_task: Mapping[str, Mapping[str, float]] = next(iter(values.values()), {})
    rows = []
    for row in first_task:
        if all(by_row.get(row) for by_row in values.values()):
            rows.append(row)

    def signed_mean(row: str) -> float:
        means = []
        for task, by_row in values.items():
            means.append(orient(metrics.get(task, ""), fmean(by_row[row].values())))
        return fmean(means)

    best = max(rows, key=signed_mean, default="")
    contrasts = []
    for row in rows:
        paired_on_all = all(len(_differences(values, task, best, row, metrics)) for task in values)
        if row != best and paired_on_all:
            contrasts.append((row, tuple(values)))
    tests = _test_together(values, best, contrasts, metrics)
    return best, {test.row: test for test in tests}


def _differences(
    values: Values,
    task: str,
    baseline: str,
    row: str,
    metrics: Metrics,
) -> np.ndarray:
    before = values[task].get(baseline, {})
    after = values[task].get(row, {})
    shared = [query for query in before if query in after]
    metric = metrics.get(task, "")
    return subtract_columns(
        [orient(metric, before[query]) for query in shared],
        [orient(metric, after[query]) for query in shared],
    )


def _test_together(
    values: Values,
    baseline: str,
    contrasts: Sequence[tuple[str, tuple[str, ...]]],
    metrics: Metrics,
) -> list[RowTest]:
    """Test the contrasts, each a row on tasks, as a family."""
    groups = [
        [_differences(values, task, baseline, row, metrics) for task in tasks]
        for row, tasks in contrasts
    ]
    tests = []
    for (row, tasks), result in zip(contrasts, run_tests(groups), strict=True):
        names = {metrics.get(task, "") for task in tasks}
        metric = names.pop() if len(names) == 1 else metric_family(names.pop())
        tests.append(RowTest(row, tasks, metric, result))
    return tests
