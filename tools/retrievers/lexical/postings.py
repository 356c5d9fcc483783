"""Searching an inverted index: sums of weighted postings, and the best of them. Knows no words and no formula.

A score is the sum of the weights of the query's terms, added up in the query's order, a repeated term as often as it is
there. It is added up for every document in that very order: a sum in another one (each list once, with the number of
repeats as a factor) differs in the last digits, and would order documents that are nearly equal differently.

Most postings that a query reads are of terms that a large part of the documents have. Such a term also has a weight for
every document, 0 where it is not. Adding that row to all scores takes a quarter of the time, as nothing is looked up
and many are added at once, and the sums are the same, because adding 0 changes none.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tools.records import Hit
from tools.retriever import Ranker
from tools.retrievers.lexical import kernels
from tools.retrievers.lexical.kernels import Lists
from tools.retrievers.store import new_array

A = TypeVar("A")
B = TypeVar("B")
Scores = NDArray[np.floating[Any]]

_COMMON = 1 / 3  # of the documents have a common term; from a quarter on, a row takes less time than a list
_THREADS = 2


def map_array(path: Path) -> NDArray[Any]:
    """The array in `path`, memory-mapped: processes share its pages, and it costs no memory until it is read."""
    return np.asarray(np.load(path, mmap_mode="r"))


def complete_lists(folder: Path, size: int) -> None:
    """Complete the postings of a corpus of `size` documents in `folder`, for `Postings` to open.

    There are `indptr.npy` (int64, shape (terms + 1,)), `documents.npy` (int32) and `weights.npy` (float32 or
    float64), both of shape (postings,): the list of term t is documents[indptr[t]:indptr[t + 1]], positions in the
    corpus in ascending order, with the weights at the same places. No list is empty. What this adds are the weights of
    common terms in all documents (`common.npy`), and which of its rows each term has, -1 for none (`places.npy`).
    """
    indptr, documents, weights = (map_array(folder / f"{name}.npy") for name in ("indptr", "documents", "weights"))
    terms = np.flatnonzero(np.diff(indptr) >= _COMMON * size)
    places = np.full(len(indptr) - 1, -1, dtype=np.int32)
    places[terms] = np.arange(len(terms))
    np.save(folder / "places.npy", places)
    common = new_array(folder / "common.npy", (len(terms), size), weights.dtype)
    for row, (first, end) in zip(common, zip(indptr[terms], indptr[terms + 1], strict=True), strict=True):
        row[documents[first:end]] = weights[first:end]
    common.flush()


class Postings:
    """The posting lists of a corpus, as `complete_lists` has left them in `folder`; immutable, so threads share it.

    Scores are added up in the precision of the weights, float32 or float64.
    """

    def __init__(self, folder: Path, ranker: Ranker) -> None:
        self._lists = Lists(*(map_array(folder / f"{name}.npy") for name in Lists._fields))
        self._ranker = ranker

    @property
    def frequency(self) -> NDArray[np.int64]:
        """Documents of each term, shape (terms,)."""
        return np.diff(self._lists.indptr)

    def search(
        self,
        terms: NDArray[np.integer[Any]],
        k: int,
        *,
        amounts: Scores | None = None,
        excluded: Collection[str] = (),
        among: Collection[str] | None = None,
        above: float = 0.0,
    ) -> list[Hit]:
        """The `k` documents with the largest scores, best first, of those that score over `above`.

        `terms`, shape (n,), are the query's, in order, with repeats; `amounts`, shape (n,), positive, is what their
        weights are multiplied by, 1 by default.
        """
        dtype = self._lists.weights.dtype
        factors = np.ones(len(terms), dtype) if amounts is None else amounts.astype(dtype)
        scores = np.zeros(len(self._ranker), dtype)
        kernels.add(self._lists, terms.astype(np.int64), factors, scores)
        return self._ranker.top(scores, k, excluded=excluded, among=among, above=above)


def run_in_threads(function: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """The function's results, in order, made by two threads. The compiled loops let the other one run."""
    if len(items) == 1:
        return [function(items[0])]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, items))
