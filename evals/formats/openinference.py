"""Spans in OpenInference's vocabulary: in a file, as OTLP/JSON, or posted by OTLP to Phoenix,
MLflow or a collector.

A line of spans.jsonl is the TracesData of a query, as a collector's otlpjsonfile receiver takes it.
A query is a trace:

    AGENT       the query; its answer or ranking
      CHAIN       a hop
        RETRIEVER   a search and its documents          TOOL   a read
        RERANKER    an order that was made              CHAIN judged, selected, dropped, noted
        documents
          LLM         the model calls made for a step, taken together: their tokens and price
            LLM         each of them, if it is kept: what was sent, and what came back
      EVALUATOR   the metrics, as trace.evaluations

Ids are digests of run, query and place. A run records no time of day: a trace ends when
outcomes.jsonl was last written. Left out: texts of documents but in prompts, and retrievers'
scores.
"""

from base64 import b64decode
from collections.abc import Iterator
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode

from sextant.evals.formats.export_run import ExportedQuery, ExportedRun, compact
from sextant.evals.run_folder import OUTCOMES_FILE
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform.installation import explain_missing
from sextant.tools.records import SURFACING, JsonMapping, JsonObject, Step, Usage, usage_json
from sextant.tools.text import encodable, message_text

# All other steps are CHAIN.
_KINDS = {"read": "TOOL", "count": "TOOL", "rank": "RERANKER"}
_KINDS |= dict.fromkeys(SURFACING, "RETRIEVER")
_SCOPE = InstrumentationScope("sextant")


def write(source: ExportedRun, folder: Path) -> list[str]:
    """OpenInference spans: spans.jsonl, as OTLP/JSON; with an address as --out, as otlp."""
    with (folder / "spans.jsonl").open("w", encoding="utf-8") as file:
        for query in source:
            message = MessageToDict(
                encode_spans(make_spans(query, source)), use_integers_for_enums=True
            )
            for span in message["resourceSpans"][0]["scopeSpans"][0]["spans"]:
                for key in {
                    "traceId",
                    "spanId",
                    "parentSpanId",
                } & span.keys():  # in hex, unlike protobuf's JSON
                    span[key] = b64decode(span[key]).hex()
            file.write(compact(message) + "\n")
    return source.notes


def post(source: ExportedRun, address: str, *, force: bool) -> list[str]:
    """OpenInference spans, posted by OTLP to Phoenix, MLflow, a collector. --out is
    http://host:port
    """
    try:
        sender = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")  # an extra
    except ImportError as error:
        raise UsageError(f"--to otlp needs {explain_missing(error.name, 'otlp')}") from None
    url = address if address.endswith("/traces") else f"{address.rstrip('/')}/v1/traces"
    answers = []
    session = import_module("requests").Session()
    session.hooks["response"].append(
        lambda answer, **_: answers.append(f"{answer.status_code} {answer.reason}")
    )
    exporter = sender.OTLPSpanExporter(url, session=session)
    for query in source:
        answers.append("it does not answer")
        exporter.export(make_spans(query, source))
        if not answers[-1].startswith(
            "2"
        ):  # the exporter takes a redirect, which it does not follow, for a success
            raise DataError(
                f"{url} does not take spans: {answers[-1]}; mend --out or the server, and post "
                f"again"
            )
    return source.notes


