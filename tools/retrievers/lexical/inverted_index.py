"""The inverted index of a corpus, in segments of consecutive documents.

A segment holds counts and no weights: a posting is a document of the segment and a kind, which is a
row of the table of the pairs (count in the document, words of the document) that the segment has.
Weights are made when a query is answered, from the number and lengths of all documents and the
frequencies of the query's words in all segments. The build needs the memory of a segment, and a
build that was killed keeps the segments that it had finished.

Compiled loops (numba_kernels.py) count the words of about a megabyte of ASCII texts at a time; a
text with any other character is split by the analyzer's Python function first. The hash table of
words is part of the segment.
"""

import shutil
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError
from sextant.tools.platform import files
from sextant.tools.platform.cli import Progress
from sextant.tools.retrievers.lexical import numba_kernels
from sextant.tools.retrievers.lexical.numba_kernels import (
    SEGMENT,
    Doubles,
    Ints,
    PostingLists,
    Rows,
    SegmentTable,
    TermCounts,
    TextBlock,
    TokenizerSettings,
    WordTable,
    map_array,
)

# Documents of a segment: their numbers take two bytes, and their scores stay in a core's cache.
SIZE = 1 << 16
# Bytes of text that are counted at a time.
BLOCK = 1 << 20


class Analyzer(NamedTuple):
    """The rules by which texts are split into words."""

    # Returns the words in order, with repeats; no word is empty or has a blank in it.
    words: Callable[[str], list[str]]
    # Words of ASCII texts are runs of two or more of these, in lower case, for the compiled loop;
    # "" if they are not.
    characters: str = ""
    stop_words: frozenset[str] = frozenset()

    def reading(self) -> TokenizerSettings:
        """Return the table of bytes for the compiled loop."""
        table = np.zeros((2, 256), dtype=np.uint8)
        for character in self.characters:
            table[0, ord(character)] = ord(character.lower())
        table[1] = np.arange(256)
        table[1, ord(" ")] = 0
        return TokenizerSettings(table, len(self.stop_words))

    def encode(self, text: str) -> tuple[bytes, bool]:
        """Encode `text` for the compiled loop; the flag tells if it is words joined by blanks."""
        if self.characters and text.isascii():
            return text.encode(), False
        return " ".join(self.words(text)).encode("utf-8", "surrogatepass"), True


class CorpusTotals(NamedTuple):
    """The size of a corpus, or of several that are searched as a single corpus."""

    documents: int
    words: int  # with repeats


class Segment:
    """Word counts of consecutive documents, mapped."""

    def __init__(self, folder: Path) -> None:
        self.words = WordTable(*_map_arrays(folder, WordTable._fields))
        self.lists = PostingLists(*_map_arrays(folder, PostingLists._fields))
        # Count and length of each kind of posting, shape (2, kinds).
        self.pairs = map_array(folder / "pairs.npy")
        # Words of each document, shape (documents,).
        self.lengths = map_array(folder / "lengths.npy")

    def locate(self, shares: Doubles) -> dict[str, int]:
        """Return its row in the table of segments, which does not keep the arrays."""
        return {
            **{name: _address(array) for name, array in self.words._asdict().items()},
            **{name: _address(array) for name, array in self.lists._asdict().items()},
            "slot_count": len(self.words.slots),
            "words": len(self.words.codes),
            "postings": len(self.lists.documents),
            "has_wide_kinds": self.lists.kinds.itemsize > 2,
            "shares": _address(shares),
            "share_count": len(shares),
            "size": len(self.lengths),
        }

    def list_words(self, reading: TokenizerSettings) -> list[str]:
        """Return its words, by row."""
        letters = self.words.letters.tobytes()
        ends = self.words.starts[reading.skipped :].tolist()
        return [
            letters[first:last].decode("utf-8", "surrogatepass") for first, last in pairwise(ends)
        ]


class WeighedSegments(NamedTuple):
    """The segments for searches in documents of an average length."""

    average_length: float
    table: SegmentTable
    shares: Sequence[Doubles]  # which the table only names


