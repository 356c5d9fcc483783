"""The paired comparison against SciPy, against brute force, and against simulations of what it promises."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from sextant.evals.scoring.statistics import (
    detectable_difference,
    estimate_difference,
    estimate_mean,
    fewest_moved,
    holm,
    paired,
    run_tests,
    sign_flip,
)


@pytest.mark.parametrize("seed", range(3))
def test_p_is_that_of_scipys_exact_permutation_test(seed):
    generator = np.random.default_rng(seed)
    before, after = generator.random(9), generator.random(9)
    theirs = scipy_stats.permutation_test(
        (after, before),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
    )
    assert paired(before, after).p == pytest.approx(theirs.pvalue, abs=1e-12)


def test_sums_that_are_equal_on_paper_count_as_equal():
    # 0.1 + 0.2 - 0.3 is 5.6e-17 in one order and 0 in another; every assignment with a sum of 0 must count alike.
    assert sign_flip([0.1, 0.2, -0.3]) == 1.0
    assert sign_flip([0.3, -0.2, -0.1]) == 1.0
    assert sign_flip([0.1] * 10) == 2 / 2**10


def test_sixteen_differences_are_enumerated_and_seventeen_are_drawn():
    generator = np.random.default_rng(2)
    differences = generator.normal(0.3, 1, 17).tolist()
    assert sign_flip(differences[:16], seed=1) == sign_flip(differences[:16], seed=2)
    assert (sign_flip(differences[:16]) * 2**16).is_integer()
    sums = np.zeros(1)  # the brute force over 2^17
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    exact = float((np.abs(sums) >= abs(sum(differences)) - 1e-12).mean())
    drawn = [sign_flip(differences, seed=seed) for seed in range(3)]
    assert len(set(drawn)) > 1
    assert drawn == pytest.approx([exact] * 3, abs=4 * math.sqrt(exact * (1 - exact) / 19_999))


def test_the_last_bits_of_a_value_are_no_difference():
    before = [0.1 + 0.2, 0.7, 0.4]
    assert paired(before, [0.3, 0.7, 0.5])[4:8] == (1, 2, 0, 3)
    assert paired(before, [0.3, 0.7, 0.4]).p == 1.0


def within(share: float, expected: float, trials: int, errors: float = 3.0) -> bool:
    """Whether a simulated share is within sampling error of the promised one."""
    return abs(share - expected) <= errors * math.sqrt(expected * (1 - expected) / trials)


def null_p(generator, queries: int = 30) -> float:
    """p of two systems that differ by chance alone."""
    return sign_flip((generator.normal(size=queries) * 0.2).tolist(), permutations=999)


def test_without_a_difference_one_comparison_in_twenty_is_significant():
    generator = np.random.default_rng(7)
    ps = [null_p(generator) for _ in range(1000)]
    assert within(np.mean([p <= 0.05 for p in ps]), 0.05, 1000)
    assert scipy_stats.kstest(ps, "uniform").pvalue > 0.001


def test_after_holm_at_most_one_family_in_twenty_has_a_false_find():
    generator = np.random.default_rng(9)
    families = [min(holm([null_p(generator, 20) for _ in range(6)])) <= 0.05 for _ in range(200)]
    assert np.mean(families) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


# Differences around 0 with their standard deviation: spread as by chance, evenly, with outliers, and most of them ties.
DIFFERENCES = {
    "normal": (lambda generator, n: generator.normal(0, 0.3, n), 0.3),
    "uniform": (lambda generator, n: generator.uniform(-0.5, 0.5, n), math.sqrt(1 / 12)),
    "laplace": (lambda generator, n: generator.laplace(0, 0.2, n), 0.2 * math.sqrt(2)),
    "ties": (
        lambda generator, n: np.where(generator.random(n) < 0.4, generator.normal(0, 0.5, n), 0),
        math.sqrt(0.1),
    ),
}


def standard_errors(queries: int, level: float = 0.05) -> float:
    """How many of them a difference is that is shown in 80 % of cases, by SciPy's t."""
    return float(sum(scipy_stats.t.ppf([1 - level / 2, 0.8], queries - 1)))


