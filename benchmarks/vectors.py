"""Vector search compared with faiss-cpu's Flat index, with its inverted lists (ann) and Chroma's
HNSW.

Each vector is a mixture of three vectors of short texts by all-MiniLM-L6-v2, plus noise with their
covariance, scaled to length 1. They cluster less than real ones, so HNSW may do better on real
data. Exact search takes the same time on any.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import chromadb
import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import data
from benchmarks.rows import Row
from sextant.tools.corpus import Corpus
from sextant.tools.records import Document, Hit
from sextant.tools.retrievers.base import Retriever, Search
from sextant.tools.retrievers.neural.dense import SentenceEmbedder
from sextant.tools.retrievers.vectors.ann import Ann
from sextant.tools.retrievers.vectors.embedder import Vectors
from sextant.tools.retrievers.vectors.exact_search import VectorRetriever

_REAL = 2_000  # texts that are embedded
_CENTRES = 12_000
_NOISE = 0.6  # of the real vectors' standard deviation, in every direction
_QUERIES = 256
_ALONE = 32  # of them, when they are asked one by one
_ROUNDS = 5
_HNSW = 20_000  # documents for Chroma, which adds about a thousand a second


def measure(documents: int, source: Path | None, seed: int) -> list[Row]:
    """The figures at this many documents."""
    with TemporaryDirectory(prefix="sextant-") as folder:
        home = Path(folder)
        vectors, queries = _made(documents, source, seed)
        np.save(home / "queries.npy", queries)
        exact = _retriever(home, vectors, queries)
        rows = _against_flat(exact, vectors, queries)
        rows += _approximate_against_exact(exact, vectors, queries, home)
        few = min(documents, _HNSW)
        return rows + _against_chroma(
            _retriever(home, vectors[:few], queries), vectors[:few], queries, home
        )


def _made(documents: int, source: Path | None, seed: int) -> tuple[Vectors, Vectors]:
    """Vectors of documents and of queries, shapes (documents, 384) and (256, 384)."""
    generator = np.random.default_rng([seed, 1])
    real = SentenceEmbedder().documents(data.queries(_REAL, 120, source, seed))
    _, spread, directions = np.linalg.svd(real - real.mean(axis=0), full_matrices=False)
    shape = (directions.T * (spread / np.sqrt(_REAL))).T.astype(np.float32)
    weights = generator.dirichlet(np.ones(3), _CENTRES).astype(np.float32)
    centres = (real[generator.integers(_REAL, size=(_CENTRES, 3))] * weights[:, :, None]).sum(
        axis=1
    )
    made = np.empty((documents + _QUERIES, real.shape[1]), dtype=np.float32)
    for start in range(0, len(made), 8192):
        block = made[start : start + 8192]
        noise = generator.standard_normal((len(block), len(shape)), dtype=np.float32) @ shape
        block[:] = (
            centres[generator.integers(_CENTRES, size=len(block))] + np.float32(_NOISE) * noise
        )
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return made[:documents], made[documents:]


class _Given:
    """An embedder that knows the vectors of the texts "0", "1" and so on."""

    sends: ClassVar[bool] = False
    loads_weights: ClassVar[bool] = False
    needs_lens: ClassVar[bool] = False

    name = "given"

    def __init__(self, vectors: Vectors, queries: Vectors) -> None:
        self._vectors = vectors
        self._queries = queries
        self.dimension = queries.shape[1]

    def key(self) -> Mapping[str, object]:
        return {"given": len(self._vectors)}

    def documents(
        self, texts: Sequence[str], done: Callable[[int], None] = lambda _: None
    ) -> Vectors:
        return self._vectors[[int(text) for text in texts]]

    def queries(self, searches: Sequence[Search]) -> Vectors:
        return self._queries[[int(search.text) for search in searches]]

    def left_out(self, text: str, instruction: str = "") -> int:
        return 0


def _retriever(home: Path, vectors: Vectors, queries: Vectors) -> VectorRetriever:
    corpus = Corpus(Document(f"d{row:07}", str(row)) for row in range(len(vectors)))
    return VectorRetriever(corpus, home, _Given(vectors, queries), "given")


def _against_flat(exact: VectorRetriever, vectors: Vectors, queries: Vectors) -> list[Row]:
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    recall = _recall(exact.search_many(_searches(), 100), vectors, queries)
    as_shipped = faiss.cvar.distance_compute_blas_threshold
    rows = []
    for threads in (1, 2):
        with _threads(threads):
            flat = f"faiss-cpu {faiss.__version__} Flat, {threads} thread{'s' * (threads > 1)}"
            alone = partial(_alone, index, queries)
            together = partial(index.search, queries, 100)
            figures = _fastest(partial(_alone_here, exact), alone, rounds=_ROUNDS, threads=threads)
            rows.append(
                _row("one query, k=100", *figures, flat, _ALONE, 1.0, f"recall@100 {recall:.6g}")
            )
            figures = _fastest(
                partial(exact.search_many, _searches(), 100), together, rounds=2, threads=threads
            )
            rows.append(_row("256 queries, k=100", *figures, flat, _QUERIES, 1.0))
            # Left alone, this faiss multiplies matrices from 128,000 queries on; older ones did
            # from 20 on.
            faiss.cvar.distance_compute_blas_threshold = 20
            figures = _fastest(
                partial(exact.search_many, _searches(), 100),
                together,
                rounds=_ROUNDS,
                threads=threads,
            )
            rows.append(
                _row("256 queries, k=100", *figures, f"{flat}, told to multiply matrices", _QUERIES)
            )
            faiss.cvar.distance_compute_blas_threshold = as_shipped
    return rows


def _approximate_against_exact(
    exact: VectorRetriever, vectors: Vectors, queries: Vectors, home: Path
) -> list[Row]:
    corpus = Corpus(Document(f"d{row:07}", str(row)) for row in range(len(vectors)))
    rows = list[Row]()
    for nprobe in (16, 64, 256):
        started = time.process_time()
        near = Ann(corpus, home, _Given(vectors, queries), nprobe=nprobe)
        note = (
            f"recall@100 {_recall(near.search_many(_searches(), 100), vectors, queries):.3f}; "
            f"{near.name}; built or "
        )
        note += f"opened, and measured, in {time.process_time() - started:.1f} s of CPU"
        figures = _fastest(partial(_alone_here, near), partial(_alone_here, exact), rounds=2)
        rows.append(
            _row(
                f"one query, k=100, ann, nprobe={nprobe}",
                *figures,
                "exact search",
                _ALONE,
                note=note,
            )
        )
    return rows


def _against_chroma(
    exact: VectorRetriever, vectors: Vectors, queries: Vectors, home: Path
) -> list[Row]:
    client = chromadb.PersistentClient(str(home / "chroma"))
    settings: Any = {
        "hnsw": {"space": "ip", "ef_construction": 100, "ef_search": 100, "max_neighbors": 16}
    }
    collection = client.create_collection("given", embedding_function=None, configuration=settings)
    started = time.perf_counter()
    step = client.get_max_batch_size()
    for first in range(0, len(vectors), step):
        some = vectors[first : first + step]
        collection.add(
            ids=[f"d{row:07}" for row in range(first, first + len(some))], embeddings=some
        )
    theirs_built = time.perf_counter() - started
    started = time.perf_counter()
    with TemporaryDirectory(prefix="sextant-") as folder:
        _retriever(Path(folder), vectors, queries)
        ours_built = time.perf_counter() - started

    def near(n: int) -> list[str]:
        ids: list[str] = collection.query(
            query_embeddings=queries[n : n + 1], n_results=100, include=[]
        )["ids"][0]
        return ids

    chroma = f"chromadb {chromadb.__version__}, HNSW with its defaults"
    size = f"{len(vectors):,} documents"
    figures = _fastest(
        partial(_alone_here, exact),
        lambda: [near(n) for n in range(_ALONE)],
        rounds=_ROUNDS,
        threads=2,
    )
    found = [[Hit(doc_id, 0.0) for doc_id in near(n)] for n in range(_QUERIES)]
    recalls = (
        _recall(exact.search_many(_searches(), 100), vectors, queries),
        _recall(found, vectors, queries),
    )
    return [
        _row(f"one query, k=100, {size}", *figures, chroma, _ALONE),
        Row(f"recall, {size}", "recall@100", recalls[0], chroma, recalls[1], larger_is_better=True),
        Row(f"building from vectors, {size}", "s", ours_built, chroma, theirs_built),
    ]


def _searches() -> list[Search]:
    return [Search(str(n)) for n in range(_QUERIES)]


def _alone_here(retriever: Retriever) -> None:
    for n in range(_ALONE):
        retriever.search(str(n), 100)


def _alone(index: Any, queries: Vectors) -> None:
    for n in range(_ALONE):
        index.search(queries[n : n + 1], 100)


def _recall(found: Sequence[Sequence[Hit]], vectors: Vectors, queries: Vectors) -> float:
    """The share of the best 100 documents, by float64 brute force, that was found."""
    shares = []
    for hits, query in zip(found, queries, strict=True):
        scores = np.concatenate(
            [
                vectors[at : at + 65_536].astype(np.float64) @ query
                for at in range(0, len(vectors), 65_536)
            ]
        )
        best = {f"d{row:07}" for row in np.argpartition(-scores, 100)[:100].tolist()}
        shares.append(len(best & {hit.doc_id for hit in hits}) / 100)
    return float(np.mean(shares))


def _fastest(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int, threads: int = 1
) -> tuple[float, float]:
    """Seconds of each in its quietest round, by turns; the first, which compiles and touches pages,
    does not count.

    One thread is timed in seconds of the processor, which others' work lengthens less, and two by
    the clock.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for call, taken in zip((ours, theirs), times, strict=True):
            started = clock()
            call()
            taken.append(clock() - started)
    return min(times[0][1:]), min(times[1][1:])


def _row(
    what: str,
    ours: float,
    theirs: float,
    against: str,
    queries: int,
    bound: float | None = None,
    note: str = "",
) -> Row:
    return Row(
        what, "ms a query", 1e3 * ours / queries, against, 1e3 * theirs / queries, bound, note=note
    )


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """At most so many threads in all libraries, and here."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(number)
    faiss.omp_set_num_threads(number)
    try:
        with threadpool_limits(number):
            yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
