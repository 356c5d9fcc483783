"""BM25 exactly as the rank-bm25 package scores it: over the corpus, by an inverted index, and over
each pool.

OBLIQ-Bench and MultiConIR publish their BM25 rows with `rank_bm25.BM25Okapi` and its defaults
(k1=1.5, b=0.75, epsilon=0.25). Its idf is ln((N - n + 0.5) / (n + 0.5)), and a negative idf (a word
in more than half of the documents) is replaced by epsilon times the mean idf. All of it is done in
double precision and in the library's order of operations, so the scores are equal to the last bit.
As in the library, and unlike the other retrievers, every document is a hit, even without a shared
word with the query, and of equal scores the later document goes first.

MultiConIR's script makes an index of the two or eleven documents of a row, with
`text.lower().split()` as words. Of two documents, a word in a single document weighs nothing, and
the negative weight of a word of both is replaced, so a changed word is never seen: the published
figures measure that. `PoolBM25` repeats it.
"""

import math
import re
import string
from functools import cached_property
from pathlib import Path

import numpy as np
from rank_bm25 import BM25Okapi

from sextant.tools.corpus import Corpus
from sextant.tools.records import Hits
from sextant.tools.retrievers.base import Ranker, Retriever, Search, Searches
from sextant.tools.retrievers.expressions import format_expression
from sextant.tools.retrievers.lexical.bm25 import LexicalRetriever
from sextant.tools.retrievers.lexical.inverted_index import Analyzer
from sextant.tools.retrievers.lexical.numba_kernels import Doubles, Ints

# As OBLIQ-Bench's WildChat script, the only one there that calls rank_bm25: lower case, everything
# but ASCII letters, digits and blanks becomes a blank, words of one character are dropped, no stop
# words.
_NO_WORD_CHARACTER = re.compile(r"[^a-z0-9\s]")


def words(text: str) -> list[str]:
    """Return the release's words of `text`, in order, with repeats."""
    return [word for word in _NO_WORD_CHARACTER.sub(" ", text.lower()).split() if len(word) > 1]


_ANALYZER = Analyzer(words, string.ascii_letters + string.digits)


class RankBM25(LexicalRetriever):
    """`rank_bm25.BM25Okapi` over a corpus, same scores, a fraction of the time."""

    dtype = np.float64
    above = -np.inf
    ties_by_id = False  # as in the library, the later one goes first

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None = None,
        *,
        k1: float = 1.5,
        b: float = 0.75,
        epsilon: float = 0.25,
    ) -> None:
        self._k1 = k1
        self._b = b
        self._epsilon = epsilon
        self.name = format_expression(
            "rank_bm25",
            options={
                "k1": k1,
                "b": b,
                "epsilon": epsilon,
            },
        )
        self.open(corpus, home, _ANALYZER, {"kind": "rank_bm25"})

    @cached_property
    def _floor(
        self,
    ) -> float:
        """Epsilon times the mean idf, which is summed in order of first appearance."""
        documents = self.totals.documents
        total = 0.0
        numbers = self.statistics().frequency.values()
        # Not sum(): from Python 3.12 on it compensates, and differs in the last digit.
        for n in numbers:
            total += math.log(documents - n + 0.5) - math.log(n + 0.5)
        return self._epsilon * (total / len(numbers))

    def weigh_words(self, frequencies: Ints, documents: int) -> Doubles:
        """Return BM25Okapi's idf."""
        idf = [math.log(documents - n + 0.5) - math.log(n + 0.5) for n in frequencies.tolist()]
        return np.array([self._floor if value < 0 else value for value in idf])

    def weigh_counts(
        self,
        counts: Ints,
        lengths: Ints,
        average_length: float,
    ) -> Doubles:
        """Return the saturated counts."""
        norm = self._k1 * (1 - self._b + self._b * lengths / average_length)
        return counts * (self._k1 + 1) / (counts + norm)


class PoolBM25(Retriever):
    """`BM25Okapi` with its defaults over the documents of a single pool; nothing is kept."""

    mapped = True
    # A run without pools is refused: it would make an index of the whole corpus for every query
    needs_pool = True

    def __init__(self, corpus: Corpus, home: Path | None = None) -> None:
        self.name = "pool_bm25"
        self._corpus = corpus

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        return [self._search(search, k) for search in searches]

    def _search(self, search: Search, k: int) -> Hits:
        among = self._corpus if search.among is None else search.among
        pool = sorted(
            doc_id for doc_id in set(among) - set(search.excluded) if doc_id in self._corpus
        )
        texts = [self._corpus[doc_id].text.lower().split() for doc_id in pool]
        if not any(texts):
            return Hits([], [])  # the package divides by the number of words
        return Ranker(pool).top(
            np.asarray(BM25Okapi(texts).get_scores(search.text.lower().split())), k
        )
