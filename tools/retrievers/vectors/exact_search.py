"""Exact search in the vectors of a corpus, memory-mapped, so that several processes share them.

First all scores are estimated as fast as memory allows, with bounds on their errors: from float32
vectors, whose error is that of rounding, or from 8-bit codes, which take a quarter of the memory
and have a known error for every document. All documents that could be among the best k within those
bounds are then scored in float64 by one fixed routine. So the ranking is that of float64 brute
force, the same to the last bit for a query and in a batch, in any thread, from either kind of
estimates, and with the estimates of a GPU (gpu_search.py).
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from sextant.tools.corpus import Corpus
from sextant.tools.platform.system_calls import available_cores
from sextant.tools.records import Hits
from sextant.tools.retrievers.base import Search, kth_score_lower_bound
from sextant.tools.retrievers.devices import device
from sextant.tools.retrievers.index_store import (
    accelerator,
    create_memmap,
    drop_page_cache,
    iter_blocks,
    open_index,
)
from sextant.tools.retrievers.lexical.compiled_loops import compile_loop
from sextant.tools.retrievers.lexical.numba_kernels import run_in_threads
from sextant.tools.retrievers.vectors import batch_candidates
from sextant.tools.retrievers.vectors.batch_candidates import Block, block_size
from sextant.tools.retrievers.vectors.blas_threads import single_threaded_products
from sextant.tools.retrievers.vectors.embedder import (
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
_SPLIT = 1 << 23  # numbers from which on a second thread pays for its start
_MAX_RANGES = 16  # of documents in a batch, a thread each, which take some 20 MB each
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
            from sextant.tools.retrievers.vectors.gpu_search import (
                copy_to_device,  # PyTorch, which takes seconds
            )

            self._on_device = copy_to_device(device(), *self._estimates)

    def prepare(self, searches: Sequence[Search]) -> Vectors:
        """Return the vectors of searches, shape (searches, dimension)."""
        return embed_queries(self._embedder, searches, self._vectors.shape[1])

    def _search_many(self, searches: Sequence[Search], k: int) -> list[Hits]:
        return self.search_with(self.prepare(searches), searches, k)

    def search_with(
        self,
        queries: Vectors,
        searches: Sequence[Search],
        k: int,
    ) -> list[Hits]:
        """Return the hits of searches whose vectors are `queries`."""
        unrestricted = [i for i, search in enumerate(searches) if search.among is None]
        found: dict[int, Rows] = {}
        if self._on_device:
            for i in unrestricted:
                excluded = self._ranker.rows(searches[i].excluded)
                found[i] = self._on_device.find(queries[i], excluded, k)
        else:
            size = batch_candidates.max_queries(k)
            for start in range(0, len(unrestricted), size):
                group = unrestricted[start : start + size]
                if len(group) > _FEW:
                    found |= self._candidates_of_many(queries, searches, group, k)

        are_many = self._are_many(sum(len(rows) for rows in found.values()))

        def rank(position: int) -> Hits:
            query = queries[position]
            rows = found.get(position)
            if rows is None:
                rows = self._candidates(query, searches[position], k)
                return self._hits(query, rows, k)
            return self._hits(query, rows, k, from_map=are_many)

        if len(found) > _FEW and _has_two_threads():
            rankings = run_in_threads(rank, range(len(searches)))
        else:
            rankings = [rank(position) for position in range(len(searches))]
        if are_many and self._file:
            drop_page_cache(self._vectors)
        return rankings

    def _are_many(self, candidates: int) -> bool:
        """Return whether the vectors of candidates are read faster from the map than one by one."""
        return candidates > max(_MAX_CANDIDATES, len(self._ranker) // _MANY_OF)

    def _candidates_of_many(
        self,
        queries: Vectors,
        searches: Sequence[Search],
        group: Sequence[int],
        k: int,
    ) -> dict[int, Rows]:
        """Return the candidates of a group of searches, by their numbers; none if they are too many."""
        vectors = queries[group]
        excluded = [self._ranker.rows(searches[i].excluded) for i in group]
        padded = batch_candidates.pad(vectors)
        documents = len(self._ranker)
        count = min(_cores(), _MAX_RANGES, 1 + documents // batch_candidates.MIN_BLOCK)
        limits = [documents * number // count for number in range(count + 1)]
        ranges = [self._estimates.of_many(padded, *limit) for limit in pairwise(limits)]
        with single_threaded_products():
            rows = batch_candidates.find_candidates(
                ranges,
                vector_norms(vectors),
                batch_candidates.Exclusions.of_queries(excluded),
                k,
            )
        return {} if rows is None else dict(zip(group, rows, strict=True))

    def _candidates(
        self,
        query: NDArray[np.float32],
        search: Search,
        k: int,
    ) -> Rows:
        """Return the documents that may be among the best `k` of a search."""
        if search.among is not None:
            # A pool is small: all of it is scored.
            pool = set(search.among).difference(search.excluded)
            return np.array(self._ranker.rows(pool), dtype=np.int64)
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
        *,
        from_map: bool = False,
    ) -> Hits:
        """Return the best hits of candidates, whose vectors are read `from_map` if there are many
        in a batch.
        """
        if self._file is None or from_map:
            scores = exact_scores(np.asarray(self._vectors), rows, query)
        elif self._are_many(len(rows)):
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

    def of_many(
        self,
        queries: Vectors,
        start: int,
        stop: int,
    ) -> Iterator[Block]:
        """Yield the estimates of many queries for the documents from `start` to before `stop`, block
        by block.

        The next block takes the memory of the one before.
        """
        dimension = self.numbers.shape[1]
        size = block_size(len(queries))
        scores = np.empty((size, len(queries)), np.float32)
        converted = None
        if self.numbers.dtype != np.float32:
            converted = np.empty((size, dimension), np.float32)
        scales = np.ones(size, np.float32)
        columns = queries.T
        for first in range(start, stop, size):
            last = min(first + size, stop)
            numbers = self.numbers[first:last]
            length = last - first
            if converted is not None:
                _convert(numbers, converted)
                numbers = converted[:length]
            if self.scales is not None:
                scales = self.scales[first:last]
            np.matmul(numbers, columns, out=scores[:length])
            errors = self.errors[first:last]
            yield Block(first, scores[:length], scales[:length], errors)


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


def _cores() -> int:
    """Return how many cores may be used.

    As all numerical libraries do, this heeds OMP_NUM_THREADS.
    """
    cores = available_cores()
    limit = os.environ.get("OMP_NUM_THREADS", "").strip()
    return min(cores, max(1, int(limit))) if limit.isdecimal() else cores


def _has_two_threads() -> bool:
    return _cores() > 1


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


@compile_loop()
def _convert(codes: Any, out: Any) -> None:
    """Copy 8-bit codes as float32 numbers, in a quarter of NumPy's time."""
    for row in range(len(codes)):
        for column in range(codes.shape[1]):
            out[row, column] = codes[row, column]


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
    last = len(rows) - 1
    # Four vectors at a time: while numbers of one are on their way from memory, so are the others'.
    for first in range(0, len(rows), 4):
        second = min(first + 1, last)
        third = min(first + 2, last)
        fourth = min(first + 3, last)
        sums = _sum_four_rows(
            vectors[rows[first]],
            vectors[rows[second]],
            vectors[rows[third]],
            vectors[rows[fourth]],
            query,
        )
        scores[first], scores[second], scores[third], scores[fourth] = sums


