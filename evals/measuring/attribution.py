"""Where each relevant document was lost: the recall that a run misses, taken apart by what happened to documents.

A document comes back from a search (it surfaces), some of its text reaches a model (it is shown), it is selected, it
gets a place in the ranking; its fate is the last of these that it reached (docs/decisions/attribution.md). What is
among the first `k` of the ranking is found; R@k misses all others, and the shares of their fates sum to 1 - R@k
exactly, for a query and for a run. Only the trace and the judgements are read. Left out: why a model passed a document
over.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from tools.records import Step

if TYPE_CHECKING:
    from environments.base import Judgements


class Fate(StrEnum):
    """How far a relevant document came, in the order in which it can be lost."""

    NEVER_SURFACED = "never_surfaced"
    NOT_SHOWN = "not_shown"
    SHOWN_IN_PART = "shown_in_part"
    NOT_SELECTED = "not_selected"
    RANKED_LOW = "ranked_low"
    LIMIT = "limit"
    ERROR = "error"
    UNKNOWN = "unknown"
    FOUND = "found"


# What a reader sees; {k} is the cutoff.
WORDS: dict[Fate, str] = {
    Fate.FOUND: "found in the first {k}",
    Fate.NEVER_SURFACED: "never surfaced",
    Fate.NOT_SHOWN: "surfaced, shown to no model",
    Fate.SHOWN_IN_PART: "shown in part, not selected",
    Fate.NOT_SELECTED: "shown whole, not selected",
    Fate.RANKED_LOW: "ranked below the first {k}",
    Fate.LIMIT: "lost to a limit",
    Fate.ERROR: "lost to an error",
    Fate.UNKNOWN: "not ranked, no trajectory",
}
LOST = tuple(fate for fate in WORDS if fate is not Fate.FOUND)

# Ends of a session that a limit brought about. To use up the steps that a program makes is no such end: it is the
# program's own shape, and what it did not find in them it did not find.
_CUT_OFF = ("budget", "time")


@dataclass(slots=True)
class History:
    """What happened to one document in a session. Hops are from 1, 0 is outside any or never; steps are from 0."""

    doc_id: str
    hop: int = 0
    rank: int = 0  # in the first search that returned it, from 1; 0 when none did
    search: int | None = None  # the step that was
    best_rank: int = 0  # in any search
    shown_hop: int = 0
    shown_step: int | None = None
    chars: int = 0  # the most of its text that a model was shown at once
    length: int = 0
    decision: Literal["", "select", "drop"] = ""  # the last one
    decision_hop: int = 0
    decision_step: int | None = None

    @property
    def reached(self) -> tuple[bool, ...]:
        """How far it came: the larger the further."""
        return (self.decision == "select", self.chars > 0, self.rank > 0)


def read_histories(
    steps: Iterable[tuple[int, Step]], units: Collection[str], unit_of: Callable[[str], str]
) -> dict[str, History]:
    """Unit -> the history of that document of it which came furthest, for those of `units` that a step names.

    `steps` come with their numbers; those that name none of the units may be left out.
    """
    seen: dict[str, History] = {}
    unit: dict[str, str] = {}
    for number, step in steps:
        for place, doc_id in enumerate(step.doc_ids):
            if doc_id not in unit:
                unit[doc_id] = unit_of(doc_id)
            if unit[doc_id] in units:
                _record_step(seen.setdefault(doc_id, History(doc_id)), number, step, place)
    best: dict[str, History] = {}
    for one in seen.values():
        known = best.get(unit[one.doc_id])
        if known is None or one.reached > known.reached:
            best[unit[one.doc_id]] = one
    return best


def _record_step(one: History, number: int, step: Step, place: int) -> None:
    """Record what a step did with the document at `place` among its documents."""
    if step.tool == "search":
        one.best_rank = min(one.best_rank or place + 1, place + 1)
        if not one.rank:
            one.hop, one.rank, one.search = step.hop, place + 1, number
    elif step.tool == "select" or step.tool == "drop":
        one.decision, one.decision_hop, one.decision_step = step.tool, step.hop, number
    if step.shown and step.shown[place] > one.chars:
        if one.shown_step is None:
            one.shown_hop, one.shown_step = step.hop, number
        one.chars, one.length = step.shown[place], step.lengths[place]


@dataclass(frozen=True, slots=True)
class Relevant:
    """One relevant document of a query, or unit of several where those are judged, and what became of it."""

    unit: str
    grade: float
    place: int  # in the ranking of units, from 1; 0 when it is not there
    lost_as: Fate  # its fate at a cutoff that leaves it out
    history: History  # of the document of the unit that came furthest

    def fate(self, k: int) -> Fate:
        """Its fate where the first `k` of a ranking count."""
        return Fate.FOUND if 0 < self.place <= k else self.lost_as


def attribute(
    query_id: str, outcome: Mapping[str, Any], ranking: Sequence[str], judgements: "Judgements"
) -> list[Relevant]:
    """The documents that recall counts for a query, with what became of them, the highest grade first.

    None where recall is undefined. `outcome` is a line of outcomes.jsonl, `ranking` its ranking in the units that are
    scored (metrics.collapse).
    """
    unit_of = judgements.unit_of or str
    grades = judgements.recalled(query_id)
    rows = outcome["trace"]["steps"]
    # Most steps name no relevant document, and there are hundreds of thousands of steps.
    naming = [
        (number, _step(row))
        for number, row in enumerate(rows)
        if judgements.unit_of or not grades.keys().isdisjoint(row["doc_ids"])
    ]
    known = read_histories(naming, grades, unit_of)
    places = {unit: place for place, unit in enumerate(ranking, start=1) if unit in grades}
    session = _Session(rows, failed=outcome["error"] is not None)
    made = []
    for unit, grade in grades.items():
        history, place = known.get(unit, History("")), places.get(unit, 0)
        made.append(Relevant(unit, grade, place, session.fate(history, place), history))
    return sorted(made, key=lambda one: (-one.grade, one.unit))


def _step(row: Mapping[str, Any]) -> Step:
    """The parts of a step that tell a document's fate."""
    return Step(
        row["tool"],
        row["argument"],
        row["doc_ids"],
        row.get("hop", 0),
        shown=row.get("shown", ()),
        lengths=row.get("lengths", ()),
        refused=row.get("refused", ""),
    )


