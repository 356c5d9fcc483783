"""Every bundled miniature: its structure, its size, and that counting words does not solve it."""

import json
import re
from collections import Counter
from functools import cache

import pytest

from sextant import environments
from sextant.environments import crumb
from sextant.environments.chunking import bert_tokens, chunks
from sextant.environments.task_card import GOLDEN, run_checks

TASKS = [
    task for task in environments.tasks() if (environments.MINI / task.partition("/")[0]).is_dir()
]
RECORDED = json.loads(GOLDEN.read_text())
# Of readers who saw queries and documents, and no judgements (environments/mini/README.md)
BLIND_READINGS = json.loads((environments.MINI / "blind_reader_answers.json").read_text())
# The labels of these are points, and no threshold is published. So readers named the best three
# documents of a query.
BEST_THREE = ("crumb/paper_retrieval", "birco/doris_mae")


def of(suite):
    return [task for task in TASKS if task.startswith(f"{suite}/")]


@cache
def load(task, split="all"):
    task = environments.load(task, "mini", split)
    return task.released or task


def test_the_table_of_suites_names_the_tasks_that_each_has():
    for name, (_, names) in environments.SUITES.items():
        assert names.split() == list(environments.suite(name).tasks), name
    assert RECORDED.keys() <= set(TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_check_finds_nothing_wrong_and_both_splits_have_queries(task):
    found = {finding.what: finding for finding in run_checks(task, "mini")}
    assert [finding for finding in found.values() if not finding.fine] == []
    assert found["golden records"].said == f"{len(RECORDED[task])} are as recorded"
    assert load(task, "dev").queries and load(task, "test").queries


def test_no_recollection_quotes_its_passage():
    mini = load("congress")
    for query in mini.queries:
        [gold] = mini.qrels[query.query_id]
        assert not runs(query.text, 6) & runs(mini.documents[gold].text, 6), query.query_id


def test_two_readers_who_saw_no_judgement_named_the_passage_of_every_recollection():
    mini = load("congress")
    place = environments.MINI / "obliq/tip-of-tongue/congress/notes.jsonl"
    notes = [json.loads(line) for line in place.read_text().splitlines()]
    assert {note["_id"] for note in notes} == {query.query_id for query in mini.queries}
    for note in notes:
        assert [note["reader_a"]] == [note["reader_b"]] == list(mini.qrels[note["_id"]])
        assert note["misremembered"]


@pytest.mark.parametrize("task", ["twitter", "wildchat", "math"])
def test_gold_judgements_are_among_the_pooled_ones(task):
    judgements = load(task).judgements
    for query_id, grades in judgements["gold"].qrels.items():
        assert grades.items() <= judgements["pooled"].qrels[query_id].items()
        assert set(grades.values()) == {2.0}


def test_a_stance_is_not_asked_for_in_the_posts_own_words():
    whole = load("twitter")
    for query in whole.queries:
        for doc_id in whole.qrels[query.query_id]:
            assert not runs(query.text, 4) & runs(whole.documents[doc_id].text, 4), (
                query.query_id,
                doc_id,
            )


def test_half_of_the_repeated_conversations_are_the_trap_that_the_release_has():
    whole = load("wildchat")
    repeats = whole.documents.repeats()
    assert len(repeats) == 3
    gold = {doc_id for grades in whole.qrels.values() for doc_id in grades}
    judged = Counter(sum(doc_id in gold for doc_id in pair) for pair in repeats.items())
    assert judged == {0: 1, 1: 1, 2: 1}  # no copy judged, only one of two, both


def test_a_problem_masks_itself_and_its_relevant_problems_are_others():
    whole = load("math")
    for query in whole.queries:
        [masked] = query.excluded
        assert whole.documents[masked].text == query.text
    assert sum(" " in doc_id for doc_id in whole.documents) == 1, (
        "as in the release, for run files to stand"
    )


def test_a_snippet_masks_its_own_post_and_authors_are_groups():
    whole = load("writing")
    authors = {
        frozenset(whole.qrels[q.query_id]) | q.excluded | {q.query_id} for q in whole.queries
    }
    assert len(authors) == 8
    for first in authors:
        assert len(first) == 9 and sum(bool(first & other) for other in authors) == 1


CHUNKED = ["tip_of_the_tongue", "stack_exchange", "set_ops", "clinical_trial", "legal_qa"]


@pytest.mark.parametrize("name", CHUNKED)
def test_passages_are_what_the_chunking_makes_of_the_documents_and_judged_as_these_are(name):
    passages, documents = load(f"crumb/{name}").documents, load(f"crumb/{name}:document").documents
    cut = {
        f"{document.doc_id}:{number}": (text, document.doc_id)
        for document in documents.stream()
        for number, text in enumerate(chunks(document.text, bert_tokens()))
    }
    assert cut == {passage.doc_id: (passage.text, passage.parent) for passage in passages.stream()}
    assert len(cut) > 1.4 * len(documents), "long documents"
    assert sum(text.count("\n## ") + text.startswith("## ") for text, _ in cut.values()) > len(
        documents
    ), "headings"
    for row in crumb.read_queries(
        environments.MINI / "crumb" / crumb.FOLDERS.get(name, name), "all"
    ):
        parents = {
            passage.partition(":")[0]
            for passage, label in row.grades["passage_qrels"].items()
            if label > 0
        }
        assert parents and parents <= {
            one for one, label in row.grades["full_document_qrels"].items() if label > 0
        }


@pytest.mark.parametrize("task", of("birco"))
def test_a_task_of_birco_has_pools_of_twelve_or_more_and_no_document_in_both_splits(task):
    test, dev = load(task, "test"), load(task, "dev")
    assert len(test.queries) >= 6 and len(dev.queries) >= 3
    assert all(len(query.candidates) >= 12 for part in (test, dev) for query in part.queries)
    assert not set(test.documents) & set(dev.documents)
    texts = [{document.text for document in part.documents.stream()} for part in (test, dev)]
    assert not texts[0] & texts[1]


def test_the_traps_of_bircos_release_are_in_its_miniature():
    doris = load("birco/doris_mae", "test")
    assert any(grade % 1 for grades in doris.qrels.values() for grade in grades.values()), (
        "fractions"
    )
    assert any(max(grades.values()) < 1 for grades in doris.qrels.values()), (
        "a query without recall"
    )
    arguana = load("birco/arguana", "test")
    own = [query for query in arguana.queries if query.query_id in arguana.documents]
    assert own and all(query.query_id not in query.candidates for query in own)
    masked = {
        query.query_id: query.excluded for query in load("birco/arguana:corpus", "test").queries
    }
    masked = {query_id: excluded for query_id, excluded in masked.items() if excluded}
    assert masked == {query.query_id: {query.query_id} for query in own}, (
        "a query is not its own find"
    )
    book = load("birco/whatsthatbook", "dev")
    assert all(query.candidates == set(book.documents) for query in book.queries)
    assert {
        grade for grades in load("birco/clinical_trial").qrels.values() for grade in grades.values()
    } == {0, 1, 2}


def runs(text: str, length: int) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[n : n + length]) for n in range(len(words) - length + 1)}


