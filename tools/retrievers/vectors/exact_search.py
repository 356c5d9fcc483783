"""Exact search in the vectors of a corpus, memory-mapped, so that several processes share them.

First all scores are estimated, with bounds on their errors (tools/retrievers/vectors/estimates.py); every document that
could be among the best k within those bounds is a candidate. Then one fixed routine scores the candidates in float64,
and that decides. So the ranking is that of float64 brute force, the same to the last bit for one query and in a batch,
in any thread, and whether the estimates come from the vectors or from 8-bit codes.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tools.corpus import Corpus
from tools.records import Hit
from tools.retriever import Ranker, Retriever, Search
from tools.retrievers.vectors.embedding import Embedder, Vectors, embed_queries, open_vectors, vectors_key
from tools.retrievers.vectors.estimates import from_codes, from_vectors, lengths
from tools.retrievers.vectors.inner_products import Candidates, exact, keep_candidates

Precision = Literal["float32", "int8"]
Rows = NDArray[np.integer]  # documents, by their place in the corpus

_LOWEST = np.finfo(np.float32).min
_DOCUMENTS, _QUERIES = 8192, 1024  # of one matrix product, at most: 32 MB of scores
_FEW = 3  # queries that are faster one by one than in a matrix product
_MANY = 8192  # rows that are better read from the map than one by one from the file


class VectorRetriever(Retriever):
    """The documents whose vectors have the largest inner products with the query's.

    `search` is what the estimates are made from. It changes no ranking, so it is no part of the name. With int8, the
    vectors stay on disk, and twice k of them or so are read for a query; an index that is not kept has no file to read
    them from, and is searched as with float32.
    """

    def __init__(
        self, corpus: Corpus, home: Path | None, embedder: Embedder, name: str, search: Precision = "float32"
    ) -> None:
        self.name = name
        self._embedder = embedder
        self._ranker = Ranker(corpus.doc_ids)
        self._vectors = open_vectors(embedder, corpus, home)
        path = Path(self._vectors.filename or "")
        self._file = path.open("rb") if search == "int8" and path.is_file() else None
        if home and self._file:
            self._estimates = from_codes(home, vectors_key(embedder, corpus), self._vectors)
        else:
            self._estimates = from_vectors(self._vectors)

    def left_out(self, text: str, instruction: str = "") -> int:
        """How many tokens at the end of `text` are more than the embedder's model takes."""
        return self._embedder.left_out(text, instruction)

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        queries = embed_queries(self._embedder, searches, self._vectors.shape[1])
        found: dict[int, Rows] = {}
        whole = [i for i, search in enumerate(searches) if search.among is None]
        if len(whole) > _FEW and 4 * k <= len(self._ranker):
            for start in range(0, len(whole), _QUERIES):
                some = whole[start : start + _QUERIES]
                candidates = self._candidates_of_many(queries[some], [searches[i] for i in some], k)
                found |= {some[i]: rows for i, rows in candidates.items()}
        return [
            self._hits(query, found[i] if i in found else self._candidates(query, search, k), k)
            for i, (query, search) in enumerate(zip(queries, searches, strict=True))
        ]

    def _candidates(self, query: NDArray[np.float32], search: Search, k: int) -> Rows:
        """Return the documents that may be among the best `k` of one search."""
        allowed = self._ranker.allowed(search.excluded, search.among)
        if allowed is not None and search.among is not None:  # a pool is small: all of it is scored
            return np.flatnonzero(allowed)
        scores = self._estimates.of_all(query)
        if allowed is not None:
            scores[~allowed] = -np.inf
        return _within_reach(scores, self._estimates.errors * lengths(query[None]), k)

    def _candidates_of_many(self, queries: Vectors, searches: Sequence[Search], k: int) -> dict[int, Rows]:
        """Return the candidates of every search, by its place; searches with too many of them are left out."""
        norms, errors = lengths(queries), self._estimates.errors
        excluded = [self._ranker.rows(search.excluded) for search in searches]
        of_query = np.repeat(np.arange(len(searches)), [len(rows) for rows in excluded])
        documents = np.concatenate(excluded).astype(np.int64)
        room = 4 * k + 4096
        found = Candidates(
            floors=np.full(len(searches), _LOWEST),
            counts=np.zeros(len(searches), dtype=np.int64),
            rows=np.empty((len(searches), room), dtype=np.int64),
            kept=np.empty((len(searches), room), dtype=np.float32),
        )
        for first in range(0, len(self._ranker), _DOCUMENTS):
            scores = self._estimates.of_block(queries, first, first + _DOCUMENTS)
            here = (first <= documents) & (documents < first + _DOCUMENTS)
            scores[of_query[here], documents[here] - first] = -np.inf
            keep_candidates(scores, errors, norms, first, k, found)
        candidates: dict[int, Rows] = {}
        for i in np.flatnonzero(found.counts >= 0).tolist():
            rows, kept = found.rows[i, : found.counts[i]], found.kept[i, : found.counts[i]]
            candidates[i] = rows[_within_reach(kept, errors[rows] * norms[i], k)]
        return candidates

    def _hits(self, query: NDArray[np.float32], rows: Rows, k: int) -> list[Hit]:
        """The best `k` of the candidates, by their exact scores."""
        if self._file is None or len(rows) > _MANY:
            scores = exact(np.asarray(self._vectors), rows, query)
        else:
            scores = exact(self._read(self._file.fileno(), rows), np.arange(len(rows)), query)
        return self._ranker.hits(rows, scores, k)

    def _read(self, file: int, rows: Rows) -> Vectors:
        """Some of the vectors, from their file: a page of the map brings its neighbours, which all count as memory."""
        width, start = self._vectors.strides[0], self._vectors.offset
        data = b"".join([os.pread(file, width, start + width * row) for row in rows.tolist()])
        return np.frombuffer(data, dtype=np.float32).reshape(len(rows), self._vectors.shape[1])


def _within_reach(scores: NDArray[np.float32], errors: NDArray[np.float32], k: int) -> Rows:
    """Which of some documents may be among the best `k`, given their estimates; -inf is one that may not.

    At least k true scores reach the kth largest lower bound, so a document whose upper bound does not is beaten.
    """
    floor = _LOWEST
    if k < len(scores):
        floor = max(floor, np.partition(scores - errors, len(scores) - k)[len(scores) - k])
    return np.flatnonzero(scores + errors >= floor)
