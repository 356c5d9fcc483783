"""Approximate indexes of vectors, in 8 bits, for the part `ann` of benchmarks/scale.py:
faiss's two, and usearch's.
"""

import resource
import time
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from sextant.tools.retrievers.index_store import iter_blocks
from sextant.tools.retrievers.vectors.embedder import MappedVectors, Vectors
from sextant.tools.retrievers.vectors.exact_search import exact_scores

# CPU seconds of a build, GiB of memory, and by what a search looks at: recall@100, nprobe or ef,
# and ms of CPU a query.
Measured: TypeAlias = tuple[float, float, list[tuple[float, int, float]]]


def measure(kind: str, vectors: MappedVectors, queries: Vectors, best: list[list[str]]) -> Measured:
    """Measure one kind; `best` are the ids of the best 100 of each query."""
    own = kind.startswith("usearch")
    found = list[tuple[float, int, float]]()
    library: Any = import_module("usearch.index" if own else "faiss")  # extras
    # of usearch's codes; its own scale is 127
    started = time.process_time()
    scale = 400
    if own:
        made = library.Index(ndim=384, metric="ip", dtype="i8", connectivity=16, expansion_add=100)
    else:
        library.omp_set_num_threads(1)
        settings = library.ParameterSpace()
        lists = int(min(2 * len(vectors) ** 0.5, len(vectors) / 64))
        form = f"IVF{lists},SQ8" if "lists" in kind else "HNSW16,SQ8"
        made = library.index_factory(384, form, library.METRIC_INNER_PRODUCT)
        made.train(vectors[: 64 * lists])  # which are in no order
        if "HNSW" in kind:
            settings.set_index_parameter(made, "efConstruction", 100)
    for place, block in iter_blocks(vectors):
        some = (
            (np.arange(len(block)) + place.start, np.rint(scale * block).astype(np.int8))
            if own
            else (block,)
        )
        made.add(*some, **{"threads": 1} if own else {})
    built = time.process_time() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    for effort in (1, *(1 << power for power in range(12))):  # the first round reads and compiles
        if own:
            made.expansion_search = effort
        else:
            settings.set_index_parameter(made, "nprobe" if "lists" in kind else "efSearch", effort)
        started = time.process_time()
        recall = 0.0
        for query, wanted in zip(queries, best, strict=True):
            coded = np.rint(scale * query).astype(np.int8)
            rows = (
                made.search(coded, 200, threads=1).keys
                if own
                else made.search(query[None], 200)[1][0]
            )
            exact_scores(np.asarray(vectors), rows.astype(np.int64), query)
            recall += len({f"v{row:08}" for row in rows.tolist()} & {*wanted}) / 100 / len(best)
        found.append((recall, effort, 1000 * (time.process_time() - started) / len(best)))
    return built, memory, found[1:]