@pytest.mark.parametrize(
    ("name", "queries"), [("normal", 20), ("uniform", 20), ("laplace", 50), ("ties", 200)]
)
def test_what_is_called_detectable_is_detected_four_times_in_five(name, queries):
    generator = np.random.default_rng(10)
    draw, spread = DIFFERENCES[name]
    smallest = standard_errors(queries) * spread / math.sqrt(queries)
    ps = [
        sign_flip((draw(generator, queries) + smallest).tolist(), permutations=999)
        for _ in range(400)
    ]
    assert within(np.mean([p <= 0.05 for p in ps]), 0.8, 400)


@pytest.mark.parametrize(("queries", "tests"), [(24, 6), (24, 18), (50, 6)])
def test_among_several_tests_it_is_detected_four_times_in_five_after_holm(queries, tests):
    generator = np.random.default_rng(queries + tests)
    shape = generator.normal(0, 0.2, queries)
    shape *= 0.2 / shape.std(ddof=1)
    smallest = detectable_difference([shape], tests)
    single = detectable_difference([shape], 1)
    found = 0
    for _ in range(200):
        others = [[generator.normal(0, 0.2, queries)] for _ in range(tests - 1)]
        first, *_ = run_tests([[generator.normal(smallest, 0.2, queries)], *others])
        found += first.p_holm < 0.05
    assert smallest > 1.15 * single
    assert within(found / 200, 0.8, 200, errors=4)


def test_what_is_called_detectable_is_the_spread_times_what_students_t_says():
    generator = np.random.default_rng(15)
    for queries, tests in ((7, 1), (20, 1), (20, 6), (80, 18), (3000, 2)):
        values = generator.normal(0.1, 0.3, queries)
        level = 0.05 / tests
        expected = standard_errors(queries, level) * values.std(ddof=1) / math.sqrt(queries)
        steps = math.ceil(level * 2.0 ** min(queries - 1, 100)) - 1  # values of p below the level
        expected *= 1 + 1 / (3 * steps)
        assert detectable_difference([values], tests) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("tests", [1, 2, 6, 18, 1000])
def test_no_detectable_difference_is_named_where_none_could_be_significant(tests):
    few = fewest_moved(tests)
    assert tests * sign_flip([0.1] * few) < 0.05 <= tests * sign_flip([0.1] * (few - 1))
    values = np.concatenate([np.linspace(0.1, 0.2, few), np.zeros(5)])
    assert detectable_difference([values], tests) is not None
    assert detectable_difference([values[1:]], tests) is None


def test_a_contrast_in_which_no_query_differs_is_in_no_family():
    moved = [np.linspace(0.1, 0.3, 8)]
    alone, still = run_tests([moved, [np.zeros(8)]])
    assert (alone.tests, alone.p_holm) == (1, alone.p) == (1, 2 / 2**8)
    assert (still.p, still.p_holm, still.low, still.detectable) == (1.0, 1.0, None, None)
    several = run_tests([moved, moved, moved])
    assert [test.p_holm for test in several] == [3 * alone.p] * 3


@pytest.mark.parametrize("queries", [6, 10, 24, 50])
def test_intervals_of_shares_hold_the_truth_as_often_as_they_say(queries):
    # Exact: the coverage of a share is a sum over the binomial distribution.
    counts = np.arange(queries + 1)
    intervals = [estimate_mean([[1.0] * won + [0.0] * (queries - won)]) for won in counts]
    lows = np.array([interval.low for interval in intervals])
    highs = np.array([interval.high for interval in intervals])
    covered = []
    for share in np.arange(0.1, 0.91, 0.05):
        held = (lows <= share) & (share <= highs)
        covered.append(scipy_stats.binom.pmf(counts, queries, share)[held].sum())
    assert min(covered) >= 0.92 and 0.945 <= np.mean(covered) <= 0.975


