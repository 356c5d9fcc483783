"""ATIF, the Agent Trajectory Interchange Format (Harbor's RFC 0001), written in version 1.7 and read from 1.0 on.

Written: the first step is the query, as the user's. Each step of a session is one step of the agent's: what it did is a
tool call, what came back is the observation linked to it. ATIF has no place for rankings and judgements, so they are in
`extra`: `doc_ids`, `shown` and `lengths` (characters) and `gold` (document -> grade) of an observation; the ranking,
the metrics and the lost documents at the root. Left out: texts of documents, which a run folder does not have.

Read, as far as searches and their documents can be told: the query is `extra.query_id`, else `trajectory_id`, else
`session_id`. A tool call whose name has "search" or "retriev" in it is a search, one with "read", "open", "fetch" or
"get_doc" a read; judge, select, drop and rank are what is written here. Their documents are in the observation:
`extra.doc_ids`, or `extra.source_doc_id` of each result, or content that is JSON with an id, docid, doc_id, document_id
or _id for each hit. Where a search's documents cannot be told, the trajectory's steps are left out, because half a
trace would call lost what was found. Left out: reasoning, messages (except as notes), sub-agents.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired

from typing_extensions import TypedDict

from evals.formats.trajectory import Trajectory, check_step, find_query
from evals.formats.writing import Answered, Source, compact, name_file
from tools import forms
from tools.disk import sha256
from tools.forms import Amount, Count, Number
from tools.records import Step, Tool, Usage, total, usage_json

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.records import Query

VERSION = "ATIF-v1.7"
_OURS = ("judge", "select", "drop", "rank")
_CALLS = ("search", "read", *_OURS)  # steps of other kinds are messages


def write(source: Source, folder: Path) -> list[str]:
    """Trajectories in ATIF: trajectories.jsonl, and one file a query in queries/."""
    (folder / "queries").mkdir()
    agent = _agent(source)
    with (folder / "trajectories.jsonl").open("w", encoding="utf-8") as lines:
        for one in source:
            line = compact(_trajectory(one, source, agent)) + "\n"
            lines.write(line)
            (folder / "queries" / f"{name_file(one.query_id)}.json").write_text(line, encoding="utf-8")
    return []


def _agent(source: Source) -> dict[str, Any]:
    config = source.run.config
    return {
        "name": config["program"],
        "version": str(config.get("code") or "unknown"),
        **({"model_name": source.model} if source.model else {}),
        "extra": {
            "retriever": config["retriever"]["name"],
            "lm": config["lm"]["name"],
            "parameters": config["parameters"],
            "config_sha256": sha256(source.run.path / "config.json"),
        },
    }


def _trajectory(one: Answered, source: Source, agent: dict[str, Any]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"source": "user", "message": one.text}]
    steps += [_write_step(number, step, one) for number, step in enumerate(one.steps)]
    numbered = [{"step_id": number} | step for number, step in enumerate(steps, start=1)]
    config = source.run.config
    return {
        "schema_version": VERSION,
        "session_id": source.run.path.name,
        "trajectory_id": one.query_id,
        "agent": agent,
        "steps": numbered,
        "final_metrics": _final_metrics(one.usage, len(numbered)),
        "extra": {
            "query_id": one.query_id,
            "task": config["task"],
            "split": config["split"],
            "ranking": one.outcome["ranking"],
            **({"scores": one.outcome["scores"]} if one.outcome.get("scores") else {}),
            "answer": one.outcome.get("answer", ""),
            "error": one.outcome["error"],
            "seconds": one.outcome.get("seconds"),
            "metrics": one.values,
            "relevant": one.relevant,
        },
    }


def _write_step(number: int, step: Step, one: Answered) -> dict[str, Any]:
    extra = {"tool": step.tool, "hop": step.hop, "started": step.started, "seconds": step.seconds}
    if step.tool not in _CALLS:
        message = step.argument if step.tool == "note" else f"{step.tool}: {step.argument}"
        return {"source": "agent", "message": message, **_calls_of(step.usage, one), "extra": extra}
    call = f"call-{number}"
    return {
        "source": "agent",
        "message": "",
        "tool_calls": [{"tool_call_id": call, "function_name": step.tool, "arguments": _arguments(step)}],
        "observation": {"results": [{"source_call_id": call} | _observation(step, one)]},
        **_calls_of(step.usage, one),
        "extra": extra,
    }


def _arguments(step: Step) -> dict[str, Any]:
    """The arguments of a tool call."""
    if step.tool == "search":
        told = {"instruction": step.instruction} if step.instruction else {}
        return {"query": step.argument, "k": step.k, "retriever": step.retriever} | told
    return {"doc_id": step.argument} if step.tool == "read" else {"doc_ids": list(step.doc_ids)}


def _observation(step: Step, one: Answered) -> dict[str, Any]:
    """What came back: ids, best first, and how much of each was shown."""
    extra: dict[str, Any] = {"doc_ids": list(step.doc_ids), "gold": one.gold(step.doc_ids)}
    if step.shown:
        extra |= {"shown": list(step.shown), "lengths": list(step.lengths)}
    extra |= {key: value for key in ("refused", "cut", "among") if (value := getattr(step, key))}
    return {"content": step.refused or "\n".join(step.doc_ids), "extra": extra}


def _calls_of(usage: Usage, one: Answered) -> dict[str, Any]:
    """How often a model was asked for a step, and what that used; nothing where it is not known."""
    if one.usage is None or not usage.calls:
        return {} if one.usage is None else {"llm_call_count": 0}
    cost = {} if usage.list_usd is None else {"cost_usd": usage.list_usd}
    tokens = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
    return {"llm_call_count": usage.calls, "metrics": tokens | cost | {"extra": usage_json(usage)}}


def _final_metrics(usage: Usage | None, steps: int) -> dict[str, Any]:
    """The whole trajectory's usage; the cost is the list price, which a cache does not change."""
    if usage is None:
        return {"total_steps": steps}
    cost = {} if usage.list_usd is None else {"total_cost_usd": usage.list_usd}
    tokens = {"total_prompt_tokens": usage.input_tokens, "total_completion_tokens": usage.output_tokens}
    return {**tokens, **cost, "total_steps": steps, "extra": usage_json(usage)}


