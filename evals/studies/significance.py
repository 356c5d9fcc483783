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

from sextant.evals.scoring.metrics import is_lower_better, metric_family, orient
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
        about = {
            "row": self.row,
            "tasks": self.tasks,
            "metric": self.metric,
        }
        return about | self.result._asdict()


def group_by_family(tasks: Iterable[str], metrics: Metrics) -> dict[str, tuple[str, ...]]:
    """Return the tasks by the family of their metrics, in their order."""
    families: dict[str, list[str]] = {}
    for task in tasks:
        families.setdefault(
            metric_family(metrics.get(task, "")),
            [],
        ).append(task)
    return {family: tuple(members) for family, members in families.items()}


def test_rows(values: Values, baseline: str, metrics: Metrics | None = None) -> list[RowTest]:
    """Test each row against the baseline, on each task and over all tasks of a family of metrics."""
    metrics = metrics or {}
    contrasts = []
    for row in dict.fromkeys(row for by_row in values.values() for row in by_row):
        if row != baseline:
            differences = _subtract(values, baseline, row, metrics)
            for members in group_by_family(differences, metrics).values():
                if len(members) > 1:
                    contrasts.append((row, {task: differences[task] for task in members}))
            contrasts += [(row, {task: column}) for task, column in differences.items()]
    return _test_together(contrasts, metrics)


def find_best(values: Values, metrics: Metrics | None = None) -> tuple[str, dict[str, RowTest]]:
    """Return the row with the best mean over all tasks, and the test of each other row against it.

    "" if no row has values on all tasks.
    """
    metrics = metrics or {}
    means = {}
    for row in next(iter(values.values()), {}):
        signed = []
        for task, by_row in values.items():
            if column := by_row.get(row):
                signed.append(
                    orient(
                        metrics.get(task, ""),
                        fmean(column.values()),
                    )
                )
        if len(signed) == len(values):
            means[row] = fmean(signed)
    best = max(means, key=means.__getitem__, default="")
    contrasts = []
    for row in means:
        differences = _subtract(values, best, row, metrics)
        if row != best and len(differences) == len(values):
            contrasts.append((row, differences))
    return best, {test.row: test for test in _test_together(contrasts, metrics)}


def _subtract(values: Values, baseline: str, row: str, metrics: Metrics) -> dict[str, np.ndarray]:
    """Return task -> the differences of a row from the baseline, for tasks of which they share queries."""
    differences = {}
    for task, by_row in values.items():
        before = by_row.get(baseline, {})
        after = by_row.get(row, {})
        shared = [query for query in before if query in after]
        if shared:
            columns = [[by_query[query] for query in shared] for by_query in (before, after)]
            if is_lower_better(metrics.get(task, "")):
                columns.reverse()
            differences[task] = subtract_columns(*columns)
    return differences


def _test_together(
    contrasts: Sequence[tuple[str, Mapping[str, np.ndarray]]], metrics: Metrics
) -> list[RowTest]:
    """Test the contrasts, each a row with its differences on tasks, as a family."""
    results = run_tests([list(differences.values()) for _, differences in contrasts])
    tests = []
    for (row, differences), result in zip(contrasts, results, strict=True):
        names = {metrics.get(task, "") for task in differences}
        metric = names.pop() if len(names) == 1 else metric_family(names.pop())
        tests.append(
            RowTest(
                row,
                tuple(differences),
                metric,
                result,
            )
        )
    return tests
