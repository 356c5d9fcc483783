"""Counting a corpus: which document has which word, and how often. Both BM25 retrievers weigh these counts.

The counts become an index in bm25s' engine and on-disk form. bm25s itself counts in Python, document by document; here
it is one sort over the whole corpus.
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
    word: NDArray[np.int64]  # the word's row, shape (postings,)
    document: NDArray[np.int64]  # the document's position in the corpus, shape (postings,)
    count: NDArray[np.int64]  # how often, at least 1, shape (postings,)
    frequency: NDArray[np.int64]  # documents that have the word, shape (words,)
    lengths: NDArray[np.int64]  # words in the document, shape (documents,)

    @property
    def average_length(self) -> float:
        """Words per document."""
        return int(self.lengths.sum()) / len(self.lengths)


def count(texts: Iterable[Sequence[str]]) -> Postings:
    """The postings of `texts`, one sequence of words a document. DataError when there is no word in them."""
    vocabulary: dict[str, int] = {}
    rows, lengths = array("i"), array("i")
    for text in texts:
        rows.extend([vocabulary.setdefault(word, len(vocabulary)) for word in text])
        lengths.append(len(text))
    if not rows:
        raise DataError("the corpus has no words in it; nothing can be searched")
    documents = np.repeat(np.arange(len(lengths)), lengths)
    # A pair as one number: word-major, so that sorted pairs are in the order of the index.
    pairs, counts = np.unique(np.asarray(rows, dtype=np.int64) * len(lengths) + documents, return_counts=True)
    word, document = np.divmod(pairs, len(lengths))
    frequency = np.bincount(word, minlength=len(vocabulary))
    return Postings(vocabulary, word, document, counts, frequency, np.asarray(lengths, dtype=np.int64))


def index_of(postings: Postings, weights: NDArray[Any]) -> bm25s.BM25:
    """A bm25s index that scores a document with the sum of `weights`, shape (postings,), of the query's words."""
    index = bm25s.BM25(dtype=weights.dtype.name)
    index.scores = {
        "data": weights,
        "indices": postings.document.astype(np.int32),
        "indptr": np.concatenate(([0], np.cumsum(postings.frequency))),
        "num_docs": len(postings.lengths),
    }
    index.vocab_dict = postings.vocabulary
    index.nonoccurrence_array = None  # for variants that score absent words, which ours are not; save() asks
    return index
