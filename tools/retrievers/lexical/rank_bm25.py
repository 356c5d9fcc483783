"""BM25 exactly as the rank-bm25 package scores it, from an inverted index instead of a loop over documents.

OBLIQ-Bench and MultiConIR publish their BM25 rows with `rank_bm25.BM25Okapi` and its defaults (k1=1.5, b=0.75,
epsilon=0.25). Its idf is ln((N - n + 0.5) / (n + 0.5)), and a negative one (a word in more than half of the documents)
is replaced by epsilon times the mean idf. All of it is done in double precision and in the library's own order of
operations, so the scores are equal to the last bit: tests/fast/retrievers/test_lexical.py compares them with the
library on real and adversarial text.

Two things follow the library where the other retrievers differ. Every document is a hit, also one that shares no
word with the query. Of equal scores the later document goes first, which is what the library's reversed sort does
where that sort is stable; NumPy's default is not, so the library's own order of ties depends on the machine, and ours
does not.
"""

import math
import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.corpus import Corpus
from tools.records import Hit
from tools.retriever import Ranker, Retriever, Search
from tools.retrievers.lexical.bm25 import check
from tools.retrievers.lexical.counting import Analyzer, Counts, Vocabulary, Weights, write_index
from tools.retrievers.lexical.postings import Postings, in_threads
from tools.retrievers.spec import spell
from tools.retrievers.store import code, open_index

# As the release's WildChat script does it, the only one there that calls rank_bm25: lower case, everything but
# ASCII letters, digits and blanks becomes a blank, words of one character are dropped, no stop words.
_OTHER = re.compile(r"[^a-z0-9\s]")


def words(text: str) -> list[str]:
    """The release's words of `text`, in order, with repeats."""
    return [word for word in _OTHER.sub(" ", text.lower()).split() if len(word) > 1]


_ANALYZER = Analyzer(words, string.ascii_letters + string.digits)


class RankBM25(Retriever):
    """`rank_bm25.BM25Okapi` over one corpus, same scores, a fraction of the time."""

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None = None,
        *,
        k1: float = 1.5,
        b: float = 0.75,
        epsilon: float = 0.25,
    ) -> None:
        check(k1, b)
        self.name = spell("rank_bm25", options={"k1": k1, "b": b, "epsilon": epsilon})
        self._ranker = Ranker(corpus.doc_ids, tie_order=np.arange(len(corpus))[::-1])
        key = {
            "kind": "rank_bm25",
            "k1": k1,
            "b": b,
            "epsilon": epsilon,
            "corpus": corpus.fingerprint,
            "code": code(lexical="rank_bm25 counting kernels postings"),
        }

        def build(folder: Path) -> None:
            write_index(folder, corpus, _ANALYZER, lambda counts: _weights(counts, k1, b, epsilon), np.float64)

        def load(folder: Path) -> tuple[Vocabulary, Postings]:
            return Vocabulary(folder, _ANALYZER), Postings(folder, self._ranker)

        self._vocabulary, self._postings = open_index(home, key, build=build, load=load)

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse parameters that are out of range."""
        check(options["k1"], options["b"])

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        return in_threads(lambda search: self._search(search, k), searches)

    def _search(self, search: Search, k: int) -> list[Hit]:
        """The documents that `BM25Okapi.get_scores` puts first."""
        return self._postings.search(
            self._vocabulary.rows(search.text),
            k,
            excluded=search.excluded,
            among=search.among,
            above=-np.inf,
        )


def _weights(counts: Counts, k1: float, b: float, epsilon: float) -> Weights:
    """Every sum and product is in the library's order: with another one, the last digits would be others."""
    idf = _idf(counts.frequency.tolist(), len(counts.lengths), epsilon)
    return Weights(idf, k1 * (1 - b + b * counts.lengths / counts.average_length), gain=k1 + 1)


def _idf(frequency: Sequence[int], documents: int, epsilon: float) -> np.ndarray:
    """BM25Okapi's idf, shape (words,); the mean is a sum in order of first appearance, as there."""
    idf = [math.log(documents - n + 0.5) - math.log(n + 0.5) for n in frequency]
    total = 0.0
    for value in idf:  # not sum(): from Python 3.12 on that one compensates, and differs in the last digit
        total += value
    floor = epsilon * (total / len(idf))
    return np.array([floor if value < 0 else value for value in idf])
