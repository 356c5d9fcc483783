"""What approximate indexes share: the documents that one finds are scored exactly; where it
finds too few, all are.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.records import Hit
from tools.retrievers.base import Search
from tools.retrievers.vectors.embedder import VectorRetrieverBase, Vectors, embed_queries
from tools.retrievers.vectors.exact_search import exact_scores

Rows = NDArray[np.int64]  # positions in the corpus
Scores = NDArray[np.float64]
Near = Callable[
    [Vectors, int, int], list[Rows]
]  # at least so many of the nearest documents of queries, by an effort


class ApproximateIndex:
    """What finds the nearest vectors, nearly all of them, and the vectors themselves, in a file."""

    def __init__(self, vectors: Vectors, near: Near) -> None:
        self._vectors = vectors
        self.near = near
        self.dimension = vectors.shape[1]

    def scores(self, rows: Rows, query: Vectors) -> Scores:
        """Return the exact inner products of documents with one query, shape (rows,)."""
        return np.asarray(exact_scores(np.asarray(self._vectors), rows, query))


class ApproximateRetriever(VectorRetrieverBase):
    """The documents whose vectors have the largest inner product with the query's, nearly."""

    _index: Any
    _effort: int  # a larger one finds more, and takes longer

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        queries = embed_queries(self._embedder, searches, self._index.dimension)
        near = self._ask_index(searches, queries, k)
        rankings = []
        for i, (search, query) in enumerate(zip(searches, queries, strict=True)):
            rows = near.get(i)
            if rows is None:  # all that may come back
                allowed = self._ranker.allowed(search.excluded, search.among)
                rows = np.arange(len(self._ranker)) if allowed is None else np.flatnonzero(allowed)
            rankings.append(self._ranker.hits(rows, self._index.scores(rows, query), k))
        return rankings

    def _ask_index(self, searches: Sequence[Search], queries: Vectors, k: int) -> dict[int, Rows]:
        # By the places of searches, without what is excluded; none where too few are left. What the
        # index is asked for a search depends on that search alone, so its hits do, too.
        excluded = [self._ranker.rows(search.excluded) for search in searches]
        places = defaultdict[int, list[int]](list)  # by how many documents are needed
        for i, search in enumerate(searches):
            needed = k + len(excluded[i])  # those that may not come back take places
            if search.among is None and 2 * max(needed, self._effort) < len(self._ranker):
                places[needed].append(i)
        enough = {}
        for needed, positions in places.items():
            for i, near in zip(
                positions, self._index.near(queries[positions], needed, self._effort), strict=True
            ):
                allowed = np.setdiff1d(near, excluded[i])
                if len(allowed) >= k:  # a graph may be in parts, of which a search sees one
                    enough[i] = allowed
        return enough
