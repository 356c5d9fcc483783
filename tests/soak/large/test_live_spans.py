"""Live spans reach MLflow, and a receiver that OpenTelemetry's variables name."""

import os
import subprocess

import mlflow
from otlp_receiver import attributes_of, receiving

from tools.records import Query
from tools.retrievers import build
from tools.session import Toolbox


def test_searches_are_spans_of_the_program_at_the_receiver_that_variables_name(shell, tmp_path):
    with receiving() as receiver:
        named = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=k1"}
        words = [*shell, "--program", "multihop", "--task", "congress", "--limit", "2", "--runs", str(tmp_path)]
        subprocess.run(words, env=os.environ | named, check=True)
    assert set(receiver.paths) == {"/v1/traces"} and {one["x-key"] for one in receiver.headers} == {"k1"}
    programs = {one.span_id for one in receiver.spans if not one.parent_span_id}
    assert [one.name for one in receiver.spans if one.span_id in programs] == ["MultiHop.forward"] * 2
    searches = [one for one in receiver.spans if attributes_of(one)["openinference.span.kind"] == "RETRIEVER"]
    assert searches and {one.parent_span_id for one in searches} <= programs
    assert all(attributes_of(one)["retrieval.documents.0.document.content"] for one in searches)


def test_a_search_is_a_retriever_span_of_an_open_trace_of_mlflow(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # artifacts go into the working folder
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/ml.db")
    session = Toolbox(corpus, build("bm25", corpus)).open(Query("q1", "blood"))
    with mlflow.start_span("program") as program:
        (found,) = session.search("octopus blood", k=1)
    mlflow.flush_trace_async_logging()
    _, search = mlflow.get_trace(program.trace_id).data.spans
    assert (search.parent_id, search.span_type, search.inputs) == (program.span_id, "RETRIEVER", "octopus blood")
    assert search.outputs == [{"id": found.doc_id, "page_content": found.text, "metadata": {"score": found.score}}]
    assert search.attributes["retrieval.documents.0.document.id"] == found.doc_id
