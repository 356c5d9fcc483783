"""The base of approximate indexes.

The documents that an index finds are scored exactly. If it finds too few, all documents are.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sextant.tools.records import Hits
from sextant.tools.retrievers.base import Searches
from sextant.tools.retrievers.vectors.embedder import VectorRetrieverBase, Vectors, embed_queries
from sextant.tools.retrievers.vectors.exact_search import exact_scores

Rows = NDArray[np.int64]  # positions in the corpus
Scores = NDArray[np.float64]
# (queries, n, effort) -> at least n of the nearest documents of each query.
Near = Callable[[Vectors, int, int], list[Rows]]


class ApproximateIndex:
    """A search for the nearest vectors, approximately, and the vectors themselves, in a file."""

    def __init__(self, vectors: Vectors, near: Near) -> None:
        self._vectors = vectors
        self.near = near
        self.dimension = vectors.shape[1]

    def scores(self, rows: Rows, query: Vectors) -> Scores:
        """Return the exact inner products of documents with a query, shape (rows,)."""
        return np.asarray(exact_scores(np.asarray(self._vectors), rows, query))


class ApproximateRetriever(VectorRetrieverBase):
    """Ranks documents by the inner products of vectors that an approximate index finds."""

    _index: Any
    _effort: int  # a larger one finds more, and takes longer

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        queries = embed_queries(self._embedder, searches, self._index.dimension)
        near = self._ask_index(searches, queries, k)
        rankings = []
        for i, (search, query) in enumerate(zip(searches, queries, strict=True)):
            if (rows := near.get(i)) is None:
                allowed = self._ranker.allowed(search.excluded, search.among)
                rows = np.arange(len(self._ranker)) if allowed is None else np.flatnonzero(allowed)
            rankings.append(self._ranker.hits(rows, self._index.scores(rows, query), k))
        return rankings

    def _ask_index(
        self,
        searches: Searches,
        queries: Vectors,
        k: int,
    ) -> dict[int, Rows]:
        """Return position of a search -> rows, without excluded documents.

        A search is missing if too few rows remain. The request to the index depends on the search
        alone, so its hits do, too.
        """
        excluded = [self._ranker.rows(search.excluded) for search in searches]
        # Number of documents that are needed -> positions of searches.
        positions_by_need = defaultdict(list)
        for i, search in enumerate(searches):
            # Excluded documents take ranks.
            needed = k + len(excluded[i])
            is_small = 2 * max(needed, self._effort) >= len(self._ranker)
            if search.among is None and not is_small:
                positions_by_need[needed].append(i)
        enough = {}
        for needed, positions in positions_by_need.items():
            nearest = self._index.near(queries[positions], needed, self._effort)
            for i, rows in zip(positions, nearest, strict=True):
                allowed = np.setdiff1d(rows, excluded[i])
                # A graph may have several components, and a search sees only one of them.
                if len(allowed) >= k:
                    enough[i] = allowed
        return enough
