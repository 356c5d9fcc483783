"""What grows: processes, corpora, shards. `python -m benchmarks.scale [PART ...] [--documents N]
[--data FOLDER]`.

Each row is a figure, what was measured and what it is held to. By default everything is small, and
takes two minutes: a bound that only holds at size is left out there. The figures of the documents
are those of `--documents 10000000` and of `--data` with a release's congress task. Corpora are made
by recombining sentences (benchmarks/data.py). Building, searching and the reference run in a
process each, whose peak of resident memory counts what is mapped as well.
"""

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from benchmarks import approximate, data
from sextant.tools import retrievers
from sextant.tools.corpus import Corpus, StoredCorpus, store
from sextant.tools.errors import UnknownName
from sextant.tools.platform.cli import (
    CommandParser,
    positive,
    print_stderr,
    print_stdout,
    run_and_leave,
)
from sextant.tools.records import Document
from sextant.tools.retrievers.base import Retriever, Search
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.retrievers.neural.dense import SentenceEmbedder
from sextant.tools.retrievers.sharded import Sharded
from sextant.tools.retrievers.vectors.embedder import Vectors, open_vectors
from sextant.tools.retrievers.vectors.exact_search import VectorRetriever
from sextant.tools.text import content_words

DOCUMENTS = 20_000
LARGE = 1_000_000  # documents from which on the bounds of a large corpus are looked at
LENGTHS = {"50": data.SHORT_QUERY, "800": data.LONG_QUERY}  # characters of a query
DEPTH = 1_000
# of bm25
K1 = 0.9
B = 0.4


