"""BM25 as Lucene computes it, and the inverted index that it shares with rank_bm25.

Kamphuis et al., "Which BM25 do you mean?" (ECIR 2020), variant "Lucene (accurate)": a word that n of N documents have,
and this one of dl words `count` times, adds

    ln(1 + (N - n + 0.5) / (n + 0.5)) * count / (count + k1 * (1 - b + b * dl / mean dl))

for every time that the query has it. "Accurate" is that dl is exact: Lucene's own index rounds it to one byte.
The arithmetic is that of the package bm25s with NumPy 2, and scores and rankings are equal to the last bit.

Compiled loops (tools/retrievers/kernels.py) count the words of about a megabyte of ASCII texts at a time; a text with
any other character is split by the analyzer's Python function first. The hash table of words is part of the index.
"""

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.console import Progress
from tools.corpus import Corpus
from tools.errors import DataError, UsageError
from tools.records import Hit
from tools.retriever import Ranker, Retriever, Search
from tools.retrievers import Value, kernels, spell
from tools.retrievers.kernels import Block, Counts, Postings, Reading, Weights, Words, complete_lists, map_array
from tools.retrievers.store import code, new_array, open_index
from tools.text import STOP_WORDS, TermStatistics, words

BLOCK = 1 << 20  # bytes of text that are counted at a time
_SOURCES = ("tools/text", *(f"tools/retrievers/{name}" for name in ("bm25", "english", "kernels", "rank_bm25")))
_WORD_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"  # the ASCII ones of \w


class Analyzer(NamedTuple):
    """How texts are split into words."""

    words: Callable[[str], list[str]]  # in order, with repeats; no word is empty or has a blank in it
    # Words of ASCII texts are runs of two or more of these, in lower case, for the compiled loop; "" if they are not.
    characters: str = ""
    stop_words: frozenset[str] = frozenset()

    def reading(self) -> Reading:
        """Return the table of bytes for the compiled loop."""
        table = np.zeros((2, 256), dtype=np.uint8)
        for character in self.characters:
            table[0, ord(character)] = ord(character.lower())
        table[1] = np.arange(256)
        table[1, ord(" ")] = 0
        return Reading(table, len(self.stop_words))

    def encode(self, text: str) -> tuple[bytes, bool]:
        """Encode `text` for the compiled loop; the flag says whether it is words joined by blanks."""
        if self.characters and text.isascii():
            return text.encode(), False
        return " ".join(self.words(text)).encode("utf-8", "surrogatepass"), True


class Statistics(NamedTuple):
    """Word counts of a corpus, for a formula to weigh words by."""

    frequency: NDArray[np.int64]  # documents that have the word, shape (words,)
    lengths: NDArray[np.int64]  # words in the document, shape (documents,)

    @property
    def average_length(self) -> float:
        """Words per document."""
        return int(self.lengths.sum()) / len(self.lengths)


