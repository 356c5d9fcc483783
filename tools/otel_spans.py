"""Live spans: each search of a session is a RETRIEVER span with its documents, each reading a TOOL
span.

A toolbox loads this if MLflow or OpenTelemetry's SDK is loaded, or if variables ask for spans
(tools/session.py). A span joins MLflow's trace if a trace is active, as with
mlflow.dspy.autolog(), else OpenTelemetry's. Attributes are OpenInference's. Left out: programs and
model calls, whose spans autolog makes, or OpenInference's DSPyInstrumentor.
"""

import inspect
import json
import sys
from collections.abc import Sequence
from functools import cache, partial, wraps
from importlib import import_module
from typing import Any, TypeVar

from opentelemetry import trace

from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.installation import tell_how_to_install
from sextant.tools.platform.temporary_changes import changed_environment
from sextant.tools.records import Hit, JsonObject, Snippet
from sextant.tools.text import encodable

# What holds where the variables leave it open. A search of k documents has three attributes for
# each of them.
_DEFAULTS = {
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_RESOURCE_ATTRIBUTES": "service.name=sextant",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "10000",
}
_TRACER = trace.get_tracer("sextant")

SessionClass = TypeVar("SessionClass")


@cache
def start() -> None:
    """Set OpenTelemetry up as its variables say, with spans of programs and of model calls,
    unless somebody has.
    """
    if "mlflow" in sys.modules or not isinstance(
        trace.get_tracer_provider(), trace.ProxyTracerProvider
    ):
        return
    try:
        of_programs = import_module("openinference.instrumentation.dspy").DSPyInstrumentor()
        sdk = import_module("opentelemetry.sdk._configuration")
        with changed_environment(_DEFAULTS):
            sdk._OTelSDKConfigurator().configure()  # noqa: SLF001  # no other
    except (ImportError, RuntimeError) as error:
        print_stderr(
            f"OTEL_ variables ask for spans, and none are sent ({error}); "
            f"{tell_how_to_install('otlp')}"
        )
    else:
        of_programs.instrument()


def _watched(span_kind: str, name: str, method: Any) -> Any:
    """Have a session's method make a span with this name of each call."""
    parameters = inspect.signature(method)

    @wraps(method)
    def call(*words: Any, **named: Any) -> Any:
        session, text, *_ = parameters.bind(*words, **named).arguments.values()
        mlflow: Any = sys.modules.get("mlflow")
        live = mlflow and mlflow.get_current_active_span()
        begin: Any = (
            partial(mlflow.start_span, span_type=span_kind)
            if live
            else _TRACER.start_as_current_span
        )
        attributes_sent = {
            "openinference.span.kind": span_kind,
            "input.value": encodable([text])[0],
        }
        attributes_sent["metadata"] = json.dumps({"query_id": session.query_id})
        with begin(name, attributes=attributes_sent) as span:
            output_value = method(*words, **named)
            if live or span.is_recording():
                attributes, output = _describe(output_value)
                span.set_attributes(attributes)
            if live:
                span.set_inputs(text)
                span.set_outputs(output)
        return output_value

    return call


def _describe(output: Sequence[Snippet | Hit] | str) -> tuple[JsonObject, Any]:
    """Return the attributes of a search's or a reading's results, and the form in which
    MLflow shows it.
    """
    if isinstance(output, str):
        return {"tool.name": "read", "output.value": encodable([output])[0]}, output
    attributes = JsonObject()
    shown = []
    for index, hit in enumerate(output):
        [content] = encodable([hit.text if isinstance(hit, Snippet) else ""])
        details = {"id": hit.doc_id, "content": content, "score": hit.score}
        attributes |= {
            f"retrieval.documents.{index}.document.{name}": value for name, value in details.items()
        }
        shown.append({"id": hit.doc_id, "page_content": content, "metadata": {"score": hit.score}})
    return attributes, shown


@cache
def watch(session_class: type[SessionClass]) -> type[SessionClass]:
    """Return a class of sessions that make a span of each search and each reading."""
    methods = {
        "search": _watched("RETRIEVER", "search", vars(session_class)["search"]),
        "find_hits": _watched("RETRIEVER", "search", vars(session_class)["find_hits"]),
        "read": _watched("TOOL", "read", vars(session_class)["read"]),
    }
    return type(f"Watched{session_class.__name__}", (session_class,), methods)
