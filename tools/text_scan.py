"""Exact looks into the texts of a corpus: patterns, phrases and counts of words.

Texts are searched line by line, in the order of the corpus. Patterns have RE2's syntax, by way of
pyarrow, and the time of a text grows with its length alone. About a megabyte of texts is read at a
time, until a scan is out of time, or has the matches to show and has read 50 MB. An index of words
(tools/retrievers/lexical/word_index.py) leaves out texts that cannot match; no match depends on it.

Left out: titles, matches across lines, and sessions with their limits (tools/session.py).
"""

import re
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, chain, islice, repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sextant.tools.corpus import Corpus
from sextant.tools.errors import ScanRefused, require_at_least
from sextant.tools.records import Document
from sextant.tools.retrievers.base import Ids
from sextant.tools.retrievers.lexical.word_index import LEAST_CHARACTERS, WORD_CLASS, WordIndex
from sextant.tools.text import UNSPACED

LINES_AROUND = (2, 2)  # before a match, and after it
CHARACTERS_AROUND = 700  # the most of those lines on each side of a match
_CHUNK = 1 << 20  # characters of texts that are read at a time
_BLANKS = r"[\s\x0b\x1c-\x1f\x85\pZ]+"  # those of str.split
_OUTSIDE = rf"[^{WORD_CLASS}]|[{UNSPACED}]"  # what may be next to a whole word
# Of a pattern: what stands for no character or for several, and what may be left out.
_ESCAPE_OR_CLASS = re.compile(
    r"\\(?:[pPx](?:\{[^}]*\}|[0-9A-Fa-f]{2}|.)|\d+|.)"
    r"|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]",
    re.DOTALL,
)
_GROUP = re.compile(r"\([^()]*\)")
_NOT_LITERAL = re.compile(r".(?:[*+?]|\{\d+(?:,\d*)?\})+|[\0.^$]", re.DOTALL)


class LineMatch(NamedTuple):
    """A line that matches, or several close ones. Offsets are characters of the document's text."""

    doc_id: str
    line: int  # the first that matches, from 1
    # The text to show: the lines and two around, less if they are long.
    start: int
    end: int
    # The first match in that line; it may end after `end`.
    match_start: int
    match_end: int


class ScanResult(NamedTuple):
    """The first matches, in the order of the corpus, and how many lines and documents match."""

    matches: list[LineMatch]
    lines: int
    documents: int
    cut: str  # why the scan ended early, with only what it had found; "" if it is complete


class WordCounts(NamedTuple):
    """How many documents have each word, and all of them."""

    documents: dict[str, int]
    together: int
    cut: str  # as in ScanResult


