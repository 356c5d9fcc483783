"""ATIF, the Agent Trajectory Interchange Format (Harbor's RFC 0001), written in version 1.7 and
read from 1.0 on.

Written: the instructions of its model calls as the system's steps, the query as the user's, then a
step of the agent's for each step of the session, with a call from `agent.tool_definitions` and
the observation linked to it. The model's answers are its message; the messages sent are in
`extra.calls`. Prompts and answers are there if they are kept. Rankings and judgements are in
`extra`: `doc_ids`, `shown`, `lengths` (characters) and `gold` (document -> grade) of an
observation; the ranking, the metrics and the lost documents at the root. Left out: texts of
documents but in prompts.

Read: the query is `extra.query_id`, else `trajectory_id`, else `session_id`. A tool call with
"search" or "retriev" in its name is a search, a call with "read", "open", "fetch" or "get_doc" a
read;
judge, select, drop and rank are as written here. Their documents are in the observation:
`extra.doc_ids`, or `extra.source_doc_id` of each result, or content that is JSON with an id, docid,
doc_id, document_id or _id for each hit. If a search does not tell its documents, all steps are
left out: half a trace would call found documents lost. Left out: reasoning, messages (but notes),
sub-agents.
"""

import json
import re
from collections.abc import Container
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from sextant.evals.formats.export_run import ExportedQuery, ExportedRun, compact, name_file
from sextant.evals.run_folder import CONFIG_FILE
from sextant.tools import schemas
from sextant.tools.corpus import Corpus
from sextant.tools.platform.files import sha256
from sextant.tools.records import (
    JsonMapping,
    JsonObject,
    Step,
    Usage,
    total,
    usage_from_json,
    usage_json,
)
from sextant.tools.schemas import Amount, Count
from sextant.tools.text import message_text

VERSION = "ATIF-v1.7"
_WORDLESS = ("stop", "shorten", "salvage")  # steps of ours without a call of a tool
_OURS = ("judge", "select", "drop", "rank")
_TEXT: JsonObject = {"type": "string"}
# Steps that are written as calls, with their arguments; steps of other kinds are messages.
_CALLS: dict[str, JsonObject] = {
    "search": {
        "query": _TEXT,
        "k": {"type": "integer"},
        "retriever": _TEXT,
        "instruction": _TEXT,
    },
    "more": {"search": _TEXT, "from": {"type": "integer"}, "k": {"type": "integer"}},
    "grep": {"pattern": _TEXT, "k": {"type": "integer"}},
    "phrase": {"text": _TEXT, "k": {"type": "integer"}},
    "count": {"words": _TEXT},
    "notes": {},
    "read": {"doc_id": _TEXT},
    **{name: {"doc_ids": {"type": "array", "items": _TEXT}} for name in _OURS},
}
_WORDS = {"grep": "pattern", "phrase": "text"}  # their first parameters
_SEARCH = re.compile("search|retriev", re.I)
_READ = re.compile("read|open|fetch|get_?doc", re.I)
_IDS = ("doc_id", "docid", "document_id", "id", "_id")


def write(source: ExportedRun, folder: Path) -> list[str]:
    """Trajectories in ATIF: trajectories.jsonl, and a file per query in queries/."""
    (folder / "queries").mkdir()
    agent = _describe_agent(source)
    with (folder / "trajectories.jsonl").open("w", encoding="utf-8") as lines:
        for query in source:
            line = compact(_trajectory(query, source, agent)) + "\n"
            lines.write(line)
            (folder / "queries" / f"{name_file(query.query_id)}.json").write_text(
                line, encoding="utf-8"
            )
    return source.notes


def _describe_agent(source: ExportedRun) -> JsonObject:
    config = source.run.config
    tools = [
        {
            "name": name,
            "description": f"{name} documents",
            "parameters": {"type": "object", "properties": arguments},
        }
        for name, arguments in _CALLS.items()
    ]
    return {
        "name": config["program"],
        "version": str(config.get("code") or "unknown"),
        **({"model_name": source.model} if source.model else {}),
        "tool_definitions": [{"type": "function", "function": tool} for tool in tools],
        "extra": {
            **{key: config[key]["name"] for key in ("retriever", "lm")},
            "parameters": config["parameters"],
            "config_sha256": sha256(source.run.path / CONFIG_FILE),
        },
    }


