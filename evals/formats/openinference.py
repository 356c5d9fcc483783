"""Spans in OpenInference's vocabulary, as OTLP/JSON: a line of spans.jsonl is the TracesData of one query.

A collector's otlpjsonfile receiver takes it as it is; Phoenix and MLflow take the same as protobuf
(docs/decisions/export-import.md has the ten lines). A query is a trace:

    AGENT       the query; its answer or ranking
      CHAIN       a hop
        RETRIEVER   a search and its documents          TOOL   a read
        RERANKER    an order that was made              CHAIN  what was judged, selected, dropped, noted
          LLM         the model calls made for a step, taken together: their tokens and price
            LLM         each of them, where it is kept: what was sent, and what came back
      EVALUATOR   the metrics, as trace.evaluations

Ids are digests of run, query and place. A run records no time of day: a trace ends when outcomes.jsonl was last
written. Left out: texts of documents but in prompts, and retrievers' scores.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from evals.formats.writing import Answered, Source, compact
from tools.records import Step, Usage
from tools.text import message_text

_KINDS = {"search": "RETRIEVER", "read": "TOOL", "rank": "RERANKER"}  # all others are CHAIN


def write(source: Source, folder: Path) -> list[str]:
    """OpenInference spans as OTLP/JSON lines: spans.jsonl, for OpenTelemetry collectors, Phoenix, MLflow."""
    ended = (source.run.path / "outcomes.jsonl").stat().st_mtime_ns
    about = {"service.name": "sextant", "openinference.project.name": source.run.config["task"]}
    resource = {"attributes": _attributes(about)}
    with (folder / "spans.jsonl").open("w", encoding="utf-8") as file:
        for one in source:
            scope = {"scope": {"name": "sextant"}, "spans": make_spans(one, source, ended)}
            file.write(compact({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}) + "\n")
    return source.notes


def make_spans(one: Answered, source: Source, ended: int) -> list[dict[str, Any]]:
    """Make the spans of one query, whose trace ends at `ended`, in nanoseconds since 1970."""
    steps = one.steps
    seconds = one.outcome.get("seconds") or max((step.started + step.seconds for step in steps), default=0.0)
    trace = _Trace(f"{source.run.path.name}\0{one.query_id}", ended - round(seconds * 1e9))
    root = trace.add(source.run.config["program"], "AGENT", "", (0.0, seconds), _of_query(one, source))
    if one.outcome["error"] is not None:
        trace.spans[0]["status"] = {"code": 2, "message": one.outcome["error"]}  # STATUS_CODE_ERROR
    parents = {0: root}
    for hop in dict.fromkeys(step.hop for step in steps if step.hop):
        within = [step for step in steps if step.hop == hop]
        span = (min(step.started for step in within), max(step.started + step.seconds for step in within))
        parents[hop] = trace.add(f"hop {hop}", "CHAIN", root, span, {})
    for step in steps:
        during = (step.started, step.started + step.seconds)
        kind = _KINDS.get(step.tool, "CHAIN")
        parent = trace.add(step.tool, kind, parents[step.hop], during, _of_step(step, one))
        if one.usage is not None and step.usage.calls:
            parent = trace.add("model calls", "LLM", parent, during, _of_model(step.usage, source))
        for call in source.calls(step.calls):
            trace.add("model call", "LLM", parent, during, _of_call(call))
    for call in source.calls(one.outcome["trace"].get("calls", ())):
        trace.add("model call", "LLM", root, (seconds, seconds), _of_call(call))
    if one.values:
        trace.add("scores", "EVALUATOR", root, (seconds, seconds), _of_scores(one))
    return trace.spans


class _Trace:
    def __init__(self, name: str, began: int) -> None:
        self._digest = sha256(name.encode("utf-8", "surrogatepass"))
        self._began = began
        self.spans: list[dict[str, Any]] = []

    def add(self, name: str, kind: str, parent: str, during: tuple[float, float], attributes: Mapping[str, Any]) -> str:
        """Add a span between two points of time in seconds, and return its id."""
        place = self._digest.copy()
        place.update(b"\0%d" % len(self.spans))
        start, end = (self._began + round(point * 1e9) for point in during)
        self.spans.append(
            {
                "traceId": self._digest.hexdigest()[:32],
                "spanId": place.hexdigest()[:16],
                **({"parentSpanId": parent} if parent else {}),
                "name": name,
                "kind": 1,  # SPAN_KIND_INTERNAL
                "startTimeUnixNano": str(start),
                "endTimeUnixNano": str(end),
                "attributes": _attributes({"openinference.span.kind": kind, **attributes}),
                "status": {},
            }
        )
        return str(self.spans[-1]["spanId"])


def _of_query(one: Answered, source: Source) -> dict[str, Any]:
    config, ranking = source.run.config, one.outcome["ranking"]
    answer = one.outcome.get("answer") or ""
    named = {"retriever": config["retriever"]["name"], "lm": config["lm"]["name"]}
    return {
        "input.value": one.text,
        "output.value": answer or compact(ranking),
        **({} if answer else {"output.mime_type": "application/json"}),
        "session.id": source.run.path.name,
        "agent.name": config["program"],
        "tag.tags": [config["task"], config["split"]],
        "metadata": compact({"query_id": one.query_id, **named, "relevant": one.relevant}),
    }


def _of_step(step: Step, one: Answered) -> dict[str, Any]:
    told = {"input.value": step.argument, "output.value": step.refused}
    attributes: dict[str, Any] = {name: text for name, text in told.items() if text}
    if step.tool == "search":
        about: dict[str, Any] = {"k": step.k, "retriever": step.retriever}
        about |= {"instruction": step.instruction} if step.instruction else {}
        attributes["metadata"] = compact(about)
    elif step.tool == "read":
        attributes |= {"tool.name": "read", "tool.parameters": compact({"doc_id": step.argument})}
    prefix = {"search": "retrieval.documents", "rank": "reranker.output_documents"}.get(step.tool, "output.documents")
    gold = one.gold(step.doc_ids)
    for place, doc_id in enumerate(step.doc_ids):
        known: dict[str, Any] = {"rank": place + 1}
        if step.shown:
            known |= {"shown_chars": step.shown[place], "chars": step.lengths[place]}
        known |= {"grade": gold[doc_id]} if doc_id in gold else {}
        attributes[f"{prefix}.{place}.document.id"] = doc_id
        attributes[f"{prefix}.{place}.document.metadata"] = compact(known)
    return attributes


def _of_model(usage: Usage, source: Source) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "llm.token_count.prompt": usage.input_tokens,
        "llm.token_count.completion": usage.output_tokens,
        "llm.token_count.total": usage.input_tokens + usage.output_tokens,
        "metadata": compact({"calls": usage.calls, "repairs": usage.repairs, "paid_usd": usage.paid_usd}),
        "llm.model_name": source.run.config["lm"]["name"],
    }
    return attributes | ({} if usage.list_usd is None else {"llm.cost.total": usage.list_usd})


def _of_call(call: Mapping[str, Any]) -> dict[str, Any]:
    replies = [_message({"role": "assistant", **said}) for said in call["said"]]
    if call["reasoning"]:
        replies[0]["message"]["contents"] = [{"message_content": {"type": "reasoning", "text": call["reasoning"]}}]
    told = {
        "model_name": call["model"],
        "invocation_parameters": compact(call["settings"]),
        "finish_reason": call["finish"],
        "input_messages": [_message(message) for message in call["messages"]],
        "tools": [{"tool": {"json_schema": compact(tool)}} for tool in call["tools"]],
        "output_messages": replies,
    }
    said = "\n".join(map(message_text, call["said"]))
    return {**dict(_flat("llm", told)), "output.value": said, "metadata": compact({"key": call["key"]})}


def _message(message: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    calls = [(call, call.get("function") or call) for call in message.get("tool_calls") or ()]
    made = {"role": message["role"], "content": message_text({**message, "tool_calls": ()})}
    made["tool_calls"] = [
        {"tool_call": {"id": call.get("id"), "function": {key: function.get(key) for key in ("name", "arguments")}}}
        for call, function in calls
    ]
    return {"message": made | {"tool_call_id": message.get("tool_call_id")}}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that are nested in a value, each under its whole name; without empty ones."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(f"{name}.{key}", one)
    elif value:
        yield name, value


def _of_scores(one: Answered) -> dict[str, Any]:
    attributes: dict[str, Any] = {"output.value": compact(one.values), "output.mime_type": "application/json"}
    for place, (name, value) in enumerate(one.values.items()):
        prefix = f"trace.evaluations.{place}.evaluation"
        attributes |= {f"{prefix}.name": name, f"{prefix}.score": value, f"{prefix}.annotator_kind": "CODE"}
    return attributes


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    """Return a value as OTLP/JSON has it: whole numbers of 64 bits are strings there."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": str(value)}
