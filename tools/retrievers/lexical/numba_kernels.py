"""The compiled loops of an inverted index: reading words, turning counts into postings, and
searching these.

The loops hold no lock of the interpreter, so threads run them side by side. The first process on a
machine waits some seconds for the compiler (compiled_loops.py).

A score is the sum of the weights of the query's terms, in the query's order and with its repeats.
Additions are never reordered and never contracted: that would change the last digits, and so the
order of nearly equal documents.

Segments (inverted_index.py) hold counts. `Postings` hold weights that a model has made.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import carray
from numpy.typing import NDArray

from sextant.tools.records import Hits
from sextant.tools.retrievers.base import Ids, Ranker
from sextant.tools.retrievers.lexical.compiled_loops import compile_loop, pointer_to

A = TypeVar("A")
B = TypeVar("B")
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Doubles = NDArray[np.float64]
Floats = NDArray[Any]  # float32 or float64
Kinds = NDArray[np.uint16] | NDArray[np.uint32]

# Of each segment, addresses of its arrays and their lengths, for loops over all segments. The
# names are those of `WordTable`, `PostingLists` and `Segment`.
SEGMENT = np.dtype(
    [
        (name, np.int64)
        for name in (
            "slots",
            "slot_count",
            "codes",
            "starts",
            "letters",
            "words",
            "indptr",
            "documents",
            "kinds",
            "postings",
            "has_wide_kinds",  # of 4 bytes instead of 2
            "shares",  # what a posting of each kind adds, for a word of weight 1
            "share_count",
            "size",
        )
    ]
)
SegmentTable = Any  # an array of SEGMENT


class WordTable(NamedTuple):
    """A hash table of words. Row n is the word letters[starts[n]:starts[n + 1]], with its hash in codes[n]."""

    slots: Rows  # rows by hash; -1 is free; their number is 2**n, more than half of them free
    codes: Ints
    starts: Ints
    letters: Bytes


class TokenizerSettings(NamedTuple):
    """How bytes become words."""

    # The letter that each byte counts as, or 0 if it separates words, shape (2, 256): for plain and
    # for prepared texts.
    table: Bytes
    skipped: int  # the stop words are the first rows; other rows count from there


class TextBlock(NamedTuple):
    """Texts joined end to end."""

    data: Bytes
    ends: Ints  # the end of each text, shape (texts,)
    # Whether a text is words joined by blanks; in other texts a word has two letters or more.
    prepared: NDArray[np.bool_]
    word: Bytes  # room for any of its words


class TermCounts(NamedTuple):
    """The words of a block of documents, document after document."""

    rows: Rows  # a word of the document, shape (postings,)
    numbers: Rows  # how often it is there, at least 1, shape (postings,)
    distinct: Ints  # postings of each document, shape (documents,)
    lengths: Ints  # words of each document, shape (documents,)


class PostingLists(NamedTuple):
    """The posting lists of a segment: that of word n is indptr[n]:indptr[n + 1] of the others."""

    indptr: Ints
    documents: NDArray[np.uint16]  # ascending in each list
    kinds: Kinds


class WeightedPostingLists(NamedTuple):
    """The posting lists of a corpus: that of term t is indptr[t]:indptr[t + 1] of the others."""

    indptr: Ints
    documents: Rows  # ascending positions in the corpus
    weights: Floats


@compile_loop()
def _find(
    word: Bytes,
    length: int,
    code: int,
    words: WordTable,
) -> int:
    slots, codes, starts, letters = words
    last = len(slots) - 1
    slot = (code ^ (code >> 29)) & last
    while slots[slot] >= 0:
        row = slots[slot]
        if codes[row] == code and starts[row + 1] - starts[row] == length:
            n = 0
            while n < length and letters[starts[row] + n] == word[n]:
                n += 1
            if n == length:
                break
        slot = (slot + 1) & last
    return slot


@compile_loop()
def _read(
    data: Bytes,
    at: int,
    end: int,
    letter: Bytes,
    word: Bytes,
) -> tuple[int, int, int]:
    # Puts the next run of letters in data[at:end] into `word`; returns its length, its hash
    # (FNV-1a), and its end. `letter` says for each byte which one it counts as; 0 separates. The
    # length is 0 when there is no other word.
    while at < end and letter[data[at]] == 0:
        at += 1
    length = 0
    code: Any = -3750763034362895579  # the offset basis 14695981039346656037, as a signed number
    while at < end and letter[data[at]] != 0:
        word[length] = letter[data[at]]
        code = (code ^ np.int64(word[length])) * 1099511628211
        length += 1
        at += 1
    return length, code, at


@compile_loop()
def rehash(slots: Rows, codes: Ints, words: int) -> None:
    """Put the words, which are all different, into empty slots."""
    for row in range(words):
        slot = (codes[row] ^ (codes[row] >> 29)) & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = row


@compile_loop()
def look_up_words(
    data: Bytes,
    prepared: bool,
    reading: TokenizerSettings,
    segments: SegmentTable,
    word: Bytes,
    rows: Rows,
    frequencies: Ints,
) -> int:
    """Put the rows of each word that is no stop word into `rows`, shape (segments, at least words);
    return the number of words.

    -1 is no row. The frequency of each word is added to `frequencies`. `word` has room for any
    word.
    """
    number = 0
    at = 0
    letter, shortest = (reading.table[1], 1) if prepared else (reading.table[0], 2)
    while True:
        length, code, at = _read(data, at, len(data), letter, word)
        if length == 0:
            return number
        if length < shortest:
            continue
        is_stop_word = False
        for n in range(len(segments)):
            segment = segments[n]
            starts = carray(pointer_to(segment.starts), segment.words + 1, np.int64)
            words = WordTable(
                carray(pointer_to(segment.slots), segment.slot_count, np.int32),
                carray(pointer_to(segment.codes), segment.words, np.int64),
                starts,
                carray(pointer_to(segment.letters), starts[segment.words], np.uint8),
            )
            row = words.slots[_find(word, length, code, words)]
            if 0 <= row < reading.skipped:
                is_stop_word = True
                break
            rows[n, number] = -1 if row < 0 else row - reading.skipped
            if row >= 0:
                row -= reading.skipped
                indptr = carray(pointer_to(segment.indptr), segment.words + 1, np.int64)
                frequencies[number] += indptr[row + 1] - indptr[row]
        number += not is_stop_word


@compile_loop()
def count_terms(
    block: TextBlock,
    reading: TokenizerSettings,
    words: WordTable,
    word_count: int,
    first: int,
    last_document: Ints,
    position: Ints,
    counts: TermCounts,
) -> tuple[int, int]:
    """Count the words of a block of documents, and enter new words into the table.

    Returns the numbers of words in the table and of postings. Text n of the block is document
    `first` + n of the corpus. The table has `word_count` words before. For each word,
    `last_document` has the last document with it, and `position` the posting with its count there.
    """
    data = block.data
    word = block.word
    (slots, codes, starts, letters) = words
    (rows, numbers, distinct, lengths) = counts
    postings = 0
    at = 0
    for document in range(len(block.ends)):
        before = postings
        end = block.ends[document]
        letter, shortest = (
            (reading.table[1], 1) if block.prepared[document] else (reading.table[0], 2)
        )
        while True:
            length, code, at = _read(data, at, end, letter, word)
            if length == 0:
                break
            if length < shortest:
                continue
            slot = _find(word, length, code, words)
            row = slots[slot]
            if row < 0:
                row = word_count
                slots[slot] = row
                codes[row] = code
                starts[row + 1] = starts[row] + length
                for n in range(length):
                    letters[starts[row] + n] = word[n]
                word_count += 1
            if row < reading.skipped:
                continue
            lengths[document] += 1
            if last_document[row] != first + document:
                last_document[row] = first + document
                position[row] = postings
                rows[postings] = row - reading.skipped
                numbers[postings] = 0
                postings += 1
            numbers[position[row]] += 1
        distinct[document] = postings - before
    return word_count, postings


@compile_loop()
def scatter_postings(
    counts: TermCounts,
    first: int,
    bases: Ints,
    numbers: Kinds,
    free: Ints,
    lists: PostingLists,
) -> None:
    """Put the counts of a block, which begins with document `first`, into the lists of their words.

    free[row] is the next free position in the list of a word. The kind of a count in document n is
    numbers[bases[n] + count - 1].
    """
    at = 0
    for n in range(len(counts.distinct)):
        document = first + n
        for posting in range(at, at + counts.distinct[n]):
            row = counts.rows[posting]
            lists.documents[free[row]] = document
            lists.kinds[free[row]] = numbers[bases[document] + counts.numbers[posting] - 1]
            free[row] += 1
        at += counts.distinct[n]


@compile_loop()
def _add_word(
    documents: NDArray[np.uint16],
    kinds: Kinds,
    weight: float,
    shares: Doubles,
    products: Floats,
    scores: Floats,
) -> None:
    # Adds the weight of a word times the share of each posting's kind to the documents' scores. The
    # product is a rounded number.
    if 3 * len(kinds) < len(shares):
        for n in range(len(kinds)):
            products[kinds[n]] = weight * shares[kinds[n]]
    else:
        for kind in range(len(shares)):
            products[kind] = weight * shares[kind]
    for n in range(len(documents)):
        scores[documents[n]] += products[kinds[n]]


@compile_loop()
def score_documents(
    segments: SegmentTable,
    rows: Rows,
    weights: Doubles,
    products: Floats,
    scores: Floats,
) -> None:
    """Put the scores of the documents of the segments, one after another, into `scores`.

    `rows` are those of `look_up_words`, for words of these `weights`, which are added in their
    order. `products` has room for the shares of a segment, in the precision of the scores.
    """
    scores[:] = 0
    start = 0
    for number in range(len(segments)):
        segment = segments[number]
        own_scores = scores[start : start + segment.size]
        start += segment.size
        indptr = carray(pointer_to(segment.indptr), segment.words + 1, np.int64)
        shares = carray(pointer_to(segment.shares), segment.share_count, np.float64)
        documents = carray(pointer_to(segment.documents), segment.postings, np.uint16)
        kinds = carray(pointer_to(segment.kinds), segment.postings, np.uint16)
        wide_kinds = carray(pointer_to(segment.kinds), segment.postings, np.uint32)
        for n in range(len(weights)):
            row = rows[number, n]
            if row < 0:
                continue
            first = indptr[row]
            last = indptr[row + 1]
            owners = documents[first:last]
            if segment.has_wide_kinds:
                _add_word(owners, wide_kinds[first:last], weights[n], shares, products, own_scores)
            else:
                _add_word(owners, kinds[first:last], weights[n], shares, products, own_scores)


@compile_loop()
def accumulate_weights(
    lists: WeightedPostingLists, terms: Ints, amounts: Floats, scores: Floats
) -> None:
    """Add the amount of each term times its weight in a document to the documents' scores, term by
    term.
    """
    indptr, documents, weights = lists
    for n in range(len(terms)):
        for posting in range(indptr[terms[n]], indptr[terms[n] + 1]):
            scores[documents[posting]] += amounts[n] * weights[posting]


def map_array(path: Path) -> NDArray[Any]:
    """Memory-map an array: processes share its pages, and it costs no memory until it is read."""
    # In a third of the time of np.load; a large index has a thousand arrays.
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        return np.frombuffer(
            mmap(file.fileno(), 0, access=ACCESS_READ), dtype, offset=file.tell()
        ).reshape(shape)


class Postings:
    """The posting lists of a corpus, from a folder that has the fields of `WeightedPostingLists` as
    .npy files.

    Threads share it. Scores have the precision of the weights.
    """

    def __init__(self, folder: Path, ranker: Ranker) -> None:
        self._lists = WeightedPostingLists(
            *(map_array(folder / f"{name}.npy") for name in WeightedPostingLists._fields)
        )
        self._ranker = ranker

    def search(
        self,
        terms: NDArray[np.integer[Any]],
        k: int,
        *,
        amounts: Floats,
        excluded: Ids = (),
        among: Ids | None = None,
    ) -> Hits:
        """Return the `k` best documents with scores over 0.

        `terms`, shape (n,), are the query's, with repeats; `amounts`, shape (n,), positive,
        multiply their weights.
        """
        dtype = self._lists.weights.dtype
        scores = np.zeros(len(self._ranker), dtype)
        accumulate_weights(self._lists, terms.astype(np.int64), amounts.astype(dtype), scores)
        return self._ranker.top(scores, k, excluded=excluded, among=among, above=0.0)


def run_in_threads(function: Callable[[A], B], items: Sequence[A], threads: int = 2) -> list[B]:
    """Return the function's results, in order, made by some threads."""
    if len(items) == 1:
        return [function(items[0])]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))
