"""The compiled loops of vector search.

Estimates are float32 sums in whatever order is fastest, off by no more than a bound that the caller knows. `exact` is
the one routine that makes the scores that are shown.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

_ANY_ORDER = {"reassoc", "contract", "nsz", "nnan"}  # sums may be regrouped; infinities keep their meaning


@njit(nogil=True, cache=True, fastmath=_ANY_ORDER)
def estimate(vectors, query, first, last, out):  # type: ignore[no-untyped-def]
    """Inner products of the float32 or int8 rows `first` to `last` with a float32 query, into the same places of `out`.

    Two threads can each take a half. It reads memory as fast as one core can.
    """
    for row in range(first, last):
        total = np.float32(0)
        for i in range(len(query)):
            total += np.float32(vectors[row, i]) * query[i]
        out[row] = total


@njit(nogil=True, cache=True)
def exact(vectors, rows, query):  # type: ignore[no-untyped-def]
    """Inner products of some rows of float32 vectors with a float32 query, shape (rows,), float64.

    A product of two float32 numbers is exact in float64, and the sums below are made in one order, so the result is
    the same on every machine, in every batch and whatever else is scored with it.
    """
    scores = np.empty(len(rows))
    fours = len(query) // 4 * 4
    for place in range(len(rows)):
        vector = vectors[rows[place]]
        a = b = c = d = 0.0  # four sums, because an addition has to wait for the one before it
        for i in range(0, fours, 4):
            a += np.float64(vector[i]) * np.float64(query[i])
            b += np.float64(vector[i + 1]) * np.float64(query[i + 1])
            c += np.float64(vector[i + 2]) * np.float64(query[i + 2])
            d += np.float64(vector[i + 3]) * np.float64(query[i + 3])
        for i in range(fours, len(query)):
            a += np.float64(vector[i]) * np.float64(query[i])
        scores[place] = (a + b) + (c + d)
    return scores


class Candidates(NamedTuple):
    """The documents that may be among the best of each of some queries."""

    floors: Any  # (queries,) what a candidate's true score may reach, at least; it rises as more is seen
    counts: Any  # (queries,) how many candidates there are; -1 when there are more than there is room for
    rows: Any  # (queries, room) the candidates
    kept: Any  # (queries, room) their estimates


@njit(nogil=True, cache=True, fastmath=_ANY_ORDER)
def keep_candidates(scores, errors, norms, first, k, found):  # type: ignore[no-untyped-def]
    """Add to each query's candidates those of a block of documents that may be among its best `k`.

    scores   (queries, block) estimates of documents `first` and on; -inf is no candidate
    errors   (documents,) how far an estimate can be off, for a query of length 1
    norms    (queries,) the lengths of the queries
    found    the Candidates, which are changed
    """
    counts, rows = found.counts, found.rows
    room, width = rows.shape[1], scores.shape[1]
    for query in range(len(scores)):
        if counts[query] < 0:
            continue
        norm = norms[query]
        for start in range(0, width, 64):
            some = scores[query, start : start + 64]
            off = errors[first + start : first + start + 64]
            reached = np.int32(0)
            for i in range(len(some)):  # without a branch, it takes 8 documents at a time; few reach the floor
                reached |= np.int32(some[i] + off[i] * norm >= found.floors[query])
            if not reached:
                continue
            full = counts[query] + 64 > room
            if full and not _raise_floor(errors, norm, k, query, found):
                break
            count = counts[query]
            for i in range(len(some)):
                if some[i] + off[i] * norm >= found.floors[query]:
                    rows[query, count] = first + start + i
                    found.kept[query, count] = some[i]
                    count += 1
            counts[query] = count


@njit(nogil=True, cache=True, fastmath=_ANY_ORDER)
def _raise_floor(errors, norm, k, query, found):  # type: ignore[no-untyped-def]
    """Drop the candidates of one query that are now surely beaten; False when hardly any can be dropped."""
    rows, kept = found.rows[query], found.kept[query]
    count = found.counts[query]
    lowest = np.empty(count, np.float32)
    for i in range(count):
        lowest[i] = kept[i] - errors[rows[i]] * norm
    found.floors[query] = np.partition(lowest, count - k)[count - k]
    left = 0
    for i in range(count):
        if kept[i] + errors[rows[i]] * norm >= found.floors[query]:
            rows[left], kept[left] = rows[i], kept[i]
            left += 1
    found.counts[query] = left if left <= len(rows) // 2 else -1
    return found.counts[query] >= 0
