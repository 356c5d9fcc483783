"""What every retriever shares: the bound below which no document is among the best, and the form of hits."""

import numpy as np
import pytest

from sextant.tools.records import Hit, Hits
from sextant.tools.retrievers.base import kth_score_lower_bound


@pytest.mark.parametrize("positive", [0, 3, 40, 900, 5_000])
@pytest.mark.parametrize("k", [1, 40, 999, 5_000, 9_000])
def test_k_scores_reach_the_bound_however_many_scores_are_equal(positive, k):
    generator = np.random.default_rng(positive)
    scores = np.zeros(5_000, np.float32)
    scores[generator.permutation(5_000)[:positive]] = 1 + generator.random(positive)
    bound = kth_score_lower_bound(scores, k)
    exact = -np.inf if k >= 5_000 else float(np.sort(scores)[-k])
    # Of many scores, only the best of each group are compared.
    assert bound == exact or (8 * k <= 5_000 and bound <= exact)
    assert np.count_nonzero(scores >= bound) >= min(k, 5_000)


def test_hits_in_columns_behave_as_a_list_of_hits():
    records = [Hit("a", 3.0), Hit("b", 2.0), Hit("c", 1.0)]
    hits = Hits(["a", "b", "c"], [3.0, 2.0, 1.0])
    assert Hits.of(records) == hits == records == list(hits)
    assert hits != records[:2]
    assert hits[:2] == records[:2]
    assert hits[-1].score == 1.0
    assert hits + records == records + hits == records * 2
    assert not Hits([], [])
    assert [] == Hits([], [])  # noqa: SIM300  # a list on either side