def test_of_shares_the_interval_is_wilsons_with_one_query_more_of_doubt():
    values = [1.0] * 7 + [0.0] * 13
    effective = 20**2 / 21
    z = scipy_stats.norm.ppf(0.975)
    centre = (0.35 + z**2 / (2 * effective)) / (1 + z**2 / effective)
    root = math.sqrt(0.35 * 0.65 / effective + z**2 / (4 * effective**2))
    half = z * root / (1 + z**2 / effective)
    assert estimate_mean([values]) == pytest.approx((0.35, centre - half, centre + half))
    # A weight is so many queries with the same value; but they are one query, and tell less.
    weighed = estimate_mean([[1.0, 0.0, 0.5]], [3, 1, 2])
    assert weighed.mean == pytest.approx(4 / 6)
    assert weighed.high - weighed.low > np.diff(estimate_mean([[1, 1, 1, 0, 0.5, 0.5]])[1:])


def test_zeros_alone_have_no_interval_of_nothing_and_few_queries_none():
    assert estimate_mean([[0.0] * 6]).high > 0.4 and estimate_mean([[1.0] * 6]).low < 0.6
    assert estimate_mean([[0.3]])[1:] == (None, None)
    few = np.array([0.5, 0.5, 0.5, 0.5, 0.5, *[0.0] * 40])
    assert estimate_difference([few])[1:] == (None, None)
    assert estimate_difference([np.append(few, 0.5)]).low > 0


def test_with_many_queries_the_interval_is_that_of_the_normal_distribution():
    generator = np.random.default_rng(11)
    groups = [generator.beta(2, 3, 2_000), generator.beta(1, 4, 1_000)]
    error = math.sqrt(sum(group.var() / len(group) for group in groups)) / 2
    mean = sum(group.mean() for group in groups) / 2
    expected = (mean, mean - 1.96 * error, mean + 1.96 * error)
    assert estimate_mean(groups) == pytest.approx(expected, abs=2e-4)
    assert estimate_difference([group - 0.5 for group in groups]) == pytest.approx(
        np.array(expected) - 0.5, abs=2e-4
    )


def repeated(
    generator, queries: int, runs: tuple[int, int], apart: float, noise: float
) -> list[np.ndarray]:
    """Two systems' values, a row a query and a column a run: equal in the mean, `apart` in a query, noisy in a run."""
    shift = generator.normal(0, apart, (queries, 1))
    before, after = (generator.normal(0, noise, (queries, many)) for many in runs)
    return [before, after + shift]


@pytest.mark.parametrize(("runs", "apart", "noise"), [((1, 3), 0.2, 0.2), ((2, 2), 0.05, 0.3)])
def test_with_repeats_the_interval_covers_and_the_test_errs_as_often_as_they_say(
    runs, apart, noise
):
    generator, covered, ps = np.random.default_rng(12), 0, []
    for _ in range(200):
        before, after = repeated(generator, 50, runs, apart, noise)
        result = paired(before.mean(axis=1), after.mean(axis=1))
        covered += result.low <= 0 <= result.high
        ps.append(result.p)
    assert within(covered / 200, 0.95, 200)
    assert within(np.mean([p <= 0.05 for p in ps]), 0.05, 200)


@settings(max_examples=50)
@given(st.lists(st.floats(0.0001, 1), min_size=1, max_size=12))
def test_holm_rejects_what_stepping_down_rejects(ps):
    rejected = set()
    for rank, place in enumerate(
        sorted(range(len(ps)), key=ps.__getitem__)
    ):  # Holm 1979, as a procedure
        if ps[place] > 0.05 / (len(ps) - rank):
            break
        rejected.add(place)
    margin = [p for p in holm(ps) if abs(p - 0.05) < 1e-9]
    assert margin or {place for place, p in enumerate(holm(ps)) if p <= 0.05} == rejected
