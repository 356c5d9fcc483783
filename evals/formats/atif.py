"""Trajectories in ATIF, the Agent Trajectory Interchange Format (Harbor's RFC 0001, version 1.7, which 1.8 contains).

The first step is the query, as the user's. Each step of a session is one step of the agent's: what it did is a tool
call, what came back is the observation linked to it. ATIF has no place for rankings and judgements, so they are in
`extra`: `doc_ids`, `shown` and `lengths` (characters) and `gold` (document -> grade) of an observation; the ranking,
the metrics and the lost documents at the root. evals/formats/imported/atif.py reads the same. Left out: texts of
documents, which a run folder does not have.
"""

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from evals.formats.source import Answered, Source, compact, put_line
from tools.disk import sha256 as digest_of
from tools.records import Step, Usage, usage_json

VERSION = "ATIF-v1.7"
_CALLS = ("search", "read", "judge", "select", "drop", "rank")  # the others are messages


def write(source: Source, folder: Path) -> list[str]:
    """Trajectories in ATIF: trajectories.jsonl, and one file a query in queries/."""
    (folder / "queries").mkdir()
    agent = _agent(source)
    with (folder / "trajectories.jsonl").open("w", encoding="utf-8") as lines:
        for one in source:
            made = trajectory(one, source, agent)
            put_line(lines, made)
            (folder / "queries" / f"{file_name(one.query_id)}.json").write_text(compact(made) + "\n", encoding="utf-8")
    return []


def file_name(identifier: str) -> str:
    """A file's name for any id: its harmless part, and a digest where that is not all of it."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", identifier)[:80].lstrip(".")
    if plain == identifier:
        return plain
    return f"{plain}-{sha256(identifier.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


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
            "config_sha256": digest_of(source.run.path / "config.json"),
        },
    }


def trajectory(one: Answered, source: Source, agent: dict[str, Any]) -> dict[str, Any]:
    """One query's trajectory."""
    steps: list[dict[str, Any]] = [{"source": "user", "message": one.text}]
    steps += [_step(number, step, one) for number, step in enumerate(one.steps)]
    numbered = [{"step_id": number} | step for number, step in enumerate(steps, start=1)]
    config = source.run.config
    return {
        "schema_version": VERSION,
        "session_id": source.run.path.name,
        "trajectory_id": one.query_id,
        "agent": agent,
        "steps": numbered,
        "final_metrics": _final(one, len(numbered)),
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


def _step(number: int, step: Step, one: Answered) -> dict[str, Any]:
    """One step of a session."""
    extra = {"tool": step.tool, "hop": step.hop, "started": step.started, "seconds": step.seconds}
    if step.tool not in _CALLS:
        message = step.argument if step.tool == "note" else f"{step.tool}: {step.argument}"
        return {"source": "agent", "message": message, **_model_calls(step.usage, one), "extra": extra}
    call = f"call-{number}"
    return {
        "source": "agent",
        "message": "",
        "tool_calls": [{"tool_call_id": call, "function_name": step.tool, "arguments": _arguments(step)}],
        "observation": {"results": [{"source_call_id": call} | _observed(step, one)]},
        **_model_calls(step.usage, one),
        "extra": extra,
    }


def _arguments(step: Step) -> dict[str, Any]:
    """What a step was called with."""
    if step.tool == "search":
        told = {"instruction": step.instruction} if step.instruction else {}
        return {"query": step.argument, "k": step.k, "retriever": step.retriever} | told
    return {"doc_id": step.argument} if step.tool == "read" else {"doc_ids": list(step.doc_ids)}


def _observed(step: Step, one: Answered) -> dict[str, Any]:
    """What came back: ids, best first, and how much of each was shown."""
    extra: dict[str, Any] = {"doc_ids": list(step.doc_ids), "gold": one.gold(step.doc_ids)}
    if step.shown:
        extra |= {"shown": list(step.shown), "lengths": list(step.lengths)}
    if step.refused:
        extra["refused"] = step.refused
    if step.cut:
        extra["cut"] = step.cut
    if step.among:
        extra["among"] = True
    return {"content": step.refused or "\n".join(step.doc_ids), "extra": extra}


def _model_calls(usage: Usage, one: Answered) -> dict[str, Any]:
    """How often a model was asked for a step, and what that used; nothing where nobody knows."""
    if one.usage is None:
        return {}
    if not usage.calls:
        return {"llm_call_count": 0}
    return {"llm_call_count": usage.calls, "metrics": _metrics(usage)}


def _metrics(usage: Usage) -> dict[str, Any]:
    cost = {} if usage.list_usd is None else {"cost_usd": usage.list_usd}
    tokens = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
    return tokens | cost | {"extra": usage_json(usage)}


def _final(one: Answered, steps: int) -> dict[str, Any]:
    """The whole trajectory's usage; the cost is the list price, which a cache does not change."""
    if one.usage is None:
        return {"total_steps": steps}
    cost = {} if one.usage.list_usd is None else {"total_cost_usd": one.usage.list_usd}
    return {
        "total_prompt_tokens": one.usage.input_tokens,
        "total_completion_tokens": one.usage.output_tokens,
        **cost,
        "total_steps": steps,
        "extra": usage_json(one.usage),
    }
