"""Finds, in the pieces of a compiled prompt, text of the documents that are wanted and of the queries that are judged.

A demo may quote what it was made from, and a model that writes instructions copies from the examples it was shown. A
prompt with such text scores well on the queries that it quotes and says nothing of others. Flagged is, for each piece
and passage, the longest run of words (lower case, without punctuation) that they have in common, when it is longer than
`BOUND`. What was compiled on (train, validation) and what it will be measured on (test) are told apart: a demo of a
train query has that query's text in it, which is no fault. Paraphrased text and ids of documents are not found.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from environments import load
from environments.base import Environment
from optimizers.training.demonstrations import relevant
from optimizers.training.splits import Training
from tools.corpus import indexed_text
from tools.records import Query

# Longest run, in words, that counts as chance. Instructions of our programs share at most 6 words with any of 28,315
# passages of hearings, and queries and wanted passages of dev there fewer than 8 with those of test. Printed formulas
# run longer: 2 % of all passages share more than 12 words with one of another hearing.
BOUND = 12
SHOWN = 200  # characters of a run that a finding quotes

_WORD = re.compile(r"\w+")

Kind = Literal["gold document", "query"]
Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that a compiled prompt should not hold."""

    kind: Kind
    split: Split
    owner: str  # the id of the document or query
    text: str


@dataclass(frozen=True, slots=True)
class Leak:
    """The longest run of words that a piece of a prompt has in common with a passage."""

    piece: str
    kind: Kind
    split: Split
    owner: str
    length: int  # in words
    text: str  # the run, lower-cased and without punctuation, cut to `SHOWN` characters


def find_leaks(texts: Mapping[str, str], passages: Iterable[Passage], *, bound: int = BOUND) -> list[Leak]:
    """Find every passage of which a text has a run of more than `bound` words, the longest first.

    `texts` are the pieces of a prompt by name, e.g. "reader.next_search demo 2". One finding per piece and passage.
    """
    places: dict[tuple[str, ...], list[tuple[str, int]]] = {}  # a run of bound + 1 words -> (piece, where it begins)
    for piece, text in texts.items():
        for start, run in enumerate(_runs(tokens(text), bound + 1)):
            places.setdefault(run, []).append((piece, start))
    found = [
        Leak(piece, passage.kind, passage.split, passage.owner, len(run), " ".join(run)[:SHOWN])
        for passage in passages
        for piece, run in _longest_runs(tokens(passage.text), places, bound + 1).items()
    ]
    return sorted(found, key=lambda leak: (-leak.length, leak.piece, leak.split, leak.kind, leak.owner))


def tokens(text: str) -> list[str]:
    """Return the words of a text in order: lower case, no punctuation, stop words kept."""
    return _WORD.findall(text.casefold())


def _runs(words: Sequence[str], width: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[offset:] for offset in range(width)), strict=False)


def _longest_runs(
    words: Sequence[str], places: Mapping[tuple[str, ...], Sequence[tuple[str, int]]], width: int
) -> dict[str, Sequence[str]]:
    longest: dict[str, Sequence[str]] = {}
    before: dict[tuple[str, int], int] = {}  # where in a piece the last run began -> the length of what ends with it
    for start, run in enumerate(_runs(words, width)):
        here = {}
        for piece, place in places.get(run, ()):
            # A run that follows on another, here and in the piece, makes it longer by a word.
            length = here[piece, place] = before.get((piece, place - 1), width - 1) + 1
            if length > len(longest.get(piece, ())):
                longest[piece] = words[start + width - length : start + width]
        before = here
    return longest


def collect_passages(training: Training) -> Iterator[Passage]:
    """Collect the train and the validation queries and the documents that are wanted for them."""
    yield from _passages("train", training.train, training.environment)
    yield from _passages("validation", training.validation, training.environment)


def collect_task_passages(task: str, data: str | None, **how: Any) -> Iterator[Passage]:
    """Collect the passages of the test split, loaded as `how` says: once a program has been compiled."""
    environment = load(task, data, "test", **how)
    yield from _passages("test", environment.queries, environment)


def _passages(split: Split, queries: Sequence[Query], environment: Environment) -> Iterator[Passage]:
    for query in queries:
        yield Passage("query", split, query.query_id, query.text)
    gold = relevant(queries, environment)
    for doc_id in dict.fromkeys(doc_id for ids in gold.values() for doc_id in ids):
        yield Passage("gold document", split, doc_id, indexed_text(environment.documents[doc_id]))