class _Session:
    """The facts of a session that decide the fates of documents that are not found."""

    def __init__(self, steps: Sequence[Mapping[str, Any]], *, failed: bool) -> None:
        """`steps` are rows of outcomes.jsonl."""
        self.failed = failed
        self.has_steps = bool(steps)
        self.shows = any(step.get("shown") for step in steps)
        self.selects = any(step["tool"] == "select" for step in steps)
        self.search_refused = any(step["tool"] == "search" and step.get("refused") for step in steps)
        self.refused_reads = {step["argument"] for step in steps if step["tool"] == "read" and step.get("refused")}
        ended = next((step["argument"] for step in reversed(steps) if step["tool"] == "stop"), "")
        self.cut_off = ended in _CUT_OFF

    def fate(self, history: History, place: int) -> Fate:
        """The last stage that a document reached; an error takes all, and a limit what had no chance to be seen."""
        if self.failed:
            return Fate.ERROR
        if not self.has_steps:
            return Fate.RANKED_LOW if place else Fate.UNKNOWN
        if history.decision == "select":
            return Fate.RANKED_LOW
        if history.chars:
            if not self.selects:
                return Fate.RANKED_LOW
            return Fate.SHOWN_IN_PART if history.chars < history.length else Fate.NOT_SELECTED
        if not history.rank and not place:
            return Fate.LIMIT if self.cut_off or self.search_refused else Fate.NEVER_SURFACED
        if not self.shows and place:  # nothing is ever shown: the order is the retrievers'
            return Fate.RANKED_LOW
        return Fate.LIMIT if self.cut_off or history.doc_id in self.refused_reads else Fate.NOT_SHOWN


