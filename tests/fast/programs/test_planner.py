"""The planner's calls, one by one: what is asked, in which order, and what becomes of the answers."""

import json

import pytest
from openai_server import asked, given, ids, prompts

from agents.planner import Planner, ranking
from tools.models import lm
from tools.models.prompting import UnusableAnswer
from tools.records import Query
from tools.retrievers.bm25 import BM25
from tools.session import Limits, Toolbox

QUERY = Query("q", "Which animals have blood of an odd colour?", "Short texts about animals.")


def questions(**searches):
    return json.dumps([{"question": question, "search": search} for question, search in searches.items()])


class Script:
    """A model that plans two sub-questions, keeps the first passage of each reading, and then plans `further`."""

    def __init__(self, *further):
        self.further = list(further)

    def __call__(self, prompt):
        if asked(prompt) == "plan":
            return {"plan": questions(octopus="octopus hearts", iron="iron haemoglobin")}
        if asked(prompt) == "missing":
            return {"missing": "red blood", "further": self.further.pop(0)}
        shown = ids(given(prompt, "passages"))
        return {"selected": json.dumps(shown[:1]), "observations": f"read {' '.join(shown)}"}


def planner(corpus, **parameters):
    limits = parameters.pop("limits", Limits())
    return Planner(Toolbox(corpus, BM25(corpus), limits=limits), **{"per_search": 2, **parameters})


def played(server, agent, script, query=QUERY):
    server.answer = script
    with lm.connect(server.spec).active():
        return agent(query=query)


def steps(submission, tool):
    return [step for step in submission.trace.steps if step.tool == tool]


def test_a_plan_then_readings_side_by_side_then_reflection_then_readings(server, corpus):
    script = Script(questions(crabs="horseshoe crabs", giraffe="giraffe eleven"))
    submission = played(server, planner(corpus, rounds=2), script)
    sent = prompts(server)
    assert [asked(prompt) for prompt in sent] == ["plan", "selected", "selected", "missing", "selected", "selected"]
    assert submission.usage.calls == 1 + 2 + 1 + 2
    assert all(QUERY.text in prompt and QUERY.objective in prompt for prompt in sent)
    assert given(sent[0], "most") == "4"
    # Two lines work at once, so which is asked first is chance; what each is asked is not.
    first = {given(prompt, "question"): ids(given(prompt, "passages")) for prompt in sent[1:3]}
    assert first == {"octopus": ["d1", "d2"], "iron": ["d4"]}
    second = {given(prompt, "question"): ids(given(prompt, "passages")) for prompt in sent[4:]}
    assert second == {"crabs": ["d3"], "giraffe": ["d5"]}
    assert submission.ranking == ("d1", "d4", "d3", "d5", "d2")
    assert all(given(prompt, "notes") == "[]" for prompt in sent[1:3])
    assert "octopus hearts" in given(sent[3], "earlier_searches") and given(sent[3], "selected_so_far") == "2"
    assert all("red blood" not in given(prompt, "notes") for prompt in sent[4:])
    assert given(sent[4], "notes") == given(sent[5], "notes") == given(sent[3], "notes") != "[]"
    assert submission.trace.steps[-1].argument == "steps"
    assert [step.hop for step in steps(submission, "search")] == [1, 1, 2, 2]


def test_a_document_that_two_searches_found_is_read_once_for_the_first(server, corpus):
    def script(prompt):
        answer = Script("[]")(prompt)
        both = questions(one="octopus blood", two="blue blood octopus")
        return {"plan": both} if "plan" in answer else answer

    submission = played(server, planner(corpus, rounds=1, per_search=3), script)
    read = [doc_id for step in steps(submission, "judge") for doc_id in step.doc_ids]
    assert len(read) == len(set(read))
    first, second = (step.doc_ids for step in steps(submission, "search"))
    assert set(first) & set(second)
    shown = {given(p, "question"): ids(given(p, "passages")) for p in prompts(server) if asked(p) == "selected"}
    assert shown["one"] == list(first)
    assert shown.get("two", []) == [doc_id for doc_id in second if doc_id not in first]


def test_the_trace_has_the_lines_in_the_order_of_the_plan(server, corpus):
    submission = played(server, planner(corpus, rounds=1, per_search=1), Script())
    tools = [step.tool for step in submission.trace.steps]
    reading = ["judge", "select", "drop", "note"]
    assert tools == ["note", "search", "search", *reading, *reading, "stop"]
    assert submission.trace.notes == ["plan\n- octopus\n- iron", "read d1", "read d4"]
    assert [step.usage.calls for step in submission.trace.steps] == [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]


def test_searches_that_were_made_before_are_not_made_again(server, corpus):
    submission = played(server, planner(corpus), Script(questions(again=" octopus hearts ", blank=" ")))
    assert len(steps(submission, "search")) == 2 and submission.trace.steps[-1].argument == "done"


def test_it_ends_without_reflection_when_a_round_surfaces_nothing_new(server, corpus):
    submission = played(server, planner(corpus, per_search=6), Script(questions(more="octopus"), "[]"))
    sent = [asked(prompt) for prompt in prompts(server)]
    assert sent.count("missing") == 1 and len(steps(submission, "search")) == 3
    assert submission.trace.steps[-1].argument == "done"


def test_a_plan_without_a_search_is_asked_for_again_and_then_ends_the_query(server, corpus):
    with pytest.raises(UnusableAnswer, match="needs one at least"):
        played(server, planner(corpus), lambda prompt: {"plan": questions(a=" ")})
    assert len(server.requests) == 2 and "cannot be used" in server.requests[1]["messages"][-1]["content"]


def test_the_ranking_is_what_was_selected_then_the_rest_by_rank_round_and_place():
    best = {"e": (0, 1, 1), "b": (1, 1, 1), "x": (1, 2, 0), "y": (0, 1, 0), "a": (1, 1, 0), "z": (0, 2, 0)}
    assert ranking({"best": best, "selected": ["a", "b"]}) == ["a", "b", "y", "e", "z", "x"]
