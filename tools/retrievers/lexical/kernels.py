"""The inner loops of the inverted index, compiled: reading words, turning counts into postings, and summing them.

Plain loops over arrays, which inverted_index.py and postings.py allocate. They hold no lock of the interpreter,
so threads run them side by side. Their machine code is kept on disk where numba finds a place for it, so only the
first process on a machine waits some seconds for the compiler. Additions are never reordered and never contracted.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Floats = NDArray[Any]  # float32 or float64

_BLOCK = 1 << 15  # documents whose scores are added up at a time: 128 kB of float32


class Words(NamedTuple):
    """A hash table of words. Row n is the word letters[starts[n]:starts[n + 1]], with its hash in codes[n]."""

    slots: Rows  # rows, found by hash; -1 is free; there are 2**n, more than half of them free
    codes: Ints
    starts: Ints
    letters: Bytes


class Reading(NamedTuple):
    """How bytes become words."""

    table: Bytes  # (2, 256): what each byte counts as, 0 where it separates words; of plain and of prepared texts
    skipped: int  # the stop words are the first rows; other rows count from there


class Block(NamedTuple):
    """Some texts end to end."""

    data: Bytes
    ends: Ints  # where each text ends, shape (texts,)
    prepared: NDArray[np.bool_]  # whether it is words joined by blanks; elsewhere a word has two letters or more


class Counts(NamedTuple):
    """The words of a block of documents, document after document."""

    rows: Rows  # a word of the document, shape (postings,)
    numbers: Rows  # how often it is there, at least 1, shape (postings,)
    distinct: Ints  # postings of each document, shape (documents,)
    lengths: Ints  # words of each document, shape (documents,)


class Weights(NamedTuple):
    """A posting of a word that a document has `count` times weighs idf * (count * gain / (count + norm))."""

    idf: NDArray[np.float64]  # shape (words,)
    norm: NDArray[np.floating[Any]]  # shape (documents,)
    gain: float = 1.0


class Lists(NamedTuple):
    """The posting lists, see postings.py."""

    indptr: Ints
    documents: Rows
    weights: Floats
    places: Rows
    common: Floats


def _compiled(function: F) -> F:
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # neither this folder, nor one of the user's, nor NUMBA_CACHE_DIR can be written
        return cast(F, numba.njit(nogil=True)(function))


@_compiled
def _find(word: Bytes, length: int, code: int, words: Words) -> int:
    """The slot that has the word, or the free one where it belongs."""
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


@_compiled
def _read(data: Bytes, at: int, end: int, letter: Bytes, word: Bytes) -> tuple[int, int, int]:
    """The next run of letters in data[at:end], put into `word`: its length, its hash (FNV-1a), and where it ends.

    `letter` says for each byte which one it counts as; 0 separates. The length is 0 when there is no other word.
    """
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


@_compiled
def rehash(slots: Rows, codes: Ints, words: int) -> None:
    """Put the words, which are all different, into empty slots."""
    for row in range(words):
        slot = (codes[row] ^ (codes[row] >> 29)) & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = row


@_compiled
def look_up(data: Bytes, prepared: bool, reading: Reading, words: Words, found: Rows) -> int:
    """The rows of those words of `data` that are known, in order, into `found`; how many they are. As in `count`."""
    word, number, at = np.empty(len(data), np.uint8), 0, 0
    letter, shortest = (reading.table[1], 1) if prepared else (reading.table[0], 2)
    while True:
        length, code, at = _read(data, at, len(data), letter, word)
        if length == 0:
            return number
        if length >= shortest:
            row = words.slots[_find(word, length, code, words)]
            if row >= reading.skipped:
                found[number] = row - reading.skipped
                number += 1


@_compiled
def count(
    block: Block, reading: Reading, words: Words, known: int, first: int, seen: Ints, place: Ints, counts: Counts
) -> tuple[int, int]:
    """Count the words of a block of documents, and enter the new ones; how many words and postings there are now.

    Text n of the block is document `first` + n of the corpus. `known` words are in the table. `seen` and `place` say of
    each word in which document it was last, and where its count is.
    """
    data, (slots, codes, starts, letters), (rows, numbers, distinct, lengths) = block.data, words, counts
    word, postings, start = np.empty(len(data), np.uint8), 0, 0
    for document in range(len(block.ends)):
        at, before = start, postings
        letter, shortest = (reading.table[1], 1) if block.prepared[document] else (reading.table[0], 2)
        while True:
            length, code, at = _read(data, at, block.ends[document], letter, word)
            if length == 0:
                break
            if length < shortest:
                continue
            slot = _find(word, length, code, words)
            row = slots[slot]
            if row < 0:
                row = known
                slots[slot], codes[row] = row, code
                starts[row + 1] = starts[row] + length
                letters[starts[row] : starts[row + 1]] = word[:length]
                known += 1
            if row < reading.skipped:
                continue
            lengths[document] += 1
            if seen[row] != first + document:
                seen[row], place[row] = first + document, postings
                rows[postings], numbers[postings] = row - reading.skipped, 0
                postings += 1
            numbers[place[row]] += 1
        distinct[document] = postings - before
        start = block.ends[document]
    return known, postings


@_compiled
def place_postings(counts: Counts, first: int, weigh: Weights, free: Ints, documents: Rows, weights: Floats) -> None:
    """Put the counts of a block, which are by document, where they belong by word, with their weights.

    free[row] is the next free place of each word; blocks come in the order of their documents.
    """
    at, (idf, norm, gain) = 0, weigh
    for n in range(len(counts.distinct)):
        document = first + n
        for posting in range(at, at + counts.distinct[n]):
            row, number = counts.rows[posting], float(counts.numbers[posting])
            documents[free[row]] = document
            weights[free[row]] = idf[row] * (number * gain / (number + norm[document]))
            free[row] += 1
        at += counts.distinct[n]


@_compiled
def _add_list(documents: Rows, weights: Floats, amount: float, end: int, scores: Floats) -> int:
    """Add the postings of the documents before `end`; how many they are."""
    i = 0
    # Four at a time, of which no two are the same document, so that they need not wait for each other; and as
    # unsigned numbers, because a signed index is compared with 0 first. Together that halves the time.
    while i < len(documents) - 3 and documents[i + 3] < end:
        a, b = np.uint32(documents[i]), np.uint32(documents[i + 1])
        c, d = np.uint32(documents[i + 2]), np.uint32(documents[i + 3])
        score_a, score_b = scores[a] + amount * weights[i], scores[b] + amount * weights[i + 1]
        score_c, score_d = scores[c] + amount * weights[i + 2], scores[d] + amount * weights[i + 3]
        scores[a], scores[b], scores[c], scores[d] = score_a, score_b, score_c, score_d
        i += 4
    while i < len(documents) and documents[i] < end:
        scores[np.uint32(documents[i])] += amount * weights[i]
        i += 1
    return i


@_compiled
def add(lists: Lists, terms: Ints, amounts: Floats, scores: Floats) -> None:
    """Add to every document's score, term after term, the amount of the term times its weight in the document.

    The weights of a term are common[places[term]], or, where that place is -1, in its list of postings. It is done
    for one block of the documents after the other, whose scores stay in the processor's cache.
    """
    indptr, documents, weights, places, common = lists
    at = indptr[terms]  # the next posting of each list
    for first in range(0, len(scores), _BLOCK):
        end = min(first + _BLOCK, len(scores))
        block = scores[first:end]
        for n in range(len(terms)):
            amount, term = amounts[n], terms[n]
            if places[term] >= 0:
                row = common[places[term], first:end]
                for i in range(len(block)):
                    block[i] += amount * row[i]
            else:
                last = indptr[term + 1]
                at[n] += _add_list(documents[at[n] : last], weights[at[n] : last], amount, end, scores)
