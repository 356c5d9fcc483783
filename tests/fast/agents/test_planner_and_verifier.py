"""What planner and verifier ask, call by call, in which order, and what becomes of the answers."""

import json
from fractions import Fraction

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st
from openai_server import asked, given, ids, prompts

from sextant.agents.planner import Planner
from sextant.agents.planner import _PlannerNodes as PlannerWork
from sextant.agents.verifier import Verifier, fuse
from sextant.agents.verifier import _VerifierNodes as VerifierWork
from sextant.tools.corpus import Corpus
from sextant.tools.models import language_model
from sextant.tools.records import Document, Query
from sextant.tools.retrievers.expressions import Expressions
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

ANIMALS = Query("q", "Which animals have blood of an odd colour?", "Short texts about animals.")
PRIDE = Query("q", "Somebody is proud of a garden without saying so.", "Short posts.")
PLANTS = ["roses", "dahlias", "leeks", "beans", "tulips", "ferns"]


def played(server, query, agent, script):
    server.answer = script
    with language_model.connect(server.spec).active():
        return agent(query=query)


def steps(submission, tool):
    return [step for step in submission.trace.steps if step.tool == tool]


def questions(**searches):
    return json.dumps(
        [{"question": question, "search": search} for question, search in searches.items()]
    )


class Plans:
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
    return Planner(Toolbox(corpus, BM25(corpus)), **{"per_search": 2, **parameters})


def test_a_planned_search_with_the_words_of_an_earlier_one_is_a_repeat(server, corpus):
    script = Plans(questions(again="Octopus hearts!"))
    submission = played(server, ANIMALS, planner(corpus, rounds=3), script)
    [repeat] = steps(submission, "repeat")
    assert (repeat.argument, repeat.repeated) == ("Octopus hearts!", "search")
    assert len(steps(submission, "search")) == 2 and steps(submission, "stop")[0].argument == "done"


def test_a_plan_then_readings_side_by_side_then_reflection_then_readings(server, corpus):
    script = Plans(questions(crabs="horseshoe crabs", giraffe="giraffe eleven"))
    submission = played(server, ANIMALS, planner(corpus, rounds=2), script)
    sent = prompts(server)
    assert [asked(prompt) for prompt in sent] == [
        "plan",
        "selected",
        "selected",
        "missing",
        "selected",
        "selected",
    ]
    assert submission.usage.calls == 1 + 2 + 1 + 2
    assert all(ANIMALS.text in prompt and ANIMALS.objective in prompt for prompt in sent)
    assert given(sent[0], "most") == "4"
    # Two lines work at once, so which is asked first is chance; what each is asked is not.
    first = {given(prompt, "question"): ids(given(prompt, "passages")) for prompt in sent[1:3]}
    assert first == {"octopus": ["d1", "d2"], "iron": ["d4"]}
    second = {given(prompt, "question"): ids(given(prompt, "passages")) for prompt in sent[4:]}
    assert second == {"crabs": ["d3"], "giraffe": ["d5"]}
    assert submission.ranking == ("d1", "d4", "d3", "d5", "d2")
    assert all(given(prompt, "notes") == "[]" for prompt in sent[1:3])
    assert (
        "octopus hearts" in given(sent[3], "earlier_searches")
        and given(sent[3], "selected_so_far") == "2"
    )
    assert all("red blood" not in given(prompt, "notes") for prompt in sent[4:])
    assert given(sent[4], "notes") == given(sent[5], "notes") == given(sent[3], "notes") != "[]"
    assert submission.trace.steps[-1].argument == "steps"
    assert [step.hop for step in steps(submission, "search")] == [1, 1, 2, 2]


def test_a_document_that_two_searches_found_is_read_once_for_the_first(server, corpus):
    def script(prompt):
        answer = Plans("[]")(prompt)
        both = questions(one="octopus blood", two="blue blood octopus")
        return {"plan": both} if "plan" in answer else answer

    submission = played(server, ANIMALS, planner(corpus, rounds=1, per_search=3), script)
    read = [doc_id for step in steps(submission, "judge") for doc_id in step.doc_ids]
    assert len(read) == len(set(read))
    first, second = (step.doc_ids for step in steps(submission, "search"))
    assert set(first) & set(second)
    shown = {
        given(p, "question"): ids(given(p, "passages"))
        for p in prompts(server)
        if asked(p) == "selected"
    }
    assert shown["one"] == list(first)
    assert shown.get("two", []) == [doc_id for doc_id in second if doc_id not in first]


def test_searches_that_were_made_before_are_not_made_again(server, corpus):
    submission = played(
        server, ANIMALS, planner(corpus), Plans(questions(again=" octopus hearts ", blank=" "))
    )
    assert len(steps(submission, "search")) == 2 and submission.trace.steps[-1].argument == "done"


def test_it_ends_without_reflection_when_a_round_surfaces_nothing_new(server, corpus):
    submission = played(
        server, ANIMALS, planner(corpus, per_search=6), Plans(questions(more="octopus"), "[]")
    )
    sent = [asked(prompt) for prompt in prompts(server)]
    assert sent.count("missing") == 1 and len(steps(submission, "search")) == 3
    assert submission.trace.steps[-1].argument == "done"


