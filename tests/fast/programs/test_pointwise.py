"""score, reason and subtask: what each call is asked, how scores become an order, and how ties are broken."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import asked, ids, prompts

from sextant.programs.pointwise import Reason, Score, Subtask, order_by_score
from sextant.tools.corpus import Corpus
from sextant.tools.models import language_model
from sextant.tools.records import Document, Query
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Limits, Toolbox

NUMBERS = st.sampled_from([0.0, 2.5, 7.0, 7.00001, 7.0001, 10.0, float("-inf")])
SCORES = st.dictionaries(
    st.sampled_from("abcdefgh"), st.tuples(NUMBERS.filter(lambda n: n >= 0), NUMBERS)
)


@given(SCORES)
def test_scores_decide_then_ties_then_the_order_before_and_what_comes_back_says_the_same(drawn):
    scores = {doc_id: score for doc_id, (score, _) in drawn.items()}
    ties = {doc_id: tie for doc_id, (_, tie) in drawn.items()}
    ranked = order_by_score(scores, ties)
    assert sorted(hit.doc_id for hit in ranked) == sorted(drawn)

    def before(one, other):  # of every pair, by hand
        if round(scores[one], 4) != round(scores[other], 4):
            return scores[one] > scores[other]
        return (
            ties[one] > ties[other]
            if ties[one] != ties[other]
            else list(drawn).index(one) < list(drawn).index(other)
        )

    assert all(before(one.doc_id, other.doc_id) for one, other in pairwise(ranked))
    for one, other in pairwise(ranked):
        same = (
            round(scores[one.doc_id], 4) == round(scores[other.doc_id], 4)
            and ties[one.doc_id] == ties[other.doc_id]
        )
        assert one.score == other.score if same else one.score > other.score
    assert all(abs(hit.score - scores[hit.doc_id]) < 1e-4 for hit in ranked)


TEXTS = {
    "d1": "ferry ferry bridge",
    "d2": "bridge ferry pier",
    "d3": "ferry pier",
    "d4": "an orchard",
    "d5": "ferry",
}
QUERY = Query("q1", "ferry, then pier", "hearings", candidates=frozenset({"d1", "d2", "d3", "d4"}))
PROGRAMS = [Score, Reason, Subtask]


@pytest.fixture
def toolbox():
    corpus = Corpus(Document(doc_id, text) for doc_id, text in TEXTS.items())
    # Ties are broken by another retriever than the run's: stronger for repeats.
    return Toolbox(corpus, BM25(corpus), others={"dense": BM25(corpus, k1=9.0, b=0.1)})


def answer(program, toolbox, server, query=QUERY, **parameters):
    with language_model.connect(server.spec).active():
        return program(toolbox, **parameters)(query=query)


def judging(scores):
    """A server's answers: criteria, requirements, and a score by document, or by document and requirement."""

    def fields(prompt):
        field = asked(prompt)
        if field in ("criteria", "requirements"):
            return {field: json.dumps(["has a ferry", "has a pier", "is short"])}
        [doc_id] = set(ids(prompt))
        score = scores[doc_id]
        if isinstance(score, dict):
            score = score[re.findall(r"\[\[ ## requirement ## \]\]\n(.*)", prompt)[-1]]
        return (
            {field: "so and so", "quotes": '["ferry"]', "score": score}
            if field != "score"
            else {"score": score}
        )

    return fields


def order(toolbox, text=QUERY.text, among=QUERY.candidates):
    session = toolbox.open(Query("q", text, candidates=among))
    found = [snippet.doc_id for snippet in session.search(text, 10)]
    return found + sorted(among - set(found))


def test_score_asks_once_a_document_in_the_retriever_s_order_and_shows_one_at_a_time(
    toolbox, server
):
    server.answer = judging({"d1": 3, "d2": 9.5, "d3": 1, "d4": 0})
    submission = answer(Score, toolbox, server)
    assert [ids(prompt) for prompt in prompts(server)] == [[doc_id] for doc_id in order(toolbox)]
    assert all("hearings" in prompt and "ferry, then pier" in prompt for prompt in prompts(server))
    assert (submission.ranking, submission.scores) == (
        ("d2", "d1", "d3", "d4"),
        (9.5, 3.0, 1.0, 0.0),
    )
    tools = [(step.hop, step.tool) for step in submission.trace.steps]
    judged = [(2, "judge"), (2, "note")]
    assert tools == [(1, "search"), *judged * 4, (2, "rank"), (2, "stop")], (
        "no tie, so no second search"
    )
    assert sorted(submission.trace.notes) == [
        f"{one}: so and so" for one in ("d1 3", "d2 9.5", "d3 1", "d4 0")
    ]
    assert [step.usage.calls for step in submission.trace.steps if step.tool == "note"] == [1] * 4


