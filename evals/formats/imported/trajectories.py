"""Trajectories in JSON Lines: a line a query, in our own form or in ATIF.

docs/decisions/export-import.md has the form, key by key.

Our own form is that of outcomes.jsonl, of which only "query_id" and "steps" are needed. Everything that a step says is
checked: a trace that names a document that its query cannot have is refused, with the line. Left out: "ranking", except
that it must be the run file's where it is given.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.formats.imported import atif
from evals.formats.imported.trace import Trajectory, checked, known, usage
from evals.forms import TrajectoryFlat, TrajectoryInside
from tools import forms
from tools.errors import DataError
from tools.records import Step, Usage, total

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.records import Query


def read(path: Path, environment: "Environment") -> Iterator[tuple[int, Trajectory]]:
    """(line number, what it says) of every line. DataError for what does not fit the task."""
    queries = {query.query_id: query for query in environment.queries}
    seen: dict[str, int] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = forms.read_whole(dict[str, Any], line)
                read_row = atif.trajectory if atif.is_one(row) else _trajectory
                made = read_row(row, queries, environment)
                if made.query_id in seen:
                    raise ValueError(f"query {made.query_id!r} is in line {seen[made.query_id]} already")
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}") from None
            seen[made.query_id] = number
            yield number, made


def _trajectory(row: dict[str, Any], queries: Mapping[str, "Query"], environment: "Environment") -> Trajectory:
    """A line in our own form. ValueError for what is not."""
    forms.check(TrajectoryInside if "trace" in row else TrajectoryFlat, row)
    query, trace = known(row["query_id"], queries, environment), row.get("trace", row)
    steps = [_step(one, query, environment, number) for number, one in enumerate(trace["steps"], start=1)]
    used = usage(row["usage"]) if "usage" in row else None
    if used is None and any("usage" in one for one in trace["steps"]):
        used = total(step.usage for step in steps)
    return Trajectory(
        query.query_id,
        steps,
        trace.get("notes", [one.argument for one in steps if one.tool == "note"]),
        used,
        row.get("seconds"),
        row.get("answer") or "",
        row.get("error"),
        row.get("ranking"),
        row.get("scores") or None,
        {"invented_ids": trace.get("invented_ids", 0)}
        | {name: trace.get(name, {}) for name in ("unusable", "followed")},
    )


_LEFT_OUT = {"argument": "", "doc_ids": (), "shown": (), "lengths": ()}


def _step(row: Mapping[str, Any], query: "Query", environment: "Environment", number: int) -> Step:
    fields = {name: row[name] for name in Step.__slots__ if name in row}
    fields["usage"] = usage(row["usage"]) if "usage" in row else Usage()
    try:
        return checked(query, environment, **_LEFT_OUT | fields)
    except ValueError as error:
        raise ValueError(f"step {number}: {error}") from None
