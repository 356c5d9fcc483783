"""Vectors in inverted lists of faiss (IVF with 8-bit codes, https://arxiv.org/abs/2401.08281), in a
memory-mapped file.

For millions of documents, if exact search takes longer than a query is worth. How many of the exact
results it finds is measured when it is first used, and is part of its name, so that it is part of
every result. Up to _ALL documents, all are compared. Why lists and no graph:
docs/decisions/retrieval.md.
"""

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, UsageError, require_at_least
from sextant.tools.platform.installation import explain_missing
from sextant.tools.retrievers.base import Options
from sextant.tools.retrievers.expressions import format_expression
from sextant.tools.retrievers.index_store import iter_blocks, open_index
from sextant.tools.retrievers.vectors.approximate_base import (
    ApproximateIndex,
    ApproximateRetriever,
    Near,
    Rows,
)
from sextant.tools.retrievers.vectors.embedder import Embedder, Vectors, open_vectors, vectors_key
from sextant.tools.retrievers.vectors.exact_search import exact_scores

_FORMAT = 1  # raised when the content of an index, or what its recall means, changes
_MAX_EXHAUSTIVE = 1000
_TRAINING = 64  # vectors a list from which the lists' centres are made; faiss warns below 39
_SPARE = 100  # more candidates than are asked for, as 8 bits order them a little differently
_SAMPLE = 200  # vectors for which recall is measured
_CUTS = (10, 100)


class Ann(ApproximateRetriever):
    """Nearly exact search in vectors, by lists of faiss; its name has the recall."""

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        embedder: Embedder,
        *,
        nprobe: int = 64,  # lists that are searched
        recall: tuple[float, ...] = (),  # at 10, and at 100; an index that finds less is refused
    ) -> None:
        super().__init__(corpus, embedder)
        self._effort = nprobe
        # an extra
        vectors = open_vectors(embedder, corpus, home)
        faiss = import_module("faiss")
        key = {
            **vectors_key(embedder, corpus),
            "kind": "ann",
            "ann": _FORMAT,
            "faiss": faiss.__version__,
        }
        self._index = ApproximateIndex(
            vectors,
            open_index(
                home,
                key,
                build=partial(_build, faiss, vectors),
                load=_open,
            ),
        )

        def measure(folder: Path) -> None:
            recall = (
                measure_recall(vectors, self._index.near, nprobe)
                if len(corpus) > _MAX_EXHAUSTIVE
                else (1.0, 1.0)
            )
            np.save(folder / "recall.npy", recall)

        key |= {"kind": "recall", "nprobe": nprobe}
        known_recalls = tuple(
            open_index(
                home,
                key,
                build=measure,
                load=lambda folder: np.load(folder / "recall.npy"),
            ).tolist()
        )
        if any(share < least for share, least in zip(known_recalls, recall, strict=False)):
            raise DataError(
                f"ann finds {known_recalls} of the best {_CUTS}, less than {recall}; raise "
                "nprobe, or search exactly"
            )
        self.name = format_expression(
            "ann",
            parts=[embedder.name],
            options={"nprobe": nprobe, "recall": known_recalls},
        )

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse options that are out of range, and a missing faiss."""
        require_at_least(1, "ann", nprobe=options["nprobe"])
        if not find_spec("faiss"):
            raise UsageError(f"ann needs {explain_missing('faiss-cpu', 'ann')}")


def _build(faiss: Any, vectors: Vectors, folder: Path) -> None:
    count, dimension = vectors.shape
    if count > _MAX_EXHAUSTIVE:
        lists = int(min(2 * count**0.5, count / _TRAINING))
        index = faiss.index_factory(dimension, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
        index.train(vectors[_draw(count, lists * _TRAINING)])
        for _, block in iter_blocks(vectors):
            index.add(np.ascontiguousarray(block))
        faiss.write_index(index, str(folder / "lists.faiss"))


def _open(folder: Path) -> Near:
    file = folder / "lists.faiss"
    faiss = import_module("faiss")
    lists = (
        faiss.read_index(str(file), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        if file.is_file()
        else None
    )

    def near(queries: Vectors, n: int, nprobe: int) -> list[Rows]:
        if lists is None:
            return [np.empty(0, dtype=np.int64) for _ in queries]
        probe = faiss.SearchParametersIVF(nprobe=nprobe)
        # One by one: for a batch, faiss picks the lists by a matrix product, which rounds
        # otherwise.
        nearest = [lists.search(query[None], n + _SPARE, params=probe)[1][0] for query in queries]
        return [rows[rows >= 0] for rows in nearest]

    return near


def _draw(count: int, most: int) -> Rows:
    return np.sort(np.random.default_rng(0).choice(count, min(most, count), replace=False))


def measure_recall(vectors: Vectors, near: Near, effort: int) -> tuple[float, ...]:
    """Return the shares of the best 10 and 100 that `near` finds, for some of the vectors, each
    without itself.

    Documents that tie with the last of them count as well. Real queries may be farther from all documents,
    and have less.
    """
    shares = []
    for row in _draw(len(vectors), _SAMPLE).tolist():
        query = vectors[row]
        estimates = vectors @ query
        best = np.argpartition(estimates, -max(_CUTS) - _SPARE)[-max(_CUTS) - _SPARE :]
        found = near(query[None], max(_CUTS) + 1, effort)[0]
        wanted, scores = (
            exact_scores(np.asarray(vectors), rows[rows != row], query) for rows in (best, found)
        )
        shares.append([min(k, np.sum(scores >= np.sort(wanted)[-k])) / k for k in _CUTS])
    return tuple(np.mean(shares, axis=0).round(3).tolist())
