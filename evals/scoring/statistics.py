"""Uncertainty of a mean over queries, and of a difference between two means. The same values always give the
same figures.

The test of a difference is the paired randomisation test of Smucker, Allan and Carterette (2007);
tests that answer one question are a family, corrected by Holm. Repeated runs are averaged within
queries before (comparison.py). Left out: clusters of queries. tests/soak/large/test_intervals.py
has the coverage of the intervals, docs/decisions/comparing.md the reasons.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ALPHA = 0.05  # the level of a test, two-sided
POWER = 0.8  # the share of cases in which a detectable difference is shown
OTHERS = "other metrics"  # the family of the tests of all metrics but the headline
TIE = 1e-12  # two values that differ by less are the same: they were summed in another order
EXACT = 16  # up to this number of differences all 2^n assignments of signs are enumerated
PERMUTATIONS = 19_999  # random assignments of signs for more differences
DRAWS_PER_TEST = 400  # so the smallest p of a family of tests, times their number, is 1/400
REFINED = 0.005  # a p below this is estimated again with the draws that the family needs
GROUP = 8  # differences whose signs are drawn together: one random byte
Z = 1.959964  # the normal distribution's quantile of a 95 % interval
BOUNDS = (0.025, 0.975)  # quantiles of a 95 % interval

Values = Sequence[float] | np.ndarray


class Interval(NamedTuple):
    """A mean and its 95 % interval; the bounds are None if there are too few queries for one."""

    mean: float
    low: float | None
    high: float | None


def estimate_mean(groups: Sequence[Values], weights: Values | None = None) -> Interval:
    """Return the mean over `groups` (tasks) of the means over their queries, with its interval.

    `weights` are of the queries of a single group. Values are taken to lie in [0, 1], or between
    the lowest and the highest if these lie outside. No interval for a group of fewer than two.
    """
    values = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups])
    lowest = min(0.0, float(values.min()))
    highest = max(1.0, float(values.max()))
    return _interval(groups, lowest, highest, weights)


def estimate_difference(groups: Sequence[np.ndarray]) -> Interval:
    """Return `estimate_mean` of paired differences; a difference that was not seen is taken to be
    at most as large as the largest.

    No interval where fewer queries differ than a p below .05 needs.
    """
    largest = max(float(np.abs(group).max()) for group in groups)
    interval = _interval(groups, -largest, largest)
    if count_moved(groups) < fewest_moved(tests=1):
        return Interval(interval.mean, None, None)
    return interval


def _interval(
    groups: Sequence[Values],
    lowest: float,
    highest: float,
    weights: Values | None = None,
) -> Interval:
    """Return Wilson's interval (1927) with the effective number of queries of Korn and Graubard
    (1998): as many as a share would need for the standard error of this mean.

    To the squared deviations from the mean one is added, the variance of a share with this mean:
    so few values with small deviations may lack the rare large one.
    """
    columns = [np.asarray(group, dtype=np.float64) for group in groups]
    means = [float(np.average(column, weights=weights)) for column in columns]
    mean = math.fsum(means) / len(means)
    if min(map(len, columns)) < 2:
        return Interval(mean, None, None)
    width = highest - lowest or 1.0
    share = (mean - lowest) / width
    spread = share * (1 - share)
    # The squared standard error of the mean, and that of a share divided by its variance.
    error = 0.0
    share_error = 0.0
    for column, column_mean in zip(columns, means, strict=True):
        weight = np.ones(len(column))
        if weights is not None:
            weight = np.asarray(weights, dtype=np.float64)
        squares = (weight / (weight.sum() * len(columns))) ** 2
        deviations = (column - column_mean) / width
        error += float(squares @ deviations**2 + spread * squares.mean())
        share_error += float(squares.sum() + squares.mean())
    effective = spread / error if error > TIE**2 else 1 / share_error
    centre = share + Z**2 / (2 * effective)
    correction = (Z / (2 * effective)) ** 2
    half = Z * math.sqrt(spread / effective + correction)
    shrink = width / (1 + Z**2 / effective)
    # Rounding may take an end beyond its bound.
    below = (centre - half) * shrink
    above = (centre + half) * shrink
    low = max(lowest, lowest + below)
    high = min(highest, lowest + above)
    return Interval(mean, low, high)


def means_of_resamples(rows: np.ndarray) -> np.ndarray:
    """Return the means of resamples of rows, shape (resamples, columns).

    20 million draws in all, but 2,000 to 10,000 resamples.
    """
    queries = len(rows)
    resamples = max(2_000, min(10_000, 20_000_000 // queries))
    generator = np.random.default_rng(0)
    # Resamples of a block: 1 MB of draws for any number of queries, which stays in the cache.
    step = max(1, 128_000 // queries)
    means = []
    for start in range(0, resamples, step):
        block = min(step, resamples - start)
        draws = generator.integers(0, queries, size=(block, queries))
        # Each resample has counters of its own, so that one bincount serves the block.
        counters = draws + (np.arange(block) * queries)[:, None]
        times_drawn = np.bincount(counters.ravel(), minlength=draws.size).reshape(draws.shape)
        means.append(times_drawn.astype(np.float64) @ rows / queries)
    return np.concatenate(means)


def share_closed(
    floor: Sequence[float],
    program: Sequence[float],
    ceiling: Sequence[float],
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
    gained = program_mean - floor_mean
    share = float(gained / (ceiling_mean - floor_mean))
    resampled = means_of_resamples(rows)
    of_floor, of_program, of_ceiling = resampled.T
    gap = of_ceiling - of_floor
    if len(rows) < 2 or np.quantile(gap, BOUNDS[0]) <= TIE:
        # The ratio has no bounded interval (Fieller 1954).
        return Interval(share, None, None)
    shares = (of_program - of_floor) / np.maximum(gap, TIE)
    low, high = np.quantile(shares, BOUNDS)
    return Interval(share, float(low), float(high))


def resampled_mean(values: Sequence[float]) -> dict[str, float]:
    """Return BIRCO's figure: the mean of 1,000 resampled means, their standard deviation as "error"."""
    array = np.asarray(values, dtype=np.float64)
    # BIRCO's script seeds NumPy's global generator with this number for each metric.
    generator = np.random.RandomState(42)
    means = []
    for _ in range(1000):
        draws = generator.choice(
            len(array),
            len(array),
            replace=True,
        )
        means.append(array[draws].mean())
    return {
        "mean": float(np.mean(means)),
        "error": float(np.std(means)),
    }


