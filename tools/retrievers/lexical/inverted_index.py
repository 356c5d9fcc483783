"""From texts to an inverted index on disk: the words of a corpus, in which documents they are, and how often.

A few hundred documents at a time go through one compiled loop (tools/retrievers/lexical/kernels.py) that reads their
words, looks them up in a hash table of its own and counts them, so no Python object is made for a word. It reads ASCII
alone. A text with any other character is split by the analyzer's Python function, and its words then go the same way.

The hash table is part of the index, memory-mapped like the rest, and reads queries too: an index of a million words
opens at once, and processes share it. Knows no formula: what a posting weighs is decided by the retriever.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.console.progress import Progress
from tools.corpus import Corpus
from tools.errors import DataError
from tools.records import Hit
from tools.retriever import Ranker, Retriever, Search
from tools.retrievers.lexical import kernels
from tools.retrievers.lexical.kernels import Block, Counts, Reading, Weights, Words
from tools.retrievers.lexical.postings import Postings, complete_lists, map_array, run_in_threads
from tools.retrievers.store import code, new_array, open_index
from tools.text import TermStatistics

BLOCK = 1 << 20  # bytes of text that are counted at a time


class Analyzer(NamedTuple):
    """How texts are split into words."""

    words: Callable[[str], list[str]]  # in order, with repeats; no word is empty or has a blank in it
    # What `words` does to an ASCII text, where that is as simple as this, for the compiled loop: the runs of two or
    # more of these characters, in lower case, without the stop words. Empty where it is not.
    characters: str = ""
    stop_words: frozenset[str] = frozenset()

    def reading(self) -> Reading:
        """Return the table of bytes for the compiled loop: of ASCII texts, and of words joined by blanks."""
        table = np.zeros((2, 256), dtype=np.uint8)
        for character in self.characters:
            table[0, ord(character)] = ord(character.lower())
        table[1] = np.arange(256)
        table[1, ord(" ")] = 0
        return Reading(table, len(self.stop_words))

    def encoded(self, text: str) -> tuple[bytes, bool]:
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


class Vocabulary:
    """The words of an index, and which of its rows each has."""

    def __init__(self, folder: Path, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._reading = analyzer.reading()
        self._words = Words(*(map_array(folder / f"{name}.npy") for name in Words._fields))

    def rows(self, text: str) -> NDArray[np.int32]:
        """The rows of those words of `text` that the index has, in order, with repeats."""
        data, prepared = self._analyzer.encoded(text)
        found = np.empty(len(data), dtype=np.int32)
        read = np.frombuffer(data, dtype=np.uint8)
        return found[: kernels.look_up(read, prepared, self._reading, self._words, found)]

    def words(self) -> list[str]:
        """Every word, by row."""
        data, ends = self._words.letters.tobytes(), self._words.starts[self._reading.skipped :].tolist()
        return [data[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(ends)]


class WordRetriever(Retriever):
    """Ranks documents by the weights of the query's words, for which a subclass has the formula."""

    dtype: ClassVar[type[np.floating[Any]]] = np.float32  # of weights and scores
    above: ClassVar[float] = 0.0  # what a score must be over: the documents that share a word have more

    def open(
        self, corpus: Corpus, home: Path | None, analyzer: Analyzer, key: Mapping[str, object], ranker: Ranker
    ) -> None:
        """Build or open the index that `key` determines together with the corpus."""
        self.ranker = ranker

        def build(folder: Path) -> None:
            write_index(folder, corpus, analyzer, self.weigh, self.dtype)

        def load(folder: Path) -> tuple[Vocabulary, Postings, float]:
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            return Vocabulary(folder, analyzer), Postings(folder, ranker), float(summary["average_length"])

        sources = code("tools/text", lexical="bm25 english inverted_index kernels postings rank_bm25")
        key = {**key, "corpus": corpus.fingerprint, "code": sources}
        self._vocabulary, self._postings, self._average_length = open_index(home, key, build=build, load=load)

    @abstractmethod
    def weigh(self, statistics: Statistics) -> Weights:
        """Return the weights of the postings."""

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        return run_in_threads(lambda search: self._search(search, k), searches)

    def _search(self, search: Search, k: int) -> list[Hit]:
        rows = self._vocabulary.rows(search.text)
        return self._postings.search(rows, k, excluded=search.excluded, among=search.among, above=self.above)

    def statistics(self) -> TermStatistics:
        """How common each word of the corpus is, read off the index."""
        frequency = self._postings.frequency.tolist()
        return TermStatistics(
            documents=len(self.ranker),
            average_length=self._average_length,
            frequency=dict(zip(self._vocabulary.words(), frequency, strict=True)),
        )


