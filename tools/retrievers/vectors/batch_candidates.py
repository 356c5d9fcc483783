"""The documents that may be among the best k of each of many queries, found in a single pass.

A block of documents is multiplied with all queries. While its scores are in the processor's cache,
a compiled loop keeps the documents whose upper bound reaches the query's floor, which is the kth
largest lower bound so far. So a query holds a few times k candidates, and never the scores of all
documents.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sextant.tools.retrievers.lexical.compiled_loops import compile_loop
from sextant.tools.retrievers.lexical.numba_kernels import run_in_threads

_SCORES = 1 << 20  # scores of a block of documents: 4 MB
MIN_BLOCK = 2048  # documents of a block; smaller matrices are multiplied more slowly
_MAX_BLOCK = 8192
_MAX_QUERIES = 1024  # queries of a pass
_MAX_ENTRIES = 1 << 23  # candidates that a range of documents has room for: 100 MB
_MIN_ROOM = 256  # candidates of a query that there is room for
# Scores that are compared with one vector instruction or two. A fixed number: the compiler makes no
# vector instructions of a loop whose length it does not know.
_CHUNK = 32


Floats = NDArray[np.float32]


class Block(NamedTuple):
    """The estimated scores of some documents with all queries, see exact_search.ScoreEstimates."""

    first: int  # position of its first document in the corpus
    scores: NDArray[np.float32]  # before they are scaled, shape (documents, padded queries)
    scales: NDArray[np.float32]  # shape (documents,)
    errors: NDArray[np.float32]  # for a query of length 1, shape (documents,)


class Exclusions(NamedTuple):
    """Pairs of a document and a query that must not find it, by document."""

    rows: NDArray[np.int64]
    queries: NDArray[np.int64]

    @classmethod
    def of_queries(cls, rows_of_queries: Sequence[Sequence[int]]) -> "Exclusions":
        """Return the pairs of the rows that each query excludes."""
        sizes = [len(rows) for rows in rows_of_queries]
        queries = np.repeat(np.arange(len(sizes)), sizes)
        rows = np.array([row for rows in rows_of_queries for row in rows], dtype=np.int64)
        order = np.argsort(rows, kind="stable")
        return cls(rows[order], queries[order])

    def apply(self, block: Block) -> None:
        """Set the scores of the pairs to -inf."""
        limits = (block.first, block.first + len(block.scores))
        begin, end = np.searchsorted(self.rows, limits).tolist()
        if begin < end:
            rows = self.rows[begin:end] - block.first
            block.scores[rows, self.queries[begin:end]] = -np.inf


def max_queries(k: int) -> int:
    """Return how many queries a pass may have for the best `k`."""
    return max(1, min(_MAX_QUERIES, _MAX_ENTRIES // _initial_room(k)))


def block_size(queries: int) -> int:
    """Return how many documents to multiply at a time with this number of queries."""
    return min(_MAX_BLOCK, max(MIN_BLOCK, _SCORES // queries))


def pad(queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return queries, shape (queries, dimension), with as many zero rows more as a pass needs."""
    return np.pad(queries, ((0, -len(queries) % _CHUNK), (0, 0)))


def find_candidates(
    ranges: Sequence[Iterable[Block]],
    lengths: NDArray[np.float32],
    exclusions: Exclusions,
    k: int,
) -> list[NDArray[np.int32]] | None:
    """Return the rows of the candidates of each query, ascending; None if there is no room for them.

    `ranges` are the blocks of consecutive ranges of documents; each range has a thread, which waits
    for no other. `lengths` are the Euclidean lengths of the queries, shape (queries,).
    """
    # Of all ranges. Two threads may raise a floor at once, and the lower value may stay: it is a
    # floor, too. All finite scores reach the first, and those of excluded documents do not.
    floors = np.full(len(lengths), np.finfo(np.float32).min, np.float32)
    floors = np.pad(floors, (0, -len(lengths) % _CHUNK), constant_values=np.inf)
    parts = [_Candidates(lengths, floors, k) for _ in ranges]

    def add_range(number: int) -> bool:
        for block in ranges[number]:
            exclusions.apply(block)
            if not parts[number].add(block):
                return False
        return True

    if not all(run_in_threads(add_range, range(len(parts)), len(parts))):
        return None
    found = []
    for query in range(len(lengths)):
        rows, lows, highs = map(
            np.concatenate, zip(*[part.of(query) for part in parts], strict=True)
        )
        if len(rows) > k:
            floor = np.partition(lows, len(lows) - k)[len(lows) - k]
            rows = rows[highs >= floor]
        found.append(rows)
    return found


def _initial_room(k: int) -> int:
    return max(_MIN_ROOM, 2 * k)


class _Kept(NamedTuple):
    """Candidates of queries; the first counts[query] columns are in use."""

    counts: NDArray[np.int64]  # shape (queries,)
    # The kth largest lower bound so far; shape (queries,), as that of lengths.
    floors: NDArray[np.float32]
    lengths: NDArray[np.float32]
    rows: NDArray[np.int32]  # positions of documents in the corpus, shape (queries, room)
    lows: NDArray[np.float32]  # lower bounds of scores, shape (queries, room)
    highs: NDArray[np.float32]  # upper bounds of scores, shape (queries, room)


