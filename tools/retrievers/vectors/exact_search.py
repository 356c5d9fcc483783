"""Exact search in the vectors of a corpus, memory-mapped, so that several processes share them.

First all scores are estimated as fast as memory allows, with bounds on their errors: from float32
vectors, whose error is that of rounding, or from 8-bit codes, which take a quarter of the memory
and have a known error for every document. All documents that could be among the best k within those
bounds are then scored in float64 by one fixed routine. So the ranking is that of float64 brute
force, the same to the last bit for a query and in a batch, in any thread, from either kind of
estimates, and with the estimates of a GPU (gpu_search.py).
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
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
from tools.retrievers.lexical.compiled_loops import compile_loop
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
Rows = NDArray[np.integer]  # positions of documents in the corpus

FORMAT = 1  # raised when the files of 8-bit codes change their meaning
_BLOCK = 8192  # vectors that are worked on at a time
_SPLIT = 1 << 23  # numbers from which on a second thread pays for its start
_SCORES = 1 << 25  # maximum of scores that are held for a group of queries: 128 MB
_FEW = 3  # queries that are faster one by one than in a matrix product
# More rows than this, and than a share of 1 / _MANY_OF of the corpus, are read from the map and not
# one by one from the file: a page of the map is read from disk with dozens around it.
_MAX_CANDIDATES = 8192
_MANY_OF = 32
# Sums may be regrouped; infinities keep their meaning.
_ANY_ORDER = {"reassoc", "contract", "nsz", "nnan"}


class VectorRetriever(VectorRetrieverBase):
    """Ranks documents by the inner products of their vectors with the query's vector.

    `search` is the precision of the estimates; it changes no ranking, so the name is without it. With int8, the vectors
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

    def search_with(
        self,
        queries: Vectors,
        searches: Sequence[Search],
        k: int,
    ) -> list[list[Hit]]:
        """Return the hits of searches whose vectors are `queries`."""
        unrestricted = [i for i, search in enumerate(searches) if search.among is None]
        # Queries of a group whose scores are held at the same time.
        size = _SCORES // max(1, len(self._ranker))
        rows: dict[int, Rows] = {}
        if self._on_device:
            for i in unrestricted:
                excluded = self._ranker.rows(searches[i].excluded)
                rows[i] = self._on_device.find(queries[i], excluded, k)
        elif len(unrestricted) > _FEW and size > _FEW:
            for start in range(0, len(unrestricted), size):
                group = unrestricted[start : start + size]
                scores_of_group = self._estimates.of_many(queries[group])
                for i, scores in zip(group, scores_of_group, strict=True):
                    rows[i] = self._candidates(queries[i], searches[i], k, scores)
        rankings = []
        for i, (query, search) in enumerate(zip(queries, searches, strict=True)):
            candidates = rows[i] if i in rows else self._candidates(query, search, k)
            rankings.append(self._hits(query, candidates, k))
        return rankings

    def _candidates(
        self,
        query: NDArray[np.float32],
        search: Search,
        k: int,
        scores: NDArray[np.float32] | None = None,
    ) -> Rows:
        """Return the documents that may be among the best `k` of a search.

        `scores` are its estimates; they are computed if they are None.
        """
        if search.among is not None:
            # A pool is small: all of it is scored.
            pool = set(search.among).difference(search.excluded)
            return np.array(self._ranker.rows(pool), dtype=np.int64)
        if scores is None:
            scores = self._estimates.of_all(query)
        scores[self._ranker.rows(search.excluded)] = -np.inf
        errors = self._estimates.errors * vector_norms(query[None])
        # At least k true scores reach the kth largest lower bound, so a document whose upper bound
        # does not is beaten.
        floor = kth_score_lower_bound(scores - errors, k)
        lowest = float(np.finfo(np.float32).min)
        return np.flatnonzero(scores + errors >= max(lowest, floor))

    def _hits(
        self,
        query: NDArray[np.float32],
        rows: Rows,
        k: int,
    ) -> list[Hit]:
        if self._file is None:
            scores = exact_scores(np.asarray(self._vectors), rows, query)
        elif len(rows) > max(_MAX_CANDIDATES, len(self._ranker) // _MANY_OF):
            scores = exact_scores(np.asarray(self._vectors), rows, query)
            drop_page_cache(self._vectors)
        else:
            file = self._file.fileno()
            parts = []
            for first in range(0, max(1, len(rows)), _MAX_CANDIDATES):
                run = rows[first : first + _MAX_CANDIDATES]
                vectors = self._read(file, run)
                parts.append(exact_scores(vectors, np.arange(len(run)), query))
            scores = np.concatenate(parts)
        return self._ranker.hits(rows, scores, k)

    def _read(self, file: int, rows: Rows) -> Vectors:
        """Read vectors from the file; a page of the map would bring its neighbours into memory."""
        width = self._vectors.strides[0]
        start = self._vectors.offset
        data = b"".join([os.pread(file, width, start + width * row) for row in rows.tolist()])
        return np.frombuffer(data, dtype=np.float32).reshape(len(rows), self._vectors.shape[1])


class ScoreEstimates(NamedTuple):
    """Numbers from which scores are estimated, and bounds on the errors of estimates.

    The score of a document with a query is within `errors[row] * |query|` of `numbers[row] @ query * scales[row]`, up
    to an amount that is the same for all documents.
    """

    numbers: NDArray[np.float32] | NDArray[np.int8]  # shape (documents, dimension)
    scales: NDArray[np.float32] | None  # shape (documents,); None is 1
    errors: NDArray[np.float32]  # shape (documents,)

    def of_all(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the estimates of a query, shape (documents,)."""
        scores = np.empty(len(self.numbers), dtype=np.float32)
        halves = [(0, len(scores))]
        if self.numbers.size >= _SPLIT and _has_two_threads():
            middle = len(scores) // 2
            halves = [(0, middle), (middle, len(scores))]
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
    errors = _rounding(vector_norms(vectors), vectors.shape[1])
    return ScoreEstimates(np.asarray(vectors), None, errors)


def from_codes(home: Path, key: Mapping[str, object], vectors: Vectors) -> ScoreEstimates:
    """Return estimates from 8-bit codes of the vectors that `key` determines.

    The codes are made if they are not under `home`.
    """
    key = {
        **key,
        "kind": "codes",
        "codes": FORMAT,
    }
    return open_index(
        home,
        key,
        build=partial(_write_codes, vectors),
        load=_load_codes,
    )


def vector_norms(vectors: Vectors) -> NDArray[np.float32]:
    """Return the Euclidean lengths of vectors, shape (vectors,)."""
    # np.einsum makes no copy, not even of vectors in a file.
    squares = np.einsum("ij,ij->i", vectors, vectors)
    norms: NDArray[np.float32] = np.sqrt(squares)
    return norms


def _has_two_threads() -> bool:
    """Return whether two cores may be used.

    As all numerical libraries do, this heeds OMP_NUM_THREADS.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "2").strip()
    return len(os.sched_getaffinity(0)) > 1 and threads != "1"


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
        quotients = np.zeros_like(residuals)
        np.divide(
            residuals,
            scale,
            out=quotients,
            where=scale > 0,
        )
        codes[block] = np.rint(quotients)
        coded = codes[block] * scale
        rounding = _rounding(np.linalg.norm(coded, axis=1), vectors.shape[1])
        # By Cauchy and Schwarz, |query @ (residuals - coded)| is at most
        # |query| |residuals - coded|.
        distances = np.linalg.norm(residuals - coded, axis=1)
        errors[block] = 1.01 * distances + rounding
        drop_page_cache(codes)
    codes.flush()
    np.save(folder / "scales.npy", scales)
    np.save(folder / "errors.npy", errors)


def _load_codes(folder: Path) -> ScoreEstimates:
    codes, scales, errors = (
        np.asarray(open_memmap(folder / f"{name}.npy", "r"))
        for name in ("codes", "scales", "errors")
    )
    return ScoreEstimates(codes, scales, errors)


@compile_loop(fastmath=_ANY_ORDER)
def estimate_scores(
    vectors: Any,
    query: Any,
    first: int,
    last: int,
    out: Any,
) -> None:
    """Write the inner products of rows `first` to `last` with a float32 query to `out`.

    The rows are float32 or int8.
    """
    for row in range(first, last):
        total = np.float32(0)
        for i in range(len(query)):
            total += np.float32(vectors[row, i]) * query[i]
        out[row] = total


def exact_scores(vectors: Vectors, rows: Rows, query: Vectors) -> NDArray[np.float64]:
    """Return the float64 inner products of rows of vectors with a query, shape (rows,).

    Vectors and query are float32. Products of two float32 numbers are exact in float64, and sums
    have one order: on every machine, in every batch.
    """
    scores = np.empty(len(rows))
    _sum_exactly(vectors, rows, query, scores)
    return scores


@compile_loop()
def _sum_exactly(
    vectors: Any,
    rows: Any,
    query: Any,
    scores: Any,
) -> None:
    fours = len(query) // 4 * 4
    for position in range(len(rows)):
        vector = vectors[rows[position]]
        # Four sums, because an addition has to wait for the addition before it.
        a = b = c = d = 0.0
        for i in range(0, fours, 4):
            a += np.float64(vector[i]) * np.float64(query[i])
            b += np.float64(vector[i + 1]) * np.float64(query[i + 1])
            c += np.float64(vector[i + 2]) * np.float64(query[i + 2])
            d += np.float64(vector[i + 3]) * np.float64(query[i + 3])
        for i in range(fours, len(query)):
            a += np.float64(vector[i]) * np.float64(query[i])
        scores[position] = (a + b) + (c + d)
