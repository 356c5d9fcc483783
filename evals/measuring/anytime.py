"""What a searcher would have handed in after its first steps, told from its trace alone, the same for every program.

The rule (docs/decisions/curves-and-replay.md has the reasons, and how near its end is to what the programs hand in):

1. what the last `rank` step ordered, in that order, unless some of it was selected later: then that stands;
2. what was selected: by hop, in a hop by the place in its selection (so parallel readings take turns), then in time;
3. what else surfaced, by reciprocal rank over all searches so far: the sum of 1 / (60 + rank) (Cormack, Clarke and
   Buettcher, SIGIR 2009); of equal ones, what surfaced first;
4. what was dropped, by the same sum.

A decision holds until a later one about the same document. `Seen` assumes less: it counts what came back from a search,
or was shown to a model. Left out: what a program knows and does not write into a step, such as grades or weights.
"""

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evals.measuring.metrics import Judged, ranking_metric
from tools.records import Submission, step_json
from tools.session import Session

Row = Mapping[str, Any]  # a step, or another part of an outcome, as it is on disk (tools/records.py)
CONSTANT = 60  # k of reciprocal rank fusion
# Whole numbers instead of fractions: the same ranks in another order have to be a tie.
_GIVEN = np.array([2**40 // (CONSTANT + rank) for rank in range(1, 1001)], dtype=np.int64)
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
        self._kept: dict[int, tuple[int, int, int]] = {}  # number -> hop, place in its selection, how many before
        self._dropped: set[int] = set()

    def add(self, step: Row) -> bool:
        """Take one more step; whether it can have changed the ranking."""
        tool, doc_ids = step["tool"], step["doc_ids"]
        if not doc_ids or step.get("refused") or tool not in ("search", "select", "drop", "rank"):
            return False
        numbers = self._numbered(doc_ids)
        if tool == "search":
            self._given[numbers] += _given(len(numbers))
        elif tool == "select":
            hop = step.get("hop", 0)
            if not set(numbers).isdisjoint(self._head):
                self._head = []
            for place, number in enumerate(numbers):
                self._dropped.discard(number)
                self._kept.setdefault(number, (hop, place, len(self._kept)))
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


def _given(many: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """What the ranks of one search give."""
    if many <= len(_GIVEN):
        return _GIVEN[:many]
    return np.array([2**40 // (CONSTANT + rank) for rank in range(1, many + 1)], dtype=np.int64)


def handed_in(session: Session) -> Submission:
    """What a session that one of its limits has ended hands in: the ranking that its trace tells by then."""
    session.join()
    found = Anytime({}, ())
    for step in session.trace.steps:
        found.add(step_json(step))
    return session.submit(found.ranking(session.limits.depth), why="budget")


class Seen:
    """Which relevant units of a query came back from a search so far, and of which some text reached a model."""

    def __init__(self, units: Mapping[str, str], wanted: Collection[str]) -> None:
        self._unit_of, self._wanted = units, frozenset(wanted)
        self.surfaced: set[str] = set()
        self.shown: set[str] = set()

    def add(self, step: Row) -> bool:
        """Take one more step; whether it has changed anything."""
        before = len(self.surfaced) + len(self.shown)
        doc_ids, shown = step["doc_ids"], step.get("shown", ())
        if step["tool"] == "search" and not step.get("refused"):
            self.surfaced.update(self._relevant(doc_ids))
        if shown:
            self.shown.update(self._relevant(doc_id for doc_id, chars in zip(doc_ids, shown, strict=False) if chars))
        return len(self.surfaced) + len(self.shown) > before

    def _relevant(self, doc_ids: Iterable[str]) -> frozenset[str]:
        units = self._unit_of
        return self._wanted.intersection((units.get(doc_id, doc_id) for doc_id in doc_ids) if units else doc_ids)


def places(ranking: Sequence[str], units: Mapping[str, str], wanted: Collection[str]) -> dict[str, int]:
    """The wanted units of a ranking of documents -> their places among units, from 1."""
    of_units = dict.fromkeys(units.get(doc_id, doc_id) for doc_id in ranking) if units else ranking
    return {unit: place for place, unit in enumerate(of_units, start=1) if unit in wanted}


def judged_at(
    places: Mapping[str, int], grades: Mapping[str, float], ideal: Sequence[float], relevant: Collection[str]
) -> Judged:
    """What `metrics.judged` says of a ranking, from the places of what counts alone; it ends with the last of them.

    `ideal` are the grades, highest first.
    """
    length = max(places.values(), default=0)
    gains, hits = [0.0] * length, [False] * length
    for unit, place in places.items():
        gains[place - 1] = grades.get(unit, 0.0)
        hits[place - 1] = unit in relevant
    return Judged(gains, ideal, hits, len(relevant))


AXES = ("searches", "calls", "tokens", "usd")
SEEN = ("surfaced", "shown")  # metrics beside those of rankings: recall of what came back, of what a model was shown


class Course(NamedTuple):
    """What a query had come to at each cost; both rise in time, and the last is its end."""

    costs: "array[float]"
    values: "array[float]"  # from that cost on


def course(outcome: Row, row: Row, metric: str, axes: Collection[str], depth: int) -> dict[str, Course] | None:
    """A query's value of `metric` at each cost, by axis; None where the metric is undefined for it.

    `outcome` is its line of outcomes.jsonl, `row` that of attribution.jsonl. What a cost buys is all steps up to the
    next one that costs something, and in the end the submission. A model call is paid for with the step that follows
    it. Dollars are of the list price.
    """
    measured = (_Recalled if metric in SEEN else _Ranked)(outcome, row, metric, depth)
    value = measured.value()
    if value is None:
        return None
    made = {axis: Course(array("d", [0.0]), array("d", [value])) for axis in axes}

    changed = False
    for step in outcome["trace"]["steps"]:
        if used := _used(step, made):
            if changed:
                value, changed = measured.value() or 0.0, False
            for axis, cost in used:
                _pay(made[axis], cost, value)
        changed |= measured.add(step)
    value = measured.value() or 0.0
    for axis, whole in _priced(outcome["usage"], made):  # calls after the last step
        if (rest := whole - made[axis].costs[-1]) > 1e-8:
            _pay(made[axis], rest, value)
    for one in made.values():
        one.values[-1] = measured.end()
    return made


def _pay(one: Course, cost: float, value: float) -> None:
    """A cost comes; up to it there was `value`, and what there is from it on is told with the next."""
    one.values[-1] = value
    one.costs.append(round(one.costs[-1] + cost, 9))  # so that ten cents are a tenth of a dollar
    one.values.append(value)


def _used(step: Row, axes: Collection[str]) -> list[tuple[str, float]]:
    """What a step cost, on those axes on which it cost something."""
    usage = step.get("usage")
    used = _priced(usage, axes) if usage else []
    if step["tool"] == "search" and "searches" in axes and not step.get("refused"):
        used.append(("searches", 1))
    return used


def _priced(usage: Row, axes: Collection[str]) -> list[tuple[str, float]]:
    costs = {
        "calls": usage["calls"],
        "tokens": usage["input_tokens"] + usage["output_tokens"],
        "usd": usage["list_usd"],
    }
    return [(axis, cost) for axis, cost in costs.items() if axis in axes and cost]


class _Ranked:
    """A metric of the ranking so far."""

    def __init__(self, outcome: Row, row: Row, metric: str, depth: int) -> None:
        self._submitted, self._metric, self._depth = outcome["ranking"], metric, depth
        self._grades, self._units = row["grades"], row.get("units", {})
        self._relevant = frozenset(one["unit"] for one in row["relevant"])
        self._ideal = sorted(self._grades.values(), reverse=True)
        self._wanted = self._relevant.union(self._grades)
        self._sofar = Anytime(self._units, self._wanted)
        self.add = self._sofar.add
        self._last: tuple[dict[str, int], float | None] = {}, self._of({})

    def value(self) -> float | None:
        found = self._sofar.places(self._depth)
        if found != self._last[0]:
            self._last = found, self._of(found)
        return self._last[1]

    def end(self) -> float:
        return self._of(places(self._submitted, self._units, self._wanted)) or 0.0

    def _of(self, found: Mapping[str, int]) -> float | None:
        return ranking_metric(self._metric, judged_at(found, self._grades, self._ideal, self._relevant))


class _Recalled:
    """The share of relevant documents that were seen so far; what is handed in does not change it."""

    def __init__(self, outcome: Row, row: Row, metric: str, depth: int) -> None:
        relevant = {one["unit"] for one in row["relevant"]}
        self._seen, self._of, self._metric = Seen(row.get("units", {}), relevant), len(relevant), metric
        self.add = self._seen.add

    def value(self) -> float | None:
        found = self._seen.surfaced if self._metric == "surfaced" else self._seen.shown
        return len(found) / self._of if self._of else None

    def end(self) -> float:
        return self.value() or 0.0