TABLE = (environments.MINI.parent.parent / "environments/mini/README.md").read_text(
    encoding="utf-8"
)

# The rows of the first table, which begin with a task and the number of its documents.
CELLS = {
    task: [cell.strip() for cell in rest.strip("|").split("|")]
    for task, rest in re.findall(r"^\| `([^`]+)` (\| [\d,]+ \|.*)$", TABLE, re.M)
}


@pytest.mark.parametrize("task", CELLS)
def test_the_table_in_the_documents_says_what_bm25_gets(task, run):
    printed = run(
        "--program", "retrieve", "--task", task, "--data", "mini", "--split", "all", "--json"
    ).json
    whole, (documents, queries, bm25, dense, *_) = load(task), CELLS[task]
    assert bm25 == f"{printed['metrics']['nDCG@10']['mean']:.3f}"
    assert [documents, queries] == [str(len(whole.documents)), str(len(whole.queries))]
    assert float(bm25) < 0.8 and float(dense) < 0.8, "no miniature is trivial"


def is_as_judged(task, reading, grades):
    """Return for each answer of a reader whether the judgements agree."""
    if isinstance(reading, dict):
        return [reading.get(doc_id, 0) == grade for doc_id, grade in grades.items()]
    least = sorted(grades.values())[-3] if task in BEST_THREE else 1
    return [grades.get(doc_id, 0) >= least for doc_id in reading]


@pytest.mark.parametrize("task", BLIND_READINGS)
def test_the_table_of_readings_in_the_documents_counts_the_answers_of_the_readers(task):
    whole = load(task)
    answers = []
    for query_id, reading in BLIND_READINGS[task].items():
        answers += is_as_judged(task, reading, whole.qrels[query_id])
    queries = f"{len(BLIND_READINGS[task])} of {len(whole.queries)} queries"
    row = f"| `{task.partition(':')[0]}` | {queries} | {sum(answers)} of {len(answers)} |"
    assert row in TABLE
    assert sum(answers) / len(answers) > 0.8