class Losses:
    """The fates of many queries' relevant documents, added up."""

    def __init__(self, cutoffs: Iterable[int]) -> None:
        """`cutoffs` are those at which the shares are wanted; documents are counted at the first."""
        self.cutoffs = list(dict.fromkeys(cutoffs))
        self.queries = 0
        # (cutoff, fate, relevant documents of the query) -> documents: a share is a document's part of its query, and
        # adding up documents first keeps the sum exact without a fraction a query.
        self._counts: Counter[tuple[int, Fate, int]] = Counter()

    def add(self, relevant: Sequence[Relevant]) -> None:
        """One more query; nothing for one without a relevant document, for which recall is undefined."""
        self.queries += bool(relevant)
        for k in self.cutoffs:
            for one in relevant:
                self._counts[k, one.fate(k), len(relevant)] += 1

    def shares(self, k: int) -> dict[Fate, Fraction]:
        """Fate -> its share of recall at `k`, averaged over queries; FOUND's is R@k, and all of them sum to 1."""
        summed = dict.fromkeys(Fate, Fraction(0))
        for (cutoff, fate, of), count in self._counts.items():
            if cutoff == k:
                summed[fate] += Fraction(count, of)
        return {fate: total / max(self.queries, 1) for fate, total in summed.items()}

    def documents(self, k: int) -> dict[Fate, int]:
        """Fate -> how many documents had it."""
        counted = dict.fromkeys(Fate, 0)
        for (cutoff, fate, _), count in self._counts.items():
            counted[fate] += count if cutoff == k else 0
        return counted

    def json(self) -> dict[str, Any]:
        """The part of scores.json: shares at every cutoff, and documents at the first."""
        first = self.cutoffs[0]
        return {
            "cutoff": first,
            "queries": self.queries,
            "documents": {fate.value: count for fate, count in self.documents(first).items()},
            "at": {str(k): {fate.value: float(share) for fate, share in self.shares(k).items()} for k in self.cutoffs},
        }


def to_json(
    text: str, relevant: Sequence[Relevant], outcome: Mapping[str, Any], judgements: "Judgements"
) -> dict[str, Any]:
    """A line of attribution.jsonl: the query, what counts, and what became of it.

    Documents that a reader meets in the outcome and that are scored as another unit are named with that.
    """
    query_id, unit_of, units = outcome["query_id"], judgements.unit_of, dict[str, str]()
    if unit_of:
        steps = outcome["trace"]["steps"]
        seen = dict.fromkeys(chain(outcome["ranking"], *(step["doc_ids"] for step in steps)))
        units = {doc_id: unit for doc_id in seen if (unit := unit_of(doc_id)) != doc_id}
    return {
        "query_id": query_id,
        "text": text,
        "grades": judgements.gains(query_id),
        "relevant": [
            {"unit": one.unit, "grade": one.grade, "place": one.place, "lost_as": one.lost_as.value}
            | {name: getattr(one.history, name) for name in History.__slots__}
            for one in relevant
        ],
        **({"units": units} if units else {}),
    }


def fate_at(relevant: Mapping[str, Any], k: int) -> Fate:
    """`Relevant.fate` of a relevant document as a line of attribution.jsonl has it; there may be a million of them."""
    return Fate.FOUND if 0 < relevant["place"] <= k else Fate(relevant["lost_as"])


def choose_cutoffs(metric: str, metrics: Iterable[str]) -> list[int]:
    """The cutoffs to attribute at: first that of the headline metric, 10 where it has none; then those of R@k."""
    headline = metric.partition("@")[2]
    recalls = [int(name[2:]) for name in metrics if name.startswith("R@") and name[2:].isdecimal()]
    return list(dict.fromkeys([int(headline) if headline.isdecimal() else 10, *recalls]))
