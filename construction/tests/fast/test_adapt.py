"""Labels carried over to passages, as CRUMB's release has them."""

import json
from contextlib import suppress

import pytest
from building import build, load, prepare
from conftest import lines

from sextant import environments
from sextant.environments.base import EmptySplit
from sextant.tools.errors import DataError
from sextant_construction import human_review, query_ratings, release, row_joining
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
    section = {"task": str(task), "labels": "passages"}
    folder = prepare(tmp_path / "home", "adapt", pages, cut={"by": ""}, adapt=section)
    [_, transferred] = build(folder)["stages"]
    assert (
        load(folder).judgements["gold"].qrels == {"q1": {"ice.md": 2.0}}
        and transferred["came_out"] == 1
    )
    why = "no new passage contains what is relevant"
    assert dropped(folder) == [("q2", why, "o2"), ("q3", why, "o3")]
    [(item, row)] = human_review.read_offered(folder)["transfer"].items()
    assert row["show"][0] == ["the old passage", OLD["o3"]]
    lines(tmp_path / "said.jsonl", [json.dumps({"item": item, "rater": "ann", "value": "yes"})])
    assert human_review.import_answers(folder, [tmp_path / "said.jsonl"]) == 0
    build(folder)
    assert load(folder).judgements["gold"].qrels == {"q1": {"ice.md": 2.0}, "q3": {"sugar.md": 2.0}}


def test_queries_that_people_do_not_find_natural_are_dropped_with_their_rating(tmp_path):
    task, _ = write_task(tmp_path)
    rated = {"q1": [True, True, False], "q2": [True, False, False]}
    rows = [
        {"query_id": query_id, "metadata": {"naturalness": votes}}
        for query_id, votes in rated.items()
    ]
    file = tmp_path / "ratings.jsonl"
    lines(file, map(json.dumps, rows))
    section = {"ratings": str(file), "least": {"metadata.naturalness": 0.6}}
    folder = prepare(tmp_path / "home", "adapt", str(task), cut={"by": ""}, adapt=section)
    stages = {row["stage"]: row for row in build(folder)["stages"]}
    assert (stages["ratings"]["went_in"], stages["ratings"]["came_out"]) == (3, 1)
    assert {query.query_id for query in load(folder).queries} == {"q1"}
    rows = [json.loads(line) for line in (folder / "dropped.jsonl").open()]
    assert {row["id"]: row["why"] for row in rows if row["stage"] == "ratings"} == {
        "q2": "metadata.naturalness is 0.33, under 0.6",
        "q3": "nobody has rated it",
    }


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"query_id": "q1"}, "no rating 'fluency' in None"),
        ({"query_id": "q1", "fluency": "high"}, "no rating 'fluency' in 'high'"),
        ({"fluency": 1}, "query_id"),
    ],
)
def test_ratings_that_cannot_be_read_are_refused_with_their_line(tmp_path, row, reason):
    file = tmp_path / "ratings.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=reason):
        query_ratings.read_ratings(file, ["fluency"])


def write_statutes(folder):
    """Paragraphs of two states' laws, each with its state and the path of its headings."""
    paragraphs = [
        ("a1", "Ohio", "Laws > Ordinances > Housing > Permits", "A permit is needed to build."),
        ("a2", "Ohio", "Laws > Ordinances > Housing > Fees", "A permit costs ten dollars."),
        ("a3", "Ohio", "Laws > Ordinances > Water", "Wells are inspected each spring."),
        ("b1", "Utah", "Laws > Courts", "An eviction is first heard in a county court."),
    ]
    folder.mkdir()
    rows = [
        {"_id": doc_id, "state": state, "path": path, "text": text}
        for doc_id, state, path, text in paragraphs
    ]
    lines(folder / "corpus.jsonl", map(json.dumps, rows))
    queries = {"q1": "what does a permit cost in Ohio", "q2": "who hears evictions in Utah"}
    rows = [{"_id": query_id, "text": text} for query_id, text in queries.items()]
    lines(folder / "queries.jsonl", map(json.dumps, rows))
    qrels = [("q1", "a2"), ("q2", "b1")]
    rows = [{"qid": query_id, "doc_id": doc_id, "score": 1} for query_id, doc_id in qrels]
    lines(folder / "qrels.jsonl", map(json.dumps, rows))
    return folder


def test_paragraphs_of_statutes_become_documents_of_the_first_three_headings(tmp_path):
    task = write_statutes(tmp_path / "statutes")
    corpus = {"join": "state", "headings": ["path"], "heading_mark": " > "}
    folder = prepare(
        tmp_path / "home",
        "adapt",
        str(task / "corpus.jsonl"),
        corpus=corpus,
        cut={"by": "sections"},
        adapt={"task": str(task), "labels": "passages"},
    )
    build(folder)
    made = load(folder)
    texts = {document.doc_id: document.text for document in made.documents.stream()}
    assert list(texts) == ["Ohio:0", "Ohio:1", "Utah:0"]
    assert texts["Ohio:0"].splitlines()[:7:2] == [
        "# Laws",
        "## Ordinances",
        "### Housing",
        "#### Permits",
    ]
    assert "#### Fees" in texts["Ohio:0"] and "### Water" in texts["Ohio:1"]
    assert made.documents["Ohio:1"].title == "Ohio"
    assert made.judgements["gold"].qrels == {"q1": {"Ohio:0": 1.0}, "q2": {"Utah:0": 1.0}}


def test_rows_of_a_state_that_are_not_together_are_refused():
    columns = row_joining.JoinColumns("_id", "state", "text", "title", (), "")
    rows = [("line 1", {"state": "Ohio"}), ("line 2", {"state": "Utah"})]
    again = [*rows, ("line 3", {"state": "Ohio", "text": "x"})]
    with pytest.raises(DataError, match="line 3: rows of state = 'Ohio' were there before"):
        list(row_joining.join_rows(again, columns))


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
    others = {"cut": {"by": "", "max_chars": len(OLD["o2"]) - 1}, "clean": {"hash_ids": True}}
    folder = prepare(tmp_path / "home", "adapt", str(task), **others)
    ingested, transferred = build(folder)["stages"]
    assert sorted(len(of) for of in load(folder).judgements["gold"].qrels.values()) == [1, 1, 2]
    assert dropped(folder) == [("q2 o2", "the relevant document is not in the corpus", "")]
    assert not load(folder).max_p
    why = {"texts that are too short or too long": 1, "files of another form, left out": 2}
    assert ingested == {
        "stage": "ingest",
        "went_in": 6,
        "came_out": 3,
        "dropped": why,
        "usage": {},
        "lm": "",
    }
    assert transferred["dropped"] == {"the relevant document is not in the corpus": 1}


# A mask, a pool, judgements of parents of passages, comparisons with twins, and triplets of dev alone.
PROTOCOLS = [
    "obliq/writing",
    "birco/relic",
    "crumb/set_ops",
    "multiconir/books:format",
    "birco/arguana",
]


@pytest.mark.parametrize("hashed", [False, True], ids=["own ids", "hashed ids"])
@pytest.mark.parametrize("task", PROTOCOLS)
def test_masks_pools_and_comparisons_name_the_passages_that_documents_became(
    task, hashed, tmp_path
):
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
    if task.endswith("format"):
        assert made.twins == given.twins and "Flip" in made.metrics
        assert {one: [pair.label for pair in of] for one, of in made.comparisons.items()} == {
            one: [pair.label for pair in of] for one, of in given.comparisons.items()
        }
    if task == "birco/arguana":
        assert {"Triplets"} == {pair.label for of in made.comparisons.values() for pair in of}