def test_reason_writes_criteria_once_and_every_document_is_judged_by_them(toolbox, server):
    server.answer = judging({"d1": 3, "d2": 9, "d3": 1, "d4": 0})
    submission = answer(Reason, toolbox, server)
    first, *judged = prompts(server)
    assert not ids(first) and "hearings" in first
    assert [ids(prompt) for prompt in judged] == [[doc_id] for doc_id in order(toolbox)]
    assert all("has a pier" in prompt for prompt in judged)
    assert all(
        prompt.rindex("`[[ ## assessment ## ]]`") < prompt.rindex("`[[ ## score ## ]]`")
        for prompt in judged
    )
    assert submission.ranking == ("d2", "d1", "d3", "d4") and submission.usage.calls == 5
    criteria, *why = submission.trace.notes
    assert criteria == "has a ferry\nhas a pier\nis short"
    assert sorted(why) == [
        "d1 3: so and so",
        "d2 9: so and so",
        "d3 1: so and so",
        "d4 0: so and so",
    ]


def test_subtask_judges_every_requirement_of_every_document_and_takes_the_mean(toolbox, server):
    some = {"d1": {"has a ferry": 10, "has a pier": 0}, "d2": {"has a ferry": 6, "has a pier": 7}}
    server.answer = judging(
        some | {"d3": dict.fromkeys(some["d1"], 1), "d4": dict.fromkeys(some["d1"], 0)}
    )
    submission = answer(Subtask, toolbox, server, requirements=2)
    first, *judged = prompts(server)
    assert not ids(first) and "[[ ## most ## ]]\n2" in first
    asked = [
        (ids(prompt), re.findall(r"\[\[ ## requirement ## \]\]\n(.*)", prompt)[-1])
        for prompt in judged
    ]
    assert asked == [
        ([doc_id], one) for doc_id in order(toolbox) for one in ("has a ferry", "has a pier")
    ]
    assert (submission.ranking, submission.scores) == (
        ("d2", "d1", "d3", "d4"),
        (6.5, 5.0, 1.0, 0.0),
    )
    assert submission.usage.calls == 1 + 4 * 2
    assert sum(step.tool == "judge" for step in submission.trace.steps) == 8


def test_subtask_judges_a_requirement_once_that_the_model_lists_twice(toolbox, server):
    def fields(prompt):
        if asked(prompt) == "requirements":
            return {"requirements": json.dumps(["has a ferry", "has a ferry", "has a pier"])}
        return {"score": 5}

    server.answer = fields
    assert answer(Subtask, toolbox, server).usage.calls == 1 + 4 * 2


@pytest.mark.parametrize("program", PROGRAMS)
def test_equal_scores_are_ordered_by_another_retriever_over_the_same_documents(
    program, toolbox, server
):
    server.answer = judging({"d1": 5, "d2": 5, "d3": 5, "d4": 8})
    submission = answer(program, toolbox, server)
    search = [step for step in submission.trace.steps if step.tool == "search"][1]
    assert set(search.doc_ids) <= QUERY.candidates and search.retriever.startswith("bm25(k1=9")
    assert submission.ranking == ("d4", *search.doc_ids)
    assert (
        submission.scores[0] == 8
        and 5 == submission.scores[1] > submission.scores[2] > submission.scores[3] > 4.999
    )


def test_without_a_search_left_for_the_ties_the_pool_s_order_decides(toolbox, server):
    corpus = Corpus(Document(doc_id, text) for doc_id, text in TEXTS.items())
    limited = Toolbox(
        corpus, BM25(corpus), others={"dense": BM25(corpus)}, limits=Limits(searches=1)
    )
    server.answer = judging(dict.fromkeys(TEXTS, 5))
    assert list(answer(Score, limited, server).ranking) == order(toolbox)


def test_a_score_comes_after_thinking_and_quotes_and_at_once_where_that_is_asked_for(
    toolbox, server
):
    server.answer = judging({"d1": 3, "d2": 9, "d3": 1, "d4": 0})
    for think, fields in ((True, ["thinking", "quotes", "score"]), (False, ["score"])):
        assert answer(Score, toolbox, server, think=think).ranking == ("d2", "d1", "d3", "d4")
        wanted = prompts(server)[-1].rpartition("starting with the field")[2]
        assert re.findall(r"`\[\[ ## (\w+) ## \]\]`", wanted) == [*fields, "completed"]