class PairedTest(NamedTuple):
    """How two systems differ over the same queries, as a test of a family."""

    difference: float  # mean of after - before
    low: float | None  # of its 95 % interval; None if there are too few queries to tell
    high: float | None
    p: float  # two-sided, of no difference
    wins: int  # queries that `after` does better
    ties: int
    losses: int
    queries: int
    detectable: float | None  # as `detectable_difference` has it
    p_holm: float  # p, corrected by Holm for all tests of the family
    tests: int  # of the family


def paired(before: Sequence[float], after: Sequence[float]) -> PairedTest:
    """Compare two systems by their values for the same queries in the same order: a single test."""
    [result] = run_tests([[subtract_columns(before, after)]])
    return result


def run_tests(contrasts: Sequence[Sequence[np.ndarray]], fewest: int = 1) -> list[PairedTest]:
    """Test a family of contrasts; each has its query differences by group (task).

    A contrast in which no query differs has p = 1, and is not counted: the test considers the signs
    of the differences alone, so it could never be significant. `fewest` is the least number of tests
    to correct for. The statistic is the mean over groups of the mean over their queries.
    """
    moved = [bool(count_moved(groups)) for groups in contrasts]
    tests = max(fewest, sum(moved))
    results = [_test(groups, tests) for groups in contrasts]
    numbers = [number for number, is_moved in enumerate(moved) if is_moved]
    corrected = holm([results[number].p for number in numbers], tests)
    for number, p_holm in zip(numbers, corrected, strict=True):
        results[number] = results[number]._replace(p_holm=p_holm)
    return results


def _test(groups: Sequence[np.ndarray], tests: int) -> PairedTest:
    # Each query's part of the mean over groups.
    parts = [group / (len(group) * len(groups)) for group in groups]
    shares = np.concatenate(parts)
    wins = int(np.count_nonzero(shares > 0))
    losses = int(np.count_nonzero(shares < 0))
    return PairedTest(
        *estimate_difference(groups),
        p=sign_flip(shares, tests=tests),
        wins=wins,
        ties=len(shares) - wins - losses,
        losses=losses,
        queries=len(shares),
        detectable=detectable_difference(groups, tests),
        p_holm=1.0,
        tests=tests,
    )


