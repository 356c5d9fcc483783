"""What a trace alone says of its query: the ranking after each step, and where each relevant
document was lost.

The ranking that a searcher would have handed in after its first steps
(docs/decisions/curves-and-replay.md):

1. what the last `rank` step ordered, unless some of it was selected later: then the selection
stands;
2. what was selected: by hop, in a hop by the place in its selection (so parallel readings take
turns), then in time;
3. what else surfaced, by the sum of 1 / (60 + rank) over all searches so far (Cormack, Clarke and
Buettcher, SIGIR 2009); of equal ones, what surfaced first;
4. what was dropped, by the same sum.

A decision holds until a later one about the same document. A relevant document surfaces in a
search, is shown to a model, is selected, gets a place in the ranking; its fate is the last of these
that it reached (docs/decisions/attribution.md). Those not among the first `k` have fates whose
shares sum to 1 - R@k exactly.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import chain
from typing import Any, Literal

import numpy as np

from environments.base import Judgements
from evals.run_schemas import Fate
from tools.records import Step, Submission, step_json
from tools.session import Session

Row = Mapping[str, Any]  # a step, or another part of an outcome, as it is on disk
CONSTANT = 60  # k of reciprocal rank fusion
_TIER = 2**56  # between tiers: more than 10,000 searches can give a document


class AnytimeRanking:
    """The ranking of one query so far."""

    def __init__(self, unit_of: Mapping[str, str], judged: Collection[str]) -> None:
        """`unit_of` has the unit of documents that are scored as another; `places` has those
        of `judged` units.
        """
        self._unit_of = unit_of
        self._judged = judged
        self._index: dict[str, int] = {}  # document -> its number, in the order of surfacing
        self._sums = np.zeros(64, dtype=np.int64)  # by number: of reciprocal ranks over searches
        self._units = array("q")  # by number: that of its unit, where there are units
        self._unit_index: dict[str, int] = {}
        self._gold: list[tuple[int, str]] = []  # the numbers of documents of judged units
        self._head: list[int] = []  # what the last `rank` step ordered
        self._kept: dict[
            int, tuple[int, int, int]
        ] = {}  # number -> hop, place in its selection, which step
        self._dropped: set[int] = set()
        self._steps = 0

    def add(self, step: Row) -> bool:
        """Take one more step; return whether it can have changed the ranking."""
        tool = step["tool"]
        doc_ids = step["doc_ids"]
        if not doc_ids or step.get("refused") or tool not in ("search", "select", "drop", "rank"):
            return False
        numbers = self._number(doc_ids)
        self._steps += 1
        if tool == "search":
            # Whole numbers, so that the same ranks in another order are a tie.
            self._sums[numbers] += 2**40 // np.arange(
                CONSTANT + 1, CONSTANT + 1 + len(numbers), dtype=np.int64
            )
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
            self._sums = np.pad(self._sums, (0, 2 * len(index) - len(self._sums)))
        return [index[doc_id] for doc_id in once]

    def _order(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        keys = self._sums[: len(self._index)].copy()
        if self._dropped:
            keys[list(self._dropped)] -= _TIER
        head = [number for number in self._head if number not in self._dropped]
        for tier, numbers in ((1, sorted(self._kept, key=self._kept.__getitem__)), (2, head)):
            if numbers:
                keys[numbers] = tier * _TIER + np.arange(len(numbers), 0, -1)
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
            first_of_unit[:] = 0
            first_of_unit[np.unique(np.asarray(self._units)[order], return_index=True)[1]] = 1
        place_of = np.zeros(len(self._index), dtype=np.int64)
        place_of[order] = np.cumsum(first_of_unit)
        found: dict[str, int] = {}
        for number, unit in self._gold:
            if place := int(place_of[number]):
                found[unit] = min(place, found.get(unit, place))
        return found


def submit_anytime(session: Session, *, why: str = "budget") -> Submission:
    """Submit the ranking that the trace has by now, for a session that ended without one; by
    default, by a limit.
    """
    session.join()
    return session.submit(anytime_ranking(session), why=why)


def anytime_ranking(session: Session) -> tuple[str, ...]:
    """Return the ranking that the trace has by now."""
    found = AnytimeRanking({}, ())
    for step in session.trace.steps:
        found.add(step_json(step))
    return tuple(found.ranking(session.limits.depth))


@dataclass(slots=True)
class DocumentHistory:
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
        """How far the document came: the larger the further."""
        return (self.decision == "select", self.chars > 0, self.rank > 0)

    def add(self, number: int, step: Step, place: int) -> None:
        """Record what a step did with the document, which is at `place` among the step's
        documents.
        """
        if step.tool == "search":
            self.best_rank = min(self.best_rank or place + 1, place + 1)
            if not self.rank:
                self.hop = step.hop
                self.rank = place + 1
                self.search = number
        elif step.tool == "select" or step.tool == "drop":
            self.decision = step.tool
            self.decision_hop = step.hop
            self.decision_step = number
        if step.shown and step.shown[place] > self.chars:
            if self.shown_step is None:
                self.shown_hop = step.hop
                self.shown_step = number
            self.chars = step.shown[place]
            self.length = step.lengths[place]


def read_histories(
    steps: Iterable[tuple[int, Step]], units: Collection[str], unit_of: Callable[[str], str]
) -> dict[str, DocumentHistory]:
    """Return unit -> the history of its document that came furthest, for those of `units`
    that a step names.
    """
    histories: dict[str, DocumentHistory] = {}
    unit_of = cache(unit_of)
    for number, step in steps:
        for place, doc_id in enumerate(step.doc_ids):
            if unit_of(doc_id) in units:
                histories.setdefault(doc_id, DocumentHistory(doc_id)).add(number, step, place)
    furthest_first = sorted(histories.items(), key=lambda one: one[1].reached, reverse=True)
    return {
        unit_of(doc_id): history for doc_id, history in reversed(furthest_first)
    }  # the last of a unit stays


def attribute(
    query_id: str, outcome: Row, ranking: Sequence[str], judgements: Judgements
) -> list[dict[str, Any]]:
    """Return what became of each document that recall counts, as attribution.jsonl has it; highest
    grade first.

    `outcome` is a line of outcomes.jsonl, `ranking` its ranking in the units that are scored
    (metrics.collapse). "lost_as" is a document's fate at a cutoff that leaves it out.
    """
    grades = judgements.recalled(query_id)
    rows = outcome["trace"]["steps"]
    # Most steps name no relevant document, and there are hundreds of thousands of steps
    naming = []
    for number, row in enumerate(rows):
        if judgements.unit_of or not grades.keys().isdisjoint(row["doc_ids"]):
            shown = row.get("shown", ())
            lengths = row.get("lengths", ())
            step = Step(
                row["tool"],
                doc_ids=row["doc_ids"],
                hop=row.get("hop", 0),
                shown=shown,
                lengths=lengths,
            )
            naming.append((number, step))
    known = read_histories(naming, grades, judgements.unit_of or str)
    places = {unit: place for place, unit in enumerate(ranking, start=1) if unit in grades}
    fate = _fates(rows, failed=outcome["error"] is not None)
    made = []
    for unit, grade in sorted(grades.items(), key=lambda one: (-one[1], one[0])):
        history = known.get(unit, DocumentHistory(""))
        place = places.get(unit, 0)
        about = {
            "unit": unit,
            "grade": grade,
            "place": place,
            "lost_as": fate(history, place).value,
        }
        made.append(about | {name: getattr(history, name) for name in DocumentHistory.__slots__})
    return made


def _fates(steps: Sequence[Row], *, failed: bool) -> Callable[[DocumentHistory, int], Fate]:
    """Return the function that tells the fate of a document that is not found; a limit takes
    what was never seen.
    """
    shows = any(step.get("shown") for step in steps)
    selects = any(step["tool"] == "select" for step in steps)
    refused = [(step["tool"], step["argument"]) for step in steps if step.get("refused")]
    ended = next((step["argument"] for step in reversed(steps) if step["tool"] == "stop"), "")
    cut_off = ended in ("budget", "time")  # "steps" is the program's own shape

    def fate(history: DocumentHistory, place: int) -> Fate:
        if failed:
            return Fate.ERROR
        if not steps:
            return Fate.RANKED_LOW if place else Fate.UNKNOWN
        if history.decision == "select" or (history.chars and not selects):
            return Fate.RANKED_LOW
        if history.chars:
            return Fate.SHOWN_IN_PART if history.chars < history.length else Fate.NOT_SELECTED
        if not history.rank and not place:
            return (
                Fate.LIMIT
                if cut_off or any(tool == "search" for tool, _ in refused)
                else Fate.NEVER_SURFACED
            )
        if not shows and place:  # nothing is ever shown: the order is the retrievers'
            return Fate.RANKED_LOW
        return Fate.LIMIT if cut_off or ("read", history.doc_id) in refused else Fate.NOT_SHOWN

    return fate


class LossCounts:
    """The fates of many queries' relevant documents, added up."""

    def __init__(
        self, cutoffs: Sequence[int]
    ) -> None:  # of shares; documents are counted at the first
        self.cutoffs = cutoffs
        self.queries = 0
        # (cutoff, fate, relevant documents of the query) -> documents: so the sum is exact without
        # a fraction a query.
        self._counts: Counter[tuple[int, Fate, int]] = Counter()

    def add(self, relevant: Sequence[Row]) -> None:
        """Add one more query; nothing for one without a relevant document, for which recall
        is undefined.
        """
        self.queries += bool(relevant)
        for k in self.cutoffs:
            for one in relevant:
                self._counts[k, fate_at(one, k), len(relevant)] += 1

    def shares(self, k: int) -> dict[Fate, Fraction]:
        """Return fate -> its share of recall at `k`, averaged over queries; FOUND's is R@k,
        and all sum to 1.
        """
        shares = dict.fromkeys(Fate, Fraction(0))
        for (cutoff, fate, of), count in self._counts.items():
            if cutoff == k:
                shares[fate] += Fraction(count, of * max(self.queries, 1))
        return shares

    def json(self) -> dict[str, Any]:
        """Return the part of scores.json: shares at every cutoff, and documents at the first."""
        documents = Counter({fate.value: 0 for fate in Fate})
        for (cutoff, fate, _), count in self._counts.items():
            documents[fate.value] += count if cutoff == self.cutoffs[0] else 0
        return {
            "cutoff": self.cutoffs[0],
            "queries": self.queries,
            "documents": dict(documents),
            "at": {
                str(k): {fate.value: float(share) for fate, share in self.shares(k).items()}
                for k in self.cutoffs
            },
        }


