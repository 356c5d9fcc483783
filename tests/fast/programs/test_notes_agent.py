"""The multi-hop agent that is kept on disk: the same as the program, and no hop is made twice."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from openai_server import Failure, asked, ids

import environments
from agents.notes import Notes
from programs.multihop import MultiHop
from tools.errors import DataError, RunIncomplete
from tools.models import lm
from tools.models.call import Patience
from tools.records import Query, Usage
from tools.retrievers.lexical.bm25 import BM25
from tools.session import Toolbox

ROOT = Path(__file__).parents[3]


def steps(submission):
    """A trace without its times."""
    return [replace(step, started=0.0, seconds=0.0) for step in submission.trace.steps]


def alike(one, other):
    assert one.ranking == other.ranking and steps(one) == steps(other) and one.usage == other.usage
    assert one.trace.notes == other.trace.notes and one.trace.invented_ids == other.trace.invented_ids


class Counted(BM25):
    """BM25 that writes down what it was asked, where a test can read it after a kill."""

    log = None

    def search(self, text, k, **options):
        if self.log:
            with self.log.open("a") as file:
                file.write(text + "\n")
        return super().search(text, k, **options)


def sitting(folder, spec):
    """One query answered for the run in `folder`, as `evals.run` does; in this process or in one that is killed."""
    mini = environments.load("congress", "mini", "dev")
    index = Counted(mini.documents)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    index.log = folder / "searches.txt"
    model = lm.connect(spec, statistics=index.statistics)
    model.begin(folder, Usage())
    with model.active():
        return Notes(Toolbox(mini.documents, index, checkpoints=folder), per_hop=4)(query=mini.queries[0])


WORDS = ["harbour ferry", "school roof", "hospital bridge", "farm water"]


def hop_of(prompt):
    left = re.findall(r"\[\[ ## hops_left ## \]\]\n(\d)", prompt)
    return 4 - int(left[-1]) if left else None


def answers(prompt):
    """A search of its own in each hop; of what is shown, the second passage is kept."""
    if hop := hop_of(prompt):
        return {"search": WORDS[hop - 1]}
    shown = ids(prompt)
    return {"selected": f'["{shown[1]}"]', "observations": f"{shown[1]} is near"}


def test_it_hands_in_what_multihop_hands_in_step_for_step(tmp_path):
    mini = environments.load("congress", "mini", "dev")
    index = BM25(mini.documents)
    model = lm.connect("offline", statistics=index.statistics)
    program = MultiHop(Toolbox(mini.documents, index))
    kept = Notes(Toolbox(mini.documents, index, checkpoints=tmp_path))
    in_memory = Notes(Toolbox(mini.documents, index))
    with model.active():
        for query in mini.queries[:6]:
            expected = program(query=query)
            alike(kept(query=query), expected)
            alike(in_memory(query=query), expected)
            alike(kept(query=query), expected)  # finished, and asked again


def test_killed_in_hop_three_it_pays_and_searches_for_no_earlier_hop_again(server, tmp_path):
    broken = tmp_path / "broken/task/run"
    server.answer = answers
    expected = sitting(tmp_path / "whole/task/run", server.spec)
    whole = len(server.requests)
    assert whole == 8 and expected.usage.calls == 8
    server.requests.clear()
    reached, never = threading.Event(), threading.Event()

    def stuck(prompt):
        if len(server.requests) == 6:  # search and reading of hops 1 and 2, the search of hop 3: its reading
            reached.set()
            never.wait(30)
        return answers(prompt)

    server.answer = stuck
    script = "import sys; from test_notes_agent import sitting; sitting(sys.argv[1], sys.argv[2])"
    process = subprocess.Popen(
        [sys.executable, "-c", script, broken, server.spec],
        cwd=ROOT,
        env={
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}:{Path(__file__).parent}",
            "PATH": "",
            "SEXTANT_HOME": str(tmp_path),
        },
    )
    assert reached.wait(60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    never.set()
    server.answer = answers
    resumed = sitting(broken, server.spec)
    assert len(server.requests) == whole + 1, "the call in flight is made again, and no other"
    alike(resumed, expected)
    searched = (broken / "searches.txt").read_text().splitlines()
    assert searched == [*WORDS[:3], *WORDS[2:]], "the broken hop is searched again, those before are not"
    alike(sitting(broken, server.spec), expected)
    assert len(server.requests) == whole + 1


KILLED = """
import os, signal, sys
from langgraph.checkpoint.sqlite import SqliteSaver
from test_notes_agent import sitting
write, written = SqliteSaver.put_writes, []
def put_writes(self, *arguments, **options):
    write(self, *arguments, **options)
    written.append(1)
    if len(written) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
