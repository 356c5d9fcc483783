"""Uncertainty of a mean over queries, and of the difference of two. The same values always give the
same figures.

The test of a difference is the paired randomisation test of Smucker, Allan and Carterette (2007).
Repeated runs are averaged within queries before (comparison.py). Left out: clusters of queries.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

ALPHA = 0.05  # the level of a test, two-sided
POWER = 0.8  # the share of cases in which a detectable difference is shown
TIE = 1e-12  # two values that differ by less are the same: they were summed in another order
EXACT = 16  # up to this number of differences all 2^n assignments of signs are enumerated
PERMUTATIONS = 19_999  # random assignments of signs for more differences
DRAWS_PER_TEST = 400  # so the smallest p of a family of tests, times their number, is 1/400
REFINED = 0.005  # a p below this is estimated again with the draws that the family needs
GROUP = 8  # differences whose signs are drawn together: one random byte
# Queries for which the power can be 80 %: with six, all must move one way to be significant.
FEWEST = 7
_BOUNDS = (0.025, 0.975)  # quantiles of a 95 % interval


class Interval(NamedTuple):
    """A mean and its 95 % interval; the bounds are None if there is no spread to estimate them from."""

    mean: float
    low: float | None
    high: float | None


def bootstrap_mean(
    values: Sequence[float], weights: Sequence[float] | None = None, *, resamples: int | None = None
) -> Interval:
    """Return the mean with its percentile bootstrap interval (Efron and Tibshirani 1993, ch. 13)."""
    [interval] = bootstrap_columns([values], weights, resamples=resamples)
    return interval


def bootstrap_columns(
    columns: Sequence[Sequence[float] | np.ndarray],
    weights: Sequence[float] | None = None,
    *,
    resamples: int | None = None,
) -> list[Interval]:
    """Return `bootstrap_mean` of each column, a column having a value for each of its queries.

    Resamples are drawn once for all columns of a length.
    """
    equally_long = dict[int, list[int]]()
    for position, column in enumerate(columns):
        equally_long.setdefault(len(column), []).append(position)
    intervals: dict[int, Interval] = {}
    for positions in equally_long.values():
        rows = np.array([columns[position] for position in positions], dtype=np.float64)
        intervals |= zip(positions, _bootstrap_rows(rows, weights, resamples), strict=True)
    return [intervals[position] for position in range(len(columns))]


def _bootstrap_rows(
    rows: np.ndarray,
    weights: Sequence[float] | None,
    resamples: int | None,
) -> list[Interval]:
    """Return `bootstrap_mean` of each row, shape (columns, queries)."""
    queries = rows.shape[1]
    weight = np.ones(queries) if weights is None else np.asarray(weights, dtype=np.float64)
    means = [float(np.average(row, weights=weight)) for row in rows]
    if queries < 2:
        return [Interval(mean, None, None) for mean in means]
    weighted = rows * weight
    means_of_blocks = []
    for draws in _draw_queries(queries, resamples):
        totals = queries if weights is None else weight.take(draws).sum(axis=1)
        sums = [row.take(draws).sum(axis=1) for row in weighted]
        means_of_blocks.append(np.stack(sums) / totals)
    lows, highs = np.quantile(np.concatenate(means_of_blocks, axis=1), _BOUNDS, axis=1)
    return [
        Interval(mean, float(low), float(high))
        for mean, low, high in zip(means, lows, highs, strict=True)
    ]


def _draw_queries(queries: int, resamples: int | None = None) -> Iterator[np.ndarray]:
    """Yield resamples of the numbers of queries, in blocks of shape (up to n, queries).

    By default 20 million draws in all, but 2,000 to 10,000 resamples.
    """
    if not resamples:
        resamples = max(2_000, min(10_000, 20_000_000 // queries))
    generator = np.random.default_rng(0)
    # Resamples of a block: 1 MB of draws for any number of queries, which stays in the cache.
    step = max(1, 128_000 // queries)
    for start in range(0, resamples, step):
        block = min(step, resamples - start)
        yield generator.integers(0, queries, size=(block, queries))


def bootstrap_means(rows: np.ndarray) -> list[Interval]:
    """Return `bootstrap_mean` of each column of `rows`, shape (queries, columns).

    All columns have the same resamples, so that sums of columns hold.
    """
    means = rows.mean(axis=0)
    if len(rows) < 2:
        return [Interval(float(mean), None, None) for mean in means]
    lows, highs = np.quantile(means_of_resamples(rows), _BOUNDS, axis=0)
    return [
        Interval(float(mean), float(low), float(high))
        for mean, low, high in zip(means, lows, highs, strict=True)
    ]


def means_of_resamples(rows: np.ndarray) -> np.ndarray:
    """Return the means of resamples of rows, shape (resamples, columns)."""
    queries = len(rows)
    means = []
    for draws in _draw_queries(queries):
        # Each resample has counters of its own, so that one bincount serves the block.
        counters = draws + np.arange(len(draws))[:, None] * queries
        times_drawn = np.bincount(counters.ravel(), minlength=draws.size).reshape(draws.shape)
        means.append(times_drawn.astype(np.float64) @ rows / queries)
    return np.concatenate(means)


def share_closed(
    floor: Sequence[float], program: Sequence[float], ceiling: Sequence[float]
) -> Interval | None:
    """Return (program - floor) / (ceiling - floor) of the means.

    None if the ceiling is not above the floor.
    """
    rows = np.asarray([floor, program, ceiling], dtype=np.float64).T
    if not rows.size:
        return None
    floor_mean, program_mean, ceiling_mean = rows.mean(axis=0)
    if not ceiling_mean - floor_mean > TIE:
        return None
    share = float((program_mean - floor_mean) / (ceiling_mean - floor_mean))
    of_floor, of_program, of_ceiling = means_of_resamples(rows).T
    gap = of_ceiling - of_floor
    if len(rows) < 2 or np.quantile(gap, _BOUNDS[0]) <= TIE:
        # The ratio has no bounded interval (Fieller 1954).
        return Interval(share, None, None)
    low, high = np.quantile((of_program - of_floor) / np.maximum(gap, TIE), _BOUNDS)
    return Interval(share, float(low), float(high))


def resampled_mean(values: Sequence[float]) -> dict[str, float]:
    """Return BIRCO's figure: the mean of 1,000 resampled means, their standard deviation as "error"."""
    array = np.asarray(values, dtype=np.float64)
    # BIRCO's script seeds NumPy's global generator with this number for each metric.
    generator = np.random.RandomState(42)
    means = []
    for _ in range(1000):
        draws = generator.choice(len(array), len(array), replace=True)
        means.append(array[draws].mean())
    return {
        "mean": float(np.mean(means)),
        "error": float(np.std(means)),
    }


