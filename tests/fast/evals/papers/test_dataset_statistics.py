"""Statistics of a task, against counts done by hand and distances of scipy and scikit-learn."""

import dataclasses
from statistics import fmean

import pytest
from foreign_runs import world

from sextant import environments
from sextant.environments.base import Judgements
from sextant.evals.papers import dataset_statistics
from sextant.tools.corpus import Corpus
from sextant.tools.records import Document, Query


def compute(environment, names):
    return {name: dataset_statistics.compute_statistic(environment, name) for name in names}


DEBATE = {
    "t-x-pro01a": "Trees cool the street.",
    "t-x-con01a": "The roots break pipes and trees fall.",
    "t-x-con02b": "Leaves must be swept.",
    "t-y-con01a": "Cars are loud.",
    "t-y-pro01a": "Buses are slow.",
}


def debate(**changes):
    """One argument over a pool of four passages: its answer, one of the same debate, and two of another."""
    fields = {
        "task": "birco/arguana",
        "documents": Corpus(Document(name, text) for name, text in DEBATE.items()),
        "queries": (
            Query(
                "q",
                "Trees break the heat of a street",
                "Find the answer.",
                candidates=frozenset(list(DEBATE)[1:]),
            ),
        ),
        "judgements": {
            "gold": Judgements({"q": dict.fromkeys(list(DEBATE)[1:], 0.0) | {"t-x-con01a": 1.0}})
        },
    }
    return world(**fields | changes)


def test_the_statistics_of_a_small_task_are_those_counted_by_hand():
    names = [
        name for name in dataset_statistics.STATISTICS if name != "passages cut alike"
    ]  # which reads CRUMB's data
    found = compute(debate(), [*names, "relevant(gold)", "relevant(gold,binary)"])
    assert found == {
        "queries": 1,
        "documents": 5,
        "query characters": 32,
        "document characters": pytest.approx((22 + 37 + 21 + 14 + 15) / 5),
        "query words": 7,
        "document words": pytest.approx((4 + 7 + 4 + 3 + 3) / 5),
        "pool size": 4,
        "lexical overlap": 2
        / 4,  # trees, break; not heat, street. "the", "of" and "a" are no words
        "triplets": 3
        * 13,  # the miniature's dev queries, with one of fourteen documents relevant to each
        "hard negatives": 1 / 4,  # t-x-con02b
        "instruction": "Find the answer.",
        "relevant(gold)": 1,
        "relevant(gold,binary)": None,
    }


def test_what_a_task_does_not_tell_is_none_and_not_zero():
    units = environments.load(
        "crumb/tip_of_the_tongue", "mini"
    )  # judged by document, searched by passage
    names = ["lexical overlap", "hard negatives", "relevant(document)", "relevant(pooled)"]
    assert list(compute(units, names).values()) == [
        None,
        None,
        1,
        None,
    ]


def test_passages_are_found_to_be_cut_as_the_paper_cuts_them_or_otherwise():
    cut = environments.load("crumb/set_ops", "mini")
    longer = (
        Document(one.doc_id, f"{one.text} more", parent=one.parent)
        for one in cut.documents.stream()
    )
    changed = dataclasses.replace(cut, documents=Corpus(longer))
    never = environments.load("crumb/code_retrieval", "mini")
    assert [dataset_statistics.passages_cut_alike(one) for one in (cut, changed, never)] == [
        1,
        0,
        None,
    ]


def test_labels_for_gain_and_labels_for_recall_are_counted_apart():
    papers = environments.load("crumb/paper_retrieval", "mini")
    rows = papers.judgements["passage"]
    assert rows.binary is not None
    by_hand = [
        fmean(len([1 for x in labels.values() if x >= 1]) for labels in q.values())
        for q in (rows.qrels, rows.binary)
    ]
    assert (
        list(compute(papers, ["relevant(passage)", "relevant(passage,binary)"]).values()) == by_hand
    )
    assert by_hand[0] > by_hand[1]


def test_reciprocal_ranks_leave_the_relevant_document_out():
    ranking = ["t-x-con02b", "t-x-con01a", "t-y-con01a", "t-y-pro01a"]
    assert dataset_statistics.reciprocal_ranks(debate(), {"q": ranking}) == (
        1.0,
        fmean([1 / 3, 1 / 4]),
    )
    unpooled = debate(task="birco/relic")
    assert compute(unpooled, ["hard negatives"]) == {"hard negatives": None}


def test_debates_are_those_of_the_releases_ids_whatever_ids_programs_see():
    seen = environments.load("birco/arguana", "mini")
    assert seen.released and not any("-" in doc_id for doc_id in seen.documents)
    share = dataset_statistics.hard_negative_share(seen)
    assert share == dataset_statistics.hard_negative_share(seen.released) > 0
