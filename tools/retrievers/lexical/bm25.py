"""BM25 as Lucene computes it: the shared lexical retriever, and what a corpus knows of its words.

Kamphuis et al., "Which BM25 do you mean?" (ECIR 2020), variant "Lucene (accurate)": a word that n of N documents have,
and this one of dl words `count` times, adds

    ln(1 + (N - n + 0.5) / (n + 0.5)) * count / (count + k1 * (1 - b + b * dl / mean dl))

for every time that the query has it. "Accurate" is that dl is exact: Lucene's own index rounds it to one byte.
The arithmetic is that of the package bm25s with NumPy 2, and scores and rankings are equal to the last bit; texts and
posting lists are read by code of our own (inverted_index.py, postings.py), in less time.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tools.corpus import Corpus
from tools.errors import UsageError
from tools.retriever import Ranker
from tools.retrievers.lexical import english
from tools.retrievers.lexical.inverted_index import Analyzer, Statistics, WordRetriever
from tools.retrievers.lexical.kernels import Weights
from tools.retrievers.spec import Value, spell
from tools.text import STOP_WORDS, words

_WORD_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"  # the ASCII ones of \w

ANALYZERS = {
    "plain": Analyzer(words, _WORD_CHARACTERS, STOP_WORDS),
    "english": Analyzer(english.words),
}


class BM25(WordRetriever):
    """Lucene's BM25 over one corpus, with Anserini's defaults, which CRUMB's Pyserini baseline also has.

    `analyzer` is how texts become words. "plain" is lower case, two characters or more, without English stop words;
    "english" is the analyzer of CRUMB's baseline, with Porter's stemmer (tools/retrievers/lexical/english.py).
    """

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None = None,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        analyzer: Literal["plain", "english"] = "plain",
    ) -> None:
        options: dict[str, Value] = {"k1": k1, "b": b}
        self.name = spell("bm25", options=options | ({} if analyzer == "plain" else {"analyzer": analyzer}))
        self._open_bm25(corpus, home, k1, b, analyzer)

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse parameters that are out of range."""
        check(options.get("k1", 0.0), options.get("b", 0.0))

    def _open_bm25(self, corpus: Corpus, home: Path | None, k1: float, b: float, analyzer: str) -> None:
        check(k1, b)
        self._k1, self._b = k1, b
        key = {"kind": "bm25", "k1": k1, "b": b, "analyzer": analyzer}
        self.open(corpus, home, ANALYZERS[analyzer], key, Ranker(corpus.doc_ids))

    def weigh(self, statistics: Statistics) -> Weights:
        """Return the weights of the postings; bm25s rounds the idf before it multiplies."""
        documents = len(statistics.lengths)
        idf = [math.log(1 + (documents - n + 0.5) / (n + 0.5)) for n in statistics.frequency.tolist()]
        norm = self._k1 * ((1 - self._b) + self._b * statistics.lengths / statistics.average_length)
        return Weights(np.array(idf, dtype=np.float32), norm)


class BM25S(BM25):
    """The package bm25s with its defaults, as OBLIQ-Bench's release ranks its Writing and Congress tasks.

    These are the plain words with k1=1.5 and b=0.75.
    """

    name = "bm25s"

    def __init__(self, corpus: Corpus, home: Path | None = None) -> None:
        self._open_bm25(corpus, home, 1.5, 0.75, "plain")


def check(k1: float, b: float) -> None:
    """UsageError for parameters that are out of BM25's range."""
    if k1 < 0 or not 0 <= b <= 1:
        raise UsageError(f"BM25 takes k1 of 0 or more and b from 0 to 1, not k1={k1} and b={b}")
