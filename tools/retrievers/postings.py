"""Counting a corpus: which document has which word, and how often. Both BM25 retrievers weigh these counts.

The counts become an index in bm25s' engine and on-disk form. bm25s itself counts in Python, document by document; here
it is one sort for every few million words, so that a corpus of a million passages is counted in a few gigabytes.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import bm25s
import numpy as np
from numpy.typing import NDArray

from tools.errors import DataError


@dataclass(frozen=True, slots=True)
class Postings:
    """One entry for every pair of a word and a document that has it, ordered by word, then by document."""

    vocabulary: dict[str, int]  # word -> row, in order of first appearance
    word: NDArray[np.int32]  # the word's row, shape (postings,)
    document: NDArray[np.int32]  # the document's position in the corpus, shape (postings,)
    count: NDArray[np.int32]  # how often, at least 1, shape (postings,)
    frequency: NDArray[np.int64]  # documents that have the word, shape (words,)
    lengths: NDArray[np.int64]  # words in the document, shape (documents,)

    @property
    def average_length(self) -> float:
        """Words per document."""
        return int(self.lengths.sum()) / len(self.lengths)


BLOCK = 4_000_000  # words that are sorted at a time

# Of one run of documents: word, document and count of each pair, ordered as in Postings.
_Block = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]


def count(texts: Iterable[Sequence[str]]) -> Postings:
    """The postings of `texts`, one sequence of words a document. DataError when there is no word in them."""
    vocabulary: dict[str, int] = {}
    rows, lengths, blocks = array("i"), array("i"), list[_Block]()
    first = 0  # the first document of the block at hand
    for text in texts:
        rows.extend([vocabulary.setdefault(word, len(vocabulary)) for word in text])
        lengths.append(len(text))
        if len(rows) >= BLOCK:
            blocks.append(_counted(rows, lengths[first:], first))
            rows, first = array("i"), len(lengths)
    if rows:
        blocks.append(_counted(rows, lengths[first:], first))
    if not blocks:
        raise DataError("the corpus has no words in it; nothing can be searched")
    return _joined(blocks, vocabulary, np.asarray(lengths, dtype=np.int64))


def _counted(rows: "array[int]", lengths: "array[int]", first: int) -> _Block:
    documents = np.repeat(np.arange(len(lengths)), lengths)
    # A pair as one number: word-major, so that sorted pairs are in the order of the index.
    pairs, counts = np.unique(np.asarray(rows, dtype=np.int64) * len(lengths) + documents, return_counts=True)
    word, document = np.divmod(pairs, len(lengths))
    return word.astype(np.int32), (document + first).astype(np.int32), counts.astype(np.int32)


def _joined(blocks: list[_Block], vocabulary: dict[str, int], lengths: NDArray[np.int64]) -> Postings:
    """The blocks, which have their documents in order, as one: each pair goes where its word's next one belongs."""
    frequency = np.zeros(len(vocabulary), dtype=np.int64)
    for word, _, _ in blocks:
        frequency += np.bincount(word, minlength=len(vocabulary))
    free = np.concatenate(([0], np.cumsum(frequency)[:-1]))  # the next free place of every word
    documents, counts = np.empty(frequency.sum(), dtype=np.int32), np.empty(frequency.sum(), dtype=np.int32)
    for word, document, number in blocks:
        of_word = np.bincount(word, minlength=len(vocabulary))
        starts = np.concatenate(([0], np.cumsum(of_word)[:-1]))  # where each word's run starts in this block
        places = free[word] + np.arange(len(word)) - starts[word]
        documents[places], counts[places] = document, number
        free += of_word
    words = np.repeat(np.arange(len(vocabulary), dtype=np.int32), frequency)
    return Postings(vocabulary, words, documents, counts, frequency, lengths)


def index_of(postings: Postings, weights: NDArray[Any]) -> bm25s.BM25:
    """A bm25s index that scores a document with the sum of `weights`, shape (postings,), of the query's words."""
    index = bm25s.BM25(dtype=weights.dtype.name)
    index.scores = {
        "data": weights,
        "indices": postings.document,
        "indptr": np.concatenate(([0], np.cumsum(postings.frequency))),
        "num_docs": len(postings.lengths),
    }
    index.vocab_dict = postings.vocabulary
    index.nonoccurrence_array = None  # for variants that score absent words, which ours are not; save() asks
    return index
