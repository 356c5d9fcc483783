"""Derive the ranking that a searcher would have submitted after its first steps, from a trace alone.

In order (docs/decisions/comparing.md):

1. the order of the last `rank` step, unless some of its documents were selected later: then the
   selection stands;
2. selected documents: by hop, in a hop by their place in the selection (so parallel readings take
   turns), then in time;
3. other documents that surfaced, by the sum of 1 / (60 + rank) over all searches so far (Cormack,
   Clarke and Buettcher, SIGIR 2009), and by the time of surfacing if these are equal;
4. dropped documents, by the same sum.

A decision holds until a later decision about the same document.
"""

from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sextant.tools.records import SURFACING, Submission, step_json

if TYPE_CHECKING:  # retrievers are behind it, which scoring does without
    from sextant.tools.session import Session

Row = Mapping[str, Any]  # a step as it is on disk
_RRF_CONSTANT = 60  # as sextant.tools.retrievers.fusion has it, whose package scoring does not load
_TIER = 2**56  # between tiers: more than 10,000 searches can give a document


class _Selection(NamedTuple):
    """The place of a selected document. Selections compare in this order."""

    hop: int
    position: int  # in its selection, from 0
    step: int  # the number of the step that selected it


class AnytimeRanking:
    """The ranking of a query so far."""

    def __init__(self, unit_of: Mapping[str, str], judged: Collection[str]) -> None:
        """`unit_of` maps documents to the units that they are scored as.

        `places` has the ranks of the `judged` units.
        """
        self._unit_of = unit_of
        self._judged = judged
        self._index: dict[str, int] = {}  # document -> its number, in the order of surfacing
        self._sums = np.zeros(64, dtype=np.int64)  # by number: sum of reciprocal ranks
        self._units = array("q")  # by number: the number of its unit, if there are units
        self._unit_index: dict[str, int] = {}
        self._gold: list[tuple[int, str]] = []  # (number, unit) of documents of judged units
        self._head: list[int] = []  # the numbers that the last `rank` step ordered
        self._kept: dict[int, _Selection] = {}  # by number
        self._dropped: set[int] = set()
        self._steps = 0

    def add(self, step: Row) -> bool:
        """Take another step; return whether it can have changed the ranking."""
        tool = step["tool"]
        doc_ids = step["doc_ids"]
        if not doc_ids or step.get("refused") or tool not in (*SURFACING, "select", "drop", "rank"):
            return False
        numbers = self._number(doc_ids)
        self._steps += 1
        if tool in SURFACING:
            # Whole numbers, so that the same ranks in another order are a tie.
            first = step.get("first", 0)
            self._sums[numbers] += _whole_reciprocal_ranks(first + len(numbers))[first:]
        elif tool == "select":
            self._select(numbers, step.get("hop", 0))
        elif tool == "drop":
            for number in numbers:
                self._kept.pop(number, None)
            self._dropped.update(numbers)
        else:
            self._head = numbers
            self._dropped.difference_update(numbers)
        return True

    def _select(self, numbers: list[int], hop: int) -> None:
        if not set(numbers).isdisjoint(self._head):
            self._head = []
        for position, number in enumerate(numbers):
            self._dropped.discard(number)
            self._kept.setdefault(number, _Selection(hop, position, self._steps))

    def _number(self, doc_ids: Sequence[str]) -> list[int]:
        index = self._index
        units = self._unit_of
        once = list(dict.fromkeys(doc_ids))
        for doc_id in [doc_id for doc_id in once if doc_id not in index]:
            number = index[doc_id] = len(index)
            unit = units.get(doc_id, doc_id)
            if unit in self._judged:
                self._gold.append((number, unit))
            if units:
                self._units.append(self._unit_index.setdefault(unit, len(self._unit_index)))
        if len(index) > len(self._sums):
            missing = 2 * len(index) - len(self._sums)
            self._sums = np.pad(self._sums, (0, missing))
        return [index[doc_id] for doc_id in once]

    def _order(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        keys = self._sums[: len(self._index)].copy()
        if self._dropped:
            keys[list(self._dropped)] -= _TIER
        selected = sorted(self._kept, key=self._kept.__getitem__)
        head = [number for number in self._head if number not in self._dropped]
        for tier, numbers in ((1, selected), (2, head)):
            if numbers:
                descending = np.arange(len(numbers), 0, -1)
                keys[numbers] = tier * _TIER + descending
        return np.argsort(-keys, kind="stable")

    def ranking(self, depth: int) -> list[str]:
        """Return the first `depth` documents, best first."""
        doc_ids = list(self._index)
        return [doc_ids[number] for number in self._order()[:depth].tolist()]

    def places(self, depth: int) -> dict[str, int]:
        """Return judged units in the ranking of `depth` documents -> their places among
        units, from 1.
        """
        if not self._gold:
            return {}
        order = self._order()[:depth]
        first_of_unit = np.ones(len(order), dtype=np.int64)
        if self._units:
            _, first_positions = np.unique(np.asarray(self._units)[order], return_index=True)
            first_of_unit[:] = 0
            first_of_unit[first_positions] = 1
        place_of = np.zeros(len(self._index), dtype=np.int64)
        place_of[order] = np.cumsum(first_of_unit)
        ranking: dict[str, int] = {}
        for number, unit in self._gold:
            rank = int(place_of[number])
            if rank:
                ranking[unit] = min(rank, ranking.get(unit, rank))
        return ranking


def _whole_reciprocal_ranks(depth: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return reciprocal ranks as whole numbers of 2^-40, shape (depth,).

    Their sums do not depend on the order, so equal ranks in another order are a tie.
    """
    ranks = np.arange(1, depth + 1, dtype=np.int64)
    return 2**40 // (_RRF_CONSTANT + ranks)


def submit_anytime(session: "Session", *, reason: str = "budget") -> Submission:
    """Submit the ranking that the trace has by now, for a session that ended without a submission;
    by default, by a limit.
    """
    session.join()
    return session.submit(anytime_ranking(session), why=reason)


def anytime_ranking(session: "Session") -> tuple[str, ...]:
    """Return the ranking that the trace has by now."""
    ranking = AnytimeRanking({}, ())
    for step in session.trace.steps:
        ranking.add(step_json(step))
    return tuple(ranking.ranking(session.limits.depth))