class _Query(NamedTuple):
    """A pattern between two that are not part of its matches."""

    before: str
    pattern: str
    after: str
    words: Sequence[str]  # texts whose words every match has
    literal: str  # a text that every match has

    def match_lines(self, documents: Sequence[Document]) -> tuple[pa.ListArray, pa.BooleanArray]:
        """Return the lines of each document, and whether each of all these lines matches."""
        texts = [document.text.replace("\r\n", "\n").removesuffix("\r") for document in documents]
        lines = pc.split_pattern(_to_arrow(texts), "\n")
        pattern = f"{self.before}(?:{self.pattern}){self.after}"
        return lines, pc.match_substring_regex(lines.flatten(), pattern)

    def count_lines(self, documents: Sequence[Document]) -> list[tuple[Document, int]]:
        """Return the documents that match, and how many of their lines do."""
        lines, is_match = self.match_lines(documents)
        owners = pc.list_parent_indices(lines).filter(is_match)
        counts = np.bincount(owners, minlength=len(documents)).tolist()
        return [pair for pair in zip(documents, counts, strict=True) if pair[1]]

    def find(self, line: str) -> list[int]:
        """Return the start and the length of the first match in a line that has one."""
        whole = rf"\A((?s:.*?){self.before})({self.pattern}){self.after}(?s:.*)\z"
        text = _to_arrow([line])
        parts = [pc.replace_substring_regex(text, whole, group) for group in (r"\1", r"\2")]
        return [pc.utf8_length(part)[0].as_py() for part in parts]

    def list_matches(
        self, document: Document, around: tuple[int, int] = LINES_AROUND
    ) -> Iterator[LineMatch]:
        """Yield the matches of a document, in order, each with the lines `around` it."""
        lines = document.text.split("\n")
        starts = [0, *accumulate(len(line) + 1 for line in lines)]
        shown: LineMatch | None = None
        for number in pc.indices_nonzero(self.match_lines([document])[1]).to_pylist():
            before, length = self.find(lines[number].removesuffix("\r"))
            match_start = starts[number] + before
            first = max(0, number - around[0])
            last = min(number + around[1], len(lines) - 1)
            start = max(starts[first], match_start - CHARACTERS_AROUND)
            end = min(starts[last + 1] - 1, match_start + 2 * CHARACTERS_AROUND)
            if shown and start < shown.end and end - shown.start <= 3 * CHARACTERS_AROUND:
                shown = shown._replace(end=end)
                continue
            if shown:
                yield shown
            match_end = match_start + length
            shown = LineMatch(document.doc_id, number + 1, start, end, match_start, match_end)
        if shown:
            yield shown


def _to_arrow(texts: Sequence[str]) -> pa.LargeStringArray:
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return pa.array(encoded, pa.large_binary()).view(pa.large_string())  # without a check of UTF-8


class TextScanner:
    """Searches the texts of a corpus; threads may share it.

    All methods leave out `excluded` documents and, if a pool is given, all that are not `among` it,
    before anything is counted or cut. They end soon after `seconds`, apart from the time that an
    index takes. ScanRefused for what cannot be searched for.
    """

    def __init__(self, documents: Mapping[str, Document], index: WordIndex | None = None) -> None:
        self._corpus = documents if isinstance(documents, Corpus) else Corpus(documents.values())
        self._index = index

    def grep(
        self,
        pattern: str,
        k: int,
        *,
        excluded: Ids = (),
        among: Ids | None = None,
        seconds: float = 10.0,
        around: tuple[int, int] = LINES_AROUND,
        most: int | None = None,
    ) -> ScanResult:
        """Return the first `k` matches of a pattern in RE2's syntax, at most `most` of a document."""
        return self._scan(_read_pattern(pattern), excluded, among, seconds).show(k, around, most)

    def phrase(
        self,
        text: str,
        k: int,
        *,
        excluded: Ids = (),
        among: Ids | None = None,
        seconds: float = 10.0,
    ) -> ScanResult:
        """Return the first `k` matches of the whole words of `text`, in order, in any letter case and
        with any blanks between them.
        """
        return self._scan(_read_phrase(text), excluded, among, seconds).show(k)

    def count(
        self,
        words: Sequence[str],
        *,
        excluded: Ids = (),
        among: Ids | None = None,
        seconds: float = 10.0,
    ) -> WordCounts:
        """Return how many documents have each of the words, or phrases, and how many have all."""
        require_at_least(1, "count", words=len(words))
        having = {}
        cuts = []
        for word in words:
            scan = self._scan(_read_phrase(word), excluded, among, seconds / len(words))
            having[word] = {document.doc_id for document, _ in scan}
            cuts.append(scan.cut)
        counts = {word: len(doc_ids) for word, doc_ids in having.items()}
        return WordCounts(counts, len(set.intersection(*having.values())), max(cuts))

    def _scan(
        self,
        query: _Query,
        excluded: Ids,
        among: Ids | None,
        seconds: float,
    ) -> "_Scan":
        can_match = self._index.having(query.words) if self._index else repeat(True)
        pool = None if among is None else frozenset(among)
        rows = (
            row
            for row, (doc_id, is_read) in enumerate(zip(self._corpus, can_match, strict=False))
            if is_read and doc_id not in excluded and (pool is None or doc_id in pool)
        )
        wanted = array("q", rows)
        return _Scan(self._corpus, query, wanted, time.monotonic() + seconds)


