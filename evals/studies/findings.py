"""What a study found, in words: which rows differ from the baseline, over the tasks and on each, by which test.

Values in, sentences out; nothing is read. The test is the paired permutation test of evals/measuring/stats.py. Over
several tasks it is stratified: the statistic is the mean over tasks of the mean difference of their queries, and the
signs of the queries of all tasks are flipped. All tests of a study are corrected together by Holm, so that a study in
which nothing differs says so in 95 % of cases (docs/decisions/studies.md has the rates).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import NormalDist, fmean, variance
from typing import NamedTuple

from evals.measuring.stats import TIE, holm, sign_flip
from evals.showing.report.tables import stratified
from tools.console import plural, queries

Values = Mapping[str, Mapping[str, Mapping[str, float]]]  # task -> row -> query -> value, which is a mean over seeds
ALPHA = 0.05
POWER = 0.8


class Test(NamedTuple):
    """A row less the baseline. A difference above 0 is for the better, also in a metric of which less is better."""

    row: str
    tasks: tuple[str, ...]
    difference: float  # the mean over tasks of the mean over queries
    low: float  # of its 95 % interval
    high: float
    p: float
    queries: int
    error: float  # the standard error of the difference
    p_holm: float = 1.0

    @property
    def significant(self) -> bool:
        """Whether it differs, all tests together considered."""
        return self.p_holm < ALPHA

    def __str__(self) -> str:
        p = "p<0.0001" if self.p_holm < 0.0001 else f"p={self.p_holm:.4f}"
        return f"{self.difference:+.4f}, n={self.queries}, {p}"


def test_rows(values: Values, baseline: str, lower: Collection[str] = ()) -> list[Test]:
    """Test each row against the baseline: over its tasks, where these are several, and on each.

    Less is better on the tasks in `lower`.
    """
    made = []
    for row in dict.fromkeys(row for by_row in values.values() for row in by_row if row != baseline):
        tasks = tuple(task for task, by_row in values.items() if _differ(by_row, baseline, row))
        groups = [tasks] * (len(tasks) > 1) + [(task,) for task in tasks]
        made += [_test(values, baseline, row, group, lower) for group in groups]
    return correct(made)


def correct(tests: Sequence[Test]) -> list[Test]:
    """Return the tests with their p corrected for all of them."""
    return [test._replace(p_holm=p) for test, p in zip(tests, holm([test.p for test in tests]), strict=True)]


def find_best(values: Values, lower: Collection[str] = ()) -> tuple[str, dict[str, Test]]:
    """Return the row with the best mean over all tasks, and the test of each other row against it; "" for no row."""
    rows = [row for row in next(iter(values.values()), ()) if all(by_row.get(row) for by_row in values.values())]

    def mean(row: str) -> float:
        signs = {task: -1 if task in lower else 1 for task in values}
        return fmean(signs[task] * fmean(by_row[row].values()) for task, by_row in values.items())

    best = max(rows, key=mean, default="")
    others = [row for row in rows if row != best and all(_differ(by_row, best, row) for by_row in values.values())]
    tests = [_test(values, best, row, tuple(values), lower) for row in others]
    return best, {test.row: test for test in correct(tests)}


def _differ(by_row: Mapping[str, Mapping[str, float]], baseline: str, row: str) -> list[float]:
    before, after = by_row.get(baseline, {}), by_row.get(row, {})
    found = [after[query] - before[query] for query in before if query in after]
    return [0.0 if abs(one) < TIE else one for one in found]


def _test(values: Values, baseline: str, row: str, tasks: tuple[str, ...], lower: Collection[str]) -> Test:
    signs = [-1 if task in lower else 1 for task in tasks]
    groups = [_differ(values[task], baseline, row) for task in tasks]
    groups = [[sign * one for one in group] for sign, group in zip(signs, groups, strict=True)]
    parts = [one / (len(group) * len(tasks)) for group in groups for one in group]
    spread = math.fsum(variance(group) / len(group) for group in groups if len(group) > 1)
    error = math.sqrt(spread) / len(tasks)
    return Test(row, tasks, math.fsum(parts), *stratified(groups), sign_flip(parts), len(parts), error)


def detectable(test: Test, tests: int) -> float | None:
    """Return the difference that would be shown in 80 % of cases as one of so many tests; None where none could be."""
    if not test.error or 2.0 ** (1 - test.queries) >= ALPHA / tests:
        return None
    normal = NormalDist()
    return (normal.inv_cdf(1 - ALPHA / tests / 2) + normal.inv_cdf(POWER)) * test.error


def say(tests: Sequence[Test], baseline: str, metric: str = "") -> list[str]:
    """Return what the tests say, a sentence for each row that differs and one for all that do not."""
    by_row: dict[str, list[Test]] = {}
    for test in tests:
        by_row.setdefault(test.row, []).append(test)
    differing = {row: own for row, own in by_row.items() if any(test.significant for test in own)}
    lines = [_say_row(row, own, baseline) for row, own in differing.items()]
    if rest := [own for row, own in by_row.items() if row not in differing]:
        where = "over the tasks or on any of them" if len(rest[0]) > 1 else f"on {rest[0][0].tasks[0]}"
        known = "; ".join(f"{own[0].row} ({own[0]})" for own in rest)
        who = "No row differs from" if not differing else f"{plural(len(rest), 'row')} cannot be told from"
        lines.append(f"{who} {baseline} {where}: {known}. {_say_power([own[0] for own in rest], len(tests))}")
    by = f"by {metric}" if metric else "each task by its own metric"
    method = "signs flipped query by query, within each task where they are over several"
    told = f"{plural(len(tests), 'paired permutation test')}, {by}: {method}; p is Holm's for all of them"
    return [*lines, told] if tests else []


def _say_row(row: str, own: Sequence[Test], baseline: str) -> str:
    parts = []
    if len(own) > 1:
        better = "better" if own[0].difference > 0 else "worse"
        told = f"is {better} than" if own[0].significant else "does not differ from"
        parts.append(f"{told} {baseline} over {len(own[0].tasks)} tasks ({own[0]})")
    single = [test for test in own if len(test.tasks) == 1 and test.significant]
    for word, sign in (("helps", 1), ("hurts", -1)):
        if some := [f"{test.tasks[0]} ({test})" for test in single if sign * test.difference > 0]:
            parts.append(f"{word} on {', '.join(some)}")
    start = row if len(own) > 1 else f"{row}, compared with {baseline},"
    return f"{start} {'; it '.join(parts)}"


def _say_power(tests: Sequence[Test], many: int) -> str:
    found = sorted(one for test in tests if (one := detectable(test, many)) is not None)
    if not found:
        about = f"{queries(max(test.queries for test in tests))} at most"
        return f"With {about}, and {plural(many, 'test')}, no difference could have been shown"
    span = f"{found[0]:.4f}" if len(found) == 1 else f"{found[0]:.4f} to {found[-1]:.4f}, by row,"
    return f"A difference of {span} would have been shown in 80 % of cases"
