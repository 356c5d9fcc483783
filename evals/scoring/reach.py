"""The chance that a search from a vocabulary brings a document, with that of random documents.

A vocabulary is the words of a query, or more words that a searcher had before it. For a document,
the chance is the share of searches for a number of different words from it that rank the document among
the first k. One or two words are enumerated if there are few, other searches are drawn. What a
relevant document has beyond random documents, from the same words, is what its relevance gives away
(docs/decisions/attribution.md).

Where the scores of words add up to that of a search, which is tried for every query, ranks are
computed from one search for each word. Otherwise every search is made.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from sextant.evals.scoring.scored_run import ScoredRun
from sextant.evals.scoring.statistics import estimate_mean
from sextant.tools.platform.files import read_object
from sextant.tools.records import Hits, JsonObject

Find = Callable[[Sequence[str], int], list[Hits]]  # texts and a depth -> the hits of each
Choice = tuple[int, ...]  # places in a vocabulary

REACH_FILE = "reach.json"  # in a run folder, as `sextant reach RUN` kept it
SIZES = (1, 2, 3, 5)  # words of a search
TRIES = (1, 2, 5, 10, 20, 50, 100)  # searches of a curve
ENUMERATED = 10_000  # searches of one size that are all looked at
_ENUMERATED_SIZES = 2
DRAWN = 400  # of a size that has more
SEARCHED = 50  # of a size where each has to be made
_MOST_SCORES = 1 << 26  # of words and documents, four bytes each, that are held
LIKELY = 0.5  # the chance within a run's searches from which a document is likely found
NULL = 0.95  # the quantile of random documents that a document's chance has to exceed
# Never surfaced: what became likely, lucky or hopeless by the searches that a run made.
PARTS = {
    "likely": f"a chance of at least {LIKELY:g} within the searches that were made",
    "by_luck": f"a smaller chance, above that of {NULL:.0%} of random documents",
    "not_from_these_words": "no better a chance than random documents have",
}
_TRIED = 5  # pairs for which the sum of scores is compared with a search
_BEST_OF = 30  # words of a document, those with the highest scores, from which three are chosen
_DEPTH = 100  # to which a search is compared, and made


class Chance(NamedTuple):
    """The searches for words of a vocabulary that bring a document, by their number of words."""

    ranks: Mapping[int, Sequence[int]]  # of the document in each search, from 1; 0 is none
    is_exact: Mapping[int, bool]  # whether these are all searches of the size

    def share(self, size: int, k: int) -> float:
        """Return the chance of a search of `size` words, from 0 to 1; 0 without one."""
        ranks = self.ranks[size]
        bringing = sum(0 < rank <= k for rank in ranks)
        return bringing / max(len(ranks), 1)

    def interval(self, size: int, k: int) -> tuple[float, float]:
        """Return the 95 % interval of a chance: Wilson's of drawn searches, nothing around an exact one."""
        share = self.share(size, k)
        if self.is_exact[size] or not self.ranks[size]:
            return share, share
        brings = [float(0 < rank <= k) for rank in self.ranks[size]]
        interval = estimate_mean([brings])
        high = 1.0 if interval.high is None else interval.high
        return interval.low or 0.0, high


class Reached(NamedTuple):
    """The documents of a query, as they are reached from a vocabulary; in the order of the documents."""

    chances: Sequence[Chance]
    best: Sequence[tuple[str, int]]  # the search that ranks it highest, and its rank; 0 is none
    adds_up: bool


def reach(
    words: Sequence[str],
    targets: Sequence[Collection[str]],
    find: Find,
    documents: int,
    generator: random.Random,
    *,
    may_add_up: bool = True,
) -> Reached:
    """Return the chances of `targets` by searches for `words`; each is a set of documents that count as one.

    `documents` is the size of the corpus. Unless scores `may_add_up`, every search is made.
    """
    choices = {size: _choose(len(words), size, generator) for size in SIZES}
    is_exact = {
        size: size <= _ENUMERATED_SIZES and len(chosen) == comb(len(words), size)
        for size, chosen in choices.items()
    }
    may_add_up = may_add_up and len(words) * documents <= _MOST_SCORES
    ranking: _WordScores | _Searched
    ranking = scores = _WordScores(words if may_add_up else (), find, documents)
    adds_up = may_add_up and scores.adds_up(choices[2], find)
    if not adds_up:
        for size, chosen in choices.items():
            number = min(len(chosen), SEARCHED)
            choices[size] = generator.sample(chosen, number)
            is_exact[size] &= len(chosen) <= SEARCHED
        ranking = _Searched(words, choices, find)
    chances = []
    best = []
    for target in targets:
        ranks = {size: ranking.rank(target, chosen) for size, chosen in choices.items()}
        chances.append(Chance(ranks, is_exact))
        tried = dict(choices)
        if adds_up:
            tried[0] = scores.list_choices(target)
            ranks = ranks | {0: ranking.rank(target, tried[0])}
        first = (_DEPTH * documents, 0, Choice())
        for size, chosen in tried.items():
            for rank, choice in zip(ranks[size], chosen, strict=True):
                if rank:
                    first = min(first, (rank, len(choice), choice))
        choice = first[2]
        best.append(_join(words, choice))
    # Each is made, so that no sum of scores is taken on trust.
    places = []
    for hits, target in zip(find(best, _DEPTH), targets, strict=True):
        places.append(_first_place(hits.doc_ids, target))
    return Reached(chances, list(zip(best, places, strict=True)), adds_up)


