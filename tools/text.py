"""Words and sentences of English texts, without stemming, and word statistics of a corpus."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# The pattern of the package bm25s, two word characters or more, and its 33 English stop words, which are Lucene's too.
_WORD = re.compile(r"\b\w\w+\b")
STOP_WORDS = frozenset(
    """
    a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to
    was will with
    """.split()  # noqa: SIM905
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def words(text: str) -> list[str]:
    """Return the lower-cased words of two characters or more, without stop words, in order, with repeats."""
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


def sentences(text: str) -> list[str]:
    """Split `text` into sentences, after . ! ? and at line ends; none is empty."""
    return [sentence for part in _SENTENCE_END.split(text) if (sentence := part.strip())]


def encodable(texts: Iterable[str]) -> list[str]:
    """Replace lone surrogates, which some data sets have, and which no tokenizer and no protocol accepts."""
    return [text.encode("utf-8", "replace").decode("utf-8") for text in texts]


@dataclass(frozen=True, slots=True)
class TermStatistics:
    """How common each word is in a corpus."""

    documents: int
    average_length: float  # words per document, stop words left out
    frequency: Mapping[str, int]  # word -> number of documents that have it

    def weight(self, word: str) -> float:
        """Return Lucene's idf, ln(1 + (N - n + 0.5) / (n + 0.5)); 0 for a word that the corpus does not have."""
        n = self.frequency.get(word, 0)
        return math.log(1 + (self.documents - n + 0.5) / (n + 0.5)) if n else 0.0
