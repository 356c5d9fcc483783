"""BM25 exactly as the rank-bm25 package scores it, from an inverted index instead of a loop over documents.

OBLIQ-Bench and MultiConIR publish their BM25 rows with `rank_bm25.BM25Okapi` and its defaults (k1=1.5, b=0.75,
epsilon=0.25). That library differs from every variant that bm25s ships: its idf is ln((N - n + 0.5) / (n + 0.5)), and a
negative one (a word in more than half of the documents) is replaced by epsilon times the mean idf. Here that
idf is put into bm25s' engine, in double precision and in the library's own order of operations, so the scores are
equal to the last bit: tests/test_retrievers.py compares them with the library on real and adversarial text.

Two things follow the library where the other retrievers differ. Every document is a hit, also one that shares no
word with the query. Of equal scores the later document goes first, which is what the library's reversed sort does
where that sort is stable; NumPy's default is not, so the library's own order of ties depends on the machine, and ours
does not.
"""

import math
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import bm25s
import numpy as np

from tools.corpus import Corpus
from tools.records import Hit
from tools.retrievers.base import Ranker
from tools.retrievers.postings import count, index_of
from tools.retrievers.store import load_or_build

# As the release's WildChat script does it, the only one there that calls rank_bm25: lower case, everything but
# ASCII letters, digits and blanks becomes a blank, words of one character are dropped, no stop words.
_OTHER = re.compile(r"[^a-z0-9\s]")


def words(text: str) -> list[str]:
    """The release's words of `text`, in order, with repeats."""
    return [word for word in _OTHER.sub(" ", text.lower()).split() if len(word) > 1]


class RankBM25:
    """`rank_bm25.BM25Okapi` over one corpus, same scores, a fraction of the time."""

    needs_pool = False

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None = None,
        *,
        k1: float = 1.5,
        b: float = 0.75,
        epsilon: float = 0.25,
    ) -> None:
        self.name = f"rank_bm25(k1={k1},b={b},epsilon={epsilon})"
        self._ranker = Ranker(corpus.doc_ids, tie_order=np.arange(len(corpus))[::-1])
        key = {
            "kind": "rank_bm25",
            "k1": k1,
            "b": b,
            "epsilon": epsilon,
            "words": "lower, ASCII letters and digits, two characters",
            "bm25s": bm25s.__version__,
            "corpus": corpus.fingerprint,
        }
        self._index = load_or_build(
            home,
            key,
            build=lambda: okapi_index((words(text) for text in corpus.texts()), k1, b, epsilon),
            save=lambda index, folder: index.save(folder, show_progress=False),
            load=lambda folder: bm25s.BM25.load(folder, mmap=True),
        )

    def search(
        self,
        text: str,
        k: int,
        *,
        excluded: Collection[str] = (),
        among: Collection[str] | None = None,
    ) -> list[Hit]:
        """The `k` documents that `BM25Okapi.get_scores` puts first, best first."""
        known = self._index.vocab_dict
        query = [known[word] for word in words(text) if word in known]
        scores = self._index.get_scores_from_ids(query) if query else np.zeros(self._index.scores["num_docs"])
        return self._ranker.top(scores, k, excluded=excluded, among=among)


def okapi_index(texts: Iterable[Sequence[str]], k1: float, b: float, epsilon: float) -> bm25s.BM25:
    """A bm25s index whose stored scores are BM25Okapi's, as doubles; `texts` has the words of each document.

    Every sum and product below is in the library's order: with doubles, another order would give other last
    digits, and so another order of near ties.
    """
    postings = count(texts)
    idf = _okapi_idf(postings.frequency.tolist(), len(postings.lengths), epsilon)
    counts, lengths = postings.count, postings.lengths[postings.document]
    return index_of(
        postings,
        idf[postings.word] * (counts * (k1 + 1) / (counts + k1 * (1 - b + b * lengths / postings.average_length))),
    )


def _okapi_idf(frequency: Sequence[int], documents: int, epsilon: float) -> np.ndarray:
    """BM25Okapi's idf, shape (words,); the mean is a sum in order of first appearance, as there."""
    idf = [math.log(documents - n + 0.5) - math.log(n + 0.5) for n in frequency]
    total = 0.0
    for value in idf:  # not sum(): from Python 3.12 on that one compensates, and differs in the last digit
        total += value
    floor = epsilon * (total / len(idf))
    return np.array([floor if value < 0 else value for value in idf])
