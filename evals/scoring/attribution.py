"""Say where each relevant document of a query was lost, from its trace alone.

A relevant document surfaces in a search, is shown to a model, is selected, gets a place in the
ranking; its fate is the last of these that it reached (docs/decisions/attribution.md). Those not
among the first `k` have fates whose shares sum to 1 - R@k exactly.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import chain
from typing import Any, Literal

from environments.base import Judgements
from evals.run_schemas import Fate
from tools.records import Step

Row = Mapping[str, Any]  # a step, or another part of an outcome, as it is on disk


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

    def add(
        self,
        number: int,
        step: Step,
        place: int,
    ) -> None:
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
        for position, doc_id in enumerate(step.doc_ids):
            if unit_of(doc_id) in units:
                histories.setdefault(doc_id, DocumentHistory(doc_id)).add(number, step, position)
    furthest_first = sorted(histories.items(), key=lambda one: one[1].reached, reverse=True)
    return {
        unit_of(doc_id): history for doc_id, history in reversed(furthest_first)
    }  # the last of a unit stays


def attribute(
    query_id: str,
    outcome: Row,
    ranking: Sequence[str],
    judgements: Judgements,
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

    def fate(history: DocumentHistory, rank: int) -> Fate:
        if failed:
            return Fate.ERROR
        if not steps:
            return Fate.RANKED_LOW if rank else Fate.UNKNOWN
        if history.decision == "select" or (history.chars and not selects):
            return Fate.RANKED_LOW
        if history.chars:
            return Fate.SHOWN_IN_PART if history.chars < history.length else Fate.NOT_SELECTED
        if not history.rank and not rank:
            return (
                Fate.LIMIT
                if cut_off or any(tool == "search" for tool, _ in refused)
                else Fate.NEVER_SURFACED
            )
        if not shows and rank:  # nothing is ever shown: the order is the retrievers'
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
    text: str,
    relevant: Sequence[Row],
    outcome: Row,
    judgements: Judgements,
) -> dict[str, Any]:
    """Return a line of attribution.jsonl: the query, what counts, its fates, and documents
    scored as another unit.
    """
    query_id = outcome["query_id"]
    unit_of = judgements.unit_of
    units = dict[str, str]()
    if unit_of:
        seen = dict.fromkeys(
            chain(
                outcome["ranking"],
                *(step["doc_ids"] for step in outcome["trace"]["steps"]),
            )
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
