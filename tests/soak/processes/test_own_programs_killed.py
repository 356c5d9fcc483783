"""Programs of a user's own, in another folder, in six forms: killed, resumed, edited, compared, looked at."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT
from waiting import wait_for

MINE = """
import os, time
from typing import TypedDict
import dspy, httpx
from langgraph.graph import END, START, StateGraph
from sextant.programs.base import Program
from sextant.programs.custom import search as find

asked = []

async def later(query, search):
    time.sleep(0.1)
    return await search(query, 20)

def client(query, search):
    body = {"model": "m", "messages": [{"role": "user", "content": "[[ ## description ## ]]\\n" + query}]}
    httpx.post(os.environ["OWN_SERVER"] + "/chat/completions", json=body, timeout=60)
    return search(query, 20)

def raising(query, search):
    time.sleep(0.1)
    if int(query.query_id[-2:]) % 3 == 0:
        raise KeyError("every third")
    return search(query, 20)

class Unknown(dspy.Module):
    def __init__(self, search):
        super().__init__()
        self.search, self.write = search, dspy.Predict("query, description -> search")

    def forward(self, query, description):
        found = self.search(self.write(query=query, description=description).search)
        return ["an-id-of-nothing"] + [hit.doc_id for hit in found.snippets]

class State(TypedDict):
    description: str
    ranking: list

def look(state):
    time.sleep(0.1)
    return {"ranking": [hit.doc_id for hit in find(state["description"]).snippets]}

graph = StateGraph(State)
graph.add_node("look", look)
graph.add_edge(START, "look")
graph.add_edge("look", END)

class Ours(Program):
    def forward(self, query):
        time.sleep(0.1)
        session = self.toolbox.open(query)
        return session.submit([hit.doc_id for hit in session.search(query.text, 20)])
"""


def timeless(folder):
    """The outcomes of a run by query, without their times and calls that were kept."""
    rows = [json.loads(line) for line in (folder / "outcomes.jsonl").read_text().splitlines()]
    return {
        row["query_id"]: (row["ranking"], row["error"], row["trace"]["invented_ids"])
        for row in rows
    }


@pytest.mark.parametrize("name", ["later", "client", "raising", "Unknown", "graph", "Ours"])
def test_it_is_resumed_after_a_kill_and_compared_and_looked_at_and_edited_it_is_another_run(
    name, server, tmp_path
):
    server.delay = 0.1
    server.answer = lambda prompt: {"search": "harbour ferry " + prompt[-300:].lower()}
    file, model = (
        tmp_path / "elsewhere" / "mine.py",
        server.spec if name == "Unknown" else "offline",
    )
    file.parent.mkdir()
    file.write_text(MINE)
    surroundings = {**os.environ, "OWN_SERVER": server.spec.partition("@")[2]}

    def start(module, *words):
        command = [sys.executable, "-m", module, *map(str, words)]
        return subprocess.Popen(
            command, cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def sit(runs, program=f"{file}:{name}", spec=model, ends=lambda: False):
        words = (
            "--task",
            "congress",
            "--max-concurrent",
            1,
            "--runs",
            tmp_path / runs,
            "--lm",
            spec,
            "--json",
        )
        process = start("sextant.evals.run", "--program", program, *words)
        wait_for(lambda: process.poll() is not None or ends())
        process.kill()
        out = process.communicate()[0]
        return json.loads(out) if out else None

    def answered(runs):
        return sum(
            len(path.read_text().splitlines())
            for path in (tmp_path / runs).glob("*/*/outcomes.jsonl")
        )

    assert sit("killed", ends=lambda: answered("killed") >= 3) is None
    before = answered("killed")
    assert 3 <= before < 24
    resumed, whole = sit("killed"), sit("whole")
    [folder], [undisturbed] = (
        list((tmp_path / runs).glob("*/mine*")) for runs in ("killed", "whole")
    )
    assert timeless(folder) == timeless(undisturbed) and len(timeless(folder)) == 24
    assert resumed["metrics"] == whole["metrics"]
    assert resumed["failed"] == (9 if name == "raising" else 0)
    assert resumed["usage"].get("unmetered", 0) == (24 if name == "client" else 0)
    assert (resumed["usage"]["paid_usd"] is None) == (name in ("client", "Unknown"))

    file.write_text(f"# nothing but a comment\n{MINE}")
    sent = len(server.requests)
    sit("killed")
    assert len(server.requests) == sent and len(list((tmp_path / "killed").glob("*/mine*"))) == 1
    sit("killed", program="multihop", spec="offline")
    [ours] = (tmp_path / "killed").glob("*/multihop*")
    assert start("sextant.evals.compare", folder, ours).wait() == 0
    page = tmp_path / "page.html"
    assert (
        start("sextant.evals.view", folder, "--export", page).wait() == 0
        and "MINI-q01" in page.read_text()
    )
    file.write_text(
        MINE.replace("20)", "21)").replace("0.1)", "0.01)").replace("an-id-of", "another-id-of")
    )
    sit("killed")
    assert len(list((tmp_path / "killed").glob("*/mine*"))) == 2