@dataclass
class _Scan:
    """A pass over the documents in some rows; yields those that match, and how many lines do."""

    corpus: Corpus
    query: _Query
    rows: Sequence[int]
    end: float  # by time.monotonic()
    done: int = 0  # documents
    characters: int = 0  # of these documents
    has_enough: bool = False  # matches to show; then only so many characters are read and counted

    def __iter__(self) -> Iterator[tuple[Document, int]]:
        with ThreadPoolExecutor(1) as pool:
            matched = pool.submit(list[tuple[Document, int]])
            # Texts are read while those before are matched.
            for documents in chain(self._read(), ([],)):
                before = matched
                matched = pool.submit(self.query.count_lines, documents)
                yield from before.result()

    def _read(self) -> Iterator[list[Document]]:
        documents = list[Document]()
        chunk_end = _CHUNK
        for document in self.corpus.stream(self.rows):
            self.done += 1
            self.characters += len(document.text)
            if self.query.literal in document.text:
                documents.append(document)
            if self.characters >= chunk_end or self.done == len(self.rows):
                yield documents
                is_counted = self.has_enough and self.characters >= LEAST_CHARACTERS
                if is_counted or time.monotonic() >= self.end:
                    return
                documents = []
                chunk_end = self.characters + _CHUNK

    def show(
        self,
        k: int,
        around: tuple[int, int] = LINES_AROUND,
        most: int | None = None,
    ) -> ScanResult:
        """Return the first `k` matches, at most `most` of a document, with the lines `around` them."""
        require_at_least(1, "a scan", k=k)
        matches = list[LineMatch]()
        numbers = []
        for document, number in self:
            numbers.append(number)
            of_document = islice(self.query.list_matches(document, around), most)
            matches += islice(of_document, k - len(matches))
            self.has_enough = len(matches) == k
        return ScanResult(matches, sum(numbers), len(numbers), self.cut)

    @property
    def cut(self) -> str:
        """As in ScanResult, after the pass."""
        if self.done == len(self.rows):
            return ""
        reason = "counted in the first" if self.has_enough else "out of time after"
        return f"{reason} {self.done:,} of {len(self.rows):,} documents"


def _read_pattern(pattern: str) -> _Query:
    literals = _list_literals(pattern)
    # A flag such as (?i) may be anywhere.
    longest = "" if "(?" in pattern else max(literals, key=len)
    return _check(_Query("", pattern, "", literals, longest))


def _list_literals(pattern: str) -> Sequence[str]:
    """Return texts that every match has: none of a group, and none if there are alternatives."""
    plain = _ESCAPE_OR_CLASS.sub("\0", pattern)
    while (simpler := _GROUP.sub("\0", plain)) != plain:
        plain = simpler
    return [""] if "|" in plain or r"\Q" in pattern else _NOT_LITERAL.split(plain)


def _read_phrase(text: str) -> _Query:
    words = text.split()
    pattern = f"(?i:{_BLANKS.join(map(re.escape, words))})" if words else ""
    phrase = f" {' '.join(words)} "
    return _check(_Query(f"(?:^|{_OUTSIDE})", pattern, f"(?:$|{_OUTSIDE})", [phrase], ""))


def _check(query: _Query) -> _Query:
    """Return a query, or refuse one that RE2 does not read."""
    if not query.pattern:
        raise ScanRefused("there is nothing to search for; give a pattern or words")
    try:
        pc.match_substring_regex("", query.pattern)
        query.find("")
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        reason = " ".join(str(error).split())
        raise ScanRefused(
            f"this cannot be searched for: {reason}; give a pattern in RE2's syntax, which has no "
            "backreferences and no look-around"
        ) from None
    return query
