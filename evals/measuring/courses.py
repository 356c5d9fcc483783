"""A metric of one query after each step that costs something, from its trace and judgements alone."""

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from evals.measuring.anytime import Anytime, Row
from evals.measuring.metrics import Judged, ranking_metric

SEEN = ("surfaced", "shown")  # metrics beside those of rankings: recall of what came back, of what a model was shown


class Course(NamedTuple):
    """What a query had come to at each cost; both rise in time, and the last is its end."""

    costs: "array[float]"
    values: "array[float]"  # from that cost on

    def pay(self, cost: float, value: float) -> None:
        """Add a cost; up to it there was `value`, and what there is from it on is told with the next."""
        self.values[-1] = value
        self.costs.append(round(self.costs[-1] + cost, 9))  # so that ten cents are a tenth of a dollar
        self.values.append(value)


def follow(outcome: Row, row: Row, metric: str, axes: Collection[str], depth: int) -> dict[str, Course] | None:
    """A query's value of `metric` at each cost, by axis; None where the metric is undefined for it.

    `outcome` is its line of outcomes.jsonl, `row` that of attribution.jsonl. What a cost buys is all steps up to the
    next one that costs something, and in the end the submission. A model call is paid for with the step that follows
    it. Axes are searches, calls, tokens and usd, in dollars of the list price.
    """
    measured = (_SeenShare if metric in SEEN else _RankedValue)(outcome, row, metric, depth)
    value = measured.value()
    if value is None:
        return None
    courses = {axis: Course(array("d", [0.0]), array("d", [value])) for axis in axes}
    changed = False
    for step in outcome["trace"]["steps"]:
        if costs := _costs(step.get("usage"), courses, searched=step["tool"] == "search" and not step.get("refused")):
            if changed:
                value, changed = measured.value() or 0.0, False
            for axis, cost in costs:
                courses[axis].pay(cost, value)
        changed |= measured.add(step)
    value = measured.value() or 0.0
    for axis, whole in _costs(outcome["usage"], courses):  # calls after the last step
        if (rest := whole - courses[axis].costs[-1]) > 1e-8:
            courses[axis].pay(rest, value)
    for one in courses.values():
        one.values[-1] = measured.end()
    return courses


def _costs(usage: Row | None, axes: Collection[str], *, searched: bool = False) -> list[tuple[str, float]]:
    """What was spent, on those axes on which it was something."""
    costs = {"searches": int(searched)}
    if usage:
        tokens = usage["input_tokens"] + usage["output_tokens"]
        costs |= {"calls": usage["calls"], "tokens": tokens, "usd": usage["list_usd"]}
    return [(axis, cost) for axis, cost in costs.items() if axis in axes and cost]


class _RankedValue:
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
        return self._of(find_places(self._submitted, self._units, self._wanted)) or 0.0

    def _of(self, found: Mapping[str, int]) -> float | None:
        return ranking_metric(self._metric, judge_places(found, self._grades, self._ideal, self._relevant))


class _SeenShare:
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


def find_places(ranking: Sequence[str], units: Mapping[str, str], wanted: Collection[str]) -> dict[str, int]:
    """The wanted units of a ranking of documents -> their places among units, from 1."""
    of_units = dict.fromkeys(units.get(doc_id, doc_id) for doc_id in ranking) if units else ranking
    return {unit: place for place, unit in enumerate(of_units, start=1) if unit in wanted}


def judge_places(
    places: Mapping[str, int], grades: Mapping[str, float], ideal: Sequence[float], relevant: Collection[str]
) -> Judged:
    """`metrics.judge_units` of a ranking, from the places of what counts alone; it ends with the last of them.

    `ideal` are the grades, highest first.
    """
    length = max(places.values(), default=0)
    gains, hits = [0.0] * length, [False] * length
    for unit, place in places.items():
        gains[place - 1] = grades.get(unit, 0.0)
        hits[place - 1] = unit in relevant
    return Judged(gains, ideal, hits, len(relevant))
