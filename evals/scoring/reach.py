"""The chance that a search from a vocabulary brings a document, beside that of random documents.

A vocabulary is the words of a query, or more words that a searcher had before it. For a document,
the chance is the share of searches of so many different words from it that rank the document among
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
    """For a document, by words of a search: how many of the searches bring it, among the first k by k."""

    searches: Mapping[int, int]
    bringing: Mapping[int, Mapping[int, int]]
    is_exact: Mapping[int, bool]  # whether these are all searches of the size

    def share(self, size: int, k: int) -> float:
        """Return the chance of a search of `size` words, from 0 to 1; 0 without one."""
        return self.bringing[size][k] / self.searches[size] if self.searches[size] else 0.0

    def interval(self, size: int, k: int) -> tuple[float, float]:
        """Return the 95 % interval of a chance: Wilson's of drawn searches, nothing around an exact one."""
        share = self.share(size, k)
        if self.is_exact[size] or not self.searches[size]:
            return share, share
        brought = self.bringing[size][k]
        interval = estimate_mean([[1.0] * brought + [0.0] * (self.searches[size] - brought)])
        return interval.low or 0.0, 1.0 if interval.high is None else interval.high


class Reached(NamedTuple):
    """How a query's documents are reached from a vocabulary."""

    chances: Sequence[Chance]  # by document
    best: Sequence[
        tuple[str, int]
    ]  # by document: the search that ranks it highest, and the rank; 0 is none
    adds_up: bool


def reach(
    words: Sequence[str],
    targets: Sequence[Collection[str]],
    find: Find,
    documents: int,
    ks: Collection[int],
    generator: random.Random,
    *,
    may_add_up: bool = True,
) -> Reached:
    """Return how searches of `words` reach `targets`, of which each is a set of documents that count as one.

    `documents` is how many the corpus has, `ks` are numbers of first documents up to 100. Unless scores
    `may_add_up`, every search is made.
    """
    choices = {size: _choose(len(words), size, generator) for size in SIZES}
    is_small = may_add_up and len(words) * documents <= _MOST_SCORES
    scores = _WordScores(words if is_small else (), find, documents)
    if is_small and scores.adds_up(choices[2], find):
        ranked = scores.rank
    else:
        choices = {
            size: generator.sample(chosen, min(len(chosen), SEARCHED))
            for size, chosen in choices.items()
        }
        ranked = _Searched(words, choices, find).rank
    chances = []
    best = []
    for target in targets:
        bringing: dict[int, dict[int, int]] = {}
        seen = list[tuple[int, Choice]]()
        for size, chosen in choices.items():
            ranks = ranked(target, chosen)
            seen += [(rank, choice) for rank, choice in zip(ranks, chosen, strict=True) if rank]
            bringing[size] = {k: sum(0 < rank <= k for rank in ranks) for k in ks}
        exact = {
            size: len(chosen) == comb(len(words), min(size, len(words)))
            for size, chosen in choices.items()
        }
        counts = {size: len(chosen) for size, chosen in choices.items()}
        chances.append(Chance(counts, bringing, exact))
        if ranked == scores.rank:
            of_document = scores.choices_of(target)
            ranks = ranked(target, of_document)
            seen += [
                (rank, choice) for rank, choice in zip(ranks, of_document, strict=True) if rank
            ]
        _, choice = min(seen, key=lambda pair: (pair[0], len(pair[1]), pair[1]), default=(0, ()))
        best.append(" ".join(words[place] for place in choice))
    # Each is made, so that no sum of scores is taken on trust.
    made = [hits.doc_ids for hits in find(best, _DEPTH)]
    places = [_first_place(doc_ids, target) for doc_ids, target in zip(made, targets, strict=True)]
    return Reached(chances, list(zip(best, places, strict=True)), ranked == scores.rank)


def _first_place(doc_ids: Sequence[str], target: Collection[str]) -> int:
    """Return the first rank of a target, from 1; 0 if it is not there."""
    return next((place for place, doc_id in enumerate(doc_ids, 1) if doc_id in target), 0)


def within(chance: float, tries: int) -> float:
    """Return the chance that at least one of so many independent searches brings a document."""
    return 1 - (1 - chance) ** tries


