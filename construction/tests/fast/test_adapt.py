"""Labels carried over to passages, as CRUMB's release has them."""

import json
from contextlib import suppress

import pytest
from building import build, load, prepare
from conftest import lines

from sextant import environments
from sextant.environments.base import EmptySplit
from sextant_construction import release
from sextant_construction.ingest import load_source


def dropped(folder):
    rows = map(json.loads, (folder / "dropped.jsonl").open())
    return [
        (row["id"], row["why"], row.get("evidence", ""))
        for row in rows
        if row["stage"] == "transfer"
    ]


@pytest.mark.parametrize(
    "task", ["tip_of_the_tongue", "set_ops", "clinical_trial", "legal_qa", "stack_exchange"]
)
def test_crumbs_passages_and_labels_are_those_that_its_documents_make(task, tmp_path):
    whole, cut = (load_source(f"crumb/{task}{of}", "mini") for of in (":document", ""))
    by_passage = {
        "max_p": not cut.max_p
    }  # of a task scored by documents, labels of passages are released, too
    build(
        prepare(
            tmp_path,
            "adapt",
            f"task:crumb/{task}:document",
            corpus={"data": "mini"},
            adapt=by_passage,
        )
    )
    made = load(tmp_path)
    assert [one.text for one in made.documents.stream()] == [
        one.text for one in cut.documents.stream()
    ]
    theirs = cut.judgements["passage"] if cut.max_p else whole
    assert made.judgements["gold"].qrels == theirs.qrels and bool(made.max_p) is not cut.max_p
    assert {query.text for query in made.queries} == {query.text for query in cut.queries}
    with suppress(EmptySplit):
        dev = environments.load(f"crumb/{task}", "mini", "dev").queries
        assert {one.text for one in dev} == {
            one.text for one in made.queries if one.query_id in made.splits["dev"]
        }


OLD = {
    "o1": "Freezing slows the enzymes of vegetables down but does not stop them, so that they lose their colour.",
    "o2": "Blanching for two minutes in boiling water stops the enzymes before the vegetables are frozen at home.",
    "o3": "A third passage says something else about strawberries, which are not blanched but frozen with sugar.",
    "o4": "never relevant to anything that anybody asked",
}


def write_task(folder):
    """A task of old passages, and pages made anew in which they stand: o3 for three quarters, o2 not in one piece."""
    task, pages = folder / "task", folder / "pages"
    task.mkdir()
    pages.mkdir()
    queries = {"q1": ["o1"], "q2": ["o1", "o2"], "q3": ["o3"]}
    grades = [(one, doc_id, 2) for one, judged in queries.items() for doc_id in judged] + [
        ("q1", "o4", 0)
    ]
    tables = {
        "corpus": [{"_id": doc_id, "text": text} for doc_id, text in OLD.items()],
        "queries": [{"_id": one, "text": f"question {one}"} for one in queries],
        "qrels": [{"qid": one, "doc_id": doc_id, "score": grade} for one, doc_id, grade in grades],
    }
    for name, rows in tables.items():
        lines(task / f"{name}.jsonl", map(json.dumps, rows))
    half, quarter = OLD["o2"].split(), OLD["o3"].split()
    (pages / "ice.md").write_text(
        f"# Ice\n\nBefore it. {OLD['o1'].upper()} *After.*\n\n{' '.join(half[:8])}\n"
    )
    (pages / "sugar.md").write_text(f"# Sugar\n\n{' '.join(half[8:])}\n\n{' '.join(quarter[4:])}\n")
    return task, str(pages)


def test_a_query_stays_only_if_all_its_old_passages_stand_in_new_ones(tmp_path):
    task, pages = write_task(tmp_path)
    section = {"task": str(task), "labels": "passages", "positive": 2.0}
    folder = prepare(tmp_path / "home", "adapt", pages, cut={"by": ""}, adapt=section)
    [_, transferred] = build(folder)["stages"]
    assert (
        load(folder).judgements["gold"].qrels == {"q1": {"ice.md": 1.0}}
        and transferred["came_out"] == 1
    )
    why = "no new passage contains what is relevant"
    assert dropped(folder) == [("q2", why, "o2"), ("q3", why, "o3")]


