"""Splitting a request and fusing what its parts found, against the definition spelt out document by document."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sextant.programs.decompose import Decompose, SubQueryResult, fuse
from sextant.tools.corpus import Corpus
from sextant.tools.models import language_model
from sextant.tools.models import offline_rules as rules
from sextant.tools.models.answers.checks import UnusableAnswer
from sextant.tools.records import Document, Query
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Limits, Toolbox

QUERY = Query("q1", "animals with blue blood that are not octopuses", "Find pages of animals.")
DOC_IDS = [f"d{number}" for number in range(8)]
UNLIMITED = Limits()

parts = st.lists(
    st.builds(
        SubQueryResult,
        st.sampled_from(["must", "may", "not"]),
        st.sampled_from([0.0, 0.25, 0.5, 1.0]),  # powers of two, so that equal sums are equal
        st.lists(st.sampled_from(DOC_IDS), unique=True, max_size=8),
    ),
    max_size=5,
)


def reference(parts, exclude_depth):
    """Document by document, in fractions."""

    def place(doc):
        found = [part for part in parts if doc in part.doc_ids]
        shut_out = any(part.role == "not" and doc in part.doc_ids[:exclude_depth] for part in found)
        gains = [
            Fraction(part.weight) / (61 + part.doc_ids.index(doc))
            for part in found
            if part.role != "not"
        ]
        return shut_out, -sum(part.role == "must" for part in found), -sum(gains), doc

    return sorted({doc for part in parts if part.role != "not" for doc in part.doc_ids}, key=place)


@given(parts, st.integers(0, 8))
def test_fusion_is_the_definition(parts, exclude_depth):
    assert fuse(parts, exclude_depth) == reference(parts, exclude_depth)


def subquery(search, role="must", reading="as it says", weight=1.0):
    return {"search": search, "reading": reading, "role": role, "weight": weight}


def decomposed(corpus, server, *subqueries, limits=UNLIMITED, **parameters):
    server.answer = lambda prompt: {"subqueries": json.dumps(subqueries)}
    with language_model.connect(server.spec).active():
        return Decompose(Toolbox(corpus, BM25(corpus), limits=limits), **parameters)(query=QUERY)


def test_one_call_then_a_hop_with_a_search_and_a_note_for_each_sub_query(corpus, server):
    asked = subquery("blue blood", reading="a colour"), subquery("octopus", "not")
    submission = decomposed(corpus, server, *asked, exclude_depth=3)
    steps = [(step.tool, step.hop) for step in submission.trace.steps]
    assert steps == [("search", 1), ("note", 1), ("search", 2), ("note", 2), ("stop", 2)]
    assert [step.argument for step in submission.trace.steps][:3:2] == ["blue blood", "octopus"]
    assert submission.trace.notes == ["must, weight 1: a colour", "not, weight 1: as it says"]
    assert len(server.requests) == submission.usage.calls == 1
    prompt = str(server.requests[0]["messages"])
    assert QUERY.text in prompt and QUERY.objective in prompt
    # d1 and d2 say octopus, d6 only octopuses; of those with blue blood, the two go last.
    assert set(submission.ranking[-2:]) == {"d1", "d2"} and set(submission.ranking[:2]) == {
        "d3",
        "d6",
    }


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ([], "no condition with a search text"),
        ([subquery(" ")], "no condition with a search text"),
        ([subquery("blue", "perhaps")], "subqueries"),
        ([{"reading": "blue"}], "subqueries"),
    ],
)
def test_an_unusable_plan_is_requested_once_more(bad, reason, corpus, server):
    with pytest.raises(UnusableAnswer, match=reason):
        decomposed(corpus, server, *bad)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("faulty", "searches"),
    [
        ([subquery("blue"), subquery(" ")], ["blue"]),
        ([subquery("blue", weight=-0.5), subquery("red", weight=2)], ["blue", "red"]),
        ([subquery("blue", "not")], [QUERY.text, "blue"]),
        ([{"search": "blue"}], ["blue"]),
    ],
)
def test_a_faulty_condition_costs_itself(faulty, searches, corpus, server):
    submission = decomposed(corpus, server, *faulty)
    steps = submission.trace.steps
    assert [step.argument for step in steps if step.tool == "search"] == searches
    assert len(server.requests) == 1 and submission.ranking and submission.trace.unusable == {}


def test_the_description_is_searched_if_no_condition_has_a_word_of_the_collection(corpus, server):
    submission = decomposed(corpus, server, subquery("qwxz"), subquery("zwqx", "may"))
    searches = [step.argument for step in submission.trace.steps if step.tool == "search"]
    assert searches == ["qwxz", "zwqx", QUERY.text] and submission.ranking


def test_a_condition_of_another_type_is_left_out_if_it_is_so_again(corpus, server):
    submission = decomposed(corpus, server, subquery("blue"), subquery("red", "perhaps"))
    steps = submission.trace.steps
    assert [step.argument for step in steps if step.tool == "search"] == ["blue"]
    assert len(server.requests) == 2 and submission.trace.used_in_part == {"wrong type": 1}


def test_a_plan_with_too_many_parts_is_cut_without_being_asked_for_again(corpus, server):
    submission = decomposed(
        corpus, server, *(subquery(text) for text in ("blue", "red", "heart")), parts=2
    )
    assert [step.argument for step in submission.trace.steps if step.tool == "search"] == [
        "blue",
        "red",
    ]
    assert len(server.requests) == 1


BIRDS = "birds of Borneo that are nocturnal or extinct, romances, novels of 1890, city and sea: black-and-white films."
STATISTICS = BM25(Corpus([Document("1", BIRDS), Document("2", "something else")])).statistics()


def split(text, most=5):
    made = rules.split_clauses({"description": text, "most": most}, STATISTICS)
    assert made[0] | {"reading": ""} == {
        "search": text,
        "reading": "",
        "role": "may",
        "weight": 1.0,
    }
    assert all(part["reading"] and 0 <= part["weight"] <= 1 for part in made)
    return [(part["role"], part["search"]) for part in made[1:]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("birds and novels", [("must", "birds"), ("must", "novels")]),
        ("novels or romances", [("may", "novels"), ("may", "romances")]),
        ("birds that are not nocturnal", [("must", "birds"), ("not", "nocturnal")]),
        ("novels, but not romances", [("must", "novels"), ("not", "romances")]),
        ("birds without Borneo or sea", [("must", "birds"), ("not", "Borneo"), ("not", "sea")]),
        (
            "birds except extinct and in Borneo",
            [("must", "birds"), ("not", "extinct"), ("must", "in Borneo")],
        ),
        (
            "birds either nocturnal or extinct",
            [("must", "birds"), ("may", "nocturnal"), ("may", "extinct")],
        ),
        ("films other than romances", [("must", "films"), ("not", "romances")]),
        ("black-and-white films", []),
        (
            "Birds of Borneo. Novels of the sea.",
            [("may", "Birds of Borneo."), ("may", "Novels of the sea.")],
        ),
    ],
)
def test_offline_splits_on_the_words_of_sets(text, expected):
    found = split(text)
    assert (sorted(found) if "." in text else found) == expected
