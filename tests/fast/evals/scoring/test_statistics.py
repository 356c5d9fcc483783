"""The paired comparison against SciPy, against brute force, and against simulations of what it promises."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from evals.scoring.statistics import bootstrap_mean, bootstrap_means, holm, paired, sign_flip


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


def standard_errors(queries: int) -> float:
    """How many of them `detectable` is, by SciPy's t."""
    return float(sum(scipy_stats.t.ppf([0.975, 0.8], queries - 1)))


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


def test_what_is_called_detectable_is_the_spread_times_what_students_t_says():
    generator = np.random.default_rng(15)
    for queries in (7, 20, 80, 3000):
        values = generator.normal(0.1, 0.3, queries)
        expected = standard_errors(queries) * values.std(ddof=1) / math.sqrt(queries)
        steps = math.ceil(0.05 * 2.0 ** min(queries - 1, 100)) - 1  # values of p below .05
        expected *= 1 + 1 / (3 * steps)
        assert paired(np.zeros(queries), values, resamples=10).detectable == pytest.approx(
            expected, rel=1e-4
        )
    assert paired(np.zeros(6), generator.random(6)).detectable is None


def test_columns_are_resampled_together_and_each_as_if_it_were_alone():
    generator = np.random.default_rng(11)
    rows = generator.dirichlet([1, 2, 3], 40) - generator.dirichlet([3, 2, 1], 40)
    intervals = bootstrap_means(rows)
    for column, interval in zip(rows.T, intervals, strict=True):
        assert interval == pytest.approx(bootstrap_mean(column.tolist()))
    assert sum(interval.mean for interval in intervals) == pytest.approx(0)
    assert bootstrap_means(rows[:1])[0][1:] == (None, None)


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
    for _ in range(400):
        before, after = repeated(generator, 50, runs, apart, noise)
        result = paired(before.mean(axis=1), after.mean(axis=1), permutations=499, resamples=500)
        covered += result.low <= 0 <= result.high
        ps.append(result.p)
    assert within(
        covered / 400, 0.94, 400
    )  # percentile intervals of 50 queries are a little narrow, repeats or not
    assert within(np.mean([p <= 0.05 for p in ps]), 0.05, 400)


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
