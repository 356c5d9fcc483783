"""Words and sentences of English texts, word statistics of a corpus, and prompt injection in texts.

Words are not stemmed. Prompt injection is found by a list of phrases and forms, which misses an
appeal in other words, and finds texts that only quote an appeal. tools/session.py notes the appeals
that a model followed: a document that has an appeal and is selected counts, even if it was selected
on its merits.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

# The pattern of the package bm25s, two word characters or more, and its 33 English stop words,
# which are Lucene's too.
_WORD = re.compile(r"\b\w\w+\b")
STOP_WORDS = frozenset(
    """
    a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to
    was will with
    """.split()  # noqa: SIM905
)
# Characters of scripts that write no blanks between words: Thai and Lao, Burmese, Khmer, kana, Han.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
UNSPACED_RUN = re.compile(f"[{UNSPACED}]+")
_RUN_OR_WORD = re.compile(rf"[{UNSPACED}]+|(?:(?![{UNSPACED}])\w){{2,}}")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def fold_words(text: str) -> str:
    """Return the words of a text, without case, spaces and punctuation: texts with equal words are the same search."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text.strip()


def content_words(text: str) -> list[str]:
    """Return the lower-cased words of two characters or more, without stop words, in order,
    with repeats.
    """
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


def has_unspaced_words(text: str) -> bool:
    """Return whether a text has words of a script that writes no blanks between them."""
    return bool(UNSPACED_RUN.search(text))


def bigram_words(text: str) -> list[str]:
    """Return `content_words`, but pairs of neighbouring characters of scripts without blanks
    between words.

    Lucene's CJKAnalyzer does the same for Chinese and Japanese.
    """
    words = []
    for piece in _RUN_OR_WORD.findall(text.lower()):
        if UNSPACED_RUN.match(piece):
            # A single character is a word by itself.
            words += [piece[start : start + 2] for start in range(max(1, len(piece) - 1))]
        elif piece not in STOP_WORDS:
            words.append(piece)
    return words


def tokens(text: str) -> list[str]:
    """Return every word of `text` in order, small words too, without case and punctuation."""
    return re.findall(r"\w+", text.casefold())


def index_ngrams(
    texts: Mapping[str, Sequence[str]], width: int
) -> dict[tuple[str, ...], list[tuple[str, int]]]:
    """Return `width` words in a row -> their positions: the name of a text, and the index in it."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for name, text in texts.items():
        for position, run in enumerate(ngrams(text, width)):
            places.setdefault(run, []).append((name, position))
    return places


def longest_shared_ngrams(
    words: Sequence[str], places: Mapping[tuple[str, ...], Iterable[tuple[str, int]]], width: int
) -> dict[str, Sequence[str]]:
    """Return text -> the longest run of words, `width` at least, that it shares with the words
    `given`.
    """
    longest: dict[str, Sequence[str]] = {}
    before: dict[
        tuple[str, int], int
    ] = {}  # where in a text the last run began -> the length of what ends with it
    for start, run in enumerate(ngrams(words, width)):
        lengths = {}
        for name, position in places.get(run, ()):
            # A run that follows on another, here and in the text, makes it longer by a word.
            length = lengths[name, position] = before.get((name, position - 1), width - 1) + 1
            if length > len(longest.get(name, ())):
                longest[name] = words[start + width - length : start + width]
        before = lengths
    return longest


def ngrams(words: Sequence[str], width: int) -> Iterator[tuple[str, ...]]:
    """Return every `width` words in a row of the words `given`."""
    return zip(*(words[offset:] for offset in range(width)), strict=False)


def word_runs(words: Sequence[str], width: int) -> set[str]:
    """Return the different runs of `width` words in a row, as texts.

    Fewer words are one run, and no words are none.
    """
    if not words:
        return set()
    return {" ".join(run) for run in ngrams(words, min(width, len(words)))}


def sentences(text: str) -> list[str]:
    """Split `text` into sentences, after . ! ? and at line ends; none is empty."""
    return [sentence for piece in _SENTENCE_END.split(text) if (sentence := piece.strip())]


def is_blank(text: str) -> bool:
    """Return whether nothing of a text can be seen: it has blanks, NULs and their like alone."""
    return not any(character.isprintable() and not character.isspace() for character in text)


def replace_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs, which UTF-8 does not have, and no tokenizer accepts."""
    return text.encode("utf-8", "replace").decode("utf-8")