def _choose(words: int, size: int, generator: random.Random) -> list[Choice]:
    """Return all choices of `size` of the words, or so many drawn ones; all words if there are fewer."""
    size = min(size, words)
    if not words:
        return []
    if comb(words, size) <= ENUMERATED and size <= 2:
        return list(combinations(range(words), size))
    return [tuple(sorted(generator.sample(range(words), size))) for _ in range(DRAWN)]


class _WordScores:
    """The scores of all documents for each word of a vocabulary."""

    def __init__(self, words: Sequence[str], find: Find, documents: int) -> None:
        self._words = words
        self._columns: dict[str, int] = {}
        found = find(words, documents)
        for hits in found:
            for doc_id in hits.doc_ids:
                self._columns.setdefault(doc_id, len(self._columns))
        self._doc_ids = list(self._columns)
        order = sorted(range(len(self._doc_ids)), key=self._doc_ids.__getitem__)
        self._by_id = np.empty(len(order), np.int64)  # places among the ids, which part ties
        self._by_id[order] = np.arange(len(order))
        self._scores = np.zeros((len(words), len(self._doc_ids)), np.float32)
        for row, hits in zip(self._scores, found, strict=True):
            row[[self._columns[doc_id] for doc_id in hits.doc_ids]] = hits.scores

    def adds_up(self, pairs: Sequence[Choice], find: Find) -> bool:
        """Return whether searches for two words rank documents by the sum of the words' scores."""
        tried = pairs[:: max(1, len(pairs) // _TRIED)]
        texts = [" ".join(self._words[place] for place in pair) for pair in tried]
        for pair, hits in zip(tried, find(texts, _DEPTH), strict=True):
            total = self._scores[list(pair)].sum(axis=0)
            order = np.lexsort((self._by_id, -total))[:_DEPTH]
            if [self._doc_ids[column] for column in order if total[column] > 0] != hits.doc_ids:
                return False
        return True

    def rank(self, target: Collection[str], choices: Sequence[Choice]) -> list[int]:
        """Return the rank of a target in a search for each choice of words, from 1; 0 is none."""
        columns = [self._columns[doc_id] for doc_id in target if doc_id in self._columns]
        ranks = []
        for choice in choices:
            words = list(choice)
            own = self._scores[np.ix_(words, columns)].sum(axis=0)
            if not columns or not own.max() > 0:
                ranks.append(0)
                continue
            total = self._scores[words].sum(axis=0)
            tied = [
                column for column, score in zip(columns, own, strict=True) if score == own.max()
            ]
            first = min(int(self._by_id[column]) for column in tied)
            above = np.count_nonzero(total > own.max())
            above += np.count_nonzero(self._by_id[total == own.max()] < first)
            ranks.append(int(above) + 1)
        return ranks

    def choices_of(self, target: Collection[str]) -> list[Choice]:
        """Return choices of up to three of the words that a target has."""
        columns = [self._columns[doc_id] for doc_id in target if doc_id in self._columns]
        if not columns:
            return []
        own = self._scores[:, columns].max(axis=1)
        words = sorted(np.flatnonzero(own).tolist(), key=lambda word: (-own[word], word))[:_BEST_OF]
        return [tuple(sorted(choice)) for size in (1, 2, 3) for choice in combinations(words, size)]


class _Searched:
    """The rankings of searches that are made."""

    def __init__(
        self, pieces: Sequence[str], choices: Mapping[int, Sequence[Choice]], find: Find
    ) -> None:
        made = [choice for chosen in choices.values() for choice in chosen]
        texts = [" ".join(pieces[place] for place in choice) for choice in made]
        rankings = (hits.doc_ids for hits in find(texts, _DEPTH))
        self._rankings = dict(zip(made, rankings, strict=True))

    def rank(self, target: Collection[str], choices: Sequence[Choice]) -> list[int]:
        """As _WordScores.rank, to the depth of the searches."""
        return [_first_place(self._rankings[choice], target) for choice in choices]


def read_reach(run: ScoredRun) -> JsonObject | None:
    """Return the measurement that was kept of a run; None if there is none of its present scores."""
    try:
        kept = read_object((run.path / REACH_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return kept if kept and kept["scores"] == run.scores.get("digest") else None
