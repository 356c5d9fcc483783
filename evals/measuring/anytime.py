"""The ranking that a searcher would have handed in after its first steps, from its trace alone.

The rule (docs/decisions/curves-and-replay.md has the reasons, and how near its end is to what the programs hand in):

1. what the last `rank` step ordered, in that order, unless some of it was selected later: then that stands;
2. what was selected: by hop, in a hop by the place in its selection (so parallel readings take turns), then in time;
3. what else surfaced, by reciprocal rank over all searches so far: the sum of 1 / (60 + rank) (Cormack, Clarke and
   Buettcher, SIGIR 2009); of equal ones, what surfaced first;
4. what was dropped, by the same sum.

A decision holds until a later one about the same document. `Seen` assumes less: it counts what came back from a search,
or was shown to a model. What a program knows and does not write into a step, such as grades or weights, plays no part.
"""

from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tools.records import Submission, step_json
from tools.session import Session

Row = Mapping[str, Any]  # a step, or another part of an outcome, as it is on disk
CONSTANT = 60  # k of reciprocal rank fusion
# What a tier is above the next one: more than 10,000 searches can give a document.
_TIER = 2**56


class Anytime:
    """The ranking of one query so far."""

    def __init__(self, units: Mapping[str, str], wanted: Collection[str]) -> None:
        """`units` has the unit that is scored for documents that are scored as another; `wanted` units get places."""
        self._unit_of, self._wanted = units, wanted
        self._index: dict[str, int] = {}  # document -> its number, in the order of surfacing
        self._given = np.zeros(64, dtype=np.int64)  # by number: the sum over searches
        self._units = array("q")  # by number: that of its unit, where there are `units`
        self._unit_index: dict[str, int] = {}
        self._gold: list[tuple[int, str]] = []  # the numbers of documents of wanted units
        self._head: list[int] = []
        self._kept: dict[int, tuple[int, int, int]] = {}  # number -> hop, place in its selection, which step
        self._dropped: set[int] = set()
        self._steps = 0

    def add(self, step: Row) -> bool:
        """Take one more step; whether it can have changed the ranking."""
        tool, doc_ids = step["tool"], step["doc_ids"]
        if not doc_ids or step.get("refused") or tool not in ("search", "select", "drop", "rank"):
            return False
        numbers = self._numbered(doc_ids)
        self._steps += 1
        if tool == "search":
            # Whole numbers instead of fractions: the same ranks in another order have to be a tie.
            self._given[numbers] += 2**40 // np.arange(CONSTANT + 1, CONSTANT + 1 + len(numbers), dtype=np.int64)
        elif tool == "select":
            hop = step.get("hop", 0)
            if not set(numbers).isdisjoint(self._head):
                self._head = []
            for place, number in enumerate(numbers):
                self._dropped.discard(number)
                self._kept.setdefault(number, (hop, place, self._steps))
        elif tool == "drop":
            for number in numbers:
                self._kept.pop(number, None)
            self._dropped.update(numbers)
        else:
            self._head = numbers
            self._dropped.difference_update(numbers)
        return True

    def _numbered(self, doc_ids: Sequence[str]) -> list[int]:
        """The numbers of documents, each once; new ones get theirs."""
        index, once = self._index, list(dict.fromkeys(doc_ids))
        if new := [doc_id for doc_id in once if doc_id not in index]:
            self._grow(new)
        return [index[doc_id] for doc_id in once]

    def _grow(self, new: Sequence[str]) -> None:
        """Number documents that were not met before."""
        units = self._unit_of
        for number, doc_id in enumerate(new, start=len(self._index)):
            self._index[doc_id] = number
            unit = units.get(doc_id, doc_id) if units else doc_id
            if unit in self._wanted:
                self._gold.append((number, unit))
            if units:
                self._units.append(self._unit_index.setdefault(unit, len(self._unit_index)))
        if len(self._index) > len(self._given):
            larger = np.zeros(2 * len(self._index), dtype=np.int64)
            larger[: len(self._given)] = self._given
            self._given = larger

    def _order(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """The numbers of all documents, best first."""
        keys = self._given[: len(self._index)].copy()
        if self._dropped:
            keys[list(self._dropped)] -= _TIER
        for tier, numbers in ((1, sorted(self._kept, key=self._kept.__getitem__)), (2, self._stands())):
            if numbers:
                keys[numbers] = tier * _TIER + np.arange(len(numbers), 0, -1)
        return np.argsort(-keys, kind="stable")

    def _stands(self) -> list[int]:
        """What of the last order was not dropped since."""
        return [number for number in self._head if number not in self._dropped] if self._dropped else self._head

    def ranking(self, depth: int) -> list[str]:
        """The first `depth` documents, best first."""
        doc_ids = list(self._index)
        return [doc_ids[number] for number in self._order()[:depth].tolist()]

    def places(self, depth: int) -> dict[str, int]:
        """The wanted units that are in the ranking of `depth` documents -> their places among units, from 1."""
        if not self._gold:
            return {}
        order = self._order()[:depth]
        if self._units:
            # Where each unit's best document stands, of all units in the order of those places.
            _, first = np.unique(np.asarray(self._units)[order], return_index=True)
            firsts = np.zeros(len(order), dtype=np.int64)
            firsts[first] = 1
            place = np.cumsum(firsts)
        else:
            place = np.arange(1, len(order) + 1)
        at = np.zeros(len(self._index), dtype=np.int64)
        at[order] = place
        found: dict[str, int] = {}
        for number, unit in self._gold:
            if at[number]:
                found[unit] = min(int(at[number]), found.get(unit, int(at[number])))
        return found


def submit_so_far(session: Session) -> Submission:
    """Submit for a session that one of its limits has ended: the ranking that its trace tells by then."""
    session.join()
    found = Anytime({}, ())
    for step in session.trace.steps:
        found.add(step_json(step))
    return session.submit(found.ranking(session.limits.depth), why="budget")