class _Candidates:
    """The candidates of all queries among the documents of a range."""

    def __init__(
        self,
        lengths: Floats,
        floors: Floats,
        k: int,
    ) -> None:
        self._k = k
        padding = -len(lengths) % _CHUNK
        shape = (len(lengths) + padding, _initial_room(k))
        self._kept = _Kept(
            counts=np.zeros(shape[0], np.int64),
            floors=floors,
            lengths=np.pad(lengths, (0, padding)),
            rows=np.empty(shape, np.int32),
            lows=np.empty(shape, np.float32),
            highs=np.empty(shape, np.float32),
        )

    def add(self, block: Block) -> bool:
        """Keep the candidates of a block; false if there is no room for them."""
        done = 0
        while done < len(block.scores):
            room = self._kept.rows.shape[1]
            scratch = np.empty(room, np.float32)
            done = _keep(block, done, self._k, scratch, self._kept)
            if done < 0:
                done = -done
                if 2 * self._kept.rows.size > _MAX_ENTRIES:
                    return False
                self._widen()
        return True

    def _widen(self) -> None:
        """Double the room for candidates."""
        room = self._kept.rows.shape[1]
        more = ((0, 0), (0, room))
        self._kept = self._kept._replace(
            rows=np.pad(self._kept.rows, more),
            lows=np.pad(self._kept.lows, more),
            highs=np.pad(self._kept.highs, more),
        )

    def of(self, query: int) -> tuple[NDArray[np.int32], Floats, Floats]:
        """Return the rows of a query's candidates, and the bounds of their scores."""
        kept = self._kept
        count = kept.counts[query]
        return kept.rows[query, :count], kept.lows[query, :count], kept.highs[query, :count]


@compile_loop()
def _keep(
    block: Block,
    done: int,
    k: int,
    scratch: NDArray[np.float32],
    kept: _Kept,
) -> int:
    """Keep the candidates among the documents of a block from number `done` on.

    Returns the number of documents that are done, as a negative number if a query needs more room.
    """
    first, scores, scales, errors = block
    counts, floors, lengths, rows, lows, highs = kept
    queries = len(counts)
    room = rows.shape[1]
    for document in range(done, len(scores)):
        scale = scales[document]
        error = errors[document]
        of_document = scores[document]
        is_crowded = False
        for chunk in range(0, queries, _CHUNK):
            reached = _compare_with_floors(
                of_document,
                lengths,
                floors,
                chunk,
                scale,
                error,
            )
            query = chunk
            while reached:
                if reached & 1:
                    score = of_document[query] * scale
                    margin = error * lengths[query]
                    low = score - margin
                    n = counts[query]
                    rows[query, n] = first + document
                    lows[query, n] = low if low >= -np.inf else np.float32(-np.inf)  # not NaN
                    highs[query, n] = score + margin
                    counts[query] = n + 1
                    if n + 1 == room:
                        _raise_floor(query, k, scratch, kept)
                        is_crowded |= 4 * counts[query] > 3 * room
                reached >>= 1
                query += 1
        if is_crowded:
            return -(document + 1)
    return len(scores)


@compile_loop()
def _compare_with_floors(
    scores: NDArray[np.float32],
    lengths: NDArray[np.float32],
    floors: NDArray[np.float32],
    first: int,
    scale: float,
    error: float,
) -> Any:
    """Return a number with bit n set if the upper bound of query `first` + n reaches its floor."""
    reached = np.int64(0)
    for n in range(_CHUNK):
        # An unsigned index is not compared with 0.
        query = np.uint64(first) + np.uint64(n)
        is_reached = scores[query] * scale + error * lengths[query] >= floors[query]
        reached |= np.int64(is_reached) << np.int64(n)
    return reached


@compile_loop()
def _raise_floor(query: int, k: int, scratch: NDArray[np.float32], kept: _Kept) -> None:
    """Set the floor of a query with k candidates or more, and drop candidates that are below."""
    counts, floors, _, rows, lows, highs = kept
    count = counts[query]
    for n in range(count):
        scratch[n] = lows[query, n]
    floors[query] = max(floors[query], _kth_largest(scratch, count, k))
    remaining = 0
    for n in range(count):
        if highs[query, n] >= floors[query]:
            rows[query, remaining] = rows[query, n]
            lows[query, remaining] = lows[query, n]
            highs[query, remaining] = highs[query, n]
            remaining += 1
    counts[query] = remaining


@compile_loop()
def _kth_largest(values: NDArray[np.float32], count: int, k: int) -> Any:
    """Return the kth largest of the first `count` values, none NaN, by quickselect."""
    first = 0
    last = count
    while True:
        pivot = values[(first + last) // 2]
        # Both passes have no branch, which the processor would guess wrong half of the time.
        larger = first
        for i in range(first, last):
            value = values[i]
            values[i] = values[larger]
            values[larger] = value
            larger += value > pivot
        if k <= larger:
            last = larger
            continue
        equal = larger
        for i in range(larger, last):
            value = values[i]
            values[i] = values[equal]
            values[equal] = value
            equal += value == pivot
        if k <= equal:
            return pivot
        first = equal