def _trajectory(query: ExportedQuery, source: ExportedRun, agent: JsonObject) -> JsonObject:
    config = source.run.config
    outcome = query.outcome
    agent_steps = [
        _write_step(number, step, query, source) for number, step in enumerate(query.steps)
    ]
    instructions = dict.fromkeys(
        message_text(message)
        for step in agent_steps
        for call in step["extra"].get("calls", ())
        for message in call["messages"]
        if message["role"] == "system"
    )
    steps = [
        *({"source": "system", "message": text} for text in instructions),
        {"source": "user", "message": query.text},
        *agent_steps,
    ]
    return {
        "schema_version": VERSION,
        "session_id": source.run.path.name,
        "trajectory_id": query.query_id,
        "agent": agent,
        "steps": [{"step_id": number} | step for number, step in enumerate(steps, start=1)],
        "final_metrics": _metrics(query.usage, "total_", total_steps=len(steps)),
        "extra": {
            "query_id": query.query_id,
            **{key: config[key] for key in ("task", "split")},
            **{key: outcome.get(key) for key in ("ranking", "error", "seconds")},
            **({"scores": outcome["scores"]} if outcome.get("scores") else {}),
            "answer": outcome.get("answer", ""),
            "metrics": query.values,
            "relevant": query.relevant,
            **_calls(source.calls(outcome["trace"].get("calls", ()))),
        },
    }


def _write_step(number: int, step: Step, query: ExportedQuery, source: ExportedRun) -> JsonObject:
    model_calls = source.calls(step.calls)
    row: JsonObject = {
        "source": "agent",
        "message": step.argument if step.tool == "note" else f"{step.tool}: {step.argument}",
    }
    if reasoning := "\n\n".join(call["reasoning"] for call in model_calls if call["reasoning"]):
        row["reasoning_content"] = reasoning
    if step.tool in _CALLS:
        row["message"] = "\n\n".join(
            message_text(message) for call in model_calls for message in call["said"]
        )
        call_id = f"call-{number}"
        row["tool_calls"] = [
            {
                "tool_call_id": call_id,
                "function_name": step.tool,
                "arguments": _arguments(step),
            }
        ]
        row["observation"] = {"results": [{"source_call_id": call_id} | _observation(step, query)]}
    if query.usage is not None:
        row["llm_call_count"] = step.usage.calls
        if step.usage.calls:
            row["metrics"] = _metrics(step.usage, "")
    row["extra"] = {
        "tool": step.tool,
        "hop": step.hop,
        "started": step.started,
        "seconds": step.seconds,
        **_calls(model_calls),
    }
    return row


def _calls(
    calls: list[JsonObject],
) -> JsonObject:  # for `extra`; none where they are not kept
    names = (
        "key",
        "model",
        "finish",
        "settings",
        "messages",
        "tools",
        "outputs",
    )
    return {"calls": [{name: call[name] for name in names} for call in calls]} if calls else {}


def _arguments(step: Step) -> JsonObject:
    if step.tool == "search":
        instruction = {"instruction": step.instruction} if step.instruction else {}
        return {
            "query": step.argument,
            "k": step.k,
            "retriever": step.retriever,
        } | instruction
    if step.tool == "more":
        return {"search": step.argument, "from": step.first + 1, "k": step.k}
    if step.tool in ("grep", "phrase"):
        return {_WORDS[step.tool]: step.argument, "k": step.k}
    if step.tool in ("count", "notes"):
        return {"words": step.argument} if step.argument else {}
    return {"doc_id": step.argument} if step.tool == "read" else {"doc_ids": list(step.doc_ids)}


def _observation(step: Step, query: ExportedQuery) -> JsonObject:
    extra: JsonObject = {
        "doc_ids": list(step.doc_ids),
        "gold": query.gold(step.doc_ids),
    }
    if step.shown:
        extra |= {
            "shown": list(step.shown),
            "lengths": list(step.lengths),
        }
    if step.spans:
        extra["spans"] = [[list(span) for span in spans] for spans in step.spans]
    extra |= {
        key: value
        for key in ("refused", "cut", "among", "partial")
        if (value := getattr(step, key))
    }
    return {
        "content": step.refused or "\n".join(step.doc_ids),
        "extra": extra,
    }


