"""BM25 with one tiny index per candidate pool, as MultiConIR published it.

Its script makes a `rank_bm25.BM25Okapi` of the two or eleven documents of a row, with the package's defaults and
`text.lower().split()` as words. With two documents a word that one of them has weighs nothing, and a word of both has a
negative weight that the package replaces, so a changed word is never seen: that is what the published figures measure.
This runs the package itself, for comparing with those figures; `bm25` and `rank_bm25` know the whole corpus.
"""

from collections.abc import Collection
from pathlib import Path

import numpy as np
from rank_bm25 import BM25Okapi

from tools.corpus import Corpus
from tools.records import Hit
from tools.retrievers.base import Ranker


class PoolBM25:
    """`BM25Okapi` over the documents of one pool at a time; nothing is kept."""

    needs_pool = True  # a run without pools is refused: it would make an index of the whole corpus for every query

    def __init__(self, corpus: Corpus, home: Path | None = None) -> None:
        self.name = "pool_bm25(k1=1.5,b=0.75,epsilon=0.25)"
        self._corpus = corpus

    def search(
        self,
        text: str,
        k: int,
        *,
        excluded: Collection[str] = (),
        among: Collection[str] | None = None,
    ) -> list[Hit]:
        """The documents of the pool `among`, best first; without one, the corpus is the pool."""
        pool = [doc_id for doc_id in sorted(self._corpus if among is None else among) if doc_id not in excluded]
        texts = [self._corpus[doc_id].text.lower().split() for doc_id in pool]
        if not any(texts):
            return []  # the package divides by the number of words
        scores = np.asarray(BM25Okapi(texts).get_scores(text.lower().split()))
        return Ranker(pool).top(scores, k)
