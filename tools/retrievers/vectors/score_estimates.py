"""Estimates of the scores of all documents with a query, each with a bound on its error.

They are made from the vectors, whose error is that of rounding, or from 8-bit codes of them, which
take a quarter of the memory and have a known error for every document. exact_search.py scores what
may be among the best within the bounds. Left out: products of 8-bit numbers; blocks of codes are
converted to float32.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from sextant.tools.retrievers.index_store import (
    IndexKey,
    create_memmap,
    drop_page_cache,
    iter_blocks,
    open_index,
)
from sextant.tools.retrievers.vectors.embedder import Vectors

FORMAT = 2  # raised when the files of 8-bit codes change their meaning
# Codes that are converted at a time: 1.5 MB. For more, BLAS starts threads, which takes longer.
_MAX_NUMBERS = 384 * 1024


class ScoreEstimates(NamedTuple):
    """Numbers from which scores are estimated, and bounds on the errors of estimates.

    The score of a document with a query is within `errors[row] * |query|` of its estimate, up to an
    amount that is the same for all documents.
    """

    numbers: NDArray[np.float32] | NDArray[np.int8]  # shape (documents, dimension)
    scales: NDArray[np.float32] | None  # shape (documents,), of 8-bit codes
    errors: NDArray[np.float32]  # shape (documents,)

    def of_queries(self, queries: Vectors) -> NDArray[np.float32]:
        """Return the estimates of queries, shape (queries, documents)."""
        if self.scales is None:
            return np.asarray(queries @ self.numbers.T)
        estimates = np.empty((len(queries), len(self.numbers)), dtype=np.float32)
        size = max(1, _MAX_NUMBERS // max(1, self.numbers.shape[1]))
        for first in range(0, len(self.numbers), size):
            block = slice(first, first + size)
            products = queries @ self.numbers[block].astype(np.float32).T
            estimates[:, block] = products * self.scales[block]
            drop_page_cache(self.numbers)
        return estimates


def from_vectors(vectors: Vectors) -> ScoreEstimates:
    """Return estimates from the vectors themselves; nothing is copied."""
    return ScoreEstimates(vectors, None, _rounding_errors(_lengths(vectors), vectors.shape[1]))


def from_codes(home: Path | None, vectors_key: IndexKey, vectors: Vectors) -> ScoreEstimates:
    """Return estimates from 8-bit codes of the vectors that a key determines.

    The codes are memory-mapped. They are made if they are not under `home`.
    """
    return open_index(
        home,
        {
            **vectors_key,
            "kind": "codes",
            "codes": FORMAT,
        },
        build=partial(_write_codes, vectors),
        load=_load_codes,
    )


def _lengths(vectors: NDArray[Any]) -> NDArray[Any]:
    # np.einsum makes no copy, not even of vectors in a file.
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", vectors, vectors)))


def _rounding_errors(lengths: NDArray[Any], dimension: int) -> NDArray[np.float32]:
    # Bounds the errors of float32 inner products with a query of length 1, summed in any order: d u
    # |x| |y|, with u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section
    # 3.1); the 8 and the 1.01 cover the few operations around it.
    errors = lengths * (1.01 * (dimension + 8) * 2.0**-24)
    return np.asarray(errors, dtype=np.float32)


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
        codes[block] = np.rint(residuals / np.where(scale > 0, scale, 1))
        coded = codes[block] * scale
        # By Cauchy and Schwarz, |query @ (residuals - coded)| is at most
        # |query| |residuals - coded|. The lengths of the vectors cover the rounding of exact scores.
        distances = _lengths(residuals - coded)
        lengths = _lengths(coded) + _lengths(block_vectors)
        errors[block] = 1.01 * distances + _rounding_errors(lengths, len(mean))
        drop_page_cache(codes)
    codes.flush()
    np.save(folder / "scales.npy", scales)
    np.save(folder / "errors.npy", errors)


def _load_codes(folder: Path) -> ScoreEstimates:
    return ScoreEstimates(
        numbers=open_memmap(folder / "codes.npy", "r"),
        scales=np.load(folder / "scales.npy"),
        errors=np.load(folder / "errors.npy"),
    )