def _metrics(usage: Usage | None, prefix: str, **totals: int) -> JsonObject:
    if usage is None:
        return totals
    tokens = {
        f"{prefix}prompt_tokens": usage.input_tokens,
        f"{prefix}completion_tokens": usage.output_tokens,
    }
    cost = {} if usage.paid_usd is None else {f"{prefix}cost_usd": usage.paid_usd}
    return {**tokens, **cost, **totals, "extra": usage_json(usage)}


class _Spent(TypedDict, total=False):
    calls: Count
    repairs: Count
    paid_usd: Amount | None
    list_usd: Amount | None


class _Metrics(TypedDict, total=False):
    prompt_tokens: Count
    completion_tokens: Count
    cost_usd: Amount | None
    total_prompt_tokens: Count
    total_completion_tokens: Count
    total_cost_usd: Amount | None
    extra: _Spent | None


class _Call(TypedDict):
    function_name: str
    arguments: NotRequired[JsonObject]


class _Observation(TypedDict, total=False):
    results: list[JsonObject] | None


class _Step(TypedDict, total=False):
    tool_calls: list[_Call] | None
    observation: _Observation | None
    metrics: _Metrics | None
    llm_call_count: Count | None
    extra: JsonObject | None


class AtifLine(TypedDict):
    """A line in ATIF, as far as it is read; `extra` is checked as an ImportedLine."""

    steps: list[_Step]
    final_metrics: NotRequired[_Metrics | None]
    extra: NotRequired[JsonObject | None]


def convert_atif(
    row: JsonObject, queries: Container[str], documents: Corpus
) -> tuple[JsonObject, bool]:
    """Convert an ATIF document to an ImportedLine; return it, and whether searches name their
    documents. ValueError for another form.
    """
    schemas.validate(AtifLine, row)
    extra = _extra(row)
    names = [
        extra.get("query_id"),
        row.get("trajectory_id"),
        row.get("session_id"),
    ]
    steps = []
    mapped = True
    for number, atif_step in enumerate(row["steps"], start=1):
        if atif_step.get("source") == "agent":
            for step in _convert_step(atif_step, documents):
                steps.append(step | {"step_id": number})
                mapped &= step["doc_ids"] is not None
    query_id = next((name for name in names if isinstance(name, str) and name in queries), None)
    return {
        "query_id": str(query_id or names[0] or names[1] or names[2]),
        "steps": steps if mapped else [],
        "notes": [step["argument"] for step in steps if step["tool"] == "note"],
        "usage": _total_usage(row),
        "error": error if isinstance(error := extra.get("error"), str) else None,
        **{key: extra[key] for key in ("seconds", "answer", "ranking", "scores") if key in extra},
    }, mapped


def _convert_step(row: JsonObject, documents: Corpus) -> list[JsonObject]:
    extra = _extra(row)
    usage = _step_usage(row)
    if calls := row.get("tool_calls"):
        results = (row.get("observation") or {}).get("results") or []
        steps = []
        for call in calls:
            steps += _convert_call(
                call,
                [
                    result
                    for result in results
                    if result.get("source_call_id") in (call.get("tool_call_id"), None)
                ],
                documents,
            )
    else:  # a note, or what we write of a stop and of a prompt that was shortened
        tool = extra.get("tool") if extra.get("tool") in _WORDLESS else "note"
        steps = [
            {
                "tool": tool,
                "argument": str(row.get("message") or "").removeprefix(f"{tool}: "),
                "doc_ids": [],
            }
        ]
    if steps and usage is not None:
        steps[0]["usage"] = usage
    when = {
        name: extra[name] for name in ("hop", "started", "seconds") if extra.get(name) is not None
    }
    return [step | when for step in steps]


