"""Exact search in the vectors of a corpus, memory-mapped, so that several processes share them.

All scores are first estimated by a matrix product in float32, of the vectors or of 8-bit codes, with
a bound on the error of each (score_estimates.py). All documents that could be among the best k
within those bounds are then scored in float64 by one fixed routine. So the ranking is that of
float64 brute force, the same to the last bit for a query and in a batch, in any thread, and from
either kind of estimates.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sextant.tools.corpus import Corpus
from sextant.tools.records import Hits
from sextant.tools.retrievers.base import Search, Searches, kth_score_lower_bound
from sextant.tools.retrievers.index_store import drop_page_cache
from sextant.tools.retrievers.vectors.embedder import (
    Embedder,
    VectorRetrieverBase,
    Vectors,
    embed_queries,
    open_vectors,
    vectors_key,
)
from sextant.tools.retrievers.vectors.score_estimates import from_codes, from_vectors

Precision = Literal["float32", "int8"]
Rows = NDArray[np.integer]  # positions of documents in the corpus

_MAX_SCORES = 1 << 26  # estimates that are held at a time: 256 MB
_MAX_ROWS = 1024  # vectors that are scored exactly at a time: 3 MB of products


class VectorRetriever(VectorRetrieverBase):
    """Ranks documents by the inner products of their vectors with the query's vector.

    `search` is the precision of the estimates; it changes no ranking, so the name is without it.
    With int8, codes and vectors stay on disk, and a query holds in memory what it reads at a time.
    """

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        embedder: Embedder,
        name: str,
        search: Precision = "float32",
    ) -> None:
        super().__init__(corpus, embedder)
        self.name = name
        mapped = open_vectors(embedder, corpus, home)
        if search == "int8":
            self._vectors: Vectors = mapped
            self._estimates = from_codes(home, vectors_key(embedder, corpus), mapped)
        else:
            self._vectors = np.asarray(mapped)  # stays in memory
            self._estimates = from_vectors(self._vectors)

    def prepare(self, searches: Searches) -> Vectors:
        """Return the vectors of searches, shape (searches, dimension)."""
        return embed_queries(self._embedder, searches, self._vectors.shape[1])

    def add_feedback(self, search: Search, doc_ids: Sequence[str]) -> Vectors:
        """Return the mean of a search's vector and of documents' mean vector, shape (1, dimension).

        Rocchio 1971, with equal weights.
        """
        rows = np.array(self._ranker.rows(doc_ids), dtype=np.int64)
        mean: Vectors = self._vectors[rows].mean(axis=0, dtype=np.float32)
        return (self.prepare([search]) + mean) / np.float32(2)

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        return self.search_with(self.prepare(searches), searches, k)

    def search_with(
        self,
        queries: Vectors,
        searches: Searches,
        k: int,
    ) -> list[Hits]:
        """Return the hits of searches whose vectors are `queries`."""
        candidates = dict[int, Rows]()
        unrestricted = []
        for position, search in enumerate(searches):
            if search.among is None:
                unrestricted.append(position)
            else:
                # A pool is small: all of it is scored.
                candidates[position] = np.array(
                    self._ranker.rows(set(search.among).difference(search.excluded)), dtype=np.int64
                )
        size = max(1, _MAX_SCORES // max(1, len(self._vectors)))
        for first in range(0, len(unrestricted), size):
            batch = unrestricted[first : first + size]
            estimates = self._estimates.of_queries(queries[batch])
            for position, scores in zip(batch, estimates, strict=True):
                scores[self._ranker.rows(searches[position].excluded)] = -np.inf
                candidates[position] = self._find_candidates(queries[position], scores, k)
        rankings = []
        for position, query in enumerate(queries):
            rows = candidates[position]
            scores = exact_scores(self._vectors, rows, query)
            rankings.append(self._ranker.hits(rows, scores, k))
        return rankings

    def _find_candidates(
        self, query: NDArray[np.float32], scores: NDArray[np.float32], k: int
    ) -> Rows:
        """Return the documents that may be among the best `k`; `scores` are estimates, -inf for an
        excluded document.
        """
        errors = self._estimates.errors * np.linalg.norm(query)
        # At least k true scores reach the kth largest lower bound, so a document whose upper bound
        # does not is beaten.
        floor = kth_score_lower_bound(scores - errors, k)
        return np.flatnonzero(scores + errors >= max(float(np.finfo(np.float32).min), floor))


def exact_scores(vectors: Vectors, rows: Rows, query: Vectors) -> NDArray[np.float64]:
    """Return the float64 inner products of rows of vectors with a query, shape (rows,).

    Vectors and query are float32. Products of two float32 numbers are exact in float64, and sums
    have one order, on every machine and in every batch: four sums of every fourth number, of which
    the first also has the numbers after the last whole four. What is read of a map is given back.
    """
    scores = np.empty(len(rows))
    factors = query.astype(np.float64)[:, None]
    end = len(query) // 4 * 4
    for first in range(0, len(rows), _MAX_ROWS):
        block = slice(first, first + _MAX_ROWS)
        products = vectors[rows[block]].T * factors
        sums = np.zeros((4, products.shape[1]))
        for number in range(0, end, 4):
            sums += products[number : number + 4]
        for rest in products[end:]:
            sums[0] += rest
        scores[block] = (sums[0] + sums[1]) + (sums[2] + sums[3])
        drop_page_cache(vectors)
    return scores
