"""BM25 as Lucene computes it, on bm25s: the shared lexical retriever, and what a corpus knows of its words.

Kamphuis et al., "Which BM25 do you mean?" (ECIR 2020), variant "Lucene (accurate)", with Anserini's defaults
k1=0.9 and b=0.4, which CRUMB's Pyserini baseline also has. A word that a query repeats counts as often as it is
there. English stop words are left out; there is no stemmer. tests/test_retrievers.py checks it against the
formula, written out by hand, and against bm25s' own index.
"""

import json
from collections.abc import Collection
from pathlib import Path

import bm25s
import numpy as np

from tools.corpus import Corpus
from tools.records import Hit
from tools.retrievers.base import Ranker
from tools.retrievers.postings import count, index_of
from tools.retrievers.store import load_or_build
from tools.text import TermStatistics, words


class BM25:
    """Lucene's BM25 over one corpus."""

    needs_pool = False

    def __init__(self, corpus: Corpus, home: Path | None = None, *, k1: float = 0.9, b: float = 0.4) -> None:
        self.name = f"bm25(k1={k1},b={b})"
        self._ranker = Ranker(corpus.doc_ids)
        key = {
            "kind": "bm25",
            "k1": k1,
            "b": b,
            "words": "lower, two characters, English stop words out",
            "bm25s": bm25s.__version__,
            "corpus": corpus.fingerprint,
        }
        self._index, self._average_length = load_or_build(
            home, key, build=lambda: _build(corpus, k1, b), save=_save, load=_load
        )

    def search(
        self,
        text: str,
        k: int,
        *,
        excluded: Collection[str] = (),
        among: Collection[str] | None = None,
    ) -> list[Hit]:
        """The documents that share a word with `text`, best first, at most `k`."""
        known = self._index.vocab_dict
        query = [known[word] for word in words(text) if word in known]
        if not query:
            return []
        scores = self._index.get_scores_from_ids(query)
        return self._ranker.top(scores, k, excluded=excluded, among=among, above=0.0)

    def statistics(self) -> TermStatistics:
        """How common each word of the corpus is, read off the index."""
        frequency = np.diff(self._index.scores["indptr"])
        return TermStatistics(
            documents=int(self._index.scores["num_docs"]),
            average_length=self._average_length,
            frequency={word: int(frequency[row]) for word, row in self._index.vocab_dict.items()},
        )


_Built = tuple[bm25s.BM25, float]  # the index, and the mean words per document


def _build(corpus: Corpus, k1: float, b: float) -> _Built:
    postings = count(words(text) for text in corpus.texts())
    average = postings.average_length
    n, documents = postings.frequency, len(corpus)
    idf = np.log(1 + (documents - n + 0.5) / (n + 0.5))
    length = postings.lengths[postings.document] / average
    weights = idf[postings.word] * postings.count / (postings.count + k1 * (1 - b + b * length))
    return index_of(postings, weights.astype(np.float32)), average


def _save(built: _Built, folder: Path) -> None:
    index, average_length = built
    index.save(folder, show_progress=False)
    (folder / "average_length.json").write_text(json.dumps(average_length), encoding="utf-8")


def _load(folder: Path) -> _Built:
    average_length = json.loads((folder / "average_length.json").read_text(encoding="utf-8"))
    return bm25s.BM25.load(folder, mmap=True), float(average_length)