class WordRetriever(Retriever):
    """Ranks documents by the weights of the query's words, for which a subclass has the formula."""

    dtype: ClassVar[type[np.floating[Any]]] = np.float32  # of weights and scores
    above: ClassVar[float] = 0.0  # what a score must be over: the documents that share a word have more

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse parameters that are out of BM25's range."""
        k1, b = options.get("k1", 0.0), options.get("b", 0.0)
        if k1 < 0 or not 0 <= b <= 1:
            raise UsageError(f"BM25 takes k1 of 0 or more and b from 0 to 1, not k1={k1} and b={b}")

    def open(
        self, corpus: Corpus, home: Path | None, analyzer: Analyzer, key: Mapping[str, object], ranker: Ranker
    ) -> None:
        """Build or open the index that `key` determines together with the corpus."""
        self._analyzer, self._reading, self.ranker = analyzer, analyzer.reading(), ranker
        key = {**key, "corpus": corpus.fingerprint, "code": code(*_SOURCES)}
        open_index(home, key, build=lambda folder: self._build(corpus, folder), load=self._load)

    @abstractmethod
    def weigh(self, statistics: Statistics) -> Weights:
        """Return the weights of the postings."""

    def statistics(self) -> TermStatistics:
        """Return how common each word of the corpus is."""
        frequency = self._postings.frequency.tolist()
        return TermStatistics(len(self.ranker), self._average_length, dict(zip(self.words(), frequency, strict=True)))

    def words(self) -> list[str]:
        """Return every word of the index, by row."""
        letters, ends = self._words.letters.tobytes(), self._words.starts[self._reading.skipped :].tolist()
        return [letters[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(ends)]

    def rows(self, text: str) -> NDArray[np.int32]:
        """Return the rows of those words of `text` that the index has, in order, with repeats."""
        data, prepared = self._analyzer.encode(text)
        found = np.empty(len(data), dtype=np.int32)
        read = np.frombuffer(data, dtype=np.uint8)
        return found[: kernels.look_up(read, prepared, self._reading, self._words, found)]

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        def search(one: Search) -> list[Hit]:
            rows = self.rows(one.text)
            return self._postings.search(rows, k, excluded=one.excluded, among=one.among, above=self.above)

        return kernels.run_in_threads(search, searches)

    def _load(self, folder: Path) -> None:
        self._words = Words(*(map_array(folder / f"{name}.npy") for name in Words._fields))
        self._postings = Postings(folder, self.ranker)
        self._average_length = float(json.loads((folder / "summary.json").read_text())["average_length"])

    def _build(self, corpus: Corpus, folder: Path) -> None:
        """Write vocabulary, postings by word and then by document, and `summary.json`."""
        counter = _Counter(self._analyzer)
        counter.add(corpus)
        statistics = counter.save(folder)
        if not statistics.frequency.size:
            raise DataError("the corpus has no words in it; nothing can be searched")
        weights = self.weigh(statistics)
        weights = weights._replace(idf=np.asarray(weights.idf, dtype=np.float64))
        indptr = np.concatenate(([0], np.cumsum(statistics.frequency)))
        np.save(folder / "indptr.npy", indptr)
        documents = new_array(folder / "documents.npy", (int(indptr[-1]),), np.int32)
        weighed = new_array(folder / "weights.npy", (int(indptr[-1]),), self.dtype)
        first, free = 0, indptr[:-1].copy()
        for counts in counter.take():
            kernels.place_postings(counts, first, weights, free, documents, weighed)
            first += len(counts.distinct)
        documents.flush()
        weighed.flush()
        complete_lists(folder, len(corpus))
        summary = {"documents": len(corpus), "average_length": statistics.average_length}
        (folder / "summary.json").write_text(json.dumps(summary))


class _Counter:  # a growing hash table of words, whose first rows are the stop words, and counts by document
    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer, self._reading = analyzer, analyzer.reading()
        integers = np.empty(0, dtype=np.int64)
        self._words = Words(np.full(2, -1, np.int32), integers, np.zeros(1, np.int64), np.empty(0, np.uint8))
        self._seen = self._place = integers  # see kernels.count
        self._known = self._documents = 0  # words and documents
        self._counts = list[Counts]()
        if analyzer.stop_words:
            self._count([(" ".join(sorted(analyzer.stop_words)).encode(), True)])

    def add(self, corpus: Corpus) -> None:
        progress, block, size = Progress("reading words", len(corpus)), list[tuple[bytes, bool]](), 0
        for row, text in enumerate(corpus.texts(), start=1):
            block.append(self._analyzer.encode(text))
            size += len(block[-1][0])
            if size >= BLOCK or row == len(corpus):
                self._counts.append(self._count(block))
                self._documents += len(block)
                progress.add(len(block))
                block, size = [], 0

    def _count(self, texts: Sequence[tuple[bytes, bool]]) -> Counts:
        data = np.frombuffer(b"".join(text for text, _ in texts), dtype=np.uint8)
        ends = np.cumsum([len(text) for text, _ in texts], dtype=np.int64)
        block = Block(data, ends, np.array([prepared for _, prepared in texts]))
        most = len(data) // 2 + len(texts)  # words: two are a blank or an end apart
        self._make_room(most, len(data))
        rows, numbers = np.empty((2, most), dtype=np.int32)
        distinct, lengths = np.zeros((2, len(texts)), dtype=np.int64)
        counts = Counts(rows, numbers, distinct, lengths)
        self._known, postings = kernels.count(
            block, self._reading, self._words, self._known, self._documents, self._seen, self._place, counts
        )
        return counts._replace(rows=rows[:postings].copy(), numbers=numbers[:postings].copy())

    def _make_room(self, words: int, letters: int) -> None:
        table, needed = self._words, self._known + words
        if needed > len(table.codes):
            codes, self._place = (_grow(array, needed, 0) for array in (table.codes, self._place))
            self._seen = _grow(self._seen, needed, -1)
            table = table._replace(codes=codes, starts=_grow(table.starts, len(codes) + 1, 0))
            table = table._replace(slots=self._hash(codes, len(codes)))
        needed = int(table.starts[self._known]) + letters
        if needed > len(table.letters):
            table = table._replace(letters=_grow(table.letters, needed, 0))
        self._words = table

    def _hash(self, codes: NDArray[np.int64], words: int) -> NDArray[np.int32]:  # half of them free
        slots = np.full(1 << (2 * words - 1).bit_length(), -1, np.int32)
        kernels.rehash(slots, codes, self._known)
        return slots

    def save(self, folder: Path) -> Statistics:  # of what was counted, without the stop words
        _, codes, starts, letters = self._words
        slots = self._hash(codes, self._known)
        whole = Words(slots, codes[: self._known], starts[: self._known + 1], letters[: starts[self._known]])
        for name, array in whole._asdict().items():
            np.save(folder / f"{name}.npy", array)
        frequency = np.zeros(self._known - self._reading.skipped, dtype=np.int64)
        for counts in self._counts:
            frequency += np.bincount(counts.rows, minlength=len(frequency))
        lengths = [counts.lengths for counts in self._counts] or [np.zeros(0, dtype=np.int64)]
        return Statistics(frequency, np.concatenate(lengths))

    def take(self) -> Iterator[Counts]:  # of each block, in order, which are then forgotten
        while self._counts:
            yield self._counts.pop(0)


def _grow(array: NDArray[Any], needed: int, fill: int) -> NDArray[Any]:
    grown = np.full(max(needed, 2 * len(array)), fill, dtype=array.dtype)
    grown[: len(array)] = array
    return grown


def analyzer_of(name: str) -> Analyzer:
    """Return the analyzer "plain" or "english"."""
    if name == "plain":
        return Analyzer(words, _WORD_CHARACTERS, STOP_WORDS)
    from tools.retrievers import english  # imports nltk, half a second

    return Analyzer(english.words)


class BM25(WordRetriever):
    """Lucene's BM25 over one corpus, with Anserini's defaults, which CRUMB's Pyserini baseline also has.

    The analyzer "plain" gives words in lower case, of two characters or more, without English stop words; "english" is
    that of CRUMB's baseline, with Porter's stemmer (tools/retrievers/english.py).
    """

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None = None,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        analyzer: Literal["plain", "english"] = "plain",
    ) -> None:
        options: dict[str, Value] = {"k1": k1, "b": b}
        self.name = spell("bm25", options=options | ({} if analyzer == "plain" else {"analyzer": analyzer}))
        self._k1, self._b = k1, b
        key = {"kind": "bm25", "k1": k1, "b": b, "analyzer": analyzer}
        self.open(corpus, home, analyzer_of(analyzer), key, Ranker(corpus.doc_ids))

    def weigh(self, statistics: Statistics) -> Weights:
        """Return the weights of the postings; bm25s rounds the idf before it multiplies."""
        documents = len(statistics.lengths)
        idf = [math.log(1 + (documents - n + 0.5) / (n + 0.5)) for n in statistics.frequency.tolist()]
        norm = self._k1 * ((1 - self._b) + self._b * statistics.lengths / statistics.average_length)
        return Weights(np.array(idf, dtype=np.float32), norm)


class BM25S(BM25):
    """The package bm25s with its defaults, as OBLIQ-Bench's release ranks its Writing and Congress tasks."""

    def __init__(self, corpus: Corpus, home: Path | None = None) -> None:
        super().__init__(corpus, home, k1=1.5, b=0.75)
        self.name = "bm25s"
