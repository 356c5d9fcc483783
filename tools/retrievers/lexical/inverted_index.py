"""The inverted index of a corpus: segments of some documents each, which no change of the corpus
changes.

A segment holds counts and no weights: a posting is a document of the segment and a kind, which is a
row of the table of the pairs (count in the document, words of the document) that the segment has.
Weights are made when a query is answered, from the number and lengths of all documents and the
frequencies of the query's words in all segments.

So the index of a corpus that has most documents of an earlier one takes over that one's segments,
as hard links, and says which row of its own corpus each of their documents is, or that it has been
deleted. Only documents that none has are read. Memory is that of one segment, and a build that was
killed keeps those that it had finished.

Compiled loops (kernels.py) count the words of about a megabyte of ASCII texts at a time; a text
with any other character is split by the analyzer's Python function first. The hash table of words
is part of the segment.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools import files
from tools.cli import Progress
from tools.corpus import Corpus
from tools.errors import DataError
from tools.retrievers.lexical import numba_kernels
from tools.retrievers.lexical.numba_kernels import (
    Ints,
    PostingLists,
    Rows,
    TermCounts,
    TextBlock,
    TokenizerSettings,
    WordTable,
    map_array,
)

_NAME = "segment-"
SIZE = (
    1 << 16
)  # documents of a segment: their numbers take two bytes, and their scores stay in a core's cache
BLOCK = 1 << 20  # bytes of text that are counted at a time


class Analyzer(NamedTuple):
    """How texts are split into words."""

    words: Callable[
        [str], list[str]
    ]  # in order, with repeats; no word is empty or has a blank in it
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
        """Encode `text` for the compiled loop; the flag says whether it is words joined by
        blanks.
        """
        if self.characters and text.isascii():
            return text.encode(), False
        return " ".join(self.words(text)).encode("utf-8", "surrogatepass"), True


class CorpusTotals(NamedTuple):
    """The size of a corpus, or of several that are searched as one."""

    documents: int
    words: int  # with repeats


class Segment:
    """Word counts of some documents, mapped; document n is in row rows[n] of the corpus, -1 where it is deleted."""

    def __init__(self, folder: Path, rows: Rows, gone: Ints | None) -> None:
        self.words = WordTable(*(map_array(folder / f"{name}.npy") for name in WordTable._fields))
        self.lists = PostingLists(
            *(map_array(folder / f"{name}.npy") for name in PostingLists._fields)
        )
        self.pairs = map_array(
            folder / "pairs.npy"
        )  # count and length of each kind of posting, shape (2, kinds)
        # and how many of each word's documents are deleted; None is none of any
        self.rows = rows
        self.gone = gone
        self.shares: tuple[float, NDArray[np.float64]] = (
            0.0,
            np.empty(0),
        )  # of each kind, at an average length

    def look_up(
        self, data: NDArray[np.uint8], prepared: bool, reading: TokenizerSettings, frequencies: Ints
    ) -> Rows:
        """Return the row of each word of an encoded text that is no stop word, -1 for none;
        add its frequency.
        """
        rows = np.empty(len(data), dtype=np.int32)
        rows = rows[
            : numba_kernels.look_up_words(
                data, prepared, reading, self.words, self.lists.indptr, rows, frequencies
            )
        ]
        if self.gone is not None:
            frequencies[: len(rows)] -= np.where(rows < 0, 0, self.gone[rows])
        return rows

    def list_words(self, reading: TokenizerSettings) -> list[str]:
        """Return its words, by row."""
        letters = self.words.letters.tobytes()
        ends = self.words.starts[reading.skipped :].tolist()
        return [
            letters[first:last].decode("utf-8", "surrogatepass") for first, last in pairwise(ends)
        ]

    def frequencies(self) -> Ints:
        """Return in how many documents each word is, by row."""
        found = np.diff(self.lists.indptr)
        return found if self.gone is None else found - self.gone


class InvertedIndex:
    """The segments of one corpus, mapped from the folder that `build` filled; threads share it."""

    def __init__(self, folder: Path) -> None:
        summary = json.loads((folder / "summary.json").read_text())
        rows = map_array(folder / "rows.npy")
        first = 0
        self.totals = CorpusTotals(*summary["totals"])
        self.segments = list[Segment]()
        for name, size in summary["segments"].items():
            gone = folder / f"gone-{name}.npy"
            segment_rows = rows[first : first + size]
            self.segments.append(
                Segment(folder / name, segment_rows, map_array(gone) if gone.is_file() else None)
            )
            first += size

    def frequencies(self, reading: TokenizerSettings) -> dict[str, int]:
        """Return in how many documents each word of the corpus is, in the order of the segments."""
        total = dict[str, int]()
        for segment in self.segments:
            for word, number in zip(
                segment.list_words(reading), segment.frequencies().tolist(), strict=True
            ):
                total[word] = total.get(word, 0) + number
        return {word: number for word, number in total.items() if number}


def build(corpus: Corpus, analyzer: Analyzer, folder: Path, relatives: Iterable[Path] = ()) -> None:
    """Write the index of `corpus`, with what a killed call has left in `folder`, or else segments
    of a relative.

    `relatives` are folders of indexes of other corpora, by the same analyzer and code. DataError
    without any word.
    """
    digests = np.array(corpus.digests, dtype=np.uint64).view(np.int64)
    draft = folder / "draft"
    shutil.rmtree(draft, ignore_errors=True)
    if not _list(folder):
        _link_best(digests, relatives, folder)
    rows_of = _keep(digests, folder)
    missing = np.ones(len(digests), dtype=np.bool_)
    for rows in rows_of.values():
        missing[rows[rows >= 0]] = False
    missing_rows = np.flatnonzero(missing)
    last = max((int(name[len(_NAME) :]) for name in rows_of), default=-1)
    progress = Progress("reading words", len(digests), done=len(digests) - len(missing_rows))
    for number, first in enumerate(range(0, len(missing_rows), SIZE), start=last + 1):
        rows = missing_rows[first : first + SIZE]
        counter = _Counter(analyzer)
        counter.add(corpus.texts(rows.tolist()), progress.add)
        draft.mkdir()
        counter.save(draft)
        np.save(draft / "digests.npy", digests[rows])
        for path in draft.iterdir():
            files.sync(path)
        draft.rename(folder / f"{_NAME}{number:06}")
        rows_of[f"{_NAME}{number:06}"] = rows
    words = sum(_count_words(folder, name, rows) for name, rows in rows_of.items())
    if not words:
        raise DataError("the corpus has no words in it; nothing can be searched")
    np.save(folder / "rows.npy", np.concatenate(list(rows_of.values())).astype(np.int32))
    sizes = {name: len(rows) for name, rows in rows_of.items()}
    (folder / "summary.json").write_text(
        json.dumps({"totals": CorpusTotals(len(digests), words), "segments": sizes})
    )


def _count_words(
    folder: Path, name: str, rows: Ints
) -> int:  # of the documents that are not deleted
    lengths = np.load(folder / name / "lengths.npy")
    deleted = rows < 0
    if deleted.any():
        indptr, documents = (
            map_array(folder / name / f"{name}.npy") for name in ("indptr", "documents")
        )
        np.save(
            folder / f"gone-{name}.npy",
            np.add.reduceat(deleted[documents], indptr[:-1], dtype=np.int64),
        )
    return int(lengths[~deleted].sum())


def _list(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_NAME}*"))


def _link_best(digests: Ints, relatives: Iterable[Path], folder: Path) -> None:
    # The relative that has most of the documents, by those of some ten thousand whose digests end
    # with zeros.
    ending = (1 << (len(digests) // SIZE).bit_length()) - 1

    def shared(relative: Path) -> int:
        relative_digests = [
            digests[:0],
            *(map_array(path / "digests.npy") for path in _list(relative)),
        ]
        return len(
            np.intersect1d(
                *(each[each & ending == 0] for each in (digests, np.concatenate(relative_digests)))
            )
        )

    shares = {relative: shared(relative) for relative in relatives}
    if any(shares.values()):
        for path in _list(max(shares, key=shares.__getitem__)):
            try:
                shutil.copytree(path, folder / "draft", copy_function=os.link)
                (folder / "draft").rename(folder / path.name)
            except OSError:  # deleted meanwhile, or on another disk: it is built instead
                shutil.rmtree(folder / "draft", ignore_errors=True)


def _keep(digests: Ints, folder: Path) -> dict[str, Ints]:
    """Remove segments that are half deleted, or small beside what is to be built; return the rows
    of the others.

    So an index to which documents are added again and again has few segments.
    """
    digests_of = {path.name: np.load(path / "digests.npy") for path in _list(folder)}
    rows = numba_kernels.find_digest_rows(
        np.concatenate([digests[:0], *digests_of.values()]), digests
    )
    rows_of = dict(
        zip(digests_of, np.split(rows, np.cumsum([*map(len, digests_of.values())])), strict=False)
    )
    size = {name: int(np.count_nonzero(rows >= 0)) for name, rows in rows_of.items()}
    missing = len(digests) - sum(size.values())
    for name in sorted(size, key=size.__getitem__):
        if 2 * size[name] < len(rows_of[name]) or size[name] <= min(missing, SIZE // 2):
            missing += size[name]
            del rows_of[name]
            shutil.rmtree(folder / name)
    return rows_of


# A growing hash table of words, whose first rows are the stop words, and counts by document
class _Counter:
    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._reading = analyzer.reading()
        integers = np.empty(0, dtype=np.int64)
        self._words = WordTable(
            np.full(2, -1, np.int32), integers, np.zeros(1, np.int64), np.empty(0, np.uint8)
        )
        self._seen = self._place = integers  # see kernels.count
        self._known = self._documents = 0  # words and documents
        self._counts = list[TermCounts]()
        if analyzer.stop_words:
            self._count([(" ".join(sorted(analyzer.stop_words)).encode(), True)])

    def add(self, texts: Iterable[str], report: Callable[[int], None]) -> None:
        block = list[tuple[bytes, bool]]()
        size = 0
        for text in chain(texts, [None]):
            if text is not None:
                block.append(self._analyzer.encode(text))
                size += len(block[-1][0])
            if block and (size >= BLOCK or text is None):
                self._counts.append(self._count(block))
                self._documents += len(block)
                report(len(block))
                block = []
                size = 0

    def _count(self, texts: Sequence[tuple[bytes, bool]]) -> TermCounts:
        data = np.frombuffer(b"".join(text for text, _ in texts), dtype=np.uint8)
        ends = np.cumsum([len(text) for text, _ in texts], dtype=np.int64)
        block = TextBlock(data, ends, np.array([prepared for _, prepared in texts]))
        most = len(data) // 2 + len(texts)  # words: two are a blank or an end apart
        self._make_room(most, len(data))
        rows, numbers = np.empty((2, most), dtype=np.int32)
        distinct, lengths = np.zeros((2, len(texts)), dtype=np.int64)
        counts = TermCounts(rows, numbers, distinct, lengths)
        self._known, postings = numba_kernels.count_terms(
            block,
            self._reading,
            self._words,
            self._known,
            self._documents,
            self._seen,
            self._place,
            counts,
        )
        return counts._replace(rows=rows[:postings].copy(), numbers=numbers[:postings].copy())

    def _make_room(self, words: int, letters: int) -> None:
        table = self._words
        needed = self._known + words
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
        numba_kernels.rehash(slots, codes, self._known)
        return slots

    def save(self, folder: Path) -> None:
        _, codes, starts, letters = self._words
        slots = self._hash(codes, self._known)
        table = WordTable(
            slots, codes[: self._known], starts[: self._known + 1], letters[: starts[self._known]]
        )
        frequency = np.zeros(self._known - self._reading.skipped, dtype=np.int64)
        for counts in self._counts:
            frequency += np.bincount(counts.rows, minlength=len(frequency))
        indptr = np.concatenate(([0], np.cumsum(frequency)))
        lengths = np.concatenate([counts.lengths for counts in self._counts])
        pairs, bases, numbers = self._number(lengths)
        documents = np.empty(indptr[-1], np.uint16)
        kinds = np.empty(indptr[-1], numbers.dtype)
        first = 0
        free = indptr[:-1].copy()
        for counts in self._counts:
            numba_kernels.scatter_postings(
                counts, first, bases, numbers, free, PostingLists(indptr, documents, kinds)
            )
            first += len(counts.distinct)
        arrays = PostingLists(indptr, documents, kinds)._asdict() | table._asdict()
        for name, array in {**arrays, "pairs": pairs, "lengths": lengths}.items():
            np.save(folder / f"{name}.npy", array)

    def _number(self, lengths: Ints) -> tuple[Ints, Ints, NDArray[Any]]:
        # The pairs of a count and a length that the segment has, shape (2, pairs), by count; and
        # their numbers: of the pair (count, length of document n) it is numbers[bases[n] + count -
        # 1].
        sizes, length_index = np.unique(lengths, return_inverse=True)
        # the largest count in documents of each length
        most = np.zeros(len(sizes), dtype=np.int64)
        first = 0
        for counts in self._counts:
            owners = length_index[first : first + len(counts.distinct)]
            np.maximum.at(most, np.repeat(owners, counts.distinct), counts.numbers)
            first += len(owners)
        starts: Ints = np.cumsum(most) - most
        bases = starts[length_index]
        is_used = np.zeros(int(most.sum()), dtype=np.bool_)
        first = 0
        for counts in self._counts:
            document_bases = bases[first : first + len(counts.distinct)]
            is_used[np.repeat(document_bases, counts.distinct) + counts.numbers - 1] = True
            first += len(document_bases)
        count = np.arange(len(is_used)) - np.repeat(starts, most) + 1
        places = np.flatnonzero(is_used)
        places = places[np.argsort(count[places], kind="stable")]
        numbers = np.zeros(len(is_used), np.uint16 if len(places) <= 1 << 16 else np.uint32)
        numbers[places] = np.arange(len(places))
        return np.stack((count[places], np.repeat(sizes, most)[places])), bases, numbers


def _grow(array: NDArray[Any], needed: int, fill: int) -> NDArray[Any]:
    grown = np.full(max(needed, 2 * len(array)), fill, dtype=array.dtype)
    grown[: len(array)] = array
    return grown
