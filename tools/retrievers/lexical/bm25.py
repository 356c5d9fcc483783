"""BM25 as Lucene computes it, and the inverted index that it shares with rank_bm25.

Kamphuis et al., "Which BM25 do you mean?" (ECIR 2020), variant "Lucene (accurate)": a word that n
of N documents have, and this document of dl words `count` times, adds

    ln(1 + (N - n + 0.5) / (n + 0.5)) * count / (count + k1 * (1 - b + b * dl / mean dl))

for every time that the query has it. "Accurate" is that dl is exact: Lucene's own index rounds it
to a byte. The arithmetic is that of the package bm25s with NumPy 2, and scores and rankings are
equal to the last bit.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError
from sextant.tools.records import Hits
from sextant.tools.retrievers.base import Options, Ranker, Retriever, Searches
from sextant.tools.retrievers.expressions import Value, format_expression
from sextant.tools.retrievers.index_store import IndexKey, index_code_digest, open_index
from sextant.tools.retrievers.lexical import inverted_index
from sextant.tools.retrievers.lexical.inverted_index import Analyzer, CorpusTotals
from sextant.tools.retrievers.lexical.numba_kernels import Doubles, Ints, Rows, run_in_threads
from sextant.tools.text import STOP_WORDS, TermStatistics, bigram_words, content_words

_SOURCES = (
    "sextant.tools.text",
    "sextant.tools.retrievers.lexical.bm25",
    "sextant.tools.retrievers.lexical.english_analyzer",
    "sextant.tools.retrievers.lexical.numba_kernels",
    "sextant.tools.retrievers.lexical.rank_bm25",
    "sextant.tools.retrievers.lexical.inverted_index",
)
_WORD_CHARACTERS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"  # the ASCII ones of \w
)


class LexicalRetriever(Retriever):
    """Ranks documents by the weights of the query's words, for which a subclass has the formula."""

    mapped = True
    dtype: ClassVar[type[np.floating[Any]]] = np.float32  # of weights and scores
    above: ClassVar[float] = (
        0.0  # what a score must be over: the documents that share a word have more
    )

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse parameters that are out of BM25's range."""
        k1 = options.get("k1", 0.0)
        b = options.get("b", 0.0)
        if k1 < 0 or not 0 <= b <= 1:
            raise UsageError(f"BM25 takes k1 of 0 or more and b from 0 to 1, not k1={k1} and b={b}")

    def open(
        self,
        corpus: Corpus,
        home: Path | None,
        analyzer: Analyzer,
        key: IndexKey,
    ) -> None:
        """Build or open the index that `key` determines together with the corpus."""
        self._analyzer = analyzer
        self._reading = analyzer.reading()
        later_first = np.arange(len(corpus))[::-1]
        by_id = np.asarray(corpus.places)
        self.ranker = Ranker(corpus.doc_ids, tie_order=by_id if self.ties_by_id else later_first)
        key = {
            **key,
            "corpus": corpus.fingerprint,
            "code": index_code_digest(*_SOURCES),
        }

        self._index = open_index(
            home,
            key,
            build=partial(inverted_index.build, corpus, analyzer),
            load=inverted_index.InvertedIndex,
        )

    @abstractmethod
    def weigh_words(self, frequencies: Ints, documents: int) -> Doubles:
        """Return the factor of each word, by the number of documents that have it."""

    @abstractmethod
    def weigh_counts(
        self,
        counts: Ints,
        lengths: Ints,
        average_length: float,
    ) -> Doubles:
        """Return the other factor, by counts of words and lengths of documents in words."""

    def statistics(self) -> TermStatistics:
        """Return how common each word of the corpus is."""
        documents, words = self.totals
        return TermStatistics(documents, words / documents, self._index.frequencies(self._reading))

    @property
    def totals(self) -> CorpusTotals:
        """The size of the corpus."""
        return self._index.totals

    def frequencies(self, text: str) -> Ints:
        """Return how many documents have each word of `text` that is no stop word, in order,
        with repeats.
        """
        return self._look_up(text)[1]

    def _look_up(self, text: str) -> tuple[Rows, Ints]:
        """Return the rows of the words in each segment, and their frequencies."""
        data, prepared = self._analyzer.encode(text)
        return self._index.look_up(np.frombuffer(data, dtype=np.uint8), prepared, self._reading)

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        return self.search_as_part(searches, k, self.totals)

    def search_as_part(
        self,
        searches: Searches,
        k: int,
        totals: CorpusTotals,
        frequencies: Sequence[Ints] | None = None,
    ) -> list[Hits]:
        """Return the hits of every search as if the corpus were a part of a corpus with these
        `totals`.

        `frequencies` are, for each search, the sums of the results of `frequencies(text)` for the
        parts; None is its own. Texts are not blank, and `k` is at least 1. Scores are equal to the
        last bit to those of the whole.
        """
        weighed = self._index.weigh(totals.words / totals.documents, self.weigh_counts)

        def search(position: int) -> Hits:
            query = searches[position]
            rows, own_frequencies = self._look_up(query.text)
            weights = self.weigh_words(
                frequencies[position] if frequencies else own_frequencies, totals.documents
            )
            return self.ranker.top(
                self._index.score(weighed, rows, weights, self.dtype),
                k,
                excluded=query.excluded,
                among=query.among,
                above=self.above,
            )

        return run_in_threads(search, range(len(searches)))


def analyzer_of(name: str) -> Analyzer:
    """Return the analyzer "plain", "bigrams" or "english"."""
    if name in ("plain", "bigrams"):
        split = content_words if name == "plain" else bigram_words
        return Analyzer(split, _WORD_CHARACTERS, STOP_WORDS)
    from sextant.tools.retrievers.lexical import english_analyzer  # imports nltk, half a second

    return Analyzer(english_analyzer.words)


class BM25(LexicalRetriever):
    """Lucene's BM25 over a corpus, with Anserini's defaults, which CRUMB's Pyserini baseline also
    has.

    The analyzer "plain" gives words in lower case, of two characters or more, without English stop words; "english" is
    that of CRUMB's baseline, with Porter's stemmer (tools/retrievers/lexical/english_analyzer.py). "bigrams" is
    "plain", with pairs of characters for words in Chinese, Japanese, Thai and other scripts without blanks.
    """

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None = None,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        analyzer: Literal["plain", "english", "bigrams"] = "plain",
    ) -> None:
        options: dict[str, Value] = {"k1": k1, "b": b}
        self.name = format_expression(
            "bm25", options=options | ({} if analyzer == "plain" else {"analyzer": analyzer})
        )
        self._k1 = k1
        self._b = b
        self.open(corpus, home, analyzer_of(analyzer), {"kind": "bm25", "analyzer": analyzer})

    def weigh_words(self, frequencies: Ints, documents: int) -> Doubles:
        """Return the idf, which bm25s rounds before it multiplies."""
        idf = [math.log(1 + (documents - n + 0.5) / (n + 0.5)) for n in frequencies.tolist()]
        return np.array(idf, dtype=np.float32).astype(np.float64)

    def weigh_counts(
        self,
        counts: Ints,
        lengths: Ints,
        average_length: float,
    ) -> Doubles:
        """Return the saturated counts."""
        return counts / (counts + self._k1 * ((1 - self._b) + self._b * lengths / average_length))


class BM25S(BM25):
    """The package bm25s with its defaults, as OBLIQ-Bench ranks Writing and Congress."""

    def __init__(self, corpus: Corpus, home: Path | None = None) -> None:
        super().__init__(
            corpus,
            home,
            k1=1.5,
            b=0.75,
        )
        self.name = "bm25s"