class InvertedIndex:
    """The segments of a corpus, mapped from the folder that `build` filled; threads share it."""

    def __init__(self, folder: Path) -> None:
        self.segments = [Segment(path) for path in sorted(folder.glob("segment-*"))]
        lengths = [segment.lengths for segment in self.segments]
        self.totals = CorpusTotals(sum(map(len, lengths)), sum(int(each.sum()) for each in lengths))
        self._most_kinds = max(segment.pairs.shape[1] for segment in self.segments)
        self._weighed = self._tabulate(0.0, [np.empty(0)] * len(self.segments))

    def look_up(
        self, data: NDArray[np.uint8], prepared: bool, reading: TokenizerSettings
    ) -> tuple[Rows, Ints]:
        """Return the rows of the words of an encoded text in each segment, and their frequencies.

        Rows have shape (segments, at least words), and -1 for none; stop words are left out.
        """
        rows = np.empty((len(self.segments), len(data)), dtype=np.int32)
        frequencies = np.zeros(len(data), dtype=np.int64)
        count = numba_kernels.look_up_words(
            data,
            prepared,
            reading,
            self._weighed.table,
            np.empty(len(data), dtype=np.uint8),
            rows,
            frequencies,
        )
        return rows, frequencies[:count]

    def weigh(
        self,
        average_length: float,
        weigh_counts: Callable[[Ints, Ints, float], Doubles],
    ) -> WeighedSegments:
        """Return what searches in documents of this average length read."""
        weighed = self._weighed
        if weighed.average_length != average_length:
            shares = []
            for segment in self.segments:
                counts, lengths = segment.pairs
                shares.append(weigh_counts(counts, lengths, average_length))
            self._weighed = weighed = self._tabulate(average_length, shares)
        return weighed

    def _tabulate(self, average_length: float, shares: Sequence[Doubles]) -> WeighedSegments:
        table = np.zeros(len(self.segments), SEGMENT)
        for number, segment in enumerate(self.segments):
            for name, value in segment.locate(shares[number]).items():
                table[number][name] = value
        return WeighedSegments(average_length, table, shares)

    def score(
        self,
        weighed: WeighedSegments,
        rows: Rows,
        weights: Doubles,
        dtype: type[np.floating[Any]],
    ) -> NDArray[Any]:
        """Return the scores of all documents, shape (documents,).

        `weighed` is the result of `weigh`, and `rows` that of `look_up`.
        """
        scores = np.empty(self.totals.documents, dtype)
        numba_kernels.score_documents(
            weighed.table, rows, weights, np.empty(self._most_kinds, dtype), scores
        )
        return scores

    def frequencies(self, reading: TokenizerSettings) -> dict[str, int]:
        """Return word -> number of documents with it, in the order of the segments."""
        total = dict[str, int]()
        for segment in self.segments:
            numbers = np.diff(segment.lists.indptr).tolist()
            for word, number in zip(segment.list_words(reading), numbers, strict=True):
                total[word] = total.get(word, 0) + number
        return total


def build(corpus: Corpus, analyzer: Analyzer, folder: Path) -> None:
    """Write the index of `corpus` into `folder`, in which segments of a killed call are kept.

    DataError if the corpus has no words.
    """
    draft = folder / "draft"
    shutil.rmtree(draft, ignore_errors=True)
    finished = len(list(folder.glob("segment-*")))
    firsts = range(0, len(corpus), SIZE)
    progress = Progress("reading words", len(corpus), done=min(finished * SIZE, len(corpus)))
    for number in range(finished, len(firsts)):
        rows = range(firsts[number], min(firsts[number] + SIZE, len(corpus)))
        counter = _Counter(analyzer)
        counter.add(corpus.texts(rows), progress.add)
        draft.mkdir()
        counter.save(draft)
        for path in draft.iterdir():
            files.sync(path)
        draft.rename(folder / f"segment-{number:06}")
    if not any(np.load(path).any() for path in folder.glob("segment-*/lengths.npy")):
        raise DataError("the corpus has no words in it; nothing can be searched")


def _map_arrays(folder: Path, names: Iterable[str]) -> list[NDArray[Any]]:
    return [map_array(folder / f"{name}.npy") for name in names]


