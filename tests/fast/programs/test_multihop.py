"""Multihop with a model that repeats itself."""

import re
import sys
from pathlib import Path

import pytest
from openai_server import asked, given, ids, prompts

from sextant.agents.notes import NotesAgent
from sextant.programs.multihop import MultiHop
from sextant.tools.models import language_model
from sextant.tools.process_changes import while_running
from sextant.tools.records import Query
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Limits, Toolbox

ROOT = Path(__file__).parents[3]
PACKAGES = ("agents/", "environments/", "evals/", "optimizers/", "programs/", "tools/")
QUERY = Query("q", "Which animals have blood of an odd colour?", "Short texts about animals.")


class Searches:
    """A model that writes these searches, keeps the first passage of each reading, and notes the same each time."""

    def __init__(self, *texts):
        self.texts = list(texts)

    def __call__(self, prompt):
        if asked(prompt) == "search":
            return {"search": self.texts.pop(0)}
        return {"selected": str(ids(prompt)[:1]).replace("'", '"'), "observations": "It fits."}


def played(server, corpus, script, program=MultiHop, **limits):
    server.answer = script
    toolbox = Toolbox(corpus, BM25(corpus), limits=Limits(**limits))
    with language_model.connect(server.spec).active():
        return program(toolbox, per_hop=2)(query=QUERY)


def tools(submission):
    return [(step.tool, step.repeated) for step in submission.trace.steps]


@pytest.mark.parametrize("program", [MultiHop, NotesAgent])
def test_repeats_cost_their_hops_and_count_on_no_limit(program, server, corpus):
    script = Searches("blue blood", "Blue blood.", "BLUE  blood", "giraffe heart")
    submission = played(server, corpus, script, program, searches=2)
    assert not script.texts
    assert tools(submission).count(("search", "")) == 2
    repeated = [step.argument for step in submission.trace.steps if step.repeated == "search"]
    assert repeated == ["Blue blood.", "BLUE  blood"]
    assert not any(step.refused for step in submission.trace.steps)
    assert submission.trace.steps[-1].argument == "steps"


def test_a_search_sees_notes_and_hop_but_no_earlier_search(server, corpus):
    played(server, corpus, Searches("blue blood", "giraffe heart", "crab", "iron"))
    sent = [prompt for prompt in prompts(server) if asked(prompt) == "search"]
    assert [given(prompt, "hop") for prompt in sent] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
    assert [given(prompt, "notes") for prompt in sent[:2]] == ["[]", '["It fits."]']
    assert not any("blue blood" in prompt for prompt in sent[1:])


def test_a_hop_reads_all_that_its_search_brought_and_what_was_kept_stays_kept(server, corpus):
    script = Searches("blue blood octopus", "octopus blue blood hearts", "crab", "iron")
    submission = played(server, corpus, script)
    searched = [step.doc_ids for step in submission.trace.steps if step.tool == "search"]
    judged = [step.doc_ids for step in submission.trace.steps if step.tool == "judge"]
    assert judged == [doc_ids for doc_ids in searched if doc_ids]
    assert set(judged[0]) & set(judged[1])
    kept = set()
    for step in submission.trace.steps:
        kept |= set(step.doc_ids) if step.tool == "select" else set()
        assert step.tool != "drop" or not kept & set(step.doc_ids)


def test_rationale_and_summary_are_in_the_trace_and_in_no_later_prompt(server, corpus):
    def script(prompt):
        if asked(prompt) == "search":
            hop = given(prompt, "hop")[0]
            return {"search": f"blood {hop}", "rationale": "Because."}
        return {"selected": "[]", "observations": "It fits.", "summary": "All told."}

    submission = played(server, corpus, script)
    assert submission.trace.notes.count("rationale: Because.") == 4
    assert submission.trace.notes.count("summary: All told.") == 4
    assert not any(
        said in prompt for prompt in prompts(server) for said in ("Because.", "All told.")
    )


def test_a_note_like_the_last_is_not_added_again(server, corpus):
    script = Searches("blue blood", "giraffe heart", "", "", "", "")
    submission = played(server, corpus, script)
    assert submission.trace.notes == ["It fits."]
    assert tools(submission).count(("repeat", "note")) == 1


def own_frames(frame):
    """The frames of this project from MultiHop.forward to one: (function, file)."""
    frames = []
    while frame.f_code.co_qualname != "MultiHop.forward":
        frames.append(frame)
        frame = frame.f_back
    files = [
        (one.f_code, one.f_code.co_filename.removeprefix(f"{ROOT}/sextant/")) for one in frames
    ]
    ours = [(code.co_name, file) for code, file in files if file.startswith(PACKAGES)]
    return [("forward", "programs/multihop.py"), *reversed(ours)]


def drawn_frames():
    """The frames in docs/architecture.md, as a table from top to bottom."""
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\|[ \d,]*\| (.*?) in `(.*?)` \|", text, re.MULTILINE)
    return [(name, file) for names, file in rows for name in re.findall(r"`(\w+)`", names)]


def test_a_reading_is_twelve_of_our_frames_above_the_socket_which_the_docs_draw(server, corpus):
    stacks = []

    def note_send(frame, event, function):
        if event == "c_call" and function.__qualname__ == "socket.send":
            stacks.append(own_frames(frame))

    sys.setprofile(note_send)
    try:
        with while_running():
            played(server, corpus, Searches("blue blood", "giraffe heart", "crab", "iron"))
    finally:
        sys.setprofile(None)
    longest = max(stacks, key=len)
    assert len(longest) <= 12, "\n".join(f"{name} {file}" for name, file in longest)
    assert drawn_frames() in stacks