def test_a_tenth_of_the_queries_is_for_dev_and_a_hundred_at_most(tmp_path):
    task, _ = write_task(tmp_path)
    many = [{"_id": f"q{number}", "text": f"question {number}"} for number in range(40)]
    lines(task / "queries.jsonl", map(json.dumps, many))
    rows = [{"qid": row["_id"], "doc_id": "o1", "score": 1} for row in many]
    lines(task / "qrels.jsonl", map(json.dumps, rows))
    for most, count in ((100, 4), (3, 3)):
        section = {"dev_most": most} if most != 100 else {}
        folder = prepare(
            tmp_path / f"home{most}", "adapt", str(task), cut={"by": ""}, release=section
        )
        build(folder)
        assert len(load(folder).splits["dev"]) == count


def test_a_document_that_was_left_out_takes_its_queries_with_it(tmp_path):
    task, _ = write_task(tmp_path)
    others = {"cut": {"by": ""}, "clean": {"hash_ids": True}}
    folder = prepare(
        tmp_path / "home", "adapt", str(task), corpus={"pattern": r"\A(?!.*boiling)"}, **others
    )
    ingested, transferred = build(folder)["stages"]
    assert sorted(len(of) for of in load(folder).judgements["gold"].qrels.values()) == [1, 1, 2]
    assert dropped(folder) == [("q2 o2", "the relevant document is not in the corpus", "")]
    assert not load(folder).max_p
    why = {"documents that `pattern` leaves out": 1, "files of another form, left out": 2}
    assert ingested == {
        "stage": "ingest",
        "went_in": 6,
        "came_out": 3,
        "dropped": why,
        "usage": {},
        "lm": "",
    }
    assert transferred["dropped"] == {"the relevant document is not in the corpus": 1}


# A mask, a pool, judgements of parents of passages, and comparisons.
PROTOCOLS = [
    "obliq/writing",
    "birco/relic",
    "crumb/set_ops",
    "multiconir/books:format",
]


@pytest.mark.parametrize("hashed", [False, True], ids=["own ids", "hashed ids"])
@pytest.mark.parametrize("task", PROTOCOLS)
def test_masks_and_pools_name_the_passages_that_documents_became(task, hashed, tmp_path):
    folder = prepare(
        tmp_path,
        "adapt",
        f"task:{task}",
        cut={"tokens": 60},
        clean={"hash_ids": hashed, "near": 0.0},
    )
    build(folder)
    assert not release.check_release(folder)
    given, made = load_source(task, "mini"), load(folder)
    shown = environments.load(str(folder / "release"), split="all")
    assert bool(shown.release_ids) is task.startswith(("birco", "multiconir"))
    texts = {one.doc_id: "".join(one.text.split()) for one in given.documents.stream()}
    of = {query.query_id: query for query in given.queries}
    assert {query.query_id for query in made.queries} <= of.keys()

    def cut(doc_ids):  # the passages whose text stands in one of the documents
        whole = [texts[doc_id] for doc_id in doc_ids or ()]
        found = made.documents.stream()
        return {
            one.doc_id for one in found if any("".join(one.text.split()) in text for text in whole)
        }

    for query in made.queries:
        before = of[query.query_id]
        assert query.excluded == cut(before.excluded)
        assert (query.candidates is None) is (before.candidates is None)
        assert query.candidates is None or query.candidates == cut(before.candidates)
    unit_of = made.judgements["gold"].unit_of
    assert made.max_p and len({unit_of(one) for one in made.documents}) == len(
        {
            given.judgements[given.headline].unit_of(one) if given.max_p else one
            for one in given.documents
        }
    )
    assert not made.comparisons and not {"Win", "Flip"} & {*made.metrics}
    if task.endswith("format"):
        assert {why for _, why, _ in dropped(folder)} == {
            "comparisons of documents, which are not carried over"
        }