class PairedTest(NamedTuple):
    """How two systems differ over the same queries; None if there are too few queries to tell."""

    difference: float  # mean of after - before
    low: float | None  # of its 95 % interval
    high: float | None
    p: float  # two-sided, of no difference
    wins: int  # queries that `after` does better
    ties: int
    losses: int
    queries: int
    detectable: float | None  # the smallest difference that `queries` queries show in 80 % of cases


def paired(
    before: Sequence[float],
    after: Sequence[float],
    *,
    permutations: int = PERMUTATIONS,
    resamples: int | None = None,
    tests: int = 1,
) -> PairedTest:
    """Compare two systems by their values for the same queries in the same order: `bootstrap_mean`
    and `sign_flip`.

    `tests` is the number of tests that are corrected together.
    """
    [result] = paired_columns(
        [(before, after)],
        permutations=permutations,
        resamples=resamples,
        tests=tests,
    )
    return result


def paired_columns(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
    *,
    permutations: int = PERMUTATIONS,
    resamples: int | None = None,
    tests: int = 1,
) -> list[PairedTest]:
    """Return `paired` of each pair of columns, (before, after)."""
    columns = [subtract_columns(before, after) for before, after in pairs]
    intervals = bootstrap_columns(columns, resamples=resamples)
    results = []
    for differences, interval in zip(columns, intervals, strict=True):
        wins = int((differences > 0).sum())
        losses = int((differences < 0).sum())
        result = PairedTest(
            *interval,
            p=sign_flip(differences, permutations=permutations, tests=tests),
            wins=wins,
            ties=len(differences) - wins - losses,
            losses=losses,
            queries=len(differences),
            detectable=detectable_difference(differences),
        )
        results.append(result)
    return results


def subtract_columns(before: Sequence[float], after: Sequence[float]) -> np.ndarray:
    """Return after - before, and 0 where they differ by less than `TIE`."""
    differences = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    differences[np.abs(differences) < TIE] = 0.0
    return differences


