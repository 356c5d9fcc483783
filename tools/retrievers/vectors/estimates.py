"""Scores of all documents, estimated as fast as memory allows, each with a bound on its error.

From float32 vectors, the error is that of rounding. From 8-bit codes, which are kept as an index of their own and take
a quarter of the memory, it is mostly the codes' own, which is known for every document. Vector search
(tools/retrievers/vectors/exact_search.py) uses the bounds to find the best documents exactly.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from tools.retrievers.store import new_array, open_index
from tools.retrievers.vectors.embedding import Vectors
from tools.retrievers.vectors.inner_products import estimate

FORMAT = 1  # raised when the files of 8-bit codes change their meaning
_BLOCK = 8192  # vectors that are worked on at a time
_SPLIT = 1 << 23  # numbers from which on a second thread pays for its start


class Estimates(NamedTuple):
    """Numbers from which scores are estimated, and how far an estimate can be off.

    The score of a document with a query is within `errors[row] * |query|` of `numbers[row] @ query * scales[row]`, up
    to an amount that is the same for all documents.
    """

    numbers: NDArray[np.float32] | NDArray[np.int8]  # shape (documents, dimension)
    scales: NDArray[np.float32] | None  # shape (documents,); None is 1
    errors: NDArray[np.float32]  # shape (documents,)

    def of_all(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """The estimates of one query, shape (documents,)."""
        scores = np.empty(len(self.numbers), dtype=np.float32)
        middle = 0
        if self.numbers.size >= _SPLIT and _two_threads():
            middle = len(scores) // 2
            other = Thread(target=estimate, args=(self.numbers, query, 0, middle, scores))
            other.start()
        estimate(self.numbers, query, middle, len(scores), scores)
        if middle:
            other.join()
        return scores if self.scales is None else scores * self.scales

    def of_block(self, queries: Vectors, first: int, last: int) -> NDArray[np.float32]:
        """The estimates of many queries for the documents from `first` to `last`, shape (queries, last - first)."""
        block = self.numbers[first:last].astype(np.float32, copy=False)
        scores: NDArray[np.float32] = queries @ block.T
        return scores if self.scales is None else scores * self.scales[first:last]


def from_vectors(vectors: Vectors) -> Estimates:
    """Estimates from the vectors themselves; nothing is copied."""
    return Estimates(np.asarray(vectors), None, _rounding(lengths(vectors), vectors.shape[1]))


def from_codes(home: Path, key: Mapping[str, object], vectors: Vectors) -> Estimates:
    """Estimates from 8-bit codes of the vectors, which `key` determines; made when they are not kept under `home`."""
    key = {**key, "kind": "codes", "codes": FORMAT}
    return open_index(home, key, build=lambda folder: _write_codes(vectors, folder), load=_load_codes)


def lengths(vectors: Vectors) -> NDArray[np.float32]:
    """The Euclidean lengths of vectors, shape (vectors,)."""
    found = np.empty(len(vectors), dtype=np.float32)
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK]
        found[start : start + _BLOCK] = np.sqrt(np.einsum("ij,ij->i", block, block))
    return found


def _two_threads() -> bool:
    """Whether two cores may be used; as all numerical libraries do, it asks OMP_NUM_THREADS."""
    return len(os.sched_getaffinity(0)) > 1 and os.environ.get("OMP_NUM_THREADS", "2").strip() != "1"


def _rounding(lengths: NDArray[Any], dimension: int) -> NDArray[np.float32]:
    """How far float32 inner products with a query of length 1 can be off, in whatever order they are summed.

    d u |x| |y|, with u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1); the 8 and
    the 1.01 are for the few operations around it, of which this one is one.
    """
    return (lengths * (1.01 * (dimension + 8) * 2.0**-24)).astype(np.float32)


def _write_codes(vectors: Vectors, folder: Path) -> None:
    """Fill `folder` with codes, scales and errors.

    The mean of all vectors is taken off first: it adds the same to all scores of a query, and the vectors of many
    models have much in common. The largest number of what is left of a vector becomes 127.
    """
    mean = np.zeros(vectors.shape[1])
    for start in range(0, len(vectors), _BLOCK):
        mean += vectors[start : start + _BLOCK].sum(axis=0, dtype=np.float64) / len(vectors)
    codes = new_array(folder / "codes.npy", vectors.shape, np.int8)
    scales, errors = np.empty(len(vectors), dtype=np.float32), np.empty(len(vectors), dtype=np.float32)
    for start in range(0, len(vectors), _BLOCK):
        block = slice(start, start + _BLOCK)
        rest = vectors[block] - mean
        scales[block] = np.abs(rest).max(axis=1) / 127
        scale = scales[block, None].astype(np.float64)
        codes[block] = np.rint(np.divide(rest, scale, out=np.zeros_like(rest), where=scale > 0))
        coded = codes[block] * scale
        rounding = _rounding(np.linalg.norm(coded, axis=1), vectors.shape[1])
        # By Cauchy and Schwarz, |query @ (rest - coded)| is at most |query| |rest - coded|.
        errors[block] = 1.01 * np.linalg.norm(rest - coded, axis=1) + rounding
    codes.flush()
    np.save(folder / "scales.npy", scales)
    np.save(folder / "errors.npy", errors)


def _load_codes(folder: Path) -> Estimates:
    return Estimates(*(np.asarray(open_memmap(folder / f"{name}.npy", "r")) for name in ("codes", "scales", "errors")))