def test_the_ranking_is_what_was_selected_then_the_rest_by_rank_round_and_place():
    best = {
        "e": (0, 1, 1),
        "b": (1, 1, 1),
        "x": (1, 2, 0),
        "y": (0, 1, 0),
        "a": (1, 1, 0),
        "z": (0, 2, 0),
    }
    assert PlannerWork.ranking(None, {"best": best, "selected": ["a", "b"]}) == [
        "a",
        "b",
        "y",
        "e",
        "z",
        "x",
    ]


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


class Grades:
    """A model that searches for `rounds` of plants in turn, and gives the grades that it is told."""

    def __init__(self, *rounds, grades, common="all are in rows"):
        self.rounds, self.grades, self.common = list(rounds), grades, common

    def __call__(self, prompt):
        if asked(prompt) == "searches":
            return {"searches": json.dumps(self.rounds.pop(0))}
        if asked(prompt) == "common":
            return {"common": self.common}
        shown = ids(given(prompt, "passages"))
        graded = [
            {"id": i, "grade": self.grades[i], "evidence": f"see {i}"}
            for i in shown
            if i in self.grades
        ]
        return {"judgements": json.dumps(graded)}


def verifier(posts, **parameters):
    return Verifier(
        Toolbox(posts, BM25(posts)),
        **{"retrievers": Expressions(""), "per_search": 6, **parameters},
    )


def batches(submission):
    """What was verified together: the judge steps, without those of what was learned (they repeat documents)."""
    seen, found = set(), []
    for step in steps(submission, "judge"):
        if not seen & set(step.doc_ids):
            found.append(step.doc_ids)
        seen |= set(step.doc_ids)
    return found


def test_a_round_is_searches_then_batches_then_what_they_have_in_common(server, posts):
    script = Grades(["roses", "leeks"], ["beans"], grades={"p00": 3, "p21": 2, "p30": 3, "p03": 1})
    submission = played(server, PRIDE, verifier(posts, rounds=2, batch=5), script)
    fields = list(map(asked, prompts(server)))
    # Twelve documents are three batches of at most five, the six beans two. After the last round nothing is learned.
    assert fields == ["searches", *["judgements"] * 3, "common", "searches", *["judgements"] * 2]
    assert submission.usage.calls == 8 and submission.trace.steps[-1].argument == "steps"
    assert [(s.argument, s.hop) for s in steps(submission, "search")] == [
        ("roses", 1),
        ("leeks", 1),
        ("beans", 2),
    ]
    first, second = asking(server, "searches")
    assert (given(first, "learned"), given(first, "earlier_searches")) == ("[]", "[]")
    assert "all are in rows" in given(second, "learned") and "leeks" in given(
        second, "earlier_searches"
    )
    assert given(first, "most") == "4"
    [learn] = asking(server, "common")
    assert ids(given(learn, "passages")) == ["p00", "p21"], "the verified ones, surest first"
    assert all(PRIDE.text in prompt for prompt in asking(server, "judgements"))
    assert submission.ranking[:4] == ("p00", "p30", "p21", "p03")
    assert [sorted(map(len, batches(submission)))] == [[1, 2, 5, 5, 5]]


def test_the_best_of_the_fused_lists_are_verified_and_the_others_in_the_next_round(server, posts):
    script = Grades(["roses", "leeks"], [], grades={"p00": 2})
    submission = played(server, PRIDE, verifier(posts, verify=4, batch=4, rounds=2), script)
    order = fuse([step.doc_ids for step in steps(submission, "search")])
    first, second = batches(submission)
    assert set(first) == set(order[:4]) and set(second) == set(order[4:8])
    assert set(submission.ranking) == set(order)


def test_nothing_verified_and_nothing_new_ends_it(server, posts):
    submission = played(
        server, PRIDE, verifier(posts), Grades(["roses"], ["roses in row"], [], grades={"p00": 1})
    )
    assert submission.trace.steps[-1].argument == "done" and not asking(server, "common")


def test_reads_bounds_what_is_verified_in_all(server, posts):
    script = Grades(["roses", "leeks"], ["beans"], grades={"p00": 3})
    submission = played(server, PRIDE, verifier(posts, reads=8, verify=6), script)
    assert sum(map(len, batches(submission))) == 8 and len(asking(server, "searches")) == 2
    assert submission.trace.steps[-1].argument == "budget"


def test_the_ranking_is_by_grade_then_unread_then_read_in_vain():
    state = {
        "lists": [["a", "b", "c", "d", "u"], ["e", "v", "u"]],
        "grades": {"a": 0, "b": 3, "c": 1, "d": 2, "e": 3},
    }
    assert VerifierWork.ranking(None, state) == ["b", "e", "d", "c", "u", "v", "a"]


@hypothesis_given(st.lists(st.lists(st.sampled_from("abcdefg"), unique=True), max_size=5))
def test_the_fused_order_is_that_of_a_brute_force(lists):
    first = list(dict.fromkeys(doc for ids in lists for doc in ids))
    value = {
        doc: sum(Fraction(1, 61 + ids.index(doc)) for ids in lists if doc in ids) for doc in first
    }
    assert fuse(lists) == sorted(first, key=lambda doc: (-value[doc], first.index(doc)))
