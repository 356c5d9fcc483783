"""Trajectories in JSON Lines: a line a query, in our own form or in ATIF. docs/exchange.md has the form, key by key.

Our own form is that of outcomes.jsonl, of which only "query_id" and "steps" are needed. Everything that a step says is
checked: a trace that names a document that its query cannot have is refused, with the line. Left out: "ranking", except
that it must be the run file's where it is given.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.imports import atif
from evals.imports.trace import Trajectory, checked, counts, known, number_of, strings, usage, value, whole
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
                row = _row(line)
                read_row = atif.trajectory if atif.is_one(row) else _trajectory
                made = read_row(row, queries, environment)
                if made.query_id in seen:
                    raise ValueError(f"query {made.query_id!r} is in line {seen[made.query_id]} already")
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number}: {error}") from None
            seen[made.query_id] = number
            yield number, made


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        raise ValueError("no JSON; a trajectory is one JSON object in one line") from None
    if not isinstance(row, dict):
        raise ValueError("no JSON object")
    return row


def _trajectory(row: dict[str, Any], queries: Mapping[str, "Query"], environment: "Environment") -> Trajectory:
    """A line in our own form. ValueError for what is not."""
    query = known(value(row, "query_id", str), queries, environment)
    trace = value(row, "trace", dict, default=row)
    steps = [_step(one, query, environment, number) for number, one in enumerate(value(trace, "steps", list), start=1)]
    notes = strings(trace, "notes") if "notes" in trace else [one.argument for one in steps if one.tool == "note"]
    used = usage(row["usage"]) if "usage" in row else None
    if used is None and any("usage" in one for one in trace["steps"]):
        used = total(step.usage for step in steps)
    error = row.get("error")
    if error is not None and not isinstance(error, str):
        raise ValueError("'error' is neither text nor null")
    return Trajectory(
        query.query_id,
        steps,
        notes,
        used,
        number_of(row, "seconds") if row.get("seconds") is not None else None,
        value(row, "answer", str, default=""),
        error,
        strings(row, "ranking") if "ranking" in row else None,
        [number_of({"scores": one}, "scores") for one in row["scores"]] if row.get("scores") else None,
        {
            "invented_ids": whole(trace, "invented_ids"),
            "unusable": value(trace, "unusable", dict, default={}),
            "followed": value(trace, "followed", dict, default={}),
        },
    )


def _step(row: Any, query: "Query", environment: "Environment", number: int) -> Step:
    try:
        if not isinstance(row, dict):
            raise ValueError("it is no JSON object")
        return checked(
            query,
            environment,
            tool=value(row, "tool", str),
            argument=value(row, "argument", str, default=""),
            doc_ids=strings(row, "doc_ids"),
            hop=whole(row, "hop"),
            started=number_of(row, "started"),
            seconds=number_of(row, "seconds"),
            usage=usage(row["usage"]) if "usage" in row else Usage(),
            retriever=value(row, "retriever", str, default=""),
            k=whole(row, "k"),
            instruction=value(row, "instruction", str, default=""),
            cut=whole(row, "cut"),
            among=value(row, "among", bool, default=False),
            shown=counts(row, "shown"),
            lengths=counts(row, "lengths"),
            refused=value(row, "refused", str, default=""),
        )
    except ValueError as error:
        raise ValueError(f"step {number}: {error}") from None