@compile_loop()
def _sum_four_rows(
    one: Any,
    two: Any,
    three: Any,
    four: Any,
    query: Any,
) -> Any:
    # Each row has four sums, because an addition has to wait for the addition before it.
    nothing = (0.0, 0.0, 0.0, 0.0)
    of_one = nothing
    of_two = nothing
    of_three = nothing
    of_four = nothing
    fours = len(query) // 4 * 4
    for i in range(0, fours, 4):
        of_one = _add_products(of_one, one, query, i)
        of_two = _add_products(of_two, two, query, i)
        of_three = _add_products(of_three, three, query, i)
        of_four = _add_products(of_four, four, query, i)
    return (
        _add_up(of_one, one, query, fours),
        _add_up(of_two, two, query, fours),
        _add_up(of_three, three, query, fours),
        _add_up(of_four, four, query, fours),
    )


@compile_loop()
def _add_products(sums: Any, vector: Any, query: Any, i: int) -> Any:
    a, b, c, d = sums
    a += np.float64(vector[i]) * np.float64(query[i])
    b += np.float64(vector[i + 1]) * np.float64(query[i + 1])
    c += np.float64(vector[i + 2]) * np.float64(query[i + 2])
    d += np.float64(vector[i + 3]) * np.float64(query[i + 3])
    return a, b, c, d


@compile_loop()
def _add_up(sums: Any, vector: Any, query: Any, start: int) -> Any:
    a, b, c, d = sums
    for i in range(start, len(query)):
        a += np.float64(vector[i]) * np.float64(query[i])
    return (a + b) + (c + d)
