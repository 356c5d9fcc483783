"""BM25 compared with bm25s, rank-bm25 and tantivy: time of a query, a batch and a build, and memory of a build.

Times are CPU times, medians over the queries, measured in turns; the rankings are compared as well. The reference
packages are an extra (`benchmarks`). If one is not installed, its rows are left out, and a line says so.
"""

import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rank_bm25 import BM25Okapi

from benchmarks import data
from benchmarks.rows import Row
from tools.corpus import Corpus, StoredCorpus
from tools.retriever import Retriever, Search
from tools.retrievers.bm25 import BM25
from tools.retrievers.rank_bm25 import RankBM25
from tools.retrievers.rank_bm25 import words as rank_words
from tools.text import words

_LOG = logging.getLogger("sextant")
_DEPTH = 1_000
_QUERIES = 50
_SLOW_QUERIES = 2  # of rank-bm25, which takes ten seconds for one
_BOUNDS = {data.LONG_QUERY: 0.5, data.SHORT_QUERY: 1.0}


def measure(documents: int, source: Path | None, seed: int) -> Iterator[Row]:
    """Each row, as soon as it is measured, for so many recombined documents of `source` (benchmarks/data.py).

    Without a source they are made of the miniatures. Takes about six minutes for 200,000 documents, of which most goes
    to the references.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        corpus = data.corpus(documents, home / "corpus", source, seed)
        long = data.queries(_QUERIES, data.LONG_QUERY, source, seed)
        short = data.queries(_QUERIES, data.SHORT_QUERY, source, seed)
        if _installed("bm25s"):
            yield from _builds(home)
            yield from _against_bm25s(corpus, home, long, short)
        if _installed("tantivy"):
            yield _against_tantivy(corpus, home, long)
        yield _against_rank_bm25(corpus, home, long[:_SLOW_QUERIES])


def _installed(package: str) -> bool:
    if find_spec(package):
        return True
    _LOG.warning(f"{package} is not installed, so nothing is compared with it: pip install {package}")
    return False


def _cpu(call: Callable[[], Any]) -> tuple[float, Any]:
    """Its CPU time in milliseconds, of all threads, and its result."""
    started = time.process_time()
    result = call()
    return 1000 * (time.process_time() - started), result


def _in_turns(queries: list[str], ours: Callable[[str], Any], theirs: Callable[[str], Any]) -> tuple[float, float]:
    """The median milliseconds of a query, after one round that compiles and reads what is memory-mapped."""
    for query in queries:
        ours(query), theirs(query)
    pairs = [(_cpu(partial(ours, query))[0], _cpu(partial(theirs, query))[0]) for query in queries]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def _ranked(retriever: Retriever, query: str) -> list[str]:
    return [hit.doc_id for hit in retriever.search(query, _DEPTH)]


def _against_bm25s(corpus: Corpus, home: Path, long: list[str], short: list[str]) -> Iterator[Row]:
    """With the two indexes that `_builds` has left in `home`."""
    import bm25s  # an extra

    theirs, ours = bm25s.BM25.load(str(home / "bm25s")), BM25(corpus, home)

    def rows(query: str) -> list[int]:
        return [theirs.vocab_dict[word] for word in words(query) if word in theirs.vocab_dict]

    def retrieve(query: str) -> Any:
        return theirs.retrieve([rows(query)], k=min(_DEPTH, len(corpus)), show_progress=False, n_threads=1)

    def same(query: str) -> bool:
        scores = theirs.get_scores_from_ids(rows(query))
        order = np.lexsort((np.arange(len(scores)), -scores))[:_DEPTH]  # recombined ids are in order
        return [corpus.doc_ids[row] for row in order.tolist() if scores[row] > 0] == _ranked(ours, query)

    for length, queries in ((data.LONG_QUERY, long), (data.SHORT_QUERY, short)):
        mine, other = _in_turns(queries, lambda query: ours.search(query, _DEPTH), retrieve)
        note = f"identical ranking on {sum(map(same, queries))} of {len(queries)} queries"
        what = f"bm25, query of {length} characters, k={_DEPTH:,}"
        yield Row(what, "ms a query", mine, "bm25s, numba", other, _BOUNDS[length], note=note)


def _against_rank_bm25(corpus: Corpus, home: Path, queries: list[str]) -> Row:
    # The package counts a document at a time, so the words of all of them need not be held.
    theirs, ours = BM25Okapi(rank_words(text) for text in corpus.texts()), RankBM25(corpus, home)
    ours.search(queries[0], _DEPTH)
    taken, same = list[tuple[float, float]](), 0
    for query in queries:
        milliseconds, scores = _cpu(partial(theirs.get_scores, rank_words(query)))
        mine = min(_cpu(partial(ours.search, query, _DEPTH))[0] for _ in range(5))
        taken.append((mine, milliseconds))
        order = np.argsort(scores, kind="stable")[::-1][:_DEPTH]
        same += [corpus.doc_ids[row] for row in order.tolist()] == _ranked(ours, query)
    mine, other = (statistics.median(values) for values in zip(*taken, strict=True))
    what = f"rank_bm25, query of {data.LONG_QUERY} characters, k={_DEPTH:,}"
    note = f"identical ranking on {same} of {len(queries)} queries"
    return Row(what, "ms a query", mine, "rank-bm25", other, 0.001, note=note)


def _builds(home: Path) -> Iterator[Row]:
    """Each build of the corpus in `home` in a process of its own, which says what it took; the indexes stay there."""
    figures = []
    for whose in ("ours", "bm25s"):
        command = [sys.executable, "-m", "benchmarks.lexical", whose, str(home)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        figures.append(json.loads(ran.stdout))
    ours, theirs = figures
    yield Row("bm25, build from raw text", "s of CPU", ours["seconds"], "bm25s", theirs["seconds"], 0.5)
    yield Row("bm25, memory of a build", "MB at most", ours["megabytes"], "bm25s", theirs["megabytes"], 1.5)


def _build(whose: str, home: Path) -> dict[str, float]:
    started = time.process_time()
    corpus = StoredCorpus(home / "corpus")
    if whose == "ours":
        BM25(corpus, home)
    else:
        import bm25s  # an extra

        theirs = bm25s.BM25(method="lucene", k1=0.9, b=0.4, backend="numba")
        theirs.index(bm25s.tokenize(corpus.texts(), show_progress=False), show_progress=False)
        theirs.save(str(home / "bm25s"), show_progress=False)
    seconds = time.process_time() - started
    return {"seconds": seconds, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _against_tantivy(corpus: Corpus, home: Path, queries: list[str]) -> Row:
    """Two threads over queries without repeated words, which tantivy's parser would drop; its stop words stay out."""
    import tantivy  # an extra

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", stored=False)
    index = tantivy.Index(builder.build())
    writer = index.writer(num_threads=2)
    for text in corpus.texts():
        writer.add_document(tantivy.Document(text=" ".join(words(text))))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher, ours = index.searcher(), BM25(corpus, home)
    distinct = [" ".join(dict.fromkeys(words(query))) for query in queries]

    def theirs(query: str) -> Any:
        return searcher.search(index.parse_query(query, ["text"]), _DEPTH).hits

    def speed(call: Callable[[], Any]) -> float:
        call()
        started = time.perf_counter()
        call()
        return len(queries) / (time.perf_counter() - started)

    with ThreadPoolExecutor(2) as pool:
        other = speed(lambda: list(pool.map(theirs, distinct)))
    mine = speed(lambda: ours.search_many([Search(query) for query in distinct], _DEPTH))
    note = "the same words without repeats for both: tantivy's parser drops them"
    what = f"bm25, batch of {len(queries)} queries, two threads"
    return Row(what, "queries/s", mine, "tantivy", other, 1.0, larger_is_better=True, note=note)


if __name__ == "__main__":  # one build, for `measure`, which reads the line
    sys.stdout.write(json.dumps(_build(sys.argv[1], Path(sys.argv[2]))) + "\n")