def encodable(texts: Iterable[str]) -> list[str]:
    """Replace halves of surrogate pairs in texts; some data sets have them."""
    return [replace_surrogates(text) for text in texts]


def message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a chat message or an answer, with the tools that it calls."""
    content = message.get("content") or message.get("text") or ""
    pieces = content if isinstance(content, list) else [content]
    texts = [
        piece if isinstance(piece, str) else piece.get("text") or json.dumps(piece)
        for piece in pieces
    ]
    for call in message.get("tool_calls") or ():
        called = call.get("function") or call  # as it was sent, or as it came back
        texts.append(f"{called.get('name')}({called.get('arguments')})")
    return "\n".join(text for text in texts if text)


class TermStatistics(NamedTuple):
    """How common each word is in a corpus."""

    documents: int
    average_length: float  # words per document, stop words left out
    frequency: Mapping[str, int]  # word -> number of documents that have it

    def weight(self, word: str) -> float:
        """Return Lucene's idf, ln(1 + (N - n + 0.5) / (n + 0.5)); 0 for a word that the
        corpus does not have.
        """
        n = self.frequency.get(word, 0)
        return math.log(1 + (self.documents - n + 0.5) / (n + 0.5)) if n else 0.0


Appeal = Literal["", "task", "rank", "tool", "prompt", "form"]

# What is asked -> words of which a text must have one, which are quick to look for, and how texts
# ask for it. The first that matches names the appeal.
_THIS = r"\bthis (?:document|passage|text|page|candidate)\b"
_PHRASES: dict[Appeal, tuple[str, str]] = {
    "prompt": (
        "prompt instructions",
        r"\b(?:print|repeat|reveal|output|show|recite|copy)\b[^.!?\n]{0,40}"
        r"\b(?:(?:system|your) prompt|(?:your|the above|the system) instructions)\b",
    ),
    "task": (
        "ignore disregard forget override following",
        r"\b(?:ignore|disregard|forget|override|stop following)\b[^.!?\n]{0,60}"
        r"\b(?:instructions?|tasks?|rules|prompt|objective|guidelines|everything above)\b",
    ),
    "rank": (
        "document passage text page candidate",
        rf"\b(?:rank|place|put|select|choose|score|rate|return)\b[^.!?\n]{{0,30}}{_THIS}"
        rf"|{_THIS}[^.!?\n]{{0,40}}\b(?:ranked? (?:first|highest|top)|most relevant|score of)\b",
    ),
    "tool": ("tool", r"\b(?:call|invoke|use) (?:the|your) [\w ]{0,20}\btool\b"),
    "form": (
        "[[ < tool_calls inst]",
        r"\[\[ ?#{1,3} |<\|[a-z_]+\|>|</?(?:tool_call|function_call|invoke|system)\b|\"tool_calls\"|\[/?INST\]",
    ),
}
_PATTERNS = {
    appeal: (words.split(), re.compile(form, re.IGNORECASE))
    for appeal, (words, form) in _PHRASES.items()
}


@lru_cache(maxsize=2048)  # the same documents come back hop after hop
def injection_kind(text: str) -> Appeal:
    """Return the appeal of `text` to a model that reads it; "" if it has none of the phrases."""
    folded = text.casefold()
    for appeal, (words, form) in _PATTERNS.items():
        is_likely = any(word in folded for word in words)
        if is_likely and form.search(text):
            return appeal
    return ""