class _Extra(TypedDict, total=False):
    """What is written here under `extra`, and what others may write there."""

    doc_ids: list[str]
    shown: list[Count]
    lengths: list[Count]
    cut: Count
    among: bool
    refused: str
    hop: Count
    started: Amount
    seconds: Amount | None
    repairs: Count
    calls: Count
    paid_usd: Amount | None
    answer: str
    ranking: list[str]
    scores: list[Number] | None


class _Result(TypedDict, total=False):
    extra: _Extra | None


class _Observation(TypedDict, total=False):
    results: list[_Result] | None


class _Call(TypedDict):
    function_name: str
    arguments: NotRequired[dict[str, Any]]


class _Metrics(TypedDict, total=False):
    prompt_tokens: Count
    completion_tokens: Count
    cost_usd: Amount | None
    total_prompt_tokens: Count
    total_completion_tokens: Count
    total_cost_usd: Amount | None
    extra: _Extra | None


class _Step(TypedDict, total=False):
    tool_calls: list[_Call] | None
    observation: _Observation | None
    metrics: _Metrics | None
    llm_call_count: Count | None
    extra: _Extra | None


class Line(TypedDict):
    """A line in ATIF, as far as it is read."""

    steps: list[_Step]
    final_metrics: NotRequired[_Metrics | None]
    extra: NotRequired[_Extra | None]


_SEARCH, _READ = re.compile("search|retriev", re.I), re.compile("read|open|fetch|get_?doc", re.I)
_IDS = ("doc_id", "docid", "document_id", "id", "_id")


def is_atif(row: Mapping[str, Any]) -> bool:
    """Whether a JSON object says that it is ATIF."""
    return str(row.get("schema_version", "")).startswith("ATIF")


def read_line(row: dict[str, Any], queries: Mapping[str, "Query"], environment: "Environment") -> Trajectory:
    """Read one ATIF document. ValueError for what is none, or does not fit the task."""
    forms.check(Line, row)
    extra = _extra(row)
    names = [extra.get("query_id"), row.get("trajectory_id"), row.get("session_id")]
    chosen = next((name for name in names if isinstance(name, str) and name in queries), None)
    query = find_query(str(chosen or names[0] or names[1] or names[2]), queries, environment)
    steps, mapped = list[Step](), True
    for number, one in enumerate(row["steps"], start=1):
        try:
            made = _read_steps(one, query, environment)
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
        _total_usage(row),
        extra.get("seconds"),
        extra.get("answer", ""),
        error if isinstance(error, str) else None,
        extra.get("ranking"),
        extra.get("scores") or None,
        mapped=mapped,
    )


class _Unmapped(Exception):
    """It cannot be told what a search found."""


