"""Tests of a study's rows against the baseline, on each task and over all.

Values in, tests out; nothing is read. The test is the paired permutation test of
evals/scoring/statistics.py. Tasks are tested together if their metrics are of the same kind (nDCG
at any depth): a mean of nDCG and Flip is the mean of nothing. Such a test is stratified by task:
the statistic is the mean over tasks of the mean difference of their queries, and the signs of the
queries of all tasks are flipped. All tests of a study are a family, corrected together by Holm, so
that a study in which nothing differs says so in 95 % of cases (docs/guide/study.md has the rates).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sextant.evals.scoring.metrics import is_lower_better, metric_family
from sextant.evals.scoring.statistics import ALPHA, PairedTest, run_tests, subtract_columns
from sextant.tools.platform.number_format import plural
from sextant.tools.records import JsonObject

# task -> row -> query -> value, which is a mean over seeds.
Values = Mapping[str, Mapping[str, Mapping[str, float]]]
# task -> its metric.
Metrics = Mapping[str, str]
# A row, and task -> its queries' differences from another row.
Contrast = tuple[str, Mapping[str, np.ndarray]]


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
        return (
            self.tasks[0] if len(self.tasks) == 1 else f"mean of {plural(len(self.tasks), 'task')}"
        )

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
    families: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        family = metric_family(metrics[task])
        families[family] = (*families.get(family, ()), task)
    return families


def test_rows(values: Values, baseline: str, metrics: Metrics) -> list[RowTest]:
    """Test each row against the baseline, on each task and over all tasks of a family of metrics."""
    contrasts: list[Contrast] = []
    for row in dict.fromkeys(row for by_row in values.values() for row in by_row):
        if row != baseline:
            differences = _subtract(values, baseline, row, metrics)
            members = [*group_by_family(differences, metrics).values()]
            groups = [tasks for tasks in members if len(tasks) > 1]
            groups += [(task,) for task in differences]
            contrasts += [(row, {task: differences[task] for task in tasks}) for tasks in groups]
    return _test_together(contrasts, metrics)


def _subtract(values: Values, baseline: str, row: str, metrics: Metrics) -> dict[str, np.ndarray]:
    """Return task -> the differences of a row from the baseline, for tasks of which they share queries."""
    differences = {}
    for task, by_row in values.items():
        before = by_row.get(baseline, {})
        after = by_row.get(row, {})
        if is_lower_better(metrics[task]):
            before, after = after, before
        shared = [query for query in before if query in after]
        if shared:
            differences[task] = subtract_columns(
                [before[query] for query in shared],
                [after[query] for query in shared],
            )
    return differences


def _test_together(contrasts: Sequence[Contrast], metrics: Metrics) -> list[RowTest]:
    """Test the contrasts as a family."""
    tests = []
    results = run_tests([list(differences.values()) for _, differences in contrasts])
    for (row, differences), result in zip(contrasts, results, strict=True):
        names = {metrics[task] for task in differences}
        metric = min(names) if len(names) == 1 else metric_family(min(names))
        tests.append(RowTest(row, tuple(differences), metric, result))
    return tests
