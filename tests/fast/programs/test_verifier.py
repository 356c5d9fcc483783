"""The verifier's calls, one by one: what is searched where, what is verified together, what is learned from it."""

import json
from fractions import Fraction

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st
from openai_server import asked, given, ids, prompts

from agents.verifier import Verifier, fuse, ranking
from tools.corpus import Corpus
from tools.models import lm
from tools.models.prompting import UnusableAnswer
from tools.records import Document, Query
from tools.retrievers import Expressions, build
from tools.retrievers.bm25 import BM25
from tools.session import Limits, Toolbox

QUERY = Query("q", "Somebody is proud of a garden without saying so.", "Short posts.")
BOTH = Expressions("bm25,dense")
PLANTS = ["roses", "dahlias", "leeks", "beans", "tulips", "ferns"]


@pytest.fixture(scope="module")
def posts():
    """Six documents each of six plants: p00 to p05 have roses, and so on."""
    return Corpus(
        Document(f"p{kind}{number}", f"{plant} in row {number} " + "and again " * number)
        for kind, plant in enumerate(PLANTS)
        for number in range(6)
    )


def asking(server, field):
    """The prompts that ask for this field."""
    return [prompt for prompt in prompts(server) if asked(prompt) == field]


class Script:
    """A model that searches for `rounds` of plants in turn, and gives the grades that it is told."""

    def __init__(self, *rounds, grades, common="all are in rows"):
        self.rounds, self.grades, self.common = list(rounds), grades, common

    def __call__(self, prompt):
        if asked(prompt) == "searches":
            return {"searches": json.dumps(self.rounds.pop(0))}
        if asked(prompt) == "common":
            return {"common": self.common}
        shown = ids(given(prompt, "passages"))
        graded = [{"id": i, "grade": self.grades[i], "evidence": f"see {i}"} for i in shown if i in self.grades]
        return {"judgements": json.dumps(graded)}


def verifier(posts, **parameters):
    index, stemmed = BM25(posts), build("bm25(analyzer=english)", posts)
    limits = parameters.pop("limits", Limits())
    toolbox = Toolbox(posts, index, others={"bm25": index, "dense": stemmed}, limits=limits)
    return Verifier(toolbox, **{"retrievers": Expressions(""), "per_search": 6, **parameters})


def played(server, agent, script):
    server.answer = script
    with lm.connect(server.spec).active():
        return agent(query=QUERY)


def steps(submission, tool):
    return [step for step in submission.trace.steps if step.tool == tool]


def batches(submission):
    """What was verified together: the judge steps, without those of what was learned (they repeat documents)."""
    seen, found = set(), []
    for step in steps(submission, "judge"):
        if not seen & set(step.doc_ids):
            found.append(step.doc_ids)
        seen |= set(step.doc_ids)
    return found


def test_a_round_is_searches_then_batches_then_what_they_have_in_common(server, posts):
    script = Script(["roses", "leeks"], ["beans"], grades={"p00": 3, "p21": 2, "p30": 3, "p03": 1})
    submission = played(server, verifier(posts, rounds=2, batch=5), script)
    fields = list(map(asked, prompts(server)))
    # Twelve documents are three batches of at most five, the six beans two. After the last round nothing is learned.
    assert fields == ["searches", *["judgements"] * 3, "common", "searches", *["judgements"] * 2]
    assert submission.usage.calls == 8 and submission.trace.steps[-1].argument == "steps"
    assert [(s.argument, s.hop) for s in steps(submission, "search")] == [("roses", 1), ("leeks", 1), ("beans", 2)]
    first, second = asking(server, "searches")
    assert (given(first, "learned"), given(first, "earlier_searches")) == ("[]", "[]")
    assert "all are in rows" in given(second, "learned") and "leeks" in given(second, "earlier_searches")
    assert given(first, "most") == "4"
    [learn] = asking(server, "common")
    assert ids(given(learn, "passages")) == ["p00", "p21"], "the verified ones, surest first"
    assert all(QUERY.text in prompt for prompt in asking(server, "judgements"))
    assert submission.ranking[:4] == ("p00", "p30", "p21", "p03")
    assert [sorted(map(len, batches(submission)))] == [[1, 2, 5, 5, 5]]


def test_the_best_of_the_fused_lists_are_verified_and_the_others_in_the_next_round(server, posts):
    script = Script(["roses", "leeks"], [], grades={"p00": 2})
    submission = played(server, verifier(posts, verify=4, batch=4, rounds=2), script)
    order = fuse([step.doc_ids for step in steps(submission, "search")])
    first, second = batches(submission)
    assert set(first) == set(order[:4]) and set(second) == set(order[4:8])
    assert set(submission.ranking) == set(order)


def test_a_batch_is_shuffled_by_seed_and_query(server, posts):
    def shown(seed):
        script = Script(["roses", "leeks"], grades={})
        return batches(played(server, verifier(posts, rounds=1, seed=seed), script))

    one, again, other = shown(1), shown(1), shown(2)
    assert one == again != other
    assert sorted(sum(one, ())) == sorted(sum(other, ()))


def test_nothing_verified_and_nothing_new_ends_it(server, posts):
    submission = played(server, verifier(posts), Script(["roses"], ["roses in row"], [], grades={"p00": 1}))
    assert submission.trace.steps[-1].argument == "done" and not asking(server, "common")


def test_reads_bounds_what_is_verified_in_all(server, posts):
    script = Script(["roses", "leeks"], ["beans"], grades={"p00": 3})
    submission = played(server, verifier(posts, reads=8, verify=6), script)
    assert sum(map(len, batches(submission))) == 8 and len(asking(server, "searches")) == 2
    assert submission.trace.steps[-1].argument == "budget"


@pytest.mark.parametrize(
    ("judgements", "kind"),
    [([{"id": "p00", "grade": 4, "evidence": ""}], "wrong type"), ([{"id": "p99", "grade": 3, "evidence": ""}], "ids")],
)
def test_a_grade_out_of_range_or_an_unknown_id_is_asked_for_again(server, posts, judgements, kind):
    def script(prompt):
        return {"searches": '["roses"]'} if asked(prompt) == "searches" else {"judgements": json.dumps(judgements)}

    with pytest.raises(UnusableAnswer, match=kind):
        played(server, verifier(posts, rounds=1), script)
    assert len(server.requests) == 3


def test_the_ranking_is_by_grade_then_unread_then_read_in_vain():
    state = {
        "lists": [["a", "b", "c", "d", "u"], ["e", "v", "u"]],
        "grades": {"a": 0, "b": 3, "c": 1, "d": 2, "e": 3},
    }
    assert ranking(state) == ["b", "e", "d", "c", "u", "v", "a"]


@hypothesis_given(st.lists(st.lists(st.sampled_from("abcdefg"), unique=True), max_size=5))
def test_the_fused_order_is_that_of_a_brute_force(lists):
    first = list(dict.fromkeys(doc for ids in lists for doc in ids))
    value = {doc: sum(Fraction(1, 61 + ids.index(doc)) for ids in lists if doc in ids) for doc in first}
    assert fuse(lists) == sorted(first, key=lambda doc: (-value[doc], first.index(doc)))
