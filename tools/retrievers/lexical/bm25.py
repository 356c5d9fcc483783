"""BM25 as Lucene computes it: the shared lexical retriever, and what a corpus knows of its words.

Kamphuis et al., "Which BM25 do you mean?" (ECIR 2020), variant "Lucene (accurate)": a word that n of N documents have,
and this one of dl words `count` times, adds

    ln(1 + (N - n + 0.5) / (n + 0.5)) * count / (count + k1 * (1 - b + b * dl / mean dl))

for every time that the query has it. "Accurate" is that dl is exact: Lucene's own index rounds it to one byte.
The arithmetic is that of the package bm25s with NumPy 2, and scores and rankings are equal to the last bit; texts and
posting lists are read by code of our own (counting.py, postings.py), in less time.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tools.corpus import Corpus
from tools.errors import UsageError
from tools.records import Hit
from tools.retriever import Ranker, Retriever, Search
from tools.retrievers.lexical import english
from tools.retrievers.lexical.counting import Analyzer, Counts, Vocabulary, Weights, write_index
from tools.retrievers.lexical.postings import Postings, in_threads
from tools.retrievers.spec import Value, spell
from tools.retrievers.store import code, open_index
from tools.text import STOP_WORDS, TermStatistics, words

_WORD_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"  # the ASCII ones of \w

ANALYZERS = {
    "plain": Analyzer(words, _WORD_CHARACTERS, STOP_WORDS),
    "english": Analyzer(english.words),
}


class BM25(Retriever):
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
        if analyzer != "plain":
            options["analyzer"] = analyzer
        self._open(corpus, home, spell("bm25", options=options), k1, b, analyzer)

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse parameters that are out of range."""
        check(options.get("k1", 0.0), options.get("b", 0.0))

    def _open(self, corpus: Corpus, home: Path | None, name: str, k1: float, b: float, analyzer: str) -> None:
        check(k1, b)
        self.name = name
        self._ranker = Ranker(corpus.doc_ids)
        key = {
            "kind": "bm25",
            "k1": k1,
            "b": b,
            "analyzer": analyzer,
            "corpus": corpus.fingerprint,
            "code": code("tools/text", lexical="bm25 counting english kernels postings"),
        }

        def build(folder: Path) -> None:
            write_index(folder, corpus, ANALYZERS[analyzer], lambda counts: _weights(counts, k1, b), np.float32)

        def load(folder: Path) -> tuple[Vocabulary, Postings, float]:
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            vocabulary, postings = Vocabulary(folder, ANALYZERS[analyzer]), Postings(folder, self._ranker)
            return vocabulary, postings, float(summary["average_length"])

        self._vocabulary, self._postings, self._average_length = open_index(home, key, build=build, load=load)

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        return in_threads(lambda search: self._search(search, k), searches)

    def _search(self, search: Search, k: int) -> list[Hit]:
        """The documents that share a word with the text: their scores are over 0."""
        rows = self._vocabulary.rows(search.text)
        return self._postings.search(rows, k, excluded=search.excluded, among=search.among)

    def statistics(self) -> TermStatistics:
        """How common each word of the corpus is, read off the index."""
        frequency = self._postings.frequency.tolist()
        return TermStatistics(
            documents=len(self._ranker),
            average_length=self._average_length,
            frequency=dict(zip(self._vocabulary.words(), frequency, strict=True)),
        )


class BM25S(BM25):
    """The package bm25s with its defaults, as OBLIQ-Bench's release ranks its Writing and Congress tasks.

    These are the plain words with k1=1.5 and b=0.75.
    """

    def __init__(self, corpus: Corpus, home: Path | None = None) -> None:
        self._open(corpus, home, "bm25s", 1.5, 0.75, "plain")


def check(k1: float, b: float) -> None:
    """UsageError for parameters that are out of BM25's range."""
    if k1 < 0 or not 0 <= b <= 1:
        raise UsageError(f"BM25 takes k1 of 0 or more and b from 0 to 1, not k1={k1} and b={b}")


def _weights(counts: Counts, k1: float, b: float) -> Weights:
    documents = len(counts.lengths)
    idf = [math.log(1 + (documents - n + 0.5) / (n + 0.5)) for n in counts.frequency.tolist()]
    norm = k1 * ((1 - b) + b * counts.lengths / counts.average_length)
    return Weights(np.array(idf, dtype=np.float32), norm)  # bm25s rounds the idf before it multiplies