def _join(words: Sequence[str], choice: Choice) -> str:
    return " ".join(words[place] for place in choice)


def _first_place(doc_ids: Sequence[str], target: Collection[str]) -> int:
    """Return the first rank of a target, from 1; 0 if it is not there."""
    for place, doc_id in enumerate(doc_ids, 1):
        if doc_id in target:
            return place
    return 0


def within(chance: float, tries: int) -> float:
    """Return the chance that at least one of a number of independent searches brings a document."""
    return 1 - (1 - chance) ** tries


def _choose(words: int, size: int, generator: random.Random) -> list[Choice]:
    """Return all choices of `size` of the words, or drawn ones; all words if there are fewer."""
    if not words:
        return []
    size = min(size, words)
    if size <= _ENUMERATED_SIZES and comb(words, size) <= ENUMERATED:
        return list(combinations(range(words), size))
    choices = []
    for _ in range(DRAWN):
        drawn = generator.sample(range(words), size)
        choices.append(tuple(sorted(drawn)))
    return choices


class _WordScores:
    """The scores of all documents for each word of a vocabulary."""

    def __init__(self, words: Sequence[str], find: Find, documents: int) -> None:
        self._words = words
        found = find(words, documents)
        # In the order of ids, by which ties are parted.
        doc_ids = set[str]()
        for hits in found:
            doc_ids.update(hits.doc_ids)
        self._doc_ids = sorted(doc_ids)
        self._columns = {doc_id: column for column, doc_id in enumerate(self._doc_ids)}
        shape = (len(words), len(doc_ids))
        self._scores = np.zeros(shape, np.float32)
        for row, hits in zip(self._scores, found, strict=True):
            columns = [self._columns[doc_id] for doc_id in hits.doc_ids]
            row[columns] = hits.scores

    def adds_up(self, pairs: Sequence[Choice], find: Find) -> bool:
        """Return whether searches for two words rank documents by the sum of the words' scores."""
        tried = pairs[:: max(1, len(pairs) // _TRIED)]
        texts = [_join(self._words, pair) for pair in tried]
        for pair, hits in zip(tried, find(texts, _DEPTH), strict=True):
            total = self._scores[list(pair)].sum(axis=0)
            order = np.argsort(-total, kind="stable")[:_DEPTH]
            ranked = [self._doc_ids[column] for column in order if total[column] > 0]
            if ranked != hits.doc_ids:
                return False
        return True

    def rank(self, target: Collection[str], choices: Sequence[Choice]) -> list[int]:
        """Return the rank of a target in a search for each choice of words, from 1; 0 is none."""
        columns = self._find_columns(target)
        ranks = [0] * len(choices)
        of_target = self._scores[:, columns]
        for number, choice in enumerate(choices):
            words = list(choice)
            own = of_target[words].sum(axis=0)
            if not own.any():  # most choices, so that the others' scores are not added up
                continue
            best = columns[int(own.argmax())]
            total = self._scores[words].sum(axis=0)
            score = total[best]
            above = np.count_nonzero(total > score)
            tied = np.count_nonzero(total[:best] == score)
            ranks[number] = int(above + tied) + 1
        return ranks

    def list_choices(self, target: Collection[str]) -> list[Choice]:
        """Return choices of up to three of the words that a target has."""
        columns = self._find_columns(target)
        own = self._scores[:, columns].max(axis=1, initial=0.0)
        number = min(_BEST_OF, np.count_nonzero(own))
        order = np.argsort(-own, kind="stable")
        words = sorted(order[:number].tolist())
        choices = list[Choice]()
        for size in (1, 2, 3):
            choices += combinations(words, size)
        return choices

    def _find_columns(self, target: Collection[str]) -> list[int]:
        there = self._columns.keys() & set(target)
        return sorted(self._columns[doc_id] for doc_id in there)


class _Searched:
    """The rankings of searches that are made."""

    def __init__(
        self, pieces: Sequence[str], choices: Mapping[int, Sequence[Choice]], find: Find
    ) -> None:
        made = list[Choice]()
        for chosen in choices.values():
            made += chosen
        rankings = find([_join(pieces, choice) for choice in made], _DEPTH)
        self._rankings = dict(zip(made, rankings, strict=True))

    def rank(self, target: Collection[str], choices: Sequence[Choice]) -> list[int]:
        """As _WordScores.rank, to the depth of the searches."""
        return [_first_place(self._rankings[choice].doc_ids, target) for choice in choices]


def read_reach(run: ScoredRun) -> JsonObject | None:
    """Return the measurement that was kept of a run; None if there is none of its present scores."""
    try:
        kept = read_object((run.path / REACH_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return kept if kept and kept["scores"] == run.scores.get("digest") else None
