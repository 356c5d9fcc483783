"""Trajectories in ATIF (Harbor's RFC 0001, from version 1.0 on), as far as searches and their documents can be told.

The query is `extra.query_id`, else `trajectory_id`, else `session_id`. A tool call whose name has "search" or "retriev"
in it is a search, one with "read", "open", "fetch" or "get_doc" a read; judge, select, drop and rank are what our own
export writes. Their documents are in the observation: `extra.doc_ids`, or `extra.source_doc_id` of each result, or
content that is JSON with an id, docid, doc_id, document_id or _id for each hit. Where a search's documents cannot be
told, the trajectory's steps are left out, because half a trace would call lost what was found. Left out: reasoning,
messages (except as notes), sub-agents.
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evals.formats.imported.trace import Trajectory, checked, known
from evals.forms import AtifForm
from tools import forms
from tools.records import Step, Usage, total

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.records import Query

_SEARCH, _READ = re.compile("search|retriev", re.I), re.compile("read|open|fetch|get_?doc", re.I)
_OURS = ("judge", "select", "drop", "rank")
_IDS = ("doc_id", "docid", "document_id", "id", "_id")


def is_one(row: Mapping[str, Any]) -> bool:
    """Whether a JSON object says that it is ATIF."""
    return str(row.get("schema_version", "")).startswith("ATIF")


def trajectory(row: dict[str, Any], queries: Mapping[str, "Query"], environment: "Environment") -> Trajectory:
    """One ATIF document. ValueError for what is none, or does not fit the task."""
    forms.check(AtifForm, row)
    extra = _extra(row)
    names = [extra.get("query_id"), row.get("trajectory_id"), row.get("session_id")]
    chosen = next((name for name in names if isinstance(name, str) and name in queries), None)
    query = known(str(chosen or names[0] or names[1] or names[2]), queries, environment)
    steps, mapped = list[Step](), True
    for number, one in enumerate(row["steps"], start=1):
        try:
            made = _steps(one, query, environment)
        except _Unmapped:
            mapped = False
        except ValueError as wrong:
            raise ValueError(f"step {number}: {wrong}") from None
        else:
            steps += made
    error = extra.get("error")
    return Trajectory(
        query.query_id,
        steps if mapped else [],
        [step.argument for step in steps if step.tool == "note"],
        _used(row),
        extra.get("seconds"),
        extra.get("answer", ""),
        error if isinstance(error, str) else None,
        extra.get("ranking"),
        extra.get("scores") or None,
        mapped=mapped,
    )


class _Unmapped(Exception):
    """A search of which nobody can tell what it found."""


def _steps(row: dict[str, Any], query: "Query", environment: "Environment") -> list[Step]:
    """What one step of ATIF is in a trace; its usage is with the first of them."""
    extra, usage = _extra(row), _of_step(row)
    when = {"hop": extra.get("hop", 0)} | {name: extra.get(name) or 0.0 for name in ("started", "seconds")}
    calls = row.get("tool_calls") or []
    if row.get("source") != "agent":
        return []
    if not calls:
        return _said(str(row.get("message") or ""), str(extra.get("tool", "note")), when, usage)
    results = (row.get("observation") or {}).get("results") or []
    made = list[Step]()
    for call in calls:
        mine = [one for one in results if one.get("source_call_id") in (call.get("tool_call_id"), None)]
        if (step := _called(call, mine, query, environment, when)) is not None:
            made.append(step)
    if made and usage is not None:
        made[0] = Step(**{name: getattr(made[0], name) for name in Step.__slots__} | {"usage": usage})
    return made


def _said(message: str, tool: str, when: dict[str, Any], usage: Usage | None) -> list[Step]:
    """A step without a call: a note, or what our own export writes of a stop and of a prompt that was shortened."""
    if tool not in ("stop", "shorten"):
        tool = "note"
    argument = message.removeprefix(f"{tool}: ") if tool != "note" else message
    return [Step(tool=tool, argument=argument, **when, usage=usage or Usage())]  # type: ignore[arg-type]


def _called(
    call: dict[str, Any],
    results: list[dict[str, Any]],
    query: "Query",
    environment: "Environment",
    when: dict[str, Any],
) -> Step | None:
    """One tool call; None for one that is neither a search nor a read, nor one of ours."""
    name, given = call["function_name"], call.get("arguments", {})
    tool = name if name in _OURS else "search" if _SEARCH.search(name) else "read" if _READ.search(name) else ""
    if not tool:
        return None
    texts = [one for one in given.values() if isinstance(one, str)]
    argument = "" if tool in _OURS else str(given.get("query", given.get("doc_id", next(iter(texts), ""))))
    extra: dict[str, Any] = next((found for one in results if (found := _extra(one))), {})
    doc_ids = _found(results)
    if tool == "read" and not doc_ids and "refused" not in extra:
        doc_ids = [argument] if argument in environment.documents else None
    if doc_ids is None and tool != "search":
        return None
    if doc_ids is None:
        raise _Unmapped
    shown = extra.get("shown", [])
    if tool == "read" and not shown and doc_ids and isinstance(results[0].get("content") if results else None, str):
        shown = [min(len(results[0]["content"]), len(environment.documents[doc_ids[0]].text))]
    return checked(
        query,
        environment,
        tool=tool,
        argument=argument,
        doc_ids=doc_ids,
        retriever=str(given.get("retriever") or ""),
        k=k if isinstance(k := given.get("k"), int) and 0 <= k <= forms.LARGEST else 0,
        instruction=str(given.get("instruction") or ""),
        cut=extra.get("cut", 0),
        among=extra.get("among", False),
        shown=shown,
        lengths=extra.get("lengths", []),
        refused=extra.get("refused", ""),
        **when,
    )


def _found(results: list[dict[str, Any]]) -> list[str] | None:
    """The documents that an observation names, best first, each once; None where it does not say."""
    found, told = dict[str, None](), False
    for one in results:
        extra = _extra(one)
        ids = extra.get("doc_ids")
        if ids is None and isinstance(extra.get("source_doc_id"), str):
            ids = [extra["source_doc_id"]]
        if ids is None:
            ids = _in_content(one.get("content"))
        if ids is not None:
            told = True
            found |= dict.fromkeys(ids)
    return list(found) if told else None


def _in_content(content: Any) -> list[str] | None:
    """The ids in content that is JSON: a list of hits or ids, or an object with such a list in it."""
    try:
        parsed = json.loads(content) if isinstance(content, str) else None
    except (ValueError, RecursionError):
        return None
    hits = next((one for one in parsed.values() if isinstance(one, list)), None) if isinstance(parsed, dict) else parsed
    if not isinstance(hits, list):
        return None
    ids = [next((hit[key] for key in _IDS if key in hit), None) if isinstance(hit, dict) else hit for hit in hits]
    return [str(one) for one in ids] if all(isinstance(one, str | int) for one in ids) else None


def _of_step(row: Mapping[str, Any]) -> Usage | None:
    """The usage of one step; None where it does not say."""
    metrics = row.get("metrics")
    if not metrics:
        return Usage() if row.get("llm_call_count") == 0 else None
    if not {"prompt_tokens", "completion_tokens"} <= metrics.keys():
        return None
    calls = row.get("llm_call_count")
    return _usage(metrics, 1 if calls is None else calls, "prompt_tokens", "completion_tokens", "cost_usd")


def _used(row: Mapping[str, Any]) -> Usage | None:
    """The usage of a whole trajectory: its final metrics, else the sum of its steps; None where one does not say."""
    steps = [_of_step(step) for step in row["steps"] if step.get("source") == "agent"]
    known = [step for step in steps if step is not None]
    final = row.get("final_metrics")
    if final and {"total_prompt_tokens", "total_completion_tokens"} <= final.keys():
        calls = sum(step.calls for step in known)
        return _usage(final, calls, "total_prompt_tokens", "total_completion_tokens", "total_cost_usd")
    return total(known) if steps and len(known) == len(steps) else None


def _usage(row: Mapping[str, Any], calls: int, tokens_in: str, tokens_out: str, cost: str) -> Usage:
    """Usage out of ATIF's names; what was paid is known only where our own export says it."""
    extra = _extra(row)
    calls, repairs = extra.get("calls", calls), extra.get("repairs", 0)
    return Usage(calls, repairs, row[tokens_in], row[tokens_out], extra.get("paid_usd"), row.get(cost))


def _extra(row: Mapping[str, Any]) -> dict[str, Any]:
    return row.get("extra") or {}