def write_index(
    folder: Path,
    corpus: Corpus,
    analyzer: Analyzer,
    weigh: Callable[[Statistics], Weights],
    dtype: type[np.floating[Any]],
) -> None:
    """Fill `folder` with the inverted index of `corpus`: vocabulary, postings and `summary.json`.

    Postings are ordered by word, then by document. DataError when the corpus has no words.
    """
    counter = _Counter(analyzer)
    progress = Progress("reading words", len(corpus))
    for block in _blocks(corpus.texts(), analyzer):
        counter.add(block)
        progress.add(len(block.ends))
    statistics = counter.save(folder)
    if not statistics.frequency.size:
        raise DataError("the corpus has no words in it; nothing can be searched")
    digest_weights = weigh(statistics)
    digest_weights = digest_weights._replace(idf=np.asarray(digest_weights.idf, dtype=np.float64))
    indptr = np.concatenate(([0], np.cumsum(statistics.frequency)))
    np.save(folder / "indptr.npy", indptr)
    documents = new_array(folder / "documents.npy", (int(indptr[-1]),), np.int32)
    weights = new_array(folder / "weights.npy", (int(indptr[-1]),), dtype)
    first, free = 0, indptr[:-1].copy()
    for counts in counter.take():
        kernels.place_postings(counts, first, digest_weights, free, documents, weights)
        first += len(counts.distinct)
    documents.flush()
    weights.flush()
    complete_lists(folder, len(corpus))
    summary = {"documents": len(corpus), "average_length": statistics.average_length}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def _blocks(texts: Iterable[str], analyzer: Analyzer) -> Iterator[Block]:
    data, ends, prepared = bytearray(), list[int](), list[bool]()

    def block() -> Block:
        return Block(np.frombuffer(bytes(data), dtype=np.uint8), np.array(ends, dtype=np.int64), np.array(prepared))

    for text in texts:
        piece, ready = analyzer.encoded(text)
        data += piece
        ends.append(len(data))
        prepared.append(ready)
        if len(data) >= BLOCK:
            yield block()
            data, ends, prepared = bytearray(), [], []
    if ends:
        yield block()


class _Counter:
    """Counts texts, block after block: a growing hash table of words, and the counts of each document.

    The stop words are its first rows.
    """

    def __init__(self, analyzer: Analyzer) -> None:
        self._reading = analyzer.reading()
        integers = np.empty(0, dtype=np.int64)
        self._words = Words(_free(2), integers, np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.uint8))
        self._seen = self._place = integers  # see kernels.count
        self._known, self._documents = 0, 0  # words and documents
        self._counts = list[Counts]()
        if analyzer.stop_words:
            stop_words = " ".join(sorted(analyzer.stop_words)).encode()
            ends = np.array([len(stop_words)])
            self._count(Block(np.frombuffer(stop_words, dtype=np.uint8), ends, np.array([True])))

    def add(self, block: Block) -> None:
        """The documents of one block, after those of the blocks before it."""
        self._counts.append(self._count(block))
        self._documents += len(block.ends)

    def _count(self, block: Block) -> Counts:
        most = len(block.data) // 2 + len(block.ends)  # words: two are a blank or an end apart
        self._make_room(most, len(block.data))
        rows, numbers = np.empty((2, most), dtype=np.int32)
        distinct, lengths = np.zeros((2, len(block.ends)), dtype=np.int64)
        counts = Counts(rows, numbers, distinct, lengths)
        self._known, postings = kernels.count(
            block, self._reading, self._words, self._known, self._documents, self._seen, self._place, counts
        )
        return counts._replace(rows=counts.rows[:postings].copy(), numbers=counts.numbers[:postings].copy())

    def _make_room(self, words: int, letters: int) -> None:
        """For so many more words, of so many letters together; what grows at least doubles."""
        table, wanted = self._words, self._known + words
        if wanted > len(table.codes):
            codes, self._place = (_grown(array, wanted, 0) for array in (table.codes, self._place))
            self._seen = _grown(self._seen, wanted, -1)
            table = table._replace(codes=codes, starts=_grown(table.starts, len(codes) + 1, 0))
            table = table._replace(slots=self._hashed(codes, len(codes)))
        wanted = int(table.starts[self._known]) + letters
        if wanted > len(table.letters):
            table = table._replace(letters=_grown(table.letters, wanted, 0))
        self._words = table

    def _hashed(self, codes: NDArray[np.int64], words: int) -> NDArray[np.int32]:
        """Slots with room for so many words: the next power of two that leaves half of them free."""
        slots = _free(1 << (2 * words - 1).bit_length())
        kernels.rehash(slots, codes, self._known)
        return slots

    def save(self, folder: Path) -> Statistics:
        """Write the vocabulary into `folder`; what was counted, without the stop words."""
        _, codes, starts, letters = self._words
        slots = self._hashed(codes, self._known)
        whole = Words(slots, codes[: self._known], starts[: self._known + 1], letters[: starts[self._known]])
        for name, array in whole._asdict().items():
            np.save(folder / f"{name}.npy", array)
        frequency = np.zeros(self._known - self._reading.skipped, dtype=np.int64)
        for counts in self._counts:
            frequency += np.bincount(counts.rows, minlength=len(frequency))
        lengths = [counts.lengths for counts in self._counts]
        return Statistics(frequency, np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64))

    def take(self) -> Iterator[Counts]:
        """The counts of each block, in order, each forgotten when the next one is asked for."""
        while self._counts:
            yield self._counts.pop(0)


def _free(slots: int) -> NDArray[np.int32]:
    return np.full(slots, -1, dtype=np.int32)


def _grown(array: NDArray[Any], wanted: int, fill: int) -> NDArray[Any]:
    grown = np.full(max(wanted, 2 * len(array)), fill, dtype=array.dtype)
    grown[: len(array)] = array
    return grown
