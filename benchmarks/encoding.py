"""Encoding speed with the bundled MiniLM, compared with sentence-transformers' own `encode`, on one
and two threads.

Times are CPU times of all threads together, because the machine may be busy. Left out: loading the
model, and exporting the 8-bit encoder.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from sentence_transformers import SentenceTransformer

from benchmarks import data
from benchmarks.rows import Row
from sextant.tools.retrievers.neural.dense import SentenceEmbedder
from sextant.tools.retrievers.neural.loading import torch_threads
from sextant.tools.retrievers.neural.model_table import BUNDLED, find_folder
from sextant.tools.retrievers.vectors.embedder import Vectors

_PASSAGES = 200  # at most; encoding is as fast for any number
_LENGTH = 1100  # characters on average, as in the hearings
_ROUNDS = 3


def measure(documents: int, source: Path | None, seed: int) -> list[Row]:
    """Passages a second, and how near the vectors are to the library's."""
    with TemporaryDirectory(prefix="sextant-") as folder:
        texts = _passages(min(documents, _PASSAGES), Path(folder), source, seed)
        return _against_library(texts, Path(folder))


def _passages(number: int, folder: Path, source: Path | None, seed: int) -> list[str]:
    """Recombined texts whose lengths vary as those of real passages do."""
    lengths = _LENGTH * np.random.default_rng([seed, 2]).lognormal(-0.125, 0.5, number)
    texts = data.corpus(number, folder / "corpus", source, seed).texts()
    return [text[: int(length)] for text, length in zip(texts, lengths, strict=True)]


def _against_library(texts: Sequence[str], home: Path) -> list[Row]:
    library = SentenceTransformer(str(find_folder(BUNDLED)), device="cpu")
    rows = []
    for count in (1, 2):
        with _cores(count), torch_threads(count):
            exact = SentenceEmbedder(BUNDLED)
            quantized = SentenceEmbedder(BUNDLED, encoder="int8", home=home)
            encode = partial(library.encode, list(texts), show_progress_bar=False)
            seconds, vectors = _timed(
                [partial(exact.documents, texts), partial(quantized.documents, texts), encode]
            )
        theirs = len(texts) / seconds[2]
        for what, vector, cost, bound in (
            ("dense", vectors[0], seconds[0], 1.0),
            ("dense(encoder=int8)", vectors[1], seconds[1], 1.3),
        ):
            cosines = np.einsum("ij,ij->i", vector, vectors[2])
            rows.append(
                Row(
                    f"{what}, {count} thread{'s' if count > 1 else ''}",
                    "documents/s",
                    len(texts) / cost,
                    "sentence-transformers, encode",
                    theirs,
                    bound,
                    larger_is_better=True,
                    note=f"cosine at least {cosines.min():.6f}, {cosines.mean():.6f} on average",
                )
            )
    return rows


def _timed(ways: Sequence[Callable[[], Vectors]]) -> tuple[list[float], list[Vectors]]:
    """Seconds of processor time, the median of repeats that take turns, and the vectors."""
    vectors = [way() for way in ways]
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(_ROUNDS):
        for way, taken in zip(ways, seconds, strict=True):
            started = time.process_time()
            way()
            taken.append(time.process_time() - started)
    return [median(taken) for taken in seconds], vectors


@contextmanager
def _cores(count: int) -> Iterator[None]:
    """Let the embedders believe that there are `count` cores."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