def sign_flip(
    differences: Sequence[float] | np.ndarray,
    *,
    permutations: int = PERMUTATIONS,
    tests: int = 1,
    seed: int = 0,
) -> float:
    """Return the two-sided p of a mean difference of 0 by the sign-flip permutation test (Fisher
    1935).

    It is the share of assignments of signs with a sum at least as far from 0: of all, up to 16
    differences other than 0; else of `permutations` random assignments and the observed assignment:
    (b + 1) / (m + 1) (Phipson and Smyth 2010).

    Holm multiplies p by up to `tests`, the number of tests that are corrected together. If
    `permutations` are too few for the number of tests and p is below `REFINED`, more assignments
    are drawn independently, and p is theirs. So p is at most a level below `REFINED` only if this
    second estimate is, and the test keeps its level.
    """
    moved = np.asarray(differences, dtype=np.float64)
    moved = moved[moved != 0]
    if not len(moved):
        return 1.0
    # Sums that are equal on paper differ in their last bits; without the margin chance would decide
    # about them.
    extreme = abs(moved.sum()) - 1e-10 * np.abs(moved).sum()
    if len(moved) <= EXACT:
        sums = _signed_sums(moved)
        is_extreme = np.abs(sums) >= extreme
        return float(is_extreme.mean())
    p = _p_of_random_signs(moved, extreme, permutations, seed)
    needed = DRAWS_PER_TEST * tests - 1
    if p >= REFINED or needed <= permutations:
        return p
    return _p_of_random_signs(moved, extreme, needed, seed + 1)


def _p_of_random_signs(
    moved: np.ndarray,
    extreme: float,
    permutations: int,
    seed: int,
) -> float:
    sums = _random_signed_sums(moved, permutations, seed)
    count = int((np.abs(sums) >= extreme).sum())
    return (count + 1) / (permutations + 1)


def _signed_sums(values: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def _random_signed_sums(values: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return `count` sums under random signs.

    A random byte is an index into the table of the signed sums of eight values.
    """
    groups = np.pad(values, (0, -len(values) % GROUP)).reshape(-1, GROUP)
    tables = np.stack([_signed_sums(group) for group in groups]).ravel()
    offsets = np.arange(len(groups), dtype=np.int32) * 2**GROUP
    generator = np.random.default_rng(seed)
    sums = np.empty(count)
    # Assignments of a block: 1 MB of indices, which stays in the cache.
    step = max(1, 200_000 // len(groups))
    for start in range(0, count, step):
        size = (min(step, count - start), len(groups))
        indices = generator.integers(0, 2**GROUP, size, dtype=np.uint8) + offsets
        sums[start : start + step] = np.take(tables, indices).sum(axis=1)
    return sums


def detectable_difference(differences: np.ndarray) -> float | None:
    """Return the smallest mean difference that is shown in 80 % of cases, at .05 two-sided.

    None for fewer than `FEWEST` queries. Queries are taken to have the spread of `differences`.
    """
    if len(differences) < FEWEST:
        return None
    return detectable_over([differences])


def detectable_over(groups: Collection[np.ndarray], tests: int = 1) -> float | None:
    """Return the difference that is shown in 80 % of cases as the first of `tests` tests, which
    Holm corrects.

    The difference is the mean over `groups` (the tasks) of the mean over their queries. Its
    standard error and degrees of freedom are those of Welch (1947) and Satterthwaite (1946); the
    difference is the error times the sum of two quantiles of Student's t. None if there is no
    spread, or if too few assignments of signs exist for any p below the level. If only a few of
    them are below it, p moves in steps and power is lost; the factor for that was fitted to
    simulations with 8 to 14 queries and 1 to 64 such assignments.
    """
    # Loading it takes a third of a second, and every command that reads a run imports this module.
    from scipy.special import stdtrit  # Student's t: few commands need it

    level = ALPHA / tests
    squared_errors = []
    pooled_terms = []
    for group in groups:
        if len(group) > 1:
            variance = float(group.var(ddof=1)) / len(group) / len(groups) ** 2
            squared_errors.append(variance)
            pooled_terms.append(variance**2 / (len(group) - 1))
    total = math.fsum(squared_errors)
    if not math.sqrt(total) > TIE:
        return None
    queries = sum(map(len, groups))
    # Values of p that are below the level.
    steps = math.ceil(level * 2.0 ** min(queries - 1, 1000)) - 1
    if steps < 1:
        return None
    freedom = total**2 / math.fsum(pooled_terms)
    quantiles = stdtrit(freedom, 1 - level / 2) + stdtrit(freedom, POWER)
    return float(quantiles * (1 + 1 / (3 * steps)) * math.sqrt(total))


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values, in the order given (Holm 1979).

    Adjusted values below .05 hold for all comparisons together.
    """
    adjusted = [0.0] * len(ps)
    floor = 0.0
    ascending = sorted(range(len(ps)), key=ps.__getitem__)
    for rank, index in enumerate(ascending):
        floor = max(floor, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = floor
    return adjusted
