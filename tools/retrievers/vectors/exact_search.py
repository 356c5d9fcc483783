"""Exact search in the vectors of a corpus, memory-mapped, so that several processes share them.

First all scores are estimated as fast as memory allows, with bounds on their errors: from float32
vectors, where the error is that of rounding, or from 8-bit codes, which take a quarter of the
memory and have a known error for every document. All documents that could be among the best k
within those bounds are then scored in float64 by one fixed routine. So the ranking is that of
float64 brute force, the same to the last bit for one query and in a batch, in any thread, from
either kind of estimates, and with those of a GPU (on_device.py).
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from tools.corpus import Corpus
from tools.records import Hit
from tools.retrievers.base import Search, kth_score_lower_bound
from tools.retrievers.devices import device
from tools.retrievers.index_store import (
    accelerator,
    create_memmap,
    drop_page_cache,
    iter_blocks,
    open_index,
)
from tools.retrievers.lexical.numba_cache import compile_loop
from tools.retrievers.lexical.numba_kernels import run_in_threads
from tools.retrievers.vectors.embedder import (
    Embedder,
    VectorRetrieverBase,
    Vectors,
    embed_queries,
    open_vectors,
    vectors_key,
)

Precision = Literal["float32", "int8"]
Rows = NDArray[np.integer]  # documents, by their place in the corpus

FORMAT = 1  # raised when the files of 8-bit codes change their meaning
_BLOCK = 8192  # vectors that are worked on at a time
_SPLIT = 1 << 23  # numbers from which on a second thread pays for its start
_SCORES = 1 << 25  # that are held for a group of queries, at most: 128 MB
_FEW = 3  # queries that are faster one by one than in a matrix product
# Rows that are better read from the map than one by one from the file, if they are more than one
_MAX_CANDIDATES = 8192
_MANY_OF = 32  # in so many: a page of the map is read from disk with dozens around it
_ANY_ORDER = {
    "reassoc",
    "contract",
    "nsz",
    "nnan",
}  # sums may be regrouped; infinities keep their meaning


class VectorRetriever(VectorRetrieverBase):
    """The documents whose vectors have the largest inner products with the query's.

    `search` is what estimates are made from; it changes no ranking, so the name is without it. With int8, the vectors
    stay on disk, and about 2k of them are read for a query; an index without a file is searched as with float32.
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
        self._vectors = open_vectors(embedder, corpus, home)
        path = Path(self._vectors.filename or "")
        self._file = path.open("rb") if search == "int8" and path.is_file() else None
        if home and self._file:
            self._estimates = from_codes(home, vectors_key(embedder, corpus), self._vectors)
        else:
            self._estimates = from_vectors(self._vectors)
        self._on_device = None
        if accelerator() and len(corpus):
            from tools.retrievers.vectors.gpu_search import (
                copy_to_device,  # PyTorch, which takes seconds
            )

            self._on_device = copy_to_device(device(), *self._estimates)

    def prepare(self, searches: Sequence[Search]) -> Vectors:
        """Return the vectors of searches, shape (searches, dimension)."""
        return embed_queries(self._embedder, searches, self._vectors.shape[1])

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        return self.search_with(self.prepare(searches), searches, k)

    def search_with(self, queries: Vectors, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        """Return the hits of searches whose vectors are `queries`."""
        unrestricted = [i for i, search in enumerate(searches) if search.among is None]
        size = (
            _SCORES // max(1, len(self._ranker)) if len(unrestricted) > _FEW else 0
        )  # of a group whose scores are held
        rows: dict[int, Rows] = {}
        if on_device := self._on_device:
            rows = {
                i: on_device.find(queries[i], self._ranker.rows(searches[i].excluded), k)
                for i in unrestricted
            }
        for start in range(0, len(unrestricted), size) if size > _FEW and not on_device else ():
            batch = unrestricted[start : start + size]
            for i, scores in zip(batch, self._estimates.of_many(queries[batch]), strict=True):
                rows[i] = self._candidates(queries[i], searches[i], k, scores)
        return [
            self._hits(query, rows[i] if i in rows else self._candidates(query, search, k), k)
            for i, (query, search) in enumerate(zip(queries, searches, strict=True))
        ]

    def _candidates(
        self,
        query: NDArray[np.float32],
        search: Search,
        k: int,
        scores: NDArray[np.float32] | None = None,
        # The documents that may be among the best `k` of one search; `scores` are its estimates, if
        # known
    ) -> Rows:
        if search.among is not None:  # a pool is small: all of it is scored
            return np.array(
                self._ranker.rows(set(search.among).difference(search.excluded)), dtype=np.int64
            )
        if scores is None:
            scores = self._estimates.of_all(query)
        scores[self._ranker.rows(search.excluded)] = -np.inf
        errors = self._estimates.errors * vector_norms(query[None])
        # At least k true scores reach the kth largest lower bound, so a document whose upper bound
        # does not is beaten.
        return np.flatnonzero(
            scores + errors
            >= max(np.finfo(np.float32).min, kth_score_lower_bound(scores - errors, k))
        )

    def _hits(self, query: NDArray[np.float32], rows: Rows, k: int) -> list[Hit]:
        if self._file is None:
            scores = exact_scores(np.asarray(self._vectors), rows, query)
        elif len(rows) > max(_MAX_CANDIDATES, len(self._ranker) // _MANY_OF):
            scores = exact_scores(np.asarray(self._vectors), rows, query)
            drop_page_cache(self._vectors)
        else:
            runs = (
                rows[first : first + _MAX_CANDIDATES]
                for first in range(0, max(1, len(rows)), _MAX_CANDIDATES)
            )
            file = self._file.fileno()
            scores = np.concatenate(
                [exact_scores(self._read(file, rows), np.arange(len(rows)), query) for rows in runs]
            )
        return self._ranker.hits(rows, scores, k)

    def _read(
        self, file: int, rows: Rows
    ) -> Vectors:  # a page of the map brings its neighbours, all in memory
        width = self._vectors.strides[0]
        start = self._vectors.offset
        data = b"".join([os.pread(file, width, start + width * row) for row in rows.tolist()])
        return np.frombuffer(data, dtype=np.float32).reshape(len(rows), self._vectors.shape[1])


class ScoreEstimates(NamedTuple):
    """Numbers from which scores are estimated, and how far an estimate can be off.

    The score of a document with a query is within `errors[row] * |query|` of `numbers[row] @ query * scales[row]`, up
    to an amount that is the same for all documents.
    """

    numbers: NDArray[np.float32] | NDArray[np.int8]  # shape (documents, dimension)
    scales: NDArray[np.float32] | None  # shape (documents,); None is 1
    errors: NDArray[np.float32]  # shape (documents,)

    def of_all(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the estimates of one query, shape (documents,)."""
        scores = np.empty(len(self.numbers), dtype=np.float32)
        middle = len(scores) // 2 if self.numbers.size >= _SPLIT and _two_threads() else 0
        halves = [(0, middle), (middle, len(scores))] if middle else [(0, len(scores))]
        run_in_threads(lambda half: estimate_scores(self.numbers, query, *half, scores), halves)
        return scores if self.scales is None else scores * self.scales

    def of_many(self, queries: Vectors) -> NDArray[np.float32]:
        """Return the estimates of many queries, shape (queries, documents)."""
        scores = np.empty((len(queries), len(self.numbers)), dtype=np.float32)
        for first in range(0, len(self.numbers), _BLOCK):
            block = self.numbers[first : first + _BLOCK].astype(np.float32, copy=False)
            np.matmul(queries, block.T, out=scores[:, first : first + _BLOCK])
        if self.scales is not None:
            scores *= self.scales
        return scores


def from_vectors(vectors: Vectors) -> ScoreEstimates:
    """Return estimates from the vectors themselves; nothing is copied."""
    return ScoreEstimates(
        np.asarray(vectors), None, _rounding(vector_norms(vectors), vectors.shape[1])
    )


def from_codes(home: Path, key: Mapping[str, object], vectors: Vectors) -> ScoreEstimates:
    """Return estimates from 8-bit codes of the vectors that `key` determines; made if they
    are not under `home`.
    """
    key = {**key, "kind": "codes", "codes": FORMAT}
    return open_index(
        home, key, build=lambda folder: _write_codes(vectors, folder), load=_load_codes
    )


def vector_norms(vectors: Vectors) -> NDArray[np.float32]:
    """Return the Euclidean lengths of vectors, shape (vectors,)."""
    norms: NDArray[np.float32] = np.sqrt(
        np.einsum("ij,ij->i", vectors, vectors)
    )  # no copy, also of what is in a file
    return norms


def _two_threads() -> (
    bool
):  # whether two cores may be used; as all numerical libraries do, this heeds OMP_NUM_THREADS
    return (
        len(os.sched_getaffinity(0)) > 1 and os.environ.get("OMP_NUM_THREADS", "2").strip() != "1"
    )


def _rounding(lengths: NDArray[Any], dimension: int) -> NDArray[np.float32]:
    # Bounds the errors of float32 inner products with a query of length 1, summed in any order: d u
    # |x| |y|, with u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section
    # 3.1); the 8 and the 1.01 cover the few operations around it.
    return (lengths * (1.01 * (dimension + 8) * 2.0**-24)).astype(np.float32)


def _write_codes(vectors: Vectors, folder: Path) -> None:
    # The mean of all vectors, of which many models' have much, is subtracted first: it adds the
    # same to all scores of a query. The largest remaining number of each vector becomes 127.
    mean = np.zeros(vectors.shape[1])
    for _, block_vectors in iter_blocks(vectors):
        mean += block_vectors.sum(axis=0, dtype=np.float64) / len(vectors)
    codes = create_memmap(folder / "codes.npy", vectors.shape, np.int8)
    scales = np.empty(len(vectors), dtype=np.float32)
    errors = np.empty(len(vectors), dtype=np.float32)
    for block, block_vectors in iter_blocks(vectors):
        residuals = block_vectors - mean
        scales[block] = np.abs(residuals).max(axis=1) / 127
        scale = scales[block, None].astype(np.float64)
        codes[block] = np.rint(
            np.divide(residuals, scale, out=np.zeros_like(residuals), where=scale > 0)
        )
        coded = codes[block] * scale
        rounding = _rounding(np.linalg.norm(coded, axis=1), vectors.shape[1])
        # By Cauchy and Schwarz, |query @ (rest - coded)| is at most |query| |rest - coded|.
        errors[block] = 1.01 * np.linalg.norm(residuals - coded, axis=1) + rounding
        drop_page_cache(codes)
    codes.flush()
    np.save(folder / "scales.npy", scales)
    np.save(folder / "errors.npy", errors)


def _load_codes(folder: Path) -> ScoreEstimates:
    return ScoreEstimates(
        *(
            np.asarray(open_memmap(folder / f"{name}.npy", "r"))
            for name in ("codes", "scales", "errors")
        )
    )


@compile_loop(fastmath=_ANY_ORDER)
def estimate_scores(vectors: Any, query: Any, first: int, last: int, out: Any) -> None:
    """Write the inner products of the float32 or int8 rows `first` to `last` with a float32
    query to `out`.
    """
    for row in range(first, last):
        total = np.float32(0)
        for i in range(len(query)):
            total += np.float32(vectors[row, i]) * query[i]
        out[row] = total


@compile_loop()
def exact_scores(vectors: Any, rows: Any, query: Any) -> Any:
    """Return the inner products of some rows of float32 vectors with a float32 query, shape
    (rows,), float64.

    Products of two float32 numbers are exact in float64, and sums have one order: on every machine,
    in every batch.
    """
    scores = np.empty(len(rows))
    fours = len(query) // 4 * 4
    for position in range(len(rows)):
        vector = vectors[rows[position]]
        a = b = c = d = 0.0  # four sums, because an addition has to wait for the one before it
        for i in range(0, fours, 4):
            a += np.float64(vector[i]) * np.float64(query[i])
            b += np.float64(vector[i + 1]) * np.float64(query[i + 1])
            c += np.float64(vector[i + 2]) * np.float64(query[i + 2])
            d += np.float64(vector[i + 3]) * np.float64(query[i + 3])
        for i in range(fours, len(query)):
            a += np.float64(vector[i]) * np.float64(query[i])
        scores[position] = (a + b) + (c + d)
    return scores
