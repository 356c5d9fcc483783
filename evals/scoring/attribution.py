"""Say where each relevant document of a query was lost, from its trace alone.

A relevant document surfaces in a search, is shown to a model, is selected, gets a place in the
ranking; its fate is the last of these that it reached (docs/decisions/attribution.md). Those not
among the first `k` have fates whose shares sum to 1 - R@k exactly.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import chain
from typing import Literal

from sextant.environments.base import Judgements
from sextant.evals.run_schemas import Fate
from sextant.evals.scoring.metrics import find_positions
from sextant.tools.records import SURFACING, JsonMapping, JsonObject, Span, Step

Row = JsonMapping  # a step, or another part of an outcome, as it is on disk


@dataclass(slots=True)
class DocumentHistory:
    """The history of a document in a session. Hops are from 1, 0 is outside any or never; steps are
    from 0.
    """

    doc_id: str
    hop: int = 0
    rank: int = 0  # in the first search that returned it, from 1; 0 when none did
    search: int | None = None  # the step that was
    best_rank: int = 0  # in any search
    shown_hop: int = 0
    shown_step: int | None = None
    chars: int = 0  # of its text that a model was shown
    length: int = 0
    forgotten_step: int | None = None  # when the last of it left the prompt
    decision: Literal["", "select", "drop"] = ""  # the last one
    decision_hop: int = 0
    decision_step: int | None = None
    spans: Sequence[Span] = ()  # of its text that a model was shown

    @property
    def reached(self) -> tuple[bool, ...]:
        """How far the document came: the larger the further."""
        return (self.decision == "select", self.chars > 0, self.rank > 0)

    def add(
        self,
        number: int,
        step: Step,
        position: int,
    ) -> None:
        """Record a step with the document, which is at `position` among the step's documents."""
        if step.tool in SURFACING:
            rank = step.first + position + 1
            self.best_rank = min(self.best_rank or rank, rank)
            if not self.rank:
                self.hop = step.hop
                self.rank = rank
                self.search = number
        elif step.tool == "select" or step.tool == "drop":
            self.decision = step.tool
            self.decision_hop = step.hop
            self.decision_step = number
        elif step.tool == "forget":
            self.forgotten_step = number
        if step.shown and step.shown[position]:
            if self.shown_step is None:
                self.shown_hop = step.hop
                self.shown_step = number
            spans = step.spans[position] if step.spans else ((0, step.shown[position]),)
            self.spans = _unite([*self.spans, *spans])
            self.chars = sum(end - start for start, end in self.spans)
            self.length = step.lengths[position]
            self.forgotten_step = None


def _unite(spans: Iterable[Span]) -> list[Span]:
    """Return the characters of spans as spans that do not overlap."""
    united = list[Span]()
    for start, end in sorted(map(tuple, spans)):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((start, end))
    return united


def read_histories(
    steps: Iterable[tuple[int, Step]],
    units: Collection[str],
    unit_of: Callable[[str], str] | None,
) -> dict[str, DocumentHistory]:
    """Return unit -> the history of its document that came furthest, for those of `units`
    that a step names.
    """
    histories: dict[str, DocumentHistory] = {}
    unit_of_document = cache(unit_of) if unit_of else str
    for number, step in steps:
        units_of_step = map(unit_of_document, step.doc_ids) if unit_of else step.doc_ids
        positions = [position for position, unit in enumerate(units_of_step) if unit in units]
        for position in positions:
            doc_id = step.doc_ids[position]
            histories.setdefault(doc_id, DocumentHistory(doc_id)).add(number, step, position)
    furthest: dict[str, DocumentHistory] = {}
    for doc_id, history in histories.items():
        unit = unit_of_document(doc_id)
        if unit not in furthest or history.reached > furthest[unit].reached:
            furthest[unit] = history
    return furthest


def attribute(
    query_id: str,
    outcome: Row,
    ranking: Sequence[str],
    judgements: Judgements,
) -> list[JsonObject]:
    """Return the fate of each document that recall counts, in the format of attribution.jsonl; highest
    grade first.

    `outcome` is a line of outcomes.jsonl, `ranking` its ranking in the units that are scored
    (metrics.collapse). "lost_as" is a document's fate at a cutoff that leaves it out.
    """
    grades = judgements.recalled(query_id)
    units = set(grades)
    rows = outcome["trace"]["steps"]
    # Most steps name no relevant document, and there are hundreds of thousands of steps
    naming = []
    for number, row in enumerate(rows):
        if judgements.unit_of or not units.isdisjoint(row["doc_ids"]):
            shown = row.get("shown", ())
            lengths = row.get("lengths", ())
            step = Step(
                row["tool"],
                doc_ids=row["doc_ids"],
                hop=row.get("hop", 0),
                shown=shown,
                lengths=lengths,
                spans=row.get("spans", ()),
                first=row.get("first", 0),
            )
            naming.append((number, step))
    histories = read_histories(naming, grades, judgements.unit_of)
    positions = find_positions(units, ranking)
    fate = _fates(rows, failed=outcome["error"] is not None)
    relevant = []
    for unit, grade in sorted(grades.items(), key=lambda item: (-item[1], item[0])):
        history = histories.get(unit, DocumentHistory(""))
        rank = positions.get(unit, -1) + 1
        row = {
            "unit": unit,
            "grade": grade,
            "place": rank,
            "lost_as": fate(history, rank).value,
        }
        for field_name in DocumentHistory.__slots__[:-1]:  # without the spans
            row[field_name] = getattr(history, field_name)
        if history.forgotten_step is None:
            del row["forgotten_step"]
        relevant.append(row)
    return relevant