SqliteSaver.put_writes = put_writes
sitting(sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize("writes", [1, 2, 3, 4])
def test_killed_between_a_hops_end_and_its_checkpoint_it_makes_that_hop_again(writes, server, tmp_path):
    broken = tmp_path / "broken/task/run"
    server.answer = answers
    expected = sitting(tmp_path / "whole/task/run", server.spec)
    whole = len(server.requests)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, broken, server.spec, str(writes)],
        cwd=ROOT,
        env={
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}:{Path(__file__).parent}",
            "PATH": "",
            "SEXTANT_HOME": str(tmp_path),
        },
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    alike(sitting(broken, server.spec), expected)
    # The checkpoint is written beside the program, which may be in its next call by then.
    again = len(server.requests) - 2 * whole
    assert again in (0, 1), "at most the call in flight at the kill is made again"


def test_an_outage_in_hop_two_leaves_the_query_owed_and_it_goes_on_there(server, tmp_path, monkeypatch):
    monkeypatch.setattr(lm, "PATIENCE", Patience(first=0.0))
    folder = tmp_path / "runs/task/run"

    def failing(prompt):
        if hop_of(prompt) == 2:
            raise Failure(500, message="not now")
        return answers(prompt)

    server.answer = failing
    with pytest.raises(Exception, match="not now"):
        sitting(folder, server.spec)
    server.answer = answers
    server.requests.clear()
    submission = sitting(folder, server.spec)
    assert len(server.requests) == 6
    assert [step.hop for step in submission.trace.steps if step.tool == "search"] == [1, 2, 3, 4]


def test_reranking_is_one_more_call_after_the_last_hop(server, corpus):
    def ranks(prompt):
        if asked(prompt) == "ranked":
            return {"ranked": json.dumps(sorted(set(ids(prompt)), reverse=True))}
        if hop_of(prompt):
            return {"search": "blood"}
        return {"selected": '["d1"]', "observations": ""}

    server.answer = ranks
    model = lm.connect(server.spec)
    query = Query("q", "blue blood")
    with model.active():
        expected = MultiHop(Toolbox(corpus, BM25(corpus)), hops=1, rerank=3)(query=query)
        server.requests.clear()
        alike(Notes(Toolbox(corpus, BM25(corpus)), hops=1, rerank=3)(query=query), expected)
    assert len(server.requests) == 3


def test_text_that_no_encoding_can_hold_survives_a_checkpoint(server, tmp_path, corpus):
    agent = Notes(Toolbox(corpus, BM25(corpus), checkpoints=tmp_path), hops=1)
    server.answer = lambda prompt: (
        {"search": "blue blood"} if hop_of(prompt) else {"selected": '["d1"]', "observations": "blue \ud800"}
    )
    query = Query("q", "blue blood")
    with lm.connect(server.spec).active():
        first = agent(query=query)
        alike(agent(query=query), first)
    assert first.trace.notes == ["blue \ud800"]


@pytest.mark.parametrize("content", [None, b"{not json", b"[]", b"{}", b'{"channel_values": {"hop": "3"}}'])
def test_checkpoints_that_are_none_of_ours_are_nobodys_outcome(content, tmp_path, corpus):
    index, file = BM25(corpus), tmp_path / "checkpoints.sqlite"
    with lm.connect("offline", statistics=index.statistics).active():
        if content is None:
            file.write_bytes(b"no database at all" * 1000)
        else:
            Notes(Toolbox(corpus, index, checkpoints=tmp_path))(query=Query("q", "blood"))
            with sqlite3.connect(file) as opened:
                opened.execute("UPDATE checkpoints SET checkpoint = ?", (content,))
        with pytest.raises(DataError, match="remove the file"):
            Notes(Toolbox(corpus, index, checkpoints=tmp_path))(query=Query("q", "blood"))


def test_a_folder_that_cannot_be_written_leaves_the_query_owed(tmp_path, corpus):
    index = BM25(corpus)
    agent = Notes(Toolbox(corpus, index, checkpoints=tmp_path / "none"))
    with (
        lm.connect("offline", statistics=index.statistics).active(),
        pytest.raises(RunIncomplete, match=r"checkpoints\.sqlite"),
    ):
        agent(query=Query("q", "blood"))


def test_eight_workers_share_one_file(run, tmp_path):
    arguments = ("--task", "congress", "--max-concurrent", 8, "--json")
    kept = run("--program", "notes", *arguments)
    assert kept.code == 0, kept.err
    plain = run("--program", "multihop", *arguments)
    assert kept.json["metrics"] == plain.json["metrics"]

    def read(result):
        rows = map(json.loads, (Path(result.json["run"]) / "outcomes.jsonl").read_text().splitlines())
        return {row["query_id"]: (row["ranking"], row["trace"]["notes"]) for row in rows}

    assert read(kept) == read(plain)
    assert (Path(kept.json["run"]) / "checkpoints.sqlite").exists()
