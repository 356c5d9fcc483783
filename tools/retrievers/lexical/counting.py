"""From texts to an inverted index on disk: the words of a corpus, in which documents they are, and how often.

A few hundred documents at a time go through one compiled loop (tools/retrievers/lexical/kernels.py) that reads their
words, looks them up in a hash table of its own and counts them, so no Python object is made for a word. It reads ASCII
alone. A text with any other character is split by the analyzer's Python function, and its words then go the same way.

The hash table is part of the index, memory-mapped like the rest, and reads queries too: an index of a million words
opens at once, and processes share it. Knows no formula: what a posting weighs is decided by its caller.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.console.progress import Progress
from tools.corpus import Corpus
from tools.errors import DataError
from tools.retrievers.lexical.postings import finish, mapped
from tools.retrievers.store import new_array

BLOCK = 1 << 20  # bytes of text that are counted at a time


class Analyzer(NamedTuple):
    """What the words of a text are."""

    words: Callable[[str], list[str]]  # in order, with repeats; no word is empty or has a blank in it
    # What `words` does to an ASCII text, where that is as simple as this, for the compiled loop: the runs of two or
    # more of these characters, in lower case, without the stop words. Empty where it is not.
    characters: str = ""
    stop_words: frozenset[str] = frozenset()

    def table(self) -> NDArray[np.uint8]:
        """For each byte, the one that it counts as, and 0 where it separates words; shape (2, 256).

        The first row is for ASCII texts, the second for words joined by blanks.
        """
        table = np.zeros((2, 256), dtype=np.uint8)
        for character in self.characters:
            table[0, ord(character)] = ord(character.lower())
        table[1] = np.arange(256)
        table[1, ord(" ")] = 0
        return table

    def encoded(self, text: str) -> tuple[bytes, bool]:
        """What the compiled loop reads of `text`, and whether it is words joined by blanks."""
        if self.characters and text.isascii():
            return text.encode(), False
        return " ".join(self.words(text)).encode("utf-8", "surrogatepass"), True


class Counts(NamedTuple):
    """What a corpus knows of its words, for a formula to weigh them by."""

    frequency: NDArray[np.int64]  # documents that have the word, shape (words,)
    lengths: NDArray[np.int64]  # words in the document, shape (documents,)

    @property
    def average_length(self) -> float:
        """Words per document."""
        return int(self.lengths.sum()) / len(self.lengths)


class Weights(NamedTuple):
    """A posting of a word that a document has `count` times weighs idf * (count * gain / (count + norm))."""

    idf: NDArray[np.floating[Any]]  # shape (words,)
    norm: NDArray[np.floating[Any]]  # shape (documents,)
    gain: float = 1.0


class Vocabulary:
    """The words of an index, and which of its rows each has."""

    def __init__(self, folder: Path, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._table = analyzer.table()
        self._skipped = len(analyzer.stop_words)
        self._arrays = [mapped(folder / f"{name}.npy") for name in ("slots", "codes", "starts", "letters")]

    def rows(self, text: str) -> NDArray[np.int32]:
        """The rows of those words of `text` that the index has, in order, with repeats."""
        from tools.retrievers.lexical import kernels

        data, prepared = self._analyzer.encoded(text)
        found = np.empty(len(data), dtype=np.int32)
        slots, codes, starts, letters = self._arrays
        number = kernels.look_up(
            np.frombuffer(data, dtype=np.uint8),
            prepared,
            self._table,
            self._skipped,
            slots,
            codes,
            starts,
            letters,
            found,
        )
        return found[:number]

    def words(self) -> list[str]:
        """Every word, by row."""
        _, _, starts, letters = self._arrays
        data, ends = letters.tobytes(), starts[self._skipped :].tolist()
        return [data[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(ends)]


def write_index(
    folder: Path, corpus: Corpus, analyzer: Analyzer, weigh: Callable[[Counts], Weights], dtype: type[np.floating[Any]]
) -> None:
    """Fill `folder` with the inverted index of `corpus`: vocabulary, postings and `summary.json`.

    Postings are ordered by word, then by document. DataError when the corpus has no words.
    """
    from tools.retrievers.lexical import kernels

    counter = _Counter(analyzer)
    progress = Progress("reading words", len(corpus))
    for block in _blocks(corpus.texts(), analyzer):
        counter.add(*block)
        progress.add(len(block[1]))
    counts = counter.save(folder)
    if not counts.frequency.size:
        raise DataError("the corpus has no words in it; nothing can be searched")
    idf, norm, gain = weigh(counts)
    indptr = np.concatenate(([0], np.cumsum(counts.frequency)))
    np.save(folder / "indptr.npy", indptr)
    documents = new_array(folder / "documents.npy", (int(indptr[-1]),), np.int32)
    weights = new_array(folder / "weights.npy", (int(indptr[-1]),), dtype)
    first, free = 0, indptr[:-1].copy()
    for rows, numbers, distinct in counter.take():
        kernels.place_postings(
            rows, numbers, distinct, first, np.asarray(idf, dtype=np.float64), gain, norm, free, documents, weights
        )
        first += len(distinct)
    documents.flush()
    weights.flush()
    finish(folder, len(corpus))
    summary = {"documents": len(corpus), "average_length": counts.average_length}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


_Block = tuple[bytes, list[int], list[bool]]  # texts end to end, where each ends, and whether it is prepared


def _blocks(texts: Iterable[str], analyzer: Analyzer) -> Iterator[_Block]:
    data, ends, prepared = bytearray(), list[int](), list[bool]()
    for text in texts:
        piece, ready = analyzer.encoded(text)
        data += piece
        ends.append(len(data))
        prepared.append(ready)
        if len(data) >= BLOCK:
            yield bytes(data), ends, prepared
            data, ends, prepared = bytearray(), [], []
    if ends:
        yield bytes(data), ends, prepared


class _Counter:
    """Counts texts, block after block: a growing hash table of words, and the counts of each document.

    Row n of the table is the word letters[starts[n]:starts[n + 1]], with its hash in codes[n]; the stop words come
    first. Slots hold rows, and are found by hash.
    """

    def __init__(self, analyzer: Analyzer) -> None:
        self._table = analyzer.table()
        self._slots = _free(2)
        self._codes, self._starts = np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
        self._letters = np.empty(0, dtype=np.uint8)
        self._seen, self._place = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._words, self._documents = 0, 0
        self._skipped = len(analyzer.stop_words)
        self._lengths, self._counted = list[NDArray[np.int64]](), list[_Counted]()
        if self._skipped:
            stop_words = " ".join(sorted(analyzer.stop_words)).encode()
            self._count(stop_words, [len(stop_words)], [True])

    def add(self, data: bytes, ends: list[int], prepared: list[bool]) -> None:
        """The documents of one block, after those of the blocks before it."""
        counted, lengths = self._count(data, ends, prepared)
        self._counted.append(counted)
        self._lengths.append(lengths)
        self._documents += len(ends)

    def _count(self, data: bytes, ends: list[int], prepared: list[bool]) -> "tuple[_Counted, NDArray[np.int64]]":
        from tools.retrievers.lexical import kernels

        most = len(data) // 2 + len(ends)  # words: two are a blank or an end apart
        self._make_room(most, len(data))
        rows, numbers = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int32)
        lengths, distinct = np.zeros(len(ends), dtype=np.int64), np.zeros(len(ends), dtype=np.int64)
        self._words, postings = kernels.count(
            np.frombuffer(data, dtype=np.uint8),
            np.array(ends, dtype=np.int64),
            np.array(prepared),
            self._table,
            self._skipped,
            self._words,
            self._slots,
            self._codes,
            self._starts,
            self._letters,
            self._documents,
            self._seen,
            self._place,
            rows,
            numbers,
            lengths,
            distinct,
        )
        return _Counted(rows[:postings].copy(), numbers[:postings].copy(), distinct), lengths

    def _make_room(self, words: int, letters: int) -> None:
        """For so many more words, of so many letters together; what grows at least doubles."""
        wanted = self._words + words
        if wanted > len(self._codes):
            self._codes, self._place = (_grown(array, wanted, 0) for array in (self._codes, self._place))
            self._seen = _grown(self._seen, wanted, -1)
            self._starts = _grown(self._starts, len(self._codes) + 1, 0)
            self._slots = self._hashed(len(self._codes))
        wanted = int(self._starts[self._words]) + letters
        if wanted > len(self._letters):
            self._letters = _grown(self._letters, wanted, 0)

    def _hashed(self, words: int) -> NDArray[np.int32]:
        """The table with room for so many words: the next power of two that leaves half of the slots free."""
        from tools.retrievers.lexical import kernels

        slots = _free(1 << (2 * words - 1).bit_length())
        kernels.rehash(slots, self._codes, self._words)
        return slots

    def save(self, folder: Path) -> Counts:
        """Write the vocabulary into `folder`; what was counted, without the stop words."""
        np.save(folder / "slots.npy", self._hashed(self._words))
        np.save(folder / "codes.npy", self._codes[: self._words])
        np.save(folder / "starts.npy", self._starts[: self._words + 1])
        np.save(folder / "letters.npy", self._letters[: self._starts[self._words]])
        frequency = np.zeros(self._words - self._skipped, dtype=np.int64)
        for counted in self._counted:
            frequency += np.bincount(counted.rows, minlength=len(frequency))
        return Counts(frequency, np.concatenate(self._lengths) if self._lengths else np.zeros(0, dtype=np.int64))

    def take(self) -> "Iterator[_Counted]":
        """The counts of each block, in order, each forgotten when the next one is asked for."""
        while self._counted:
            yield self._counted.pop(0)


class _Counted(NamedTuple):
    """The counts of one block, document after document."""

    rows: NDArray[np.int32]  # a word of the document, shape (postings,)
    numbers: NDArray[np.int32]  # how often it is there, at least 1, shape (postings,)
    distinct: NDArray[np.int64]  # postings of each document, shape (documents,)


def _free(slots: int) -> NDArray[np.int32]:
    return np.full(slots, -1, dtype=np.int32)


def _grown(array: NDArray[Any], wanted: int, fill: int) -> NDArray[Any]:
    grown = np.full(max(wanted, 2 * len(array)), fill, dtype=array.dtype)
    grown[: len(array)] = array
    return grown