class Figure(NamedTuple):
    """A row."""

    figure: str
    measured: float
    unit: str = ""
    bound: float | None = None  # at most, or, if `least`, at least
    least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the bound is kept; None where there is none."""
        if self.bound is None:
            return None
        return self.measured >= self.bound if self.least else self.measured <= self.bound

    def line(self) -> str:
        """The row of a table in Markdown."""
        bound = (
            ""
            if self.bound is None
            else f"{'at least' if self.least else 'at most'} {self.bound:g}"
        )
        met = {None: "", True: "yes", False: "NO"}[self.met]
        note = f" ({self.note})" if self.note else ""
        return (
            f"| {self.figure} | {self.measured:.4g}{self.unit and ' '}{self.unit}{note} | {bound} "
            f"| {met} |\n"
        )


def parser() -> CommandParser:
    """The command line."""
    made = CommandParser(
        prog="python -m benchmarks.scale",
        description="Measure what grows, beside what it is held to.",
    )
    made.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all where none is given"
    )
    about = f"size of the corpus; {DOCUMENTS:,}, and 10000000 for the figures of the documents"
    made.add_argument("--documents", type=positive, default=DOCUMENTS, metavar="N", help=about)
    made.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="a folder with OBLIQ-Bench's congress; the miniature",
    )
    made.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="keep all there; the same command goes on from it",
    )
    made.add_argument("--seed", type=int, default=0, metavar="N", help="of corpora and queries")
    made.add_argument(
        "--json", action="store_true", help="print one JSON object a row and nothing else"
    )
    return made


def command(arguments: argparse.Namespace) -> int:
    """Measure and print; exit code 7 when a bound is not met."""
    if unknown := [part for part in arguments.parts if part not in PARTS]:
        raise UnknownName("part", unknown[0], PARTS)
    if not arguments.json:
        print_stdout("| figure | measured | bound | met |\n|---|---|---|---|\n")
    missed = 0
    for part in arguments.parts or PARTS:
        print_stderr(f"measuring {part}")
        with (
            nullcontext(arguments.folder)
            if arguments.folder
            else tempfile.TemporaryDirectory() as folder
        ):
            (home := Path(folder) / part).mkdir(parents=True, exist_ok=True)
            for row in PARTS[part](home, arguments):
                plain = json.dumps({"part": part, **row._asdict(), "met": row.met}) + "\n"
                print_stdout(plain if arguments.json else row.line())
                missed += row.met is False
    return 7 if missed else 0


def measure_words(home: Path, asked: argparse.Namespace) -> Iterator[Figure]:
    """The word index: memory and time of building, opening and searching; its scores; other
    packages.
    """
    many = asked.documents
    at_size = many >= LARGE
    of = f"bm25, {many:,} passages"
    texts = {
        name: data.queries(50, length, asked.data, asked.seed) for name, length in LENGTHS.items()
    }
    stored = _once(_store, home, many, asked)
    built = _once(_build, home, many)
    searched = _once(_search, home, many, texts)
    peak = max(stored.gigabytes, built.gigabytes, searched.gigabytes)
    yield Figure(
        f"{of}: memory of storing, building, searching", peak, "GiB", 6.0 if at_size else None
    )
    compared = {"bm25s": _search_bm25s, "tantivy": _search_tantivy}
    if at_size:
        del compared["bm25s"]  # which holds all texts and words in memory
    others = {
        name: _once(call, home, many, texts).result
        for name, call in compared.items()
        if find_spec(name)
    }
    said = {
        key: ", ".join(f"{name} {its[key]:.4g}" for name, its in others.items())
        for key in ("build", *texts)
    }
    yield Figure(f"{of}: building", built.cpu, "s of CPU", note=said["build"])
    yield Figure(f"{of}: opening", searched.result["open"], "s of CPU", 1.0)
    for name in texts:
        what = f"{of}: query of {name} characters, k={DEPTH}"
        yield Figure(what, searched.result[name], "ms of CPU", note=said[name])
    sample = [*texts["50"][:4], texts["800"][0]]
    equal = _once(_compare_exactly, home, many, sample).result
    yield Figure(
        f"{of}: queries equal to the exact formula, of {len(sample)}",
        equal,
        "",
        len(sample),
        least=True,
    )


class _Ran(NamedTuple):  # of a function in a process of its own
    result: Any
    gigabytes: float  # of resident memory at most
    cpu: float  # seconds


def _apart(function: Callable[..., Any], *arguments: Any) -> _Ran:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_run, function, *arguments).result()


def _once(
    function: Callable[..., Any], home: Path, many: int, *arguments: Any
) -> _Ran:  # or before, see --folder
    kept = home / f"{function.__name__}-{many}.json"
    if not kept.is_file():
        kept.write_text(json.dumps(_apart(function, home, many, *arguments)))
    return _Ran(*json.loads(kept.read_text()))


def _run(function: Callable[..., Any], *arguments: Any) -> _Ran:
    started = time.process_time()
    result = function(*arguments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # which Linux has in kB
    return _Ran(result, peak, time.process_time() - started)


def _store(home: Path, many: int, asked: argparse.Namespace) -> None:
    store(data.generate_passages(many, asked.data, asked.seed), home / "corpus")


def _build(home: Path, many: int) -> None:
    BM25(StoredCorpus(home / "corpus", 0, many), home)


def _search(home: Path, many: int, texts: dict[str, list[str]]) -> dict[str, float]:
    started = time.process_time()
    retriever = BM25(StoredCorpus(home / "corpus", 0, many), home)
    found = {"open": time.process_time() - started}
    return found | {
        name: _median(lambda text: retriever.search(text, DEPTH), some)
        for name, some in texts.items()
    }


def _median(call: Callable[[str], Any], texts: Sequence[str]) -> float:
    """Milliseconds of CPU of a query, of all threads, after one round that compiles and reads
    what is mapped.
    """
    taken = list[float]()
    for text in [*texts, *texts]:
        started = time.process_time()
        call(text)
        taken.append(1000 * (time.process_time() - started))
    return statistics.median(taken[len(texts) :])


def _search_bm25s(home: Path, many: int, texts: dict[str, list[str]]) -> dict[str, float]:
    # an extra
    bm25s = import_module("bm25s")
    started = time.process_time()
    made: Any = bm25s.BM25(method="lucene", k1=K1, b=B, backend="numba")
    corpus = list(StoredCorpus(home / "corpus", 0, many).texts())
    made.index(bm25s.tokenize(corpus, show_progress=False), show_progress=False)
    built = {"build": time.process_time() - started}

    def search(text: str) -> Any:
        known = [made.vocab_dict[word] for word in content_words(text) if word in made.vocab_dict]
        return made.retrieve([known], k=min(DEPTH, many), show_progress=False, n_threads=1)

    return built | {name: _median(search, some) for name, some in texts.items()}


def _search_tantivy(home: Path, many: int, texts: dict[str, list[str]]) -> dict[str, float]:
    # an extra
    tantivy = import_module("tantivy")
    started = time.process_time()
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", stored=False, index_option="freq")
    (home / "tantivy").mkdir()
    schema = builder.build()
    index = tantivy.Index(schema, path=str(home / "tantivy"))
    writer = index.writer(num_threads=1)
    for text in StoredCorpus(home / "corpus", 0, many).texts():
        writer.add_document(tantivy.Document(text=text))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    built = {"build": time.process_time() - started}

    def search(
        text: str,
    ) -> Any:  # each word once, and not by its parser, which makes phrases of those with a "_"
        resources = [
            tantivy.Query.term_query(schema, "text", word, "freq")
            for word in dict.fromkeys(content_words(text))
        ]
        return searcher.search(
            tantivy.Query.boolean_query([(tantivy.Occur.Should, term) for term in resources]), DEPTH
        ).hits

    return built | {name: _median(search, some) for name, some in texts.items()}


def _compare_exactly(home: Path, many: int, texts: Sequence[str]) -> int:
    """How many queries have the ids, order and float32 scores that the formula gives, read
    off the texts themselves.
    """
    corpus = StoredCorpus(home / "corpus", 0, many)
    wanted = {word for text in texts for word in content_words(text)}
    lengths = array("i")
    postings = {word: (array("i"), array("i")) for word in wanted}
    for row, text in enumerate(corpus.texts()):
        lengths.append(len(read := content_words(text)))
        for word, count in Counter(filter(postings.__contains__, read)).items():
            postings[word][0].append(row)
            postings[word][1].append(count)
    long = np.array(lengths)
    retriever = BM25(corpus, home)
    equal = 0
    norm = K1 * ((1 - B) + B * long / (sum(lengths) / len(lengths)))
    for text in texts:
        scores = np.zeros(len(lengths), np.float32)
        for word in content_words(text):
            rows, counts = map(np.array, postings[word])
            idf = np.log(1 + (len(lengths) - len(rows) + 0.5) / (len(rows) + 0.5))
            scores[rows] += (np.float64(np.float32(idf)) * (counts / (counts + norm[rows]))).astype(
                np.float32
            )
        best = np.lexsort((np.arange(len(scores)), -scores))[
            :DEPTH
        ].tolist()  # made ids are in order
        exact = [(f"p{row:08}", float(scores[row])) for row in best if scores[row] > 0]
        equal += exact == [(hit.doc_id, hit.score) for hit in retriever.search(text, DEPTH)]
    return equal


def measure_calls(home: Path, asked: argparse.Namespace) -> Iterator[Figure]:
    """Calls that take 200 ms, by processes, as benchmarks.calls measures them: the share of
    the ideal rate.
    """
    for in_flight, bound in ((64, 0.9), (256, 0.75)):
        given = [
            "--in-flight",
            str(in_flight),
            "--processes",
            "2",
            "--data",
            str(asked.data or "mini"),
        ]
        found = _start(
            "benchmarks.calls", *given, *[] if asked.data else ["--queries", str(in_flight // 2)]
        )
        for what, percent in re.findall(r"\| (multihop|\d+ workers) \|.*? (\d+)% \|", found):
            least = None if what == "multihop" or not asked.data else bound
            what = (
                f"{in_flight} calls in flight, {'one process' if what == 'multihop' else what}: "
                f"of the ideal rate"
            )
            yield Figure(what, int(percent) / 100, "", least, least=True)


def measure_coordinator(home: Path, asked: argparse.Namespace) -> Iterator[Figure]:
    """What the coordinator of two workers spends on a call and on a query, from multihop of one
    hop and of several.
    """
    calls: Any = import_module(
        "benchmarks.calls"
    )  # whose imports would count as memory of the other parts
    queries = calls.repeated(
        calls.environments.load("congress", str(asked.data or "mini"), "all").queries, 128
    )
    made = dict[int, Any]()
    with calls.serving(0.1) as port:
        for hops in (1, 1, 4):  # the first one loads what the others find loaded
            words = ["--in-flight", "32", "--hops", str(hops), "--data", str(asked.data or "mini")]
            made[hops] = calls.run_by(2, queries, port, calls.parser().parse_args(words))
    few = made[1]
    many = made[4]
    call = (many.cpu - few.cpu) / (many.calls - few.calls)
    query = (few.cpu - call * few.calls) / len(queries)
    rest = (many.disk - few.disk) / (many.calls - few.calls)
    yield Figure("coordinator: a call", 1000 * call, "ms of CPU")
    yield Figure("coordinator: a query beside its calls", 1000 * query, "ms of CPU")
    yield Figure("coordinator: an outcome, for each call", rest / 1000, "kB")
    limit = (call + query * len(queries) / many.calls) ** -1
    yield Figure(
        "coordinator: calls a second that it has one core for",
        limit,
        note=f"{many.calls / len(queries):.3g} a query",
    )


def measure_offline(home: Path, asked: argparse.Namespace) -> Iterator[Figure]:
    """Multihop without a model, in two processes and in one."""
    given = [
        "--program",
        "multihop",
        "--task",
        "congress",
        "--data",
        str(asked.data or "mini"),
        "--split",
        "all",
    ]
    _start(
        "sextant.evals.run", *given, "--limit", "1", "--runs", str(home / "first")
    )  # which builds the index
    seconds = list[float]()
    for processes in ("1", "2"):
        started = time.perf_counter()
        _start("sextant.evals.run", *given, "--workers", processes, "--runs", str(home / processes))
        seconds.append(time.perf_counter() - started)
    note = (
        f"{seconds[1]:.1f} s to {seconds[0]:.1f} "
        f"s{'' if asked.data else ', mostly to start in the miniature'}"
    )
    yield Figure(
        "multihop offline, 2 processes to 1: time",
        seconds[1] / seconds[0],
        "",
        0.6 if asked.data else None,
        note=note,
    )


def _start(module: str, *words: str) -> str:
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout


class _SyntheticEmbedder:
    """An embedder of numbers: vectors around mixtures of real ones, so that they cluster as these do."""

    sends: ClassVar[bool] = False
    loads_weights: ClassVar[bool] = False
    needs_lens: ClassVar[bool] = False
    name = "made"
    dimension = 384

    def __init__(self, home: Path) -> None:
        self._centres = np.load(home / "centres.npy")
        self._noise = np.load(home / "noise.npy")

    @classmethod
    def prepare(cls, home: Path, asked: argparse.Namespace) -> None:
        """Write what vectors are made of."""
        generator = np.random.default_rng([asked.seed, 3])
        real = SentenceEmbedder().documents(data.queries(300, 120, asked.data, asked.seed))
        _, spread, directions = np.linalg.svd(real - real.mean(axis=0), full_matrices=False)
        shape = 0.6 * directions.T * (spread / np.sqrt(len(real)))
        weights = generator.dirichlet(np.ones(3), 12_000)[:, :, None]
        centres = (real[generator.integers(len(real), size=(12_000, 3))] * weights).sum(axis=1)
        np.save(home / "centres.npy", centres.astype(np.float32))
        np.save(
            home / "noise.npy",
            (generator.standard_normal((50_000, len(spread))) @ shape.T).astype(np.float32),
        )

    def key(self) -> dict[str, object]:
        return {"made": 1}

    def documents(
        self, texts: Sequence[str], done: Callable[[int], None] = lambda _: None
    ) -> Vectors:
        numbers = np.array([int(text) for text in texts])
        made = (
            self._centres[numbers * 7_919 % 12_000] + self._noise[numbers * 104_729 // 7 % 50_000]
        )
        made /= np.linalg.norm(made, axis=1, keepdims=True)
        return np.asarray(made, dtype=np.float32)

    def queries(self, searches: Sequence[Search]) -> Vectors:
        return self.documents([search.text for search in searches])

    def left_out(self, text: str, instruction: str = "") -> int:
        return 0


def measure_dense(home: Path, asked: argparse.Namespace) -> Iterator[Figure]:
    """Exact search in 8-bit codes of vectors of 384 numbers: memory and time of the whole
    retriever, and its ids.
    """
    many = asked.documents
    of = f"dense(search=int8), {asked.documents:,} vectors"
    _apart(_SyntheticEmbedder.prepare, home, asked)
    store((Document(f"v{row:08}", str(row)) for row in range(many)), home / "corpus")
    built = _apart(_open_vectors, home)
    searched = _apart(_search_vectors, home, many, 20)
    bound = 6.0 if many >= LARGE else None
    yield Figure(f"{of}: memory of building", built.gigabytes, "GiB", bound)
    yield Figure(f"{of}: memory of searching", searched.gigabytes, "GiB", bound)
    yield Figure(f"{of}: a query, k=100", searched.result[1], "ms of CPU")
    best = _apart(_search_by_brute_force, home, many).result
    equal = sum(mine == theirs for mine, theirs in zip(searched.result[0], best, strict=False))
    yield Figure(
        f"{of}: queries equal to brute force in float64, of {len(best)}",
        equal,
        "",
        len(best),
        least=True,
    )


def _open_vectors(home: Path) -> None:
    VectorRetriever(
        StoredCorpus(home / "corpus"), home, _SyntheticEmbedder(home), "made", search="int8"
    )


def _search_vectors(home: Path, many: int, queries: int) -> tuple[list[list[str]], float]:
    retriever = VectorRetriever(
        StoredCorpus(home / "corpus"), home, _SyntheticEmbedder(home), "made", search="int8"
    )
    texts = [str(many + number) for number in range(queries)]
    milliseconds = _median(lambda text: retriever.search(text, 100), texts)
    return [[hit.doc_id for hit in retriever.search(text, 100)] for text in texts], milliseconds


def _search_by_brute_force(home: Path, many: int) -> list[list[str]]:
    made = _SyntheticEmbedder(home)
    scores = np.empty((3, many))
    queries = made.documents([str(many + number) for number in range(3)]).astype(np.float64)
    for start in range(0, many, 8_192):
        block = made.documents([str(row) for row in range(start, min(many, start + 8_192))])
        scores[:, start : start + len(block)] = queries @ block.T
    orders = (np.lexsort((np.arange(many), -row))[:100].tolist() for row in scores)
    return [[f"v{row:08}" for row in order] for order in orders]


def measure_ann(home: Path, asked: argparse.Namespace) -> Iterator[Figure]:
    """Approximate indexes in 8 bits, of the libraries that are here: a build, and a query by
    its recall@100.
    """
    many = asked.documents
    of = f"{asked.documents:,} vectors"
    _apart(_SyntheticEmbedder.prepare, home, asked)
    store((Document(f"v{row:08}", str(row)) for row in range(many)), home / "corpus")
    best, taken = _apart(_search_vectors, home, many, 200).result
    yield Figure(f"dense(search=int8), {of}: a query, k=100", taken, "ms of CPU")
    for kind in (
        kind for kind in ("faiss lists", "usearch HNSW", "faiss HNSW") if find_spec(kind.split()[0])
    ):
        built, memory, found = _apart(_measure_ann, home, kind, best).result
        yield Figure(
            f"{kind}, {of}: building", built, "s of CPU", note=f"{memory:.2f} GiB of memory"
        )
        reached = (
            [row for row in found if row[0] >= least] or found[-1:] for least in (0.95, 0.99)
        )
        for recall, effort, taken in dict.fromkeys(rows[0] for rows in reached):
            what = f"{kind}, {of}: a query, recall@100"
            note = f"{'nprobe' if 'lists' in kind else 'ef'} {effort}"
            yield Figure(f"{what} {recall:.3f}", taken, "ms of CPU", note=note)


def _measure_ann(home: Path, kind: str, best: list[list[str]]) -> approximate.Measured:
    made = _SyntheticEmbedder(home)
    corpus = StoredCorpus(home / "corpus")
    queries = made.documents([str(len(corpus) + number) for number in range(len(best))])
    return approximate.measure(kind, open_vectors(made, corpus, home), queries, best)


def measure_sharded(home: Path, asked: argparse.Namespace) -> Iterator[Figure]:
    """Rankings of parts and of one index: ids, order and scores."""
    texts = [
        text
        for length in LENGTHS.values()
        for text in data.queries(30, length, asked.data, asked.seed)
    ]
    many = min(asked.documents, LARGE)
    _store(home, many, asked)
    _apart(_SyntheticEmbedder.prepare, home, asked)
    store((Document(f"v{row:08}", str(row)) for row in range(many)), home / "numbers")
    numbers = [str(many + number) for number in range(60)]
    for kind, parts, folder, some in (
        ("bm25", 4, "corpus", texts),
        ("dense", 8, "numbers", numbers),
    ):
        equal = _apart(_compare_sharded, home, kind, parts, folder, some).result
        what = (
            f"sharded({kind},parts={parts}), {many:,} documents: rankings equal to one index's, "
            f"of {len(some)}"
        )
        yield Figure(what, equal, "", len(some), least=True)


def _compare_sharded(home: Path, kind: str, count: int, folder: str, texts: Sequence[str]) -> int:
    by_name = import_module(
        "benchmarks.scale"
    ).build_part  # which other processes import, and not what is run
    corpus = StoredCorpus(home / folder)
    build = partial(by_name, retrievers.parse(kind))
    one = build(corpus, home)
    parts = Sharded(corpus, home, build, parts=count)
    searches = [Search(text) for text in texts]
    found = zip(one.search_many(searches, DEPTH), parts.search_many(searches, DEPTH), strict=True)
    return sum(mine == theirs for mine, theirs in found)


def build_part(
    spec: retrievers.RetrieverSpec, corpus: Corpus, home: Path, resources: Any = None
) -> Retriever:
    """Make the retriever of a part, of vectors or words."""
    made = (
        partial(VectorRetriever, embedder=_SyntheticEmbedder(home), name="made", search="int8")
        if spec.kind == "dense"
        else BM25
    )
    return made(corpus, home)


# To add one: a function that gives figures, with a folder of its own and the arguments of the
# command line.
PARTS: dict[str, Callable[[Path, argparse.Namespace], Iterator[Figure]]] = {
    "calls": measure_calls,
    "coordinator": measure_coordinator,
    "offline": measure_offline,
    "words": measure_words,
    "dense": measure_dense,
    "ann": measure_ann,
    "sharded": measure_sharded,
}

if __name__ == "__main__":
    run_and_leave(parser(), command)