def _convert_call(
    call: JsonObject, results: list[JsonObject], documents: Corpus
) -> list[JsonObject]:
    """Return a tool call as a step of ours, or none for another tool; documents that a search
    does not name are None.
    """
    tool = _tool_of(call["function_name"])
    arguments = call.get("arguments", {})
    argument = "" if tool in _OURS else _main_argument(arguments)
    extra: JsonObject = next(filter(None, map(_extra, results)), {})
    doc_ids = _find_documents(results)
    if tool == "read" and not doc_ids and "refused" not in extra:
        doc_ids = [argument] if argument in documents else None
    if not tool or (doc_ids is None and tool != "search"):
        return []
    k = arguments.get("k")
    step: JsonObject = {
        "tool": tool,
        "argument": argument,
        "doc_ids": doc_ids,
        "retriever": str(arguments.get("retriever") or ""),
        "k": k if isinstance(k, int) and 0 <= k <= schemas.LARGEST else 0,
        "instruction": str(arguments.get("instruction") or ""),
    }
    for key in ("cut", "among", "shown", "lengths", "refused"):
        if key in extra:
            step[key] = extra[key]
    if tool == "read" and not step.get("shown") and doc_ids and doc_ids[0] in documents:
        content = results[0].get("content") if results else None
        if isinstance(content, str):
            step["shown"] = [min(len(content), len(documents[doc_ids[0]].text))]
    return [step]


def _tool_of(name: str) -> str:
    """Return the tool of ours for a function's name, "" for none."""
    if name in _OURS:
        return name
    if _SEARCH.search(name):
        return "search"
    return "read" if _READ.search(name) else ""


def _main_argument(arguments: JsonMapping) -> str:
    texts = [value for value in arguments.values() if isinstance(value, str)]
    return str(arguments.get("query", arguments.get("doc_id", texts[0] if texts else "")))


def _find_documents(results: list[JsonObject]) -> list[str] | None:
    """Return the documents of a call's results, best first; None if they do not name them."""
    doc_ids = None
    for result in results:
        extra = _extra(result)
        ids = extra.get("doc_ids")
        source = extra.get("source_doc_id")
        if ids is None and isinstance(source, str):
            ids = [source]
        if ids is None:
            ids = _parse_content(result.get("content"))
        if isinstance(ids, list):
            doc_ids = (doc_ids or {}) | dict.fromkeys(map(str, ids))
    return None if doc_ids is None else list(doc_ids)


def _parse_content(content: Any) -> list[str] | None:
    """Return the ids of hits in JSON; None if it has none."""
    if not isinstance(content, str):
        return None
    try:
        hits = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if isinstance(hits, dict):
        hits = next((value for value in hits.values() if isinstance(value, list)), None)
    if not isinstance(hits, list):
        return None
    ids = []
    for hit in hits:
        doc_id = hit
        if isinstance(hit, dict):
            doc_id = next((hit[key] for key in _IDS if key in hit), None)
        if not isinstance(doc_id, str | int):
            return None
        ids.append(str(doc_id))
    return ids


def _total_usage(row: JsonMapping) -> JsonObject | None:
    steps = [_step_usage(step) for step in row["steps"] if step.get("source") == "agent"]
    usage = total(usage_from_json(step) for step in steps if step)
    if (final := _usage(row.get("final_metrics") or {}, usage.calls, "total_")) is not None:
        return final
    return usage_json(usage) if steps and None not in steps else None


def _step_usage(row: JsonMapping) -> JsonObject | None:
    calls = row.get("llm_call_count")
    metrics = row.get("metrics")
    if not metrics:
        return usage_json(Usage()) if calls == 0 else None
    return _usage(metrics, 1 if calls is None else calls, "")


def _usage(row: JsonMapping, calls: int, prefix: str) -> JsonObject | None:
    if (
        not {
            f"{prefix}prompt_tokens",
            f"{prefix}completion_tokens",
        }
        <= row.keys()
    ):
        return None
    extra = _extra(row)
    cost = row.get(f"{prefix}cost_usd")
    return {
        "calls": extra.get("calls", calls),
        "repairs": extra.get("repairs", 0),
        "input_tokens": row[f"{prefix}prompt_tokens"],
        "output_tokens": row[f"{prefix}completion_tokens"],
        "paid_usd": extra.get("paid_usd", cost),
        "list_usd": extra.get("list_usd", cost),
    }


def _extra(row: JsonMapping) -> JsonObject:
    extra = row.get("extra")
    return extra if isinstance(extra, dict) else {}
