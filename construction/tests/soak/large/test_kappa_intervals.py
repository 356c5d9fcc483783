"""Intervals of kappa hold the true kappa in 87 to 99 of 100 samples, however small they are."""

import numpy as np
import pytest

from sextant_construction.agreement import agree

SAMPLES = 400


def draw_pairs(generator, items, pairs, shares, kappa):
    """Pairs of values: with the probability `kappa` the same value, else two that are independent.

    Half of an item's pairs repeat its first.
    """
    first = generator.choice(len(shares), (items, pairs), p=shares)
    other = generator.choice(len(shares), (items, pairs), p=shares)
    second = np.where(generator.random((items, pairs)) < kappa, first, other)
    repeats = generator.random((items, pairs)) < 0.5
    first, second = (np.where(repeats, values[:, :1], values) for values in (first, second))
    return [
        [(str(a), str(b)) for a, b in zip(*item, strict=True)]
        for item in zip(first, second, strict=True)
    ]


@pytest.mark.parametrize("items", [10, 20, 50, 200])
@pytest.mark.parametrize("pairs", [1, 5])
@pytest.mark.parametrize(
    ("shares", "kappa"),
    [
        ([0.5, 0.5], 0.4),
        ([0.5, 0.5], 0.8),
        ([0.5, 0.5], 0.95),
        ([0.8, 0.2], 0.6),
        ([0.4, 0.3, 0.3], 0.8),
        ([0.7, 0.2, 0.1], 0.6),
    ],
)
def test_intervals_of_kappa_cover(items, pairs, shares, kappa):
    generator = np.random.default_rng(items)
    held = []
    for _ in range(SAMPLES):
        found = agree(draw_pairs(generator, items, pairs, shares, kappa))
        if found.kappa:
            held.append(found.kappa.low <= kappa <= found.kappa.high)
    assert 0.87 <= np.mean(held) <= 0.995
