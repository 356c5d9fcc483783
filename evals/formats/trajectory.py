"""Trajectories of other systems: what they say they did for a query, and the checks before that is part of a run.

Trajectories are JSON Lines, a line a query, in our own form (this file) or in ATIF (atif.py); the page
docs/decisions/export-import.md has the form, key by key. Ours is that of outcomes.jsonl, of which only "query_id" and
"steps" are needed. Everything that a step says is checked: one that names a document that its query cannot have is
refused. The checks raise ValueError; who reads the file adds its name and the line. "ranking" is not read, but must be
the run file's where it is given.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, get_args

from typing_extensions import TypedDict

from evals.folder import check_documents
from tools import forms
from tools.forms import Amount, Count, Number, StepFields
from tools.records import Step, Tool, Usage, total

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.records import Query

TOOLS = get_args(Tool)


@dataclass(frozen=True)
class Trajectory:
    """What one line says of one query."""

    query_id: str
    steps: list[Step]
    notes: list[str]
    usage: Usage | None = None  # None: it does not say
    seconds: float | None = None
    answer: str = ""
    error: str | None = None
    ranking: list[str] | None = None
    scores: list[float] | None = None
    counts: Mapping[str, Any] | None = None  # what else our own traces count: invented_ids, unusable, followed
    mapped: bool = True  # False: what its searches found cannot be told, so its steps are left out


class _Usage(TypedDict):
    """A price that is left out is not known."""

    calls: Count
    repairs: NotRequired[Count]
    input_tokens: Count
    output_tokens: Count
    paid_usd: NotRequired[Amount | None]
    list_usd: NotRequired[Amount | None]


class _Step(StepFields):
    tool: str
    argument: NotRequired[str]
    doc_ids: NotRequired[list[str]]
    usage: NotRequired[_Usage]


class Line(TypedDict):
    """A line in our own form; the keys from "steps" to "followed" may also stand in "trace"."""

    query_id: str
    steps: list[_Step]
    notes: NotRequired[list[str]]
    invented_ids: NotRequired[Count]
    unusable: NotRequired[dict[str, Count]]
    followed: NotRequired[dict[str, str]]
    usage: NotRequired[_Usage | None]
    seconds: NotRequired[Amount | None]
    answer: NotRequired[str | None]
    error: NotRequired[str | None]
    ranking: NotRequired[list[str]]
    scores: NotRequired[list[Number] | None]


def read_line(row: dict[str, Any], queries: Mapping[str, "Query"], environment: "Environment") -> Trajectory:
    """Read a line in our own form. ValueError for one that is malformed or does not fit the task."""
    if isinstance(row.get("trace"), dict):
        row = row["trace"] | row
    forms.check(Line, row)
    if (query_id := row["query_id"]) not in queries:
        raise ValueError(f"query {query_id!r} is not in the {environment.split} split of {environment.task}")
    query = queries[query_id]
    steps = [_make_step(one, query, environment, number) for number, one in enumerate(row["steps"], start=1)]
    usage = make_usage(row["usage"]) if row.get("usage") else None
    if "usage" not in row and any("usage" in one for one in row["steps"]):
        usage = total(step.usage for step in steps)
    return Trajectory(
        query_id,
        steps,
        row.get("notes", [one.argument for one in steps if one.tool == "note"]),
        usage,
        row.get("seconds"),
        row.get("answer") or "",
        row.get("error"),
        row.get("ranking"),
        row.get("scores") or None,
        {"invented_ids": 0, "unusable": {}, "followed": {}}
        | {name: row[name] for name in ("invented_ids", "unusable", "followed") if name in row},
    )


def _make_step(row: Mapping[str, Any], query: "Query", environment: "Environment", number: int) -> Step:
    """Make a step, if its query can have its documents, and fill in what can be. ValueError for any other.

    A document that was read or judged was shown whole where nothing else is said; how long documents are, the corpus
    says.
    """
    tool, doc_ids = row["tool"], row.get("doc_ids", [])
    shown, lengths = row.get("shown", []), row.get("lengths", [])
    try:
        if tool not in TOOLS:
            raise ValueError(f"there is no tool {tool!r}; known: {', '.join(TOOLS)}")
        check_documents(doc_ids, query, environment.documents)
        if (shown or tool in ("read", "judge")) and not lengths:
            lengths = [len(environment.documents[doc_id].text) for doc_id in doc_ids]
        if tool in ("read", "judge") and not shown:
            shown = lengths
        if shown and not len(shown) == len(lengths) == len(doc_ids):
            raise ValueError(f"'shown' and 'lengths' need a number for each of its {len(doc_ids)} documents")
        if any(part > whole for part, whole in zip(shown, lengths, strict=False)):
            raise ValueError("'shown' is more of a document than there is")
    except ValueError as error:
        raise ValueError(f"step {row.get('step_id', number)}: {error}") from None
    made = {name: row[name] for name in Step.__slots__ if name in row}
    made |= {"doc_ids": tuple(doc_ids), "shown": tuple(shown), "lengths": tuple(lengths if shown else ())}
    return Step(**made | {"usage": make_usage(row.get("usage"))})


def make_usage(row: Mapping[str, Any] | None) -> Usage:
    """Return what model calls used, which is nothing for None. A price that is left out is not known."""
    prices = {"paid_usd": None, "list_usd": None} if row else {}
    known = ("calls", "repairs", "input_tokens", "output_tokens", "paid_usd", "list_usd")
    return Usage(**prices | {key: value for key, value in (row or {}).items() if key in known})
