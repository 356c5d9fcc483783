"""Live spans reach MLflow, and a receiver that OpenTelemetry's variables name."""

import os
import subprocess

import pytest
from otlp_receiver import receiving

from sextant.tools.records import Query
from sextant.tools.retrievers import build
from sextant.tools.session import Toolbox

mlflow = pytest.importorskip("mlflow", reason="an extra: pip install '.[soak]'")


def test_searches_are_spans_of_the_program_at_the_receiver_that_variables_name(shell, tmp_path):
    words = [
        *shell,
        "--program",
        "multihop",
        "--task",
        "congress",
        "--limit",
        "2",
        "--runs",
        str(tmp_path),
    ]
    with receiving() as receiver:
        subprocess.run(
            words, env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}, check=True
        )
    programs = {one.span_id for one in receiver.spans if not one.parent_span_id}
    assert [one.name for one in receiver.spans if one.span_id in programs] == [
        "MultiHop.forward"
    ] * 2
    assert {one.parent_span_id for one in receiver.spans if one.name == "search"} == programs


def test_a_search_is_a_retriever_span_of_an_open_trace_of_mlflow(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # artifacts go into the working folder
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/ml.db")
    session = Toolbox(corpus, build("bm25", corpus)).open(Query("q1", "blood"))
    with mlflow.start_span("program") as program:
        (found,) = session.search("octopus blood", k=1)
    mlflow.flush_trace_async_logging()
    _, search = mlflow.get_trace(program.trace_id).data.spans
    assert (search.parent_id, search.span_type, search.inputs) == (
        program.span_id,
        "RETRIEVER",
        "octopus blood",
    )
    assert search.outputs == [
        {"id": found.doc_id, "page_content": found.text, "metadata": {"score": found.score}}
    ]
    assert search.attributes["retrieval.documents.0.document.id"] == found.doc_id