def _read_steps(row: dict[str, Any], query: "Query", environment: "Environment") -> list[Step]:
    """Return the steps of a trace that one step of ATIF is; its usage is with the first of them."""
    extra, usage = _extra(row), _step_usage(row)
    when = {"hop": extra.get("hop", 0)} | {name: extra.get(name) or 0.0 for name in ("started", "seconds")}
    calls = row.get("tool_calls") or []
    if row.get("source") != "agent":
        return []
    if not calls:
        return _read_message(str(row.get("message") or ""), str(extra.get("tool", "note")), when, usage)
    results = (row.get("observation") or {}).get("results") or []
    made = list[Step]()
    for call in calls:
        mine = [one for one in results if one.get("source_call_id") in (call.get("tool_call_id"), None)]
        if (step := _read_call(call, mine, query, environment, when)) is not None:
            made.append(step)
    if made and usage is not None:
        made[0] = replace(made[0], usage=usage)
    return made


def _read_message(message: str, tool: str, when: dict[str, Any], usage: Usage | None) -> list[Step]:
    """Read a step without a call: a note, or what we write of a stop and of a prompt that was shortened."""
    ours: Tool | None = next((one for one in ("stop", "shorten") if one == tool), None)
    argument = message.removeprefix(f"{ours}: ") if ours else message
    return [Step(ours or "note", argument, **when, usage=usage or Usage())]


def _read_call(
    call: dict[str, Any],
    results: list[dict[str, Any]],
    query: "Query",
    environment: "Environment",
    when: dict[str, Any],
) -> Step | None:
    """Read one tool call; None for one that is neither a search nor a read, nor one of ours."""
    name, given = call["function_name"], call.get("arguments", {})
    tool = name if name in _OURS else "search" if _SEARCH.search(name) else "read" if _READ.search(name) else ""
    if not tool:
        return None
    texts = [one for one in given.values() if isinstance(one, str)]
    argument = "" if tool in _OURS else str(given.get("query", given.get("doc_id", next(iter(texts), ""))))
    extra: dict[str, Any] = next((found for one in results if (found := _extra(one))), {})
    doc_ids = _find_documents(results)
    if tool == "read" and not doc_ids and "refused" not in extra:
        doc_ids = [argument] if argument in environment.documents else None
    if doc_ids is None and tool != "search":
        return None
    if doc_ids is None:
        raise _Unmapped
    shown = extra.get("shown", [])
    if tool == "read" and not shown and doc_ids and isinstance(results[0].get("content") if results else None, str):
        shown = [min(len(results[0]["content"]), len(environment.documents[doc_ids[0]].text))]
    return check_step(
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


def _find_documents(results: list[dict[str, Any]]) -> list[str] | None:
    """The documents that an observation names, best first, each once; None where it does not say."""
    found, told = dict[str, None](), False
    for one in results:
        extra = _extra(one)
        ids = extra.get("doc_ids")
        if ids is None and isinstance(extra.get("source_doc_id"), str):
            ids = [extra["source_doc_id"]]
        if ids is None:
            ids = _parse_content(one.get("content"))
        if ids is not None:
            told = True
            found |= dict.fromkeys(ids)
    return list(found) if told else None


def _parse_content(content: Any) -> list[str] | None:
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


def _step_usage(row: Mapping[str, Any]) -> Usage | None:
    """The usage of one step; None where it does not say."""
    metrics = row.get("metrics")
    if not metrics:
        return Usage() if row.get("llm_call_count") == 0 else None
    if not {"prompt_tokens", "completion_tokens"} <= metrics.keys():
        return None
    calls = row.get("llm_call_count")
    return _make_usage(metrics, 1 if calls is None else calls, "prompt_tokens", "completion_tokens", "cost_usd")


def _total_usage(row: Mapping[str, Any]) -> Usage | None:
    """The usage of a whole trajectory: its final metrics, else the sum of its steps; None where one does not say."""
    steps = [_step_usage(step) for step in row["steps"] if step.get("source") == "agent"]
    known = [step for step in steps if step is not None]
    final = row.get("final_metrics")
    if final and {"total_prompt_tokens", "total_completion_tokens"} <= final.keys():
        calls = sum(step.calls for step in known)
        return _make_usage(final, calls, "total_prompt_tokens", "total_completion_tokens", "total_cost_usd")
    return total(known) if steps and len(known) == len(steps) else None


def _make_usage(row: Mapping[str, Any], calls: int, tokens_in: str, tokens_out: str, cost: str) -> Usage:
    """Read usage under ATIF's names; what was paid is known only where our own export says it."""
    extra = _extra(row)
    calls, repairs = extra.get("calls", calls), extra.get("repairs", 0)
    return Usage(calls, repairs, row[tokens_in], row[tokens_out], extra.get("paid_usd"), row.get(cost))


def _extra(row: Mapping[str, Any]) -> dict[str, Any]:
    return row.get("extra") or {}
