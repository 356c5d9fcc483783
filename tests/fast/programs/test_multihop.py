"""Multihop with a model that repeats itself."""

import pytest
from openai_server import asked, ids

from agents.notes import NotesAgent
from programs.multihop import MultiHop
from tools.models import language_model
from tools.records import Query
from tools.retrievers.lexical.bm25 import BM25
from tools.session import Limits, Toolbox

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
def test_the_second_repeat_in_a_row_ends_the_query(program, server, corpus):
    script = Searches("blue blood", "Blue blood.", "BLUE  blood", "never asked")
    submission = played(server, corpus, script, program)
    assert script.texts == ["never asked"]
    assert tools(submission).count(("search", "")) == 1
    assert [step.argument for step in submission.trace.steps if step.tool == "repeat"] == [
        "Blue blood.",
        "BLUE  blood",
    ]
    assert submission.trace.steps[-1].argument == "repeats" and len(submission.ranking) == 2


def test_a_repeat_costs_its_hop_and_counts_on_no_limit(server, corpus):
    script = Searches("blue blood", "blue blood", "giraffe heart", "blue blood")
    submission = played(server, corpus, script, searches=2)
    assert tools(submission).count(("search", "")) == 2
    assert not any(step.refused for step in submission.trace.steps)
    assert submission.trace.steps[-1].argument == "steps"


def test_a_note_like_the_last_is_not_added_again(server, corpus):
    script = Searches("blue blood", "giraffe heart", "", "")
    submission = played(server, corpus, script)
    assert submission.trace.notes == ["It fits."]
    assert tools(submission).count(("repeat", "note")) == 1
