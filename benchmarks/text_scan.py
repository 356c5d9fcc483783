"""How fast texts are scanned: `python -m benchmarks.text_scan [--documents N] [--words N]`.

Documents are recombined passages (benchmarks/data.py), a line each. Patterns with a literal are
the longest made-up word of a document, which is rare, and beginnings of sentences; a sentence of
the bundled miniatures is in a few documents of a hundred. The index of words is built before the
clock starts. CPU time is that of all threads, because the machine may be busy. Memory is the
resident memory at most of a process, next to one that reads the stored corpus once.
"""

import argparse
import re
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.scale import Figure
from sextant.tools.corpus import StoredCorpus, open_or_store
from sextant.tools.platform.cli import CommandParser, positive, print_stdout, run_and_leave
from sextant.tools.records import Document
from sextant.tools.retrievers.lexical.word_index import WordIndex
from sextant.tools.text_scan import TextScanner

WORDS_OF_PASSAGE = data.PASSAGE / 6
PATTERNS = 40  # of each kind that has a literal
K = 20
WITHOUT = (r"\d{4}-\d{2}", r"[A-Z]{6,}", r"(?i)(?:rain|snow) ", r"\w+ing \w+ed\b", r"\$\d+", r"^\W")


def parser() -> CommandParser:
    """The command line."""
    made = CommandParser(
        prog="python -m benchmarks.text_scan", description="Time exact looks into stored texts."
    )
    made.add_argument("--documents", type=positive, default=2_000, metavar="N")
    made.add_argument("--words", type=positive, default=5_000, metavar="N", help="of a document")
    made.add_argument("--folder", type=Path, metavar="DIR", help="keep the corpus and its index")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="of the corpus")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Measure and print; exit code 7 when a bound is not met."""
    folder = arguments.folder
    print_stdout("| figure | measured | bound | met |\n|---|---|---|---|\n")
    missed = 0
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory() as home:
        for figure in measure(Path(home), arguments):
            print_stdout(figure.line())
            missed += figure.met is False
    return 7 if missed else 0


def measure(home: Path, asked: argparse.Namespace) -> Iterator[Figure]:
    """The index, the patterns, and the memory."""
    place = home / f"{asked.documents}-{asked.words}-{asked.seed}"
    passages = max(1, round(asked.words / WORDS_OF_PASSAGE))
    open_or_store(
        place / "corpus",
        lambda: _join(asked.documents, passages, asked.seed),
    )
    yield Figure("building or opening the index", _apart(_build, place)[0], "s")
    texts = data.queries(PATTERNS, data.SHORT_QUERY, None, asked.seed)
    _, reading = _apart(_read, place)
    peaks = []
    for kind, patterns, bound in (
        ("made-up words", _apart(_list_made_up_words, place)[0], 1.0),
        ("beginnings of sentences", [re.escape(text) for text in texts if text], 1.0),
        ("patterns without a literal", list(WITHOUT), None),
    ):
        (seconds, cut, share), peak = _apart(_grep, place, patterns)
        note = f"{cut} of {len(patterns)} cut; {share:.2%} of documents match, median"
        for quantile in (0.5, 0.95):
            elapsed, cpu = np.quantile(seconds, quantile, axis=0).tolist()
            said = f"{cpu:.3g} s of CPU; {note}"
            held = bound if quantile > 0.5 else None
            yield Figure(f"{kind}: {quantile:.0%} take at most", elapsed, "s", held, note=said)
        peaks.append(peak)
    yield Figure("memory of reading the corpus once", reading, "MiB")
    yield Figure("memory of scans with an index", max(peaks), "MiB")
    _, peak = _apart(_grep, place, list(WITHOUT), False)
    yield Figure("memory of scans without one, for each of reading", peak / reading, "", 1.2)


def _join(documents: int, passages: int, seed: int) -> Iterator[Document]:
    texts = (passage.text for passage in data.generate_passages(documents * passages, None, seed))
    for number in range(documents):
        yield Document(f"d{number:07}", "\n".join(islice(texts, passages)))


def _apart(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return the result of a function, and the MiB at most of its process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure_memory, function, *arguments).result()


def _measure_memory(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    result = function(*arguments)
    return result, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux has kB


def _build(place: Path) -> float:
    started = time.monotonic()
    _ = WordIndex(StoredCorpus(place / "corpus"), place).segments
    return time.monotonic() - started


def _read(place: Path) -> None:
    for _ in StoredCorpus(place / "corpus").stream():
        pass


def _list_made_up_words(place: Path) -> list[str]:
    corpus = StoredCorpus(place / "corpus")
    rows = range(0, len(corpus), max(1, len(corpus) // PATTERNS))
    return [
        max(re.findall(r"\bq[^\Wu]\w+", document.text), key=len) for document in corpus.stream(rows)
    ]


def _grep(
    place: Path, patterns: list[str], is_indexed: bool = True
) -> tuple[list[tuple[float, float]], int, float]:
    """Return the seconds of each pattern, by the clock and of CPU, the number of patterns that were
    cut, and the median share of documents that match.
    """
    corpus = StoredCorpus(place / "corpus")
    scanner = TextScanner(corpus, WordIndex(corpus, place) if is_indexed else None)
    scanner.grep("warm", 1, seconds=0)
    seconds = []
    results = []
    for pattern in patterns:
        started = time.monotonic()
        cpu = time.process_time()
        results.append(scanner.grep(pattern, K))
        seconds.append((time.monotonic() - started, time.process_time() - cpu))
    shares = [result.documents / len(corpus) for result in results]
    return seconds, sum(bool(result.cut) for result in results), float(np.median(shares))


if __name__ == "__main__":
    run_and_leave(parser(), command)