def make_spans(query: ExportedQuery, source: ExportedRun) -> list[ReadableSpan]:
    """Make the spans of a query."""
    steps = query.steps
    last_end = max((step.started + step.seconds for step in steps), default=0.0)
    seconds = query.outcome.get("seconds") or last_end
    trace = _Trace(query, source, seconds)
    root = trace.add(
        source.run.config["program"],
        "AGENT",
        None,
        (0.0, seconds),
        _of_query(query, source),
    )
    parents = {0: root}
    for hop in dict.fromkeys(step.hop for step in steps if step.hop):
        hop_steps = [step for step in steps if step.hop == hop]
        start = min(step.started for step in hop_steps)
        end = max(step.started + step.seconds for step in hop_steps)
        parents[hop] = trace.add(
            f"hop {hop}",
            "CHAIN",
            root,
            (start, end),
            {},
        )
    for step in steps:
        _add_step(trace, step, parents[step.hop], query, source)
    at_end = (seconds, seconds)
    for call in source.calls(query.outcome["trace"].get("calls", ())):
        trace.add("model call", "LLM", root, at_end, _of_call(call))
    if query.values:
        trace.add("scores", "EVALUATOR", root, at_end, _of_scores(query))
    return trace.spans


def _add_step(
    trace: "_Trace",
    step: Step,
    parent: SpanContext,
    query: ExportedQuery,
    source: ExportedRun,
) -> None:
    during = (step.started, step.started + step.seconds)
    parent = trace.add(
        step.tool,
        _KINDS.get(step.tool, "CHAIN"),
        parent,
        during,
        _of_step(step, query),
    )
    if query.usage is not None and step.usage.calls:
        parent = trace.add(
            "model calls",
            "LLM",
            parent,
            during,
            _of_model(step.usage, source),
        )
    for call in source.calls(step.calls):
        trace.add("model call", "LLM", parent, during, _of_call(call))


class _Trace:
    def __init__(self, query: ExportedQuery, source: ExportedRun, seconds: float) -> None:
        name = f"{source.run.path.name}\0{query.query_id}"
        error = query.outcome["error"]
        self._digest = sha256(name.encode(errors="surrogatepass"))
        self._began = (source.run.path / OUTCOMES_FILE).stat().st_mtime_ns - round(seconds * 1e9)
        self._common: JsonObject = {
            "resource": Resource(
                {
                    "service.name": "sextant",
                    "openinference.project.name": source.run.config["task"],
                }
            ),
            "instrumentation_scope": _SCOPE,
        }
        # The status of the first span.
        self._status = Status()
        if error is not None:
            self._status = Status(StatusCode.ERROR, *encodable([error]))
        self.spans: list[ReadableSpan] = []

    def add(
        self,
        name: str,
        span_kind: str,
        parent: SpanContext | None,
        during: tuple[float, float],
        attributes: JsonMapping,
    ) -> SpanContext:  # `during` is in seconds
        span_digest = self._digest.copy()
        span_digest.update(b"\0%d" % len(self.spans))
        context = SpanContext(
            int(self._digest.hexdigest()[:32], 16),
            int(span_digest.hexdigest()[:16], 16),
            is_remote=False,
        )
        fields = self._common | {
            "attributes": {
                "openinference.span.kind": span_kind,
                **attributes,
                **{
                    key: encodable([value])[0]
                    for key, value in attributes.items()
                    if isinstance(value, str)
                },
            }
        }
        fields["status"] = Status() if parent else self._status
        fields["start_time"], fields["end_time"] = (
            self._began + round(point * 1e9) for point in during
        )
        self.spans.append(ReadableSpan(name, context, parent, **fields))
        return context


def _of_query(query: ExportedQuery, source: ExportedRun) -> JsonObject:
    config = source.run.config
    ranking = query.outcome["ranking"]
    answer = query.outcome.get("answer") or ""
    return {
        "input.value": query.text,
        "output.value": answer or compact(ranking),
        **({} if answer else {"output.mime_type": "application/json"}),
        "session.id": source.run.path.name,
        "agent.name": config["program"],
        "tag.tags": [config["task"], config["split"]],
        "metadata": compact(
            {
                "query_id": query.query_id,
                "retriever": config["retriever"]["name"],
                "lm": config["lm"]["name"],
                "relevant": query.relevant,
            }
        ),
    }


