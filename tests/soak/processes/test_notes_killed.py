"""The agent that keeps its notes on disk goes on where it was killed, and pays for nothing twice."""

import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from openai_server import Failure, ids

from sextant import environments
from sextant.agents.notes import NotesAgent
from sextant.tools.models import language_model
from sextant.tools.models.call_limits import RetryPolicy
from sextant.tools.records import Usage
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox


def alike(one, other):
    """Assert that two submissions differ in nothing but their times."""
    steps = [
        [replace(step, started=0.0, seconds=0.0) for step in which.trace.steps]
        for which in (one, other)
    ]
    assert steps[0] == steps[1] and (one.ranking, one.usage) == (other.ranking, other.usage)
    assert (one.trace.notes, one.trace.invented_ids) == (
        other.trace.notes,
        other.trace.invented_ids,
    )


class Counted(BM25):
    """BM25 that writes down what it was asked, where a test can read it after a kill."""

    log = None

    def search(self, text, k, **options):
        if self.log:
            with self.log.open("a") as file:
                file.write(text + "\n")
        return super().search(text, k, **options)


def sitting(folder, spec):
    """One query answered for the run in `folder`, as a run does; in this process or in one that is killed."""
    mini = environments.load("congress", "mini", "dev")
    index = Counted(mini.documents)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    index.log = folder / "searches.txt"
    model = language_model.connect(spec, statistics=index.statistics)
    model.begin(folder, Usage())
    with model.active():
        return NotesAgent(Toolbox(mini.documents, index, checkpoints=folder), per_hop=4)(
            query=mini.queries[0]
        )


WORDS = ["harbour ferry", "school roof", "hospital bridge", "farm water"]


def hop_of(prompt):
    hops = re.findall(r"\[\[ ## hop ## \]\]\n(\d)", prompt)
    return int(hops[-1]) if hops else None


def answers(prompt):
    """A search of its own in each hop; of what is shown, the second passage is kept."""
    if hop := hop_of(prompt):
        return {"search": WORDS[hop - 1]}
    shown = ids(prompt)
    return {"selected": f'["{shown[1]}"]', "observations": f"{shown[1]} is near"}


def in_a_process(script, place, *arguments):
    """A process that runs a script which may import this file."""
    folders = (ROOT, ROOT / "tests", ROOT / "tests/support", Path(__file__).parent)
    surroundings = {
        "PYTHONPATH": ":".join(map(str, folders)),
        "PATH": "",
        "SEXTANT_HOME": str(place),
    }
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], cwd=ROOT, env=surroundings
    )


@pytest.mark.smoke
def test_killed_in_hop_three_it_pays_and_searches_for_no_earlier_hop_again(server, tmp_path):
    broken = tmp_path / "broken/task/run"
    server.answer = answers
    expected = sitting(tmp_path / "whole/task/run", server.spec)
    whole = len(server.requests)
    assert whole == 8 and expected.usage.calls == 8
    server.requests.clear()
    reached, never = threading.Event(), threading.Event()

    def stuck(prompt):
        if (
            len(server.requests) == 6
        ):  # search and reading of hops 1 and 2, the search of hop 3: its reading
            reached.set()
            never.wait(120)
        return answers(prompt)

    server.answer = stuck
    script = "import sys; from test_notes_killed import sitting; sitting(sys.argv[1], sys.argv[2])"
    process = in_a_process(script, tmp_path, broken, server.spec)
    assert reached.wait(120)
    process.send_signal(signal.SIGKILL)
    process.wait()
    never.set()
    server.answer = answers
    resumed = sitting(broken, server.spec)
    assert len(server.requests) == whole + 1, "the call in flight is made again, and no other"
    alike(resumed, expected)
    searched = (broken / "searches.txt").read_text().splitlines()
    assert searched == [*WORDS[:3], *WORDS[2:]], (
        "the broken hop is searched again, those before are not"
    )
    alike(sitting(broken, server.spec), expected)
    assert len(server.requests) == whole + 1


KILLED = """
import os, signal, sys
from langgraph.checkpoint.sqlite import SqliteSaver
from test_notes_killed import sitting
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
def test_killed_between_a_hops_end_and_its_checkpoint_it_makes_that_hop_again(
    writes, server, tmp_path
):
    broken = tmp_path / "broken/task/run"
    server.answer = answers
    expected = sitting(tmp_path / "whole/task/run", server.spec)
    whole = len(server.requests)
    assert in_a_process(KILLED, tmp_path, broken, server.spec, writes).wait() == -signal.SIGKILL
    alike(sitting(broken, server.spec), expected)
    # The checkpoint is written beside the program, which may be in its next call by then.
    again = len(server.requests) - 2 * whole
    assert again in (0, 1), "at most the call in flight at the kill is made again"


def test_an_outage_in_hop_two_leaves_the_query_owed_and_it_goes_on_there(
    server, tmp_path, monkeypatch
):
    monkeypatch.setattr("sextant.tools.models.run_resources.PATIENCE", RetryPolicy(first=0.0))
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
