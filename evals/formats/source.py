"""What every format is made from: a scored run, one query at a time. A run folder is all that is read."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

import orjson

from evals.folder import Outcome, usage
from evals.measuring.scored import Run
from tools.errors import DataError, UnknownName
from tools.records import Step, Usage, step_from_json


@dataclass(frozen=True)
class Answered:
    """One query: what was handed in, and how that is judged."""

    query_id: str
    outcome: Outcome
    judged: dict[str, Any]  # its line of attribution.jsonl; nothing where the run has none
    values: dict[str, float]  # of the metrics that are defined for it
    usage: Usage | None  # None where nobody knows, as in an imported run

    @property
    def text(self) -> str:
        """What was asked; its id where that is not known."""
        return str(self.judged.get("text", self.query_id))

    @property
    def steps(self) -> list[Step]:
        """The steps of its session."""
        return [step_from_json(row) for row in self.outcome["trace"]["steps"]]

    @property
    def relevant(self) -> list[dict[str, Any]]:
        """What recall counts, with its place in the ranking and how it was lost; best grade first."""
        keys = ("unit", "grade", "place", "lost_as")
        return [{key: one[key] for key in keys} for one in self.judged.get("relevant", ())]

    def gold(self, doc_ids: Iterator[str] | tuple[str, ...] | list[str]) -> dict[str, float]:
        """Those of the documents that have a grade above 0, with it."""
        units, grades = self.judged.get("units", {}), self.judged.get("grades", {})
        found = ((doc_id, grades.get(units.get(doc_id, doc_id))) for doc_id in doc_ids)
        return {doc_id: grade for doc_id, grade in found if grade is not None}


@dataclass(frozen=True)
class Source:
    """A run, or some queries of it, to be written in another format."""

    run: Run
    query_ids: list[str]  # in the order of the split
    has_judged: bool  # whether the run says what became of its documents

    @property
    def model(self) -> str:
        """The model's name; "" where there was none, or nobody knows."""
        name = str(self.run.config["lm"]["name"])
        return "" if name in ("offline", "unknown") else name

    def __iter__(self) -> Iterator[Answered]:
        """Its queries one after the other: a run may be larger than memory."""
        outcomes, judged = self.run.outcomes, self.run.judged if self.has_judged else {}
        for query_id in self.query_ids:
            if query_id not in outcomes:
                raise DataError(f"{self.run.path} has scores of {query_id!r} and no outcome; score it again")
            outcome = outcomes[query_id]
            values = {name: column[query_id] for name, column in self.run.columns.items()}
            defined = {name: value for name, value in values.items() if value is not None}
            used = usage(outcome) if self.run.usage_known else None
            yield Answered(query_id, outcome, dict(judged.get(query_id) or {}), defined, used)


def source(run: Run, query_ids: list[str], limit: int | None) -> tuple[Source, list[str]]:
    """(what of `run` is asked for, what to say of it). UnknownName for a query that it does not have."""
    for query_id in query_ids:
        if query_id not in run.columns[next(iter(run.columns))]:
            raise UnknownName(f"query of {run.path}", query_id, run.query_ids)
    chosen = [one for one in run.query_ids if one in set(query_ids)] if query_ids else run.query_ids
    try:
        has_judged = run.judged is not None
        notes = []
    except DataError as missing:
        has_judged, notes = False, [f"without judgements and gold marks: {missing}"]
    return Source(run, chosen[:limit], has_judged), notes


def compact(row: Any) -> str:
    """JSON in a line, of well-formed text: a lone surrogate, which no other tool reads, becomes U+FFFD."""
    try:
        return orjson.dumps(row).decode()
    except TypeError:  # lone surrogates, numbers beyond 64 bits
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def put_line(file: TextIO, row: Any) -> None:
    """Write one line of a JSON Lines file."""
    file.write(compact(row) + "\n")