def attribution_json(
    text: str, relevant: Sequence[Row], outcome: Row, judgements: Judgements
) -> dict[str, Any]:
    """Return a line of attribution.jsonl: the query, what counts, its fates, and documents
    scored as another unit.
    """
    query_id = outcome["query_id"]
    unit_of = judgements.unit_of
    units = dict[str, str]()
    if unit_of:
        seen = dict.fromkeys(
            chain(outcome["ranking"], *(step["doc_ids"] for step in outcome["trace"]["steps"]))
        )
        units = {doc_id: unit for doc_id in seen if (unit := unit_of(doc_id)) != doc_id}
    return {
        "query_id": query_id,
        "text": text,
        "grades": judgements.gains(query_id),
        "relevant": relevant,
        **({"units": units} if units else {}),
        **({"nothing": 0.0} if judgements.zero and not relevant else {}),  # its R and AP
    }


def fate_at(relevant: Row, k: int) -> Fate:
    """Return the fate of a relevant document of attribution.jsonl, where the first `k` of a
    ranking count.
    """
    return Fate.FOUND if 0 < relevant["place"] <= k else Fate(relevant["lost_as"])


def choose_cutoffs(metric: str, metrics: Iterable[str]) -> list[int]:
    """Return the cutoffs to attribute at: that of the headline metric, 10 where it has none;
    then those of R@k.
    """
    headline = metric.partition("@")[2]
    recalls = [int(name[2:]) for name in metrics if name.startswith("R@") and name[2:].isdecimal()]
    return list(dict.fromkeys([int(headline) if headline.isdecimal() else 10, *recalls]))
