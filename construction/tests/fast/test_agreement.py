"""Agreement of two judges beside a computation of its own, and where there is no kappa."""

import random
from collections import Counter

import pytest

from sextant_construction.agreement import agree


def kappa_of(pairs):
    """Cohen's formula; None where one of the two never varies."""
    firsts, seconds = zip(*pairs, strict=True)
    if 1 in (len(set(firsts)), len(set(seconds))):
        return None
    many = len(pairs)
    one, other = Counter(firsts), Counter(seconds)
    chance = sum(one[value] * other[value] for value in one) / many**2
    return (sum(a == b for a, b in pairs) / many - chance) / (1 - chance)


@pytest.mark.parametrize("seed", range(40))
def test_kappa_is_that_of_cohen_and_there_is_none_where_a_judge_never_varies(seed):
    chance = random.Random(seed)
    rates = [chance.choice([0.0, 0.1, 0.5, 0.9, 1.0]) for _ in range(2)]
    pairs = [
        tuple("yes" if chance.random() < rate else "no" for rate in rates)
        for _ in range(chance.randint(2, 30))
    ]
    found = agree([[pair] for pair in pairs])
    expected = kappa_of(pairs)
    if expected is None:
        assert found.kappa is None
    else:
        assert found.kappa.mean == pytest.approx(expected)