def _of_step(step: Step, query: ExportedQuery) -> JsonObject:
    attributes: JsonObject = {
        name: text
        for name, text in {"input.value": step.argument, "output.value": step.refused}.items()
        if text
    }
    if step.tool in ("search", "more"):
        instruction = {"instruction": step.instruction} if step.instruction else {}
        attributes["metadata"] = compact(
            {
                "k": step.k,
                "retriever": step.retriever,
                **instruction,
            }
        )
    elif step.tool == "read":
        attributes |= {
            "tool.name": "read",
            "tool.parameters": compact({"doc_id": step.argument}),
        }
    prefix = {
        **dict.fromkeys(SURFACING, "retrieval.documents"),
        "rank": "reranker.output_documents",
    }.get(step.tool, "output.documents")
    gold = query.gold(step.doc_ids)
    for index, doc_id in enumerate(step.doc_ids):
        metadata: JsonObject = {"rank": step.first + index + 1}
        if step.shown:
            metadata |= {
                "shown_chars": step.shown[index],
                "chars": step.lengths[index],
            }
        metadata |= {"shown_spans": step.spans[index]} if step.spans else {}
        metadata |= {"grade": gold[doc_id]} if doc_id in gold else {}
        attributes[f"{prefix}.{index}.document.id"] = doc_id
        attributes[f"{prefix}.{index}.document.metadata"] = compact(metadata)
    return attributes


def _of_model(usage: Usage, source: ExportedRun) -> JsonObject:
    return {
        "llm.token_count.prompt": usage.input_tokens,
        "llm.token_count.completion": usage.output_tokens,
        "llm.token_count.total": usage.input_tokens + usage.output_tokens,
        "metadata": compact(usage_json(usage)),
        "llm.model_name": source.run.config["lm"]["name"],
        **({} if usage.paid_usd is None else {"llm.cost.total": usage.paid_usd}),
    }


def _of_call(call: JsonMapping) -> JsonObject:
    replies = [_message({"role": "assistant", **reply}) for reply in call["said"]]
    if call["reasoning"]:
        replies[0]["message"]["contents"] = [
            {"message_content": {"type": "reasoning", "text": call["reasoning"]}}
        ]
    attributes = {
        "model_name": call["model"],
        "invocation_parameters": compact(call["settings"]),
        "finish_reason": call["finish"],
        "input_messages": [_message(message) for message in call["messages"]],
        "tools": [{"tool": {"json_schema": compact(tool)}} for tool in call["tools"]],
        "output_messages": replies,
    }
    output = "\n".join(map(message_text, call["said"]))
    return {
        **dict(_flat("llm", attributes)),
        "output.value": output,
        "metadata": compact({"key": call["key"]}),
    }


def _message(message: JsonMapping) -> dict[str, JsonObject]:
    calls = [
        (
            call,
            call.get("function") or call,
        )
        for call in message.get("tool_calls") or ()
    ]
    converted = {
        "role": message["role"],
        "content": message_text({**message, "tool_calls": ()}),
    }
    converted["tool_calls"] = [
        {
            "tool_call": {
                "id": call.get("id"),
                "function": {key: function.get(key) for key in ("name", "arguments")},
            }
        }
        for call, function in calls
    ]
    return {"message": converted | {"tool_call_id": message.get("tool_call_id")}}


def _flat(
    name: str, value: Any
) -> Iterator[tuple[str, Any]]:  # each under its whole name; no empty ones
    if isinstance(value, dict | list):
        for key, element in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(f"{name}.{key}", element)
    elif value:
        yield name, value


def _of_scores(query: ExportedQuery) -> JsonObject:
    attributes: JsonObject = {
        "output.value": compact(query.values),
        "output.mime_type": "application/json",
    }
    for index, (name, value) in enumerate(query.values.items()):
        prefix = f"trace.evaluations.{index}.evaluation"
        attributes |= {
            f"{prefix}.name": name,
            f"{prefix}.score": value,
            f"{prefix}.annotator_kind": "CODE",
        }
    return attributes
