"""BM25 with one tiny index per candidate pool, as MultiConIR published it.

Its script makes a `rank_bm25.BM25Okapi` of the two or eleven documents of a row, with the package's defaults and
`text.lower().split()` as words. With two documents a word that one of them has weighs nothing, and a word of both has a
negative weight that the package replaces, so a changed word is never seen: that is what the published figures measure.
This runs the package itself, for comparing with those figures; `bm25` and `rank_bm25` know the whole corpus.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rank_bm25 import BM25Okapi

from tools.corpus import Corpus
from tools.records import Hit
from tools.retriever import Ranker, Retriever, Search


class PoolBM25(Retriever):
    """`BM25Okapi` with its defaults over the documents of one pool at a time; nothing is kept."""

    needs_pool = True  # a run without pools is refused: it would make an index of the whole corpus for every query

    def __init__(self, corpus: Corpus, home: Path | None = None) -> None:
        self.name = "pool_bm25"
        self._corpus = corpus

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        return [self._search(search, k) for search in searches]

    def _search(self, search: Search, k: int) -> list[Hit]:
        """The documents of the pool; without one, the corpus is the pool."""
        among = self._corpus if search.among is None else search.among
        pool = sorted(doc_id for doc_id in set(among) - set(search.excluded) if doc_id in self._corpus)
        texts = [self._corpus[doc_id].text.lower().split() for doc_id in pool]
        if not any(texts):
            return []  # the package divides by the number of words
        scores = np.asarray(BM25Okapi(texts).get_scores(search.text.lower().split()))
        return Ranker(pool).top(scores, k)
