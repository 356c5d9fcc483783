"""An answer that cannot be used costs what it cost, and not the query: for every program that calls a model."""

import pytest
from openai_server import fill
from test_contract import ASKING, CLASSES, PARALLEL, QUERY, few

from sextant.agents.react import React
from sextant.programs.pointwise import fill_unscored
from sextant.tools.models import language_model
from sextant.tools.models.answers.checks import UnusableAnswer
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

PROGRAMS = [name for name in ASKING if not issubclass(CLASSES[name], React)]
OF_ONE_CALL = [
    "closed_book",
    "decompose",
    "query_to_answer",
    "query_to_doc",
    "reasoning_trace",
    "rewrite",
]
OF_SEVERAL_CALLS = [name for name in PROGRAMS if name not in OF_ONE_CALL]
SCORING = ["reason", "score", "subtask"]  # the last field of an answer is a number
BAD = {"raw": ""}
REPAIR = "Fill in every field"
FEW = {"rank": {"window": 3, "step": 2}, "tournament": {"batch": 3, "promote": 1}}


def answered(name, corpus, server):
    index = BM25(corpus)
    toolbox = Toolbox(corpus, index, others={"bm25": index, "dense": index})
    parallel = {"parallel": 1} if name in PARALLEL else {}
    program = CLASSES[name](toolbox, **few(name), **FEW.get(name, {}), **parallel)
    with language_model.connect(server.spec).active():
        return program(query=QUERY)


def surfaced(submission):
    searches = [step.doc_ids for step in submission.trace.steps if step.tool == "search"]
    return {doc_id for doc_ids in searches for doc_id in doc_ids}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_query_without_any_usable_answer_fails(name, corpus, server):
    server.answer = lambda prompt: BAD
    with pytest.raises(UnusableAnswer, match="empty"):
        answered(name, corpus, server)


def faulty_in(call):
    """Answer as a model does, but for two unusable answers in the call of that number."""
    calls = 0

    def answer(prompt):
        nonlocal calls
        if REPAIR in prompt:  # the request for the repair
            return BAD
        calls += 1
        return BAD if calls == call else fill(prompt)

    return answer


@pytest.mark.parametrize("call", range(1, 7))
@pytest.mark.parametrize("name", OF_SEVERAL_CALLS)
def test_a_call_without_a_usable_answer_loses_nothing_that_was_found(name, call, corpus, server):
    server.answer = faulty_in(call)
    submission = answered(name, corpus, server)
    trace = submission.trace
    if submission.usage.calls < call:
        pytest.skip("it makes fewer calls")
    assert surfaced(submission) == set(submission.ranking) and submission.ranking
    assert trace.unusable == {"empty": 2} and trace.fallbacks == 1
    [salvaged] = [step.argument for step in trace.steps if step.tool == "salvage"]
    assert salvaged.startswith("no answer (empty: ")
    assert submission.usage.repairs == 1 and trace.used_in_part == {}


def written(fields):
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items())


@pytest.mark.parametrize("finish", ["length", "stop"])
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in SCORING])
def test_an_answer_that_is_cut_in_its_last_field_is_used_as_far_as_it_goes(
    name, finish, corpus, server
):
    server.answer = lambda prompt: {"raw": written(fill(prompt))[:-3], "finish": finish}
    submission = answered(name, corpus, server)
    trace = submission.trace
    assert submission.usage.repairs == 0 and trace.unusable == {} and trace.fallbacks == 0
    if finish == "length":
        assert trace.used_in_part == {"cut off": submission.usage.calls}
    if name != "closed_book":  # which ranks the documents that the model knows by heart
        assert submission.ranking


@pytest.mark.parametrize("name", SCORING)
def test_an_answer_that_is_cut_before_its_score_leaves_the_document_in_the_middle(
    name, corpus, server
):
    cut = []

    def answer(prompt):
        fields = fill(prompt)
        if "score" not in fields or '"d1"' not in prompt:
            return fields
        cut.append(prompt)
        return {"raw": written(fields).partition("[[ ## score")[0], "finish": "length"}

    server.answer = answer
    submission = answered(name, corpus, server)
    assert cut and len(submission.ranking) == 5
    assert submission.scores[submission.ranking.index("d1")] == pytest.approx(4, abs=0.001)


def test_a_document_without_a_score_gets_the_mean_score_of_its_query():
    assert fill_unscored({"d1": 8.0, "d2": None, "d3": 1.0}) == {"d1": 8.0, "d2": 4.5, "d3": 1.0}
    assert fill_unscored({"d1": None}) == {"d1": 0.0}
