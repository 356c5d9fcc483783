"""Of a folder of one's own, everything is used or named as left out, and what could be meant twice is refused."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sextant import environments
from sextant.environments import __main__ as module
from sextant.tools.errors import DataError

TEXTS = {"101": "a tram on a rope", "102": "a ferry at noon", "103": "a bridge of boats"}
QUERIES = {"1": "rope tram", "2": "bridge"}
HEADER = "query-id\tcorpus-id\tscore\n"


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def documents(**others):
    return [{"_id": doc_id, "text": text} | others for doc_id, text in TEXTS.items()]


def queries(**of_the_last):
    rows = [{"_id": query_id, "text": text} for query_id, text in QUERIES.items()]
    return lines([*rows[:-1], rows[-1] | of_the_last])


FOLDER = {
    "corpus.jsonl": lines(documents()),
    "queries.jsonl": queries(),
    "qrels.tsv": f"{HEADER}1\t101\t1\n2\t103\t1\n",
}


@pytest.fixture
def put(tmp_path):
    def write(files, without=()):
        folder = tmp_path / "data"
        for name, text in (FOLDER | files).items():
            if name not in without:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
        return folder

    return write


LATE = [*({"_id": f"x{n}", "text": "y"} for n in range(2000)), *documents(headings="h")]
TREC = "<DOC><DOCNO>{}</DOCNO><HL>h</HL><LP>{}</LP><BYLINE>b</BYLINE><TEXT>t</TEXT></DOC>\n"
LEFT_OUT = {  # what is in the folder, and the line
    "": ({"README.md": "x", ".hidden": "x", "LICENSE": "x"}, ""),
    "headings in 3 documents": (
        {"corpus.jsonl": lines(LATE)},
        "headings in 3 of the documents.",
    ),
    "an object": (
        {"corpus.jsonl": lines(documents(metadata={"url": "u", "empty": ""}))},
        "metadata in 3 of the documents.",
    ),
    "a key of the last query": (
        {"queries.jsonl": queries(candidates=["101"], gold_ids=["101"])},
        "candidates in 1 of the queries, gold_ids in 1 of the queries.",
    ),
    "a column of judgements": (
        {"qrels.tsv": "query-id\tcorpus-id\tscore\trank\n1\t101\t1\t\n2\t103\t1\t4\n"},
        "rank in 1 of the judgements.",
    ),
    "tags": (
        {
            "docs.trec": "".join(TREC.format(name, TEXTS[name]) for name in TEXTS),
            "corpus.jsonl": "",
        },
        "byline in 3 of the documents.",
    ),
    "files": (
        {"notes.csv": "a", "corpus.pdf": "%PDF", "old/corpus.jsonl": "{}", "corpus.md": "x"},
        "the file corpus.md, the file corpus.pdf, the file notes.csv, the file old/corpus.jsonl.",
    ),
    "train beside dev": (
        {f"qrels/{split}.tsv": f"{HEADER}1\t101\t1\n" for split in ("train", "dev")}
        | {"qrels/test.tsv": f"{HEADER}2\t103\t1\n", "qrels.tsv": ""},
        "the file qrels/train.tsv.",
    ),
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_no_table_takes_is_in_one_line_of_a_run_and_of_check(kind, put, command_of):
    files, said = LEFT_OUT[kind]
    folder = put(files, without=[name for name, text in files.items() if not text])
    notes = environments.load(str(folder)).notes
    assert [note for note in notes if note.startswith("Left out")] == [f"Left out: {said}"] * bool(
        said
    )
    check = command_of(module)("check", folder)
    assert check.code == 0 and (f"left out: {said}" in check.out.splitlines()) == bool(said)


TWICE = {  # what is in the folder, what is refused, and the line of benchmark.toml that decides
    "texts": (
        {"corpus.jsonl": lines([*documents(), {"_id": "104", "text": "x", "contents": "late"}])},
        "text and contents could both be the text; --column text=text ",
        'columns = { text = "text+contents" }',
    ),
    "ids": (
        {"corpus.jsonl": lines(documents(docid="d"))},
        "_id and docid could both be the id; ",
        'columns = { id = "_id" }',
    ),
    "grades": (
        {"qrels.tsv": "query_id\tdoc_id\tscore\trelevance\n1\t101\t9.5\t1\n2\t103\t8\t1\n"},
        "score and relevance could both be the grade; ",
        'columns = { grade = "Relevance" }',
    ),
    "files": (
        {"queries_rewritten.jsonl": lines([{"_id": "1", "text": "x"}])},
        "has another text in ",
        'files = { queries = ["queries.jsonl"] }',
    ),
    "dev and validation": (
        {f"qrels.{split}.tsv": FOLDER["qrels.tsv"] for split in ("dev", "validation")}
        | {"qrels.tsv": ""},
        "judgements of several splits, ",
        'judgements = { gold = "qrels.dev.tsv" }',
    ),
    "documents of splits and judgements of none": (
        {"corpus.dev.jsonl": lines(documents()), "corpus.test.jsonl": lines(documents())},
        "documents of several splits, ",
        'files = { documents = ["corpus.jsonl", "corpus.test.jsonl"] }',
    ),
}


@pytest.mark.parametrize("kind", TWICE)
def test_what_could_be_meant_twice_is_refused_until_a_line_says_which(kind, put):
    files, said, line = TWICE[kind]
    folder = put(files, without=[name for name, text in files.items() if not text])
    with pytest.raises(DataError, match=said):
        environments.load(str(folder))
    (folder / "benchmark.toml").write_text(line)
    task = environments.load(str(folder))
    assert {name: dict(grades) for name, grades in task.qrels.items()} == {
        "1": {"101": 1},
        "2": {"103": 1},
    }


def test_files_of_one_table_are_read_whatever_their_endings(put):
    folder = put({"corpus-2.csv": "id,text\n104,more\n", "qrels.2.txt": "1 0 104 2\n"})
    task = environments.load(str(folder))
    assert len(task.documents) == 4 and task.qrels["1"] == {"101": 1, "104": 2}


def test_documents_of_a_split_are_searched_for_its_queries_alone(put):
    folder = put({}, without=FOLDER)
    for name, rows in {
        "corpus/dev": documents()[:2],
        "corpus/test": documents()[2:],
        "queries/dev": [{"_id": "1", "text": "rope tram"}],
        "queries/test": [{"_id": "2", "text": "bridge"}],
        "qrels/dev": [{"query-id": "1", "corpus-id": "101", "score": 1}],
        "qrels/test": [{"query-id": "2", "corpus-id": "103", "score": 1}],
    }.items():
        path = folder / f"{name}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path)
    found = {split: environments.load(str(folder), split=split) for split in ("dev", "test", "all")}
    assert {split: list(task.documents) for split, task in found.items()} == {
        "dev": ["101", "102"],
        "test": ["103"],
        "all": ["101", "102", "103"],
    }
    assert [query.query_id for query in found["dev"].queries] == ["1"]
    assert not any(note.startswith("Left out") for note in found["test"].notes)


def test_what_a_query_brings_with_it_reaches_it_from_any_row(put):
    ranked = [
        {"query-id": "1", "corpus-ids": ["101", "102"]},
        {"query-id": "2", "corpus-ids": ["103"]},
    ]
    folder = put(
        {
            "queries.jsonl": queries(
                instruction="Wanted is a bridge.", excluded_ids=[{"id": "102"}]
            ),
            "top_ranked.jsonl": lines(ranked),
        }
    )
    first, second = environments.load(str(folder)).queries
    assert (second.objective, second.excluded) == ("Wanted is a bridge.", {"102"})
    assert not first.excluded and first.objective != second.objective
    assert (first.candidates, second.candidates) == ({"101", "102"}, {"103"})


def test_lists_of_objects_judge_by_their_ids(put):
    golds = [
        {"query_id": query_id, "query": "x", "gold_docs": [{"docid": doc_id, "text": "t"}]}
        for query_id, doc_id in (("1", "101"), ("2", "103"))
    ]
    folder = put({"queries.jsonl": lines(golds)}, without=["qrels.tsv"])
    with pytest.raises(DataError, match="--column doc_id=NAME takes a list of each query"):
        environments.load(str(folder))
    task = environments.load(str(folder), columns={"doc_id": "gold_docs"})
    assert task.qrels == {"1": {"101": 1}, "2": {"103": 1}}


def test_a_query_that_finds_itself_is_said_until_it_is_excluded_as_beir_does(put):
    itself = {"_id": "1", "title": "On trams", "text": "rope tram"}
    folder = put({"corpus.jsonl": lines([*documents(), itself])})
    assert any('excluded = "self"' in note for note in environments.load(str(folder)).notes)
    (folder / "benchmark.toml").write_text('excluded = "self"')
    task = environments.load(str(folder))
    assert not any("excluded" in note for note in task.notes)
    assert [query.excluded for query in task.queries] == [{"1"}, frozenset()]
