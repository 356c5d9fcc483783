"""Searches and readings are spans where somebody traces."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sextant.tools import otel_spans
from sextant.tools.records import Query
from sextant.tools.retrievers import build
from sextant.tools.session import Toolbox


def test_a_search_is_a_retriever_span_with_its_documents_inside_the_trace(corpus, monkeypatch):
    provider, kept = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(
        otel_spans, "_TRACER", tracer := provider.get_tracer("test")
    )  # a process has one provider
    session = Toolbox(corpus, build("bm25", corpus)).open(Query("q1", "Why is octopus blood blue?"))
    with tracer.start_as_current_span("program") as program:
        found = session.search("blue\ud800 blood", k=2, shown=True)
        text = session.read(found[0].doc_id, 20)
    search, read, _ = kept.get_finished_spans()
    assert search.parent.span_id == read.parent.span_id == program.get_span_context().span_id
    query = {"metadata": '{"query_id": "q1"}'}
    told = query | {"openinference.span.kind": "RETRIEVER", "input.value": "blue? blood"}
    for place, one in enumerate(found):
        prefix = f"retrieval.documents.{place}.document"
        told |= {
            f"{prefix}.id": one.doc_id,
            f"{prefix}.content": one.text,
            f"{prefix}.score": one.score,
        }
    assert dict(search.attributes) == told
    about = query | {"openinference.span.kind": "TOOL", "input.value": found[0].doc_id}
    assert dict(read.attributes) == about | {"tool.name": "read", "output.value": text}
