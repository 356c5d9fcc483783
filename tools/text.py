"""Words, sentences and what a corpus knows about its words. No stemming, no language but English."""

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
    """Lower-cased words of two characters or more, stop words left out, in order, with repeats."""
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


def sentences(text: str) -> list[str]:
    """The sentences of `text`, split after . ! ? and at line ends; never empty strings."""
    return [sentence for part in _SENTENCE_END.split(text) if (sentence := part.strip())]


def encodable(texts: Iterable[str]) -> list[str]:
    """`texts` without the halves of characters that some data sets have, which no tokenizer and no protocol takes."""
    return [text.encode("utf-8", "replace").decode("utf-8") for text in texts]


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
