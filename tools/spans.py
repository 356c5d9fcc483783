"""Live spans: each search of a session is a RETRIEVER span with its documents, each reading a TOOL span.

A toolbox loads this where MLflow or OpenTelemetry's SDK is loaded, or where variables ask for spans (tools/session.py).
A span belongs to the trace that is being made: MLflow's where one of its spans is open, as with mlflow.dspy.autolog(),
else OpenTelemetry's. Attributes are named as in OpenInference. Left out: spans of programs and of model calls, which
are made by autolog, or by OpenInference's instrumentation of DSPy.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

from opentelemetry import trace

from tools.console import say
from tools.records import Snippet
from tools.session import Session
from tools.text import encodable

# What holds where the variables leave it open. A search of k documents has three attributes for each of them.
_DEFAULTS = {
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_RESOURCE_ATTRIBUTES": "service.name=sextant",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "10000",
}
_TRACER = trace.get_tracer("sextant")


@cache
def start() -> None:
    """Set OpenTelemetry up as its variables say, with spans of programs and of model calls, unless somebody has."""
    if "mlflow" in sys.modules or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    os.environ.update(_DEFAULTS | os.environ)
    try:
        of_programs = import_module("openinference.instrumentation.dspy").DSPyInstrumentor()
        import_module("opentelemetry.sdk._configuration")._OTelSDKConfigurator().configure()  # noqa: SLF001  # no other
    except (ImportError, RuntimeError) as error:
        say(f"OTEL_ variables ask for spans, and none are sent ({error}): pip install 'sextant[otlp]'")
    else:
        of_programs.instrument()


class WatchedSession(Session):
    """A session that makes a span of each search and each reading."""

    def search(self, text: str, k: int = 10, **options: Any) -> list[Snippet]:
        """Search as any session does."""
        with _spanning("search", "RETRIEVER", text) as tell:
            found, told = super().search(text, k, **options), dict[str, Any]()
            for place, one in enumerate(found):
                about = {"id": one.doc_id, "content": one.text, "score": one.score}
                told |= {f"retrieval.documents.{place}.document.{name}": value for name, value in about.items()}
            form = [{"id": one.doc_id, "page_content": one.text, "metadata": {"score": one.score}} for one in found]
            tell(told, form)
        return found

    def read(self, doc_id: str, chars: int | None = None, **options: Any) -> str:
        """Read as any session does."""
        with _spanning("read", "TOOL", doc_id) as tell:
            text = super().read(doc_id, chars, **options)
            tell({"tool.name": "read", "output.value": text}, text)
        return text


@contextmanager
def _spanning(name: str, kind: str, asked: str) -> Iterator[Callable[[dict[str, Any], Any], None]]:
    """Make a span of the block; what it yields takes the attributes, and the output in the form that MLflow shows."""

    def tell(attributes: dict[str, Any], output: Any) -> None:
        texts = {key: encodable([value])[0] for key, value in attributes.items() if isinstance(value, str)}
        span.set_attributes(attributes | texts)
        if live:
            span.set_outputs(output)

    mlflow: Any = sys.modules.get("mlflow")
    live = mlflow and mlflow.get_current_active_span()
    about = {"openinference.span.kind": kind, "input.value": encodable([asked])[0]}
    begin: Callable[..., Any] = partial(mlflow.start_span, span_type=kind) if live else _TRACER.start_as_current_span
    with begin(name, attributes=about) as span:
        if live:
            span.set_inputs(asked)
        yield tell