class _Counter:
    """A growing hash table of words, whose first rows are the stop words, and counts by document."""

    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._reading = analyzer.reading()
        integers = np.empty(0, dtype=np.int64)
        self._words = WordTable(
            np.full(2, -1, np.int32), integers, np.zeros(1, np.int64), np.empty(0, np.uint8)
        )
        # The last document of each word, and the position of its count; see count_terms.
        self._last_document = integers
        self._position = integers
        self._word_count = 0
        self._documents = 0
        self._counts = list[TermCounts]()
        if analyzer.stop_words:
            self._count([(" ".join(sorted(analyzer.stop_words)).encode(), True)])

    def add(self, texts: Iterable[str], report: Callable[[int], None]) -> None:
        block = []
        size = 0
        for text in chain(texts, [None]):
            if text is not None:
                encoded = self._analyzer.encode(text)
                block.append(encoded)
                size += len(encoded[0])
            if block and (size >= BLOCK or text is None):
                self._counts.append(self._count(block))
                self._documents += len(block)
                report(len(block))
                block = []
                size = 0

    def _count(self, texts: Sequence[tuple[bytes, bool]]) -> TermCounts:
        data = np.frombuffer(b"".join(text for text, _ in texts), dtype=np.uint8)
        ends = np.cumsum([len(text) for text, _ in texts], dtype=np.int64)
        block = TextBlock(
            data,
            ends,
            np.array([is_prepared for _, is_prepared in texts]),
            np.empty(len(data), np.uint8),
        )
        # Between two words there is a blank or the end of a text.
        max_words = len(data) // 2 + len(texts)
        self._make_room(max_words, len(data))
        rows, numbers = np.empty((2, max_words), dtype=np.int32)
        distinct, lengths = np.zeros((2, len(texts)), dtype=np.int64)
        counts = TermCounts(rows, numbers, distinct, lengths)
        self._word_count, postings = numba_kernels.count_terms(
            block,
            self._reading,
            self._words,
            self._word_count,
            self._documents,
            self._last_document,
            self._position,
            counts,
        )
        return counts._replace(rows=rows[:postings].copy(), numbers=numbers[:postings].copy())

    def _make_room(self, words: int, letters: int) -> None:
        table = self._words
        needed = self._word_count + words
        if needed > len(table.codes):
            self._position = _grow(self._position, needed, 0)
            self._last_document = _grow(self._last_document, needed, -1)
            codes = _grow(table.codes, needed, 0)
            table = table._replace(
                codes=codes,
                starts=_grow(table.starts, len(codes) + 1, 0),
                slots=self._hash(codes, len(codes)),
            )
        needed = int(table.starts[self._word_count]) + letters
        if needed > len(table.letters):
            table = table._replace(letters=_grow(table.letters, needed, 0))
        self._words = table

    def _hash(self, codes: NDArray[np.int64], words: int) -> NDArray[np.int32]:
        """Return the slots of a hash table for `words` words, half of them free."""
        slots = np.full(1 << (2 * words - 1).bit_length(), -1, np.int32)
        numba_kernels.rehash(slots, codes, self._word_count)
        return slots

    def save(self, folder: Path) -> None:
        _, codes, starts, letters = self._words
        count = self._word_count
        table = WordTable(
            slots=self._hash(codes, count),
            codes=codes[:count],
            starts=starts[: count + 1],
            letters=letters[: starts[count]],
        )
        frequency = np.zeros(count - self._reading.skipped, dtype=np.int64)
        for counts in self._counts:
            frequency += np.bincount(counts.rows, minlength=len(frequency))
        indptr = np.concatenate(([0], np.cumsum(frequency)))
        lengths = np.concatenate([counts.lengths for counts in self._counts])
        pairs, bases, numbers = self._number_pairs(lengths)
        lists = PostingLists(
            indptr, np.empty(indptr[-1], np.uint16), np.empty(indptr[-1], numbers.dtype)
        )
        first = 0
        free = indptr[:-1].copy()
        for counts in self._counts:
            numba_kernels.scatter_postings(counts, first, bases, numbers, free, lists)
            first += len(counts.distinct)
        arrays = lists._asdict() | table._asdict()
        arrays["pairs"] = pairs
        arrays["lengths"] = lengths
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)

    def _number_pairs(self, lengths: Ints) -> "_NumberedPairs":
        sizes, length_index = np.unique(lengths, return_inverse=True)
        max_counts = self._max_counts(length_index, len(sizes))
        starts: Ints = np.cumsum(max_counts) - max_counts
        bases = starts[length_index]

        is_used = np.zeros(int(max_counts.sum()), dtype=np.bool_)
        first = 0
        for counts in self._counts:
            document_bases = bases[first : first + len(counts.distinct)]
            positions = np.repeat(document_bases, counts.distinct) + counts.numbers - 1
            is_used[positions] = True
            first += len(document_bases)

        count = np.arange(len(is_used)) - np.repeat(starts, max_counts) + 1
        used = np.flatnonzero(is_used)
        used = used[np.argsort(count[used], kind="stable")]
        dtype = np.uint16 if len(used) <= 1 << 16 else np.uint32
        numbers = np.zeros(len(is_used), dtype)
        numbers[used] = np.arange(len(used))
        return _NumberedPairs(
            np.stack((count[used], np.repeat(sizes, max_counts)[used])), bases, numbers
        )

    def _max_counts(self, length_index: Ints, n_lengths: int) -> Ints:
        """Return the largest count of a word in documents of each length, shape (lengths,)."""
        max_counts = np.zeros(n_lengths, dtype=np.int64)
        first = 0
        for counts in self._counts:
            owners = length_index[first : first + len(counts.distinct)]
            np.maximum.at(max_counts, np.repeat(owners, counts.distinct), counts.numbers)
            first += len(owners)
        return max_counts


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class _NumberedPairs(NamedTuple):
    """The pairs of a count and a document's length that a segment has, with their numbers.

    The number of the pair (count, length of document n) is numbers[bases[n] + count - 1].
    """

    pairs: Ints  # shape (2, pairs), by count
    bases: Ints
    numbers: NDArray[Any]


def _grow(array: NDArray[Any], needed: int, fill: int) -> NDArray[Any]:
    grown = np.full(max(needed, 2 * len(array)), fill, dtype=array.dtype)
    grown[: len(array)] = array
    return grown
