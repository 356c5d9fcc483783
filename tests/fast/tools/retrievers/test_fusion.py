"""Fusion against ten lines of NumPy and a worked example; rerank against what its two parts say."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError
from sextant.tools.records import Document
from sextant.tools.retrievers.base import Ranker, Retriever, Search
from sextant.tools.retrievers.fusion import Fusion, Rerank

DOC_IDS = [f"d{number:02}" for number in range(30)]
CORPUS = Corpus(Document(doc_id, "text") for doc_id in DOC_IDS)


class Scores(Retriever):
    """A retriever whose scores are given: a document's is the same for every search; NaN is not found."""

    def __init__(self, scores: Sequence[float], name: str = "bm25", lost: int = 0) -> None:
        self.name, self._lost, self.asked = name, lost, []
        self._ranker, self._scores = Ranker(DOC_IDS), np.where(np.isnan(scores), -np.inf, scores)

    def left_out(self, text, instruction=""):
        return self._lost

    def _search_many(self, searches, k):
        self.asked.append((list(searches), k))
        return [
            self._ranker.top(self._scores, k, excluded=s.excluded, among=s.among) for s in searches
        ]


def found(hits):
    return [hit.doc_id for hit in hits]


def scored(**given):
    return Scores([given.get(doc_id, np.nan) for doc_id in DOC_IDS])


# A few values, so that there are ties within a list and between sums; None is a document that a list does not have.
score_lists = st.lists(
    st.lists(st.sampled_from([None, 0.0, 0.25, 0.5, 3.0, -1.5]), min_size=30, max_size=30),
    min_size=2,
    max_size=3,
)


def reference(parts, weights, method, constant, depth, excluded=()):
    """Each list as an array of the corpus' size, added up."""
    total, seen = np.zeros(30), np.zeros(30, dtype=bool)
    for part, weight in zip(parts, weights, strict=True):
        scores = np.array(
            [-np.inf if s is None or DOC_IDS[n] in excluded else s for n, s in enumerate(part)]
        )
        rows = [row for row in np.lexsort((np.arange(30), -scores)) if np.isfinite(scores[row])][
            :depth
        ]
        low, high = (scores[rows].min(), scores[rows].max()) if rows else (0, 0)
        for rank, row in enumerate(rows, start=1):
            scaled = (scores[row] - low) / (high - low) if high > low else 1
            total[row] += weight * (1 / (constant + rank) if method == "rrf" else scaled)
        seen[rows] = True
    order = np.lexsort((np.arange(30), -total))
    return [(DOC_IDS[row], total[row]) for row in order if seen[row]]


class TestFusion:
    def test_reciprocal_ranks_are_added_as_in_the_paper(self):
        first, second = scored(d01=9, d02=8, d03=7), scored(d03=0.9, d01=0.8, d04=0.7)
        hits = Fusion(CORPUS, None, first, second).search("a", k=10)
        # By hand: ranks 1 and 2, ranks 3 and 1, rank 2 alone, rank 3 alone.
        assert hits == [
            ("d01", 1 / 61 + 1 / 62),
            ("d03", 1 / 63 + 1 / 61),
            ("d02", 1 / 62),
            ("d04", 1 / 63),
        ]

    @given(
        parts=score_lists,
        weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=3, max_size=3),
        method=st.sampled_from(["rrf", "scores"]),
        constant=st.sampled_from([0, 1, 60]),
        depth=st.sampled_from([1, 4, 30, 1000]),
        excluded=st.sets(st.sampled_from(DOC_IDS), max_size=5),
    )
    @settings(max_examples=60)
    def test_it_is_what_numpy_says(self, parts, weights, method, constant, depth, excluded):
        weights = tuple(weights[: len(parts)])
        retrievers = [
            Scores([np.nan if score is None else score for score in part]) for part in parts
        ]
        fusion = Fusion(
            CORPUS,
            None,
            *retrievers,
            method=method,
            constant=constant,
            depth=depth,
            weights=weights,
        )
        expected = reference(parts, weights, method, constant, depth, excluded)
        assert fusion.search("a", k=depth, excluded=excluded) == expected[:depth]

    def test_parts_are_searched_to_the_depth_or_to_k_where_that_is_more(self):
        part = scored(d01=1)
        fusion = Fusion(CORPUS, None, part, part, depth=7)
        fusion.search("a", k=3)
        fusion.search("a", k=9)
        assert [k for _, k in part.asked] == [7, 7, 9, 9]

    def test_a_batch_is_one_search_of_each_part(self):
        part = scored(d01=1)
        fusion = Fusion(CORPUS, None, part, scored(d02=1))
        searches = [
            ("a", "", frozenset(), None),
            ("b", "about b", frozenset({"d01"}), {"d01", "d02"}),
        ]
        fusion.search_many([Search(*search) for search in searches], k=3)
        assert part.asked == [([Search(*search) for search in searches], 1000)]

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"weights": (1.0,)}, "give 2 numbers"),
            ({"weights": (1.0, -0.5)}, "at least 0"),
            ({"weights": (0.0, 0.0)}, "at least is larger"),
            ({"weights": (1.0, float("nan"))}, "at least 0"),
            ({"weights": (1.0, float("inf"))}, "at least 0"),
            ({"constant": -1}, "constant of at least 0, not -1"),
            ({"depth": 0}, "depth of at least 1, not 0"),
        ],
    )
    def test_values_that_mean_nothing_are_refused(self, options, says):
        with pytest.raises(UsageError, match=says):
            Fusion(CORPUS, None, scored(), scored(), **options)

    @pytest.mark.parametrize("kind", [Fusion, Rerank])
    def test_what_is_left_out_is_what_the_worst_part_leaves_out(self, kind):
        assert (
            kind(CORPUS, None, Scores([0.0] * 30, lost=3), Scores([0.0] * 30, lost=8)).left_out("a")
            == 8
        )


FIRST = {f"d{number:02}": 100.0 - number for number in range(10)}  # d00, d01, ... d09
SECOND = {f"d{number:02}": float(number) for number in range(30)}  # d29, d28, ...


class TestRerank:
    def test_the_second_orders_the_best_of_the_first_and_the_rest_follow(self):
        hits = Rerank(CORPUS, None, scored(**FIRST), scored(**SECOND), depth=4).search("a", k=30)
        assert found(hits) == ["d03", "d02", "d01", "d00", "d04", "d05", "d06", "d07", "d08", "d09"]

    def test_documents_that_the_second_leaves_out_follow_in_the_order_of_the_first(self):
        hits = Rerank(CORPUS, None, scored(**FIRST), scored(d02=7, d09=8), depth=4).search("a", k=6)
        assert hits == [("d02", 7), ("d00", 6), ("d01", 5), ("d03", 4), ("d04", 3), ("d05", 2)]

    def test_the_second_is_asked_once_for_the_whole_batch_and_only_about_the_first_ones_documents(
        self,
    ):
        second = scored(**SECOND)
        reranked = Rerank(CORPUS, None, scored(**FIRST), second, depth=2)
        searches = [Search("a", "about a"), Search("b", "", frozenset({"d00"}))]
        reranked.search_many(searches, k=1)
        [(asked, _)] = second.asked
        assert [(search.text, search.instruction, search.among) for search in asked] == [
            ("a", "about a", {"d00", "d01"}),
            ("b", "", {"d01", "d02"}),
        ]
