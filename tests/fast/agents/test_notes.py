"""The multi-hop agent that is kept on disk: the same as the program, and no hop is made twice."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from openai_server import asked, ids

from sextant import environments
from sextant.agents.notes import NotesAgent
from sextant.programs.multihop import MultiHop
from sextant.tools.errors import DataError, RunIncomplete
from sextant.tools.models import language_model
from sextant.tools.records import Query
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox


def steps(submission):
    """A trace without its times."""
    return [replace(step, started=0.0, seconds=0.0) for step in submission.trace.steps]


def alike(one, other):
    assert one.ranking == other.ranking and steps(one) == steps(other) and one.usage == other.usage
    assert (
        one.trace.notes == other.trace.notes and one.trace.invented_ids == other.trace.invented_ids
    )


def test_it_hands_in_what_multihop_hands_in_step_for_step(tmp_path):
    mini = environments.load("congress", "mini", "dev")
    index = BM25(mini.documents)
    model = language_model.connect("offline", statistics=index.statistics)
    program = MultiHop(Toolbox(mini.documents, index))
    kept = NotesAgent(Toolbox(mini.documents, index, checkpoints=tmp_path))
    in_memory = NotesAgent(Toolbox(mini.documents, index))
    with model.active():
        for query in mini.queries[:2]:
            expected = program(query=query)
            alike(kept(query=query), expected)
            alike(in_memory(query=query), expected)
            alike(kept(query=query), expected)  # finished, and asked again


def test_reranking_is_one_more_call_after_the_last_hop(server, corpus):
    def ranks(prompt):
        if asked(prompt) == "ranked":
            return {"ranked": json.dumps(sorted(set(ids(prompt)), reverse=True))}
        if asked(prompt) == "search":
            return {"search": "blood"}
        return {"selected": '["d1"]', "observations": ""}

    server.answer = ranks
    model = language_model.connect(server.spec)
    query = Query("q", "blue blood")
    with model.active():
        expected = MultiHop(Toolbox(corpus, BM25(corpus)), hops=1, rerank=3)(query=query)
        server.requests.clear()
        alike(NotesAgent(Toolbox(corpus, BM25(corpus)), hops=1, rerank=3)(query=query), expected)
    assert len(server.requests) == 3


def test_text_that_no_encoding_can_hold_survives_a_checkpoint(server, tmp_path, corpus):
    agent = NotesAgent(Toolbox(corpus, BM25(corpus), checkpoints=tmp_path), hops=1)
    server.answer = lambda prompt: (
        {"search": "blue blood"}
        if asked(prompt) == "search"
        else {"selected": '["d1"]', "observations": "blue \ud800"}
    )
    query = Query("q", "blue blood")
    with language_model.connect(server.spec).active():
        first = agent(query=query)
        alike(agent(query=query), first)
    assert first.trace.notes == ["blue \ud800"]


@pytest.mark.parametrize(
    "content", [None, b"{not json", b"[]", b"{}", b'{"channel_values": {"hop": "3"}}']
)
def test_checkpoints_that_are_none_of_ours_are_nobodys_outcome(content, tmp_path, corpus):
    index, file = BM25(corpus), tmp_path / "checkpoints.sqlite"
    with language_model.connect("offline", statistics=index.statistics).active():
        if content is None:
            file.write_bytes(b"no database at all" * 1000)
        else:
            NotesAgent(Toolbox(corpus, index, checkpoints=tmp_path))(query=Query("q", "blood"))
            with sqlite3.connect(file) as opened:
                opened.execute("UPDATE checkpoints SET checkpoint = ?", (content,))
        with pytest.raises(DataError, match="remove the file"):
            NotesAgent(Toolbox(corpus, index, checkpoints=tmp_path))(query=Query("q", "blood"))


def test_a_folder_that_cannot_be_written_leaves_the_query_pending(tmp_path, corpus):
    index = BM25(corpus)
    agent = NotesAgent(Toolbox(corpus, index, checkpoints=tmp_path / "none"))
    with (
        language_model.connect("offline", statistics=index.statistics).active(),
        pytest.raises(RunIncomplete, match=r"checkpoints\.sqlite"),
    ):
        agent(query=Query("q", "blood"))


def test_eight_workers_share_one_file(run, tmp_path):
    arguments = ("--task", "congress", "--limit", 8, "--max-concurrent", 8, "--json")
    kept, plain = (run("--program", name, *arguments).json for name in ("notes", "multihop"))
    assert kept["metrics"] == plain["metrics"] and kept["usage"] == plain["usage"]
    assert (Path(kept["run"]) / "checkpoints.sqlite").exists()