def _fates(steps: Sequence[Row], *, failed: bool) -> Callable[[DocumentHistory, int], Fate]:
    """Return the function that tells the fate of a document that is not found.

    Documents that were never seen are lost by the limit, if one was reached.
    """
    shows = any(step.get("shown") for step in steps)
    selects = any(step["tool"] == "select" for step in steps)
    refused = [(step["tool"], step["argument"]) for step in steps if step.get("refused")]
    ended = next((step["argument"] for step in reversed(steps) if step["tool"] == "stop"), "")
    cut_off = ended in ("budget", "time")  # "steps" is the program's own shape
    had_files = any(step["tool"] == "files" for step in steps)  # and could read where nobody sees

    def fate(history: DocumentHistory, rank: int) -> Fate:
        if failed:
            return Fate.ERROR
        if not steps:
            return Fate.RANKED_LOW if rank else Fate.UNKNOWN
        if had_files and not (history.chars or (history.rank and history.decision == "select")):
            return Fate.UNKNOWN
        if history.decision == "select":
            return Fate.RANKED_LOW
        if history.forgotten_step is not None:
            return Fate.FORGOTTEN
        if history.chars and not selects:
            return Fate.RANKED_LOW
        if history.chars:
            return Fate.SHOWN_IN_PART if history.chars < history.length else Fate.NOT_SELECTED
        if not history.rank and not rank:
            search_refused = any(tool in SURFACING for tool, _ in refused)
            return Fate.LIMIT if cut_off or search_refused else Fate.NEVER_SURFACED
        if not shows and rank:  # nothing is ever shown: the order is the retrievers'
            return Fate.RANKED_LOW
        return Fate.LIMIT if cut_off or ("read", history.doc_id) in refused else Fate.NOT_SHOWN

    return fate


class LossCounts:
    """The fates of many queries' relevant documents, added up."""

    def __init__(self, cutoffs: Sequence[int]) -> None:
        """`cutoffs` are those of shares; documents are counted at the first."""
        self.cutoffs = cutoffs
        self.queries = 0
        # (cutoff, fate, relevant documents of the query) -> documents: so the sum is exact without
        # a fraction a query.
        self._counts: Counter[tuple[int, Fate, int]] = Counter()

    def add(self, relevant: Sequence[Row]) -> None:
        """Add another query; nothing for a query without a relevant document, for which recall is
        undefined.
        """
        self.queries += bool(relevant)
        for k in self.cutoffs:
            for document in relevant:
                self._counts[k, fate_at(document, k), len(relevant)] += 1

    def shares(self, k: int) -> dict[Fate, Fraction]:
        """Return fate -> its share of recall at `k`, averaged over queries; FOUND's is R@k,
        and all sum to 1.
        """
        shares = dict.fromkeys(Fate, Fraction(0))
        for (cutoff, fate, relevant_count), count in self._counts.items():
            if cutoff == k:
                shares[fate] += Fraction(count, relevant_count * max(self.queries, 1))
        return shares

    def json(self) -> JsonObject:
        """Return the part of scores.json: shares at every cutoff, and documents at the first."""
        documents = Counter({fate.value: 0 for fate in Fate})
        for (cutoff, fate, _), count in self._counts.items():
            if cutoff == self.cutoffs[0]:
                documents[fate.value] += count
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
) -> JsonObject:
    """Return a line of attribution.jsonl: the query, the counted documents, their fates, and
    documents scored as another unit.
    """
    query_id = outcome["query_id"]
    unit_of = judgements.unit_of
    units = dict[str, str]()
    if unit_of:
        doc_ids_of_steps = (step["doc_ids"] for step in outcome["trace"]["steps"])
        for doc_id in chain(outcome["ranking"], *doc_ids_of_steps):
            unit = unit_of(doc_id)
            if unit != doc_id:
                units.setdefault(doc_id, unit)
    return {
        "query_id": query_id,
        "text": text,
        "grades": judgements.gains(query_id),
        "relevant": relevant,
        **({"units": units} if units else {}),
        **({"nothing": 0.0} if judgements.zero and not relevant else {}),  # its R and AP
    }


def fate_at(relevant: Row, k: int) -> Fate:
    """Return the fate of a relevant document of attribution.jsonl, if the first `k` of a
    ranking count.
    """
    return Fate.FOUND if 0 < relevant["place"] <= k else Fate(relevant["lost_as"])


def choose_cutoffs(metric: str, metrics: Iterable[str]) -> list[int]:
    """Return the cutoffs to attribute at: that of the headline metric, 10 if it has none;
    then those of R@k.
    """
    headline = metric.partition("@")[2]
    recalls = [int(name[2:]) for name in metrics if name.startswith("R@") and name[2:].isdecimal()]
    return list(dict.fromkeys([int(headline) if headline.isdecimal() else 10, *recalls]))
