"""How often 95 % intervals hold the truth, by simulation: `pytest -s` prints the tables.

Means are of shares (0 or 1), of nDCG and recall with many zeros, and of values without a zero; paired
differences are of shares, of such nDCG, of gains alone, and normal.
"""

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from sextant.evals.scoring.statistics import estimate_difference, estimate_mean

DRAWS = 1_500
SIZES = (6, 10, 15, 24, 36, 50)
SHARES = np.arange(1, 10) / 10
GAINS = 1 / np.log2(1 + np.arange(1, 11))  # of nDCG, of one relevant document on ranks 1 to 10

Draw = Callable[[np.random.Generator, int, float], np.ndarray]


def ndcg(generator: np.random.Generator, queries: int, found: float) -> np.ndarray:
    """nDCG@10 of queries with a relevant document each, of which this share is found."""
    return (generator.random(queries) < found) * generator.choice(GAINS, queries)


def recall(generator: np.random.Generator, queries: int, mean: float) -> np.ndarray:
    """Recall of queries with 1 to 5 relevant documents, which are easy or hard."""
    relevant = generator.integers(1, 6, queries)
    return (
        generator.binomial(relevant, generator.beta(2 * mean, 2 * (1 - mean), queries)) / relevant
    )


MEANS: dict[str, tuple[Draw, float]] = {
    "shares": (lambda generator, n, share: (generator.random(n) < share).astype(float), 1.0),
    "nDCG, rest 0": (ndcg, float(GAINS.mean())),
    "recall": (recall, 1.0),
    "beta": (lambda generator, n, mean: generator.beta(4 * mean, 4 * (1 - mean), n), 1.0),
}


def coverage(
    draw: Callable[[], np.ndarray], truth: float, estimate: Callable
) -> tuple[float, float]:
    """The share of draws whose interval holds the truth, and the share that have none."""
    held, none = 0, 0
    for _ in range(DRAWS):
        _, low, high = estimate([draw()])
        none += low is None
        held += low is not None and low <= truth <= high
    return held / max(1, DRAWS - none), none / DRAWS


@pytest.mark.parametrize("name", MEANS)
def test_intervals_of_means_hold_the_truth_as_often_as_they_say(name):
    draw, scale = MEANS[name]
    generator = np.random.default_rng(1)
    sys.stdout.write(f"\n{name}: least and mean coverage over shares of .1 to .9\n")
    for queries in SIZES:
        covered = []
        for share in SHARES.tolist():
            covered.append(
                coverage(partial(draw, generator, queries, share), scale * share, estimate_mean)[0]
            )
        sys.stdout.write(f"  {queries:3} queries  {min(covered):.3f}  {np.mean(covered):.3f}\n")
        assert 0.94 <= np.mean(covered) <= 0.985
        assert (
            min(covered) >= 0.91
        )  # shares come in steps of 1/n, so that single values may be lower


def shares_apart(won: float, lost: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Differences of 1, -1 and 0."""

    def draw(generator: np.random.Generator, queries: int) -> np.ndarray:
        return generator.choice([1.0, -1.0, 0.0], queries, p=[won, lost, 1 - won - lost])

    return draw


def ndcg_apart(
    before: float, after: float, same: float
) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Differences of nDCG, of which a share is 0."""

    def draw(generator: np.random.Generator, queries: int) -> np.ndarray:
        moved = generator.random(queries) >= same
        return moved * (ndcg(generator, queries, after) - ndcg(generator, queries, before))

    return draw


DIFFERENCES = {
    "shares .2/.05": (shares_apart(0.2, 0.05), 0.15),
    "shares .3/.3": (shares_apart(0.3, 0.3), 0.0),
    "shares .5/.1": (shares_apart(0.5, 0.1), 0.4),
    "nDCG .3 to .5": (ndcg_apart(0.3, 0.5, 0.3), 0.7 * 0.2 * GAINS.mean()),
    "nDCG .6 to .8": (ndcg_apart(0.6, 0.8, 0.5), 0.5 * 0.2 * GAINS.mean()),
    "gains alone": (
        lambda generator, n: (generator.random(n) < 0.6) * generator.beta(1, 3, n),
        0.15,
    ),
    "normal": (lambda generator, n: generator.normal(0.05, 0.1, n), 0.05),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_intervals_of_differences_hold_the_truth_where_there_is_one(name):
    draw, truth = DIFFERENCES[name]
    generator = np.random.default_rng(2)
    sys.stdout.write(f"\n{name}: coverage, and the share without an interval\n")
    for queries in SIZES:
        covered, none = coverage(partial(draw, generator, queries), truth, estimate_difference)
        sys.stdout.write(f"  {queries:3} queries  {covered:.3f}  {none:.3f}\n")
        if none < 0.5:  # else only unusual draws have an interval
            assert 0.93 <= covered <= 0.995
