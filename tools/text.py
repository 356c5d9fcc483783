"""Words, sentences and what a corpus knows about its words. No stemming, no language but English."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from bm25s.tokenization import STOPWORDS_EN

# bm25s' own pattern and its list of 33 English stop words: two word characters or more.
_WORD = re.compile(r"\b\w\w+\b")
STOP_WORDS = frozenset(STOPWORDS_EN)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def words(text: str) -> list[str]:
    """Lower-cased words of two characters or more, stop words left out, in order, with repeats."""
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


def sentences(text: str) -> list[str]:
    """The sentences of `text`, split after . ! ? and at line ends; never empty strings."""
    return [sentence for part in _SENTENCE_END.split(text) if (sentence := part.strip())]


@dataclass(frozen=True, slots=True)
class TermStatistics:
    """How common each word is in a corpus."""

    documents: int
    average_length: float  # words per document, stop words left out
    frequency: Mapping[str, int]  # word -> number of documents that have it

    def weight(self, word: str) -> float:
        """Lucene's idf, ln(1 + (N - n + 0.5) / (n + 0.5)); 0 for a word that the corpus does not have."""
        n = self.frequency.get(word, 0)
        return math.log(1 + (self.documents - n + 0.5) / (n + 0.5)) if n else 0.0