def count_moved(groups: Sequence[np.ndarray]) -> int:
    """Return how many queries differ."""
    return sum(int(np.count_nonzero(group)) for group in groups)


def fewest_moved(tests: int) -> int:
    """Return how many queries must differ so that the smallest p, 2 of 2^n assignments of signs,
    times `tests` is below .05.
    """
    return math.floor(math.log2(tests / ALPHA)) + 2


def subtract_columns(
    before: Sequence[float],
    after: Sequence[float],
) -> np.ndarray:
    """Return after - before, and 0 where they differ by less than `TIE`."""
    differences = np.asarray(after, dtype=np.float64)
    differences = differences - np.asarray(before, dtype=np.float64)
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
    return _p_of_random_signs(
        moved,
        extreme,
        needed,
        seed + 1,
    )


def _p_of_random_signs(
    moved: np.ndarray,
    extreme: float,
    permutations: int,
    seed: int,
) -> float:
    """Return p from random signs.

    A random byte is an index into the table of the signed sums of eight values.
    """
    padding = (0, -len(moved) % GROUP)
    groups = np.pad(moved, padding).reshape(-1, GROUP)
    tables = np.stack([_signed_sums(group) for group in groups]).ravel()
    offsets = np.arange(len(groups), dtype=np.int32) * 2**GROUP
    generator = np.random.default_rng(seed)
    count = 0
    # Assignments of a block: 1 MB of indices, which stays in the cache.
    step = max(1, 200_000 // len(groups))
    for start in range(0, permutations, step):
        size = (min(step, permutations - start), len(groups))
        indices = generator.integers(0, 2**GROUP, size, dtype=np.uint8) + offsets
        sums = np.take(tables, indices).sum(axis=1)
        count += int((np.abs(sums) >= extreme).sum())
    return (count + 1) / (permutations + 1)


def _signed_sums(values: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def detectable_difference(groups: Sequence[np.ndarray], tests: int) -> float | None:
    """Return the difference that is shown in 80 % of cases as the first of `tests` tests, which
    Holm corrects: at .05 / tests, two-sided.

    The standard error and degrees of freedom are those of Welch (1947) and Satterthwaite (1946),
    over the `groups`; the difference is the error times the sum of two quantiles of Student's t.
    None where fewer queries differ than such a p needs. If only a few assignments of signs are
    below the level, p moves in steps and power is lost; the factor for that was fitted to
    simulations with 8 to 14 queries and 1 to 64 such assignments.
    """
    # Loading it takes a third of a second, and every command that reads a run imports this module.
    from scipy.special import stdtrit  # Student's t: few commands need it

    moved = count_moved(groups)
    if moved < fewest_moved(tests):
        return None
    level = ALPHA / tests
    steps = math.ceil(level * 2.0 ** min(moved - 1, 1000)) - 1
    squared_errors = []
    pooled_terms = []
    for group in groups:
        if len(group) > 1:
            variance = float(group.var(ddof=1))
            squared_error = variance / len(group) / len(groups) ** 2
            squared_errors.append(squared_error)
            pooled_terms.append(squared_error**2 / (len(group) - 1))
    total = math.fsum(squared_errors)
    if not math.sqrt(total) > TIE:
        return None
    freedom = total**2 / math.fsum(pooled_terms)
    quantiles = stdtrit(
        freedom,
        1 - level / 2,
    ) + stdtrit(freedom, POWER)
    loss_of_power = 1 + 1 / (3 * steps)
    return float(quantiles * loss_of_power * math.sqrt(total))


def holm(ps: Sequence[float], tests: int = 0) -> list[float]:
    """Adjust p values, in the order given (Holm 1979).

    Adjusted values below .05 hold for all comparisons together. `tests` is their number, if there
    are more than `ps`.
    """
    adjusted = [0.0] * len(ps)
    floor = 0.0
    number = max(tests, len(ps))
    ascending = sorted(range(len(ps)), key=ps.__getitem__)
    for rank, index in enumerate(ascending):
        corrected = min(1.0, (number - rank) * ps[index])
        floor = max(floor, corrected)
        adjusted[index] = floor
    return adjusted
