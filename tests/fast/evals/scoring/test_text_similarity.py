import pytest
from scipy.spatial.distance import braycurtis

from sextant import environments
from sextant.evals.papers.dataset_statistics import word_shares
from sextant.evals.scoring.text_similarity import jaccard, weighted_jaccard


def test_weighted_jaccard_is_what_scipys_distance_of_bray_and_curtis_says():
    first, second = (
        word_shares(environments.load(f"birco/{name}", "mini"))
        for name in ("relic", "whatsthatbook")
    )
    every = sorted(first.keys() | second.keys())
    apart = braycurtis(*([shares.get(word, 0.0) for word in every] for shares in (first, second)))
    assert sum(first.values()) == pytest.approx(1)
    assert weighted_jaccard(first, second) == pytest.approx((1 - apart) / (1 + apart))
    assert weighted_jaccard(first, first) == 1


def test_jaccard_is_the_share_that_two_sets_have_in_common():
    assert jaccard({"a", "b", "c"}, {"b", "c", "d"}) == 2 / 4
    assert jaccard({"a"}, {"a"}) == 1
    assert jaccard({"a"}, set()) == jaccard(set(), set()) == 0
    first = {"a": 1.0, "b": 1.0}
    assert weighted_jaccard(first, {"b": 1.0}) == jaccard({*first}, {"b"})
