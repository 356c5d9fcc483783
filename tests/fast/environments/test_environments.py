"""The Congress task: its bundled miniature, its splits, and every way in which a data folder can be wrong."""

import json
from pathlib import Path

import pytest

from sextant import environments
from sextant.environments.base import DevSplit
from sextant.environments.task_card import run_checks
from sextant.tools.errors import DataError, UnknownName, UsageError
from sextant.tools.platform.files import sextant_home

DEV = [f"MINI-q{number:02}" for number in (2, 11, 14, 18, 22, 23, 26, 27, 28, 30, 31, 34)]


def test_the_miniatures_dev_split_is_written_down():
    dev, test = (environments.load("congress", "mini", split) for split in ("dev", "test"))
    assert sorted(query.query_id for query in dev.queries) == DEV
    assert (len(dev.queries), len(test.queries)) == (12, 24)
    assert not dev.qrels.keys() & test.qrels.keys()


def test_a_split_depends_on_neither_order_nor_machine():
    split, ids = DevSplit("seed", 0.2), [f"q{n}" for n in range(50)]
    assert set(split.choose(ids, "dev")) == set(split.choose(ids[::-1], "dev"))
    assert split.choose(ids, "dev") == [
        "q5",
        "q7",
        "q10",
        "q11",
        "q12",
        "q33",
        "q41",
        "q45",
        "q48",
        "q49",
    ]


def test_a_name_is_full_or_short_and_a_misspelt_one_is_answered_with_the_nearest():
    assert (
        environments.resolve("congress")
        == environments.resolve("obliq/congress")
        == "obliq/congress"
    )
    with pytest.raises(UnknownName, match="did you mean 'congress'"):
        environments.resolve("congres")
    with pytest.raises(UnknownName, match="did you mean 'obliq/congress'"):
        environments.resolve("oblik/congress")
    with pytest.raises(UnknownName, match="did you mean 'test'"):
        environments.load("congress", "mini", "tset")


def test_without_data_given_it_is_the_miniature_until_the_release_is_there(tmp_path, folder):
    assert environments.load("congress").data == "mini"
    with pytest.raises(DataError, match=r"is not there.*fetch obliq/congress` gets the release"):
        environments.load("congress", "full")
    place = sextant_home() / "data/obliq"
    place.parent.mkdir(parents=True)
    folder.rename(place)
    marker = place / "congress.complete.json"
    marker.write_text('{"repository": "dianetc/OBLIQ-Bench", "revision": "of another day"}')
    with pytest.raises(DataError, match="not there, or of another revision"):
        environments.load("congress")
    release = environments.suite("obliq").release
    marker.write_text(json.dumps({"repository": release.repository, "revision": release.revision}))
    assert environments.load("congress", split="all").data == "full"


def test_a_folder_is_the_release_or_the_tasks_own_folder(folder):
    places = (folder, folder / "tip-of-tongue/congress")
    assert (
        len({environments.load("congress", str(place), "all").fingerprint for place in places}) == 1
    )


def test_the_fingerprint_changes_with_text_query_and_judgement(folder):
    def fingerprint():
        return environments.load("congress", str(folder), "all").fingerprint

    seen = [fingerprint()]
    inside = folder / "tip-of-tongue/congress"
    for name, old, new in [
        ("corpus/corpus.jsonl", "dam", "Dam"),
        ("queries+qrels/queries.jsonl", "Something", "Anything"),
        ("queries+qrels/qrels.tsv", "Q0\tD0\t1", "Q0\tD0\t2"),
    ]:
        path = inside / name
        path.write_text(path.read_text().replace(old, new))
        seen.append(fingerprint())
    assert len(set(seen)) == 4


CORPUS, QUERIES, QRELS = (
    "corpus/corpus.jsonl",
    "queries+qrels/queries.jsonl",
    "queries+qrels/qrels.tsv",
)


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


APPENDED = {
    "a torn line": (CORPUS, b'{"_id": "D9", "te', r"corpus\.jsonl, line 8: not whole JSON"),
    "invalid UTF-8": (
        CORPUS,
        b'{"_id": "D9", "text": "\xff"}\n',
        r"line 8: byte 0xff is not UTF-8",
    ),
    "a duplicated id": (
        CORPUS,
        b'{"_id": "D1", "text": "x"}\n',
        r"line 8: the id 'D1' was there before",
    ),
    "a missing field": (CORPUS, b'{"_id": "D9"}\n', r"line 8: no column is known as the text"),
    "nesting without end": (
        CORPUS,
        b"[" * 100_000 + b"\n",
        r"line 8: not whole JSON .*recursion",
    ),
    "a list for a row": (CORPUS, b'["D9"]\n', r"line 8: not a JSON object"),
    "a line break in an id": (
        CORPUS,
        b'{"_id": "a\\n", "text": "x"}\n',
        r"line 8: the id .* no id may have",
    ),
    "a number of 5,000 digits": (
        CORPUS,
        b'{"_id": "D9", "text": ' + b"9" * 5000 + b"}\n",
        r"line 8: not whole JSON .*5000 digits",
    ),
    "a grade beyond counting": (
        QRELS,
        b"Q1\tD2\t1099511627776\n",
        r"line 6: the score '1099511627776' is not a",
    ),
    "a query without judgement": (
        QUERIES,
        b'{"_id": "Q9", "text": "x"}\n',
        r"no judgement of query 'Q9'",
    ),
    "a judgement for no query": (
        QRELS,
        b"Q9\tD1\t1\n",
        r"qrels.tsv judges 'Q9', which is no query of .*queries.jsonl",
    ),
    "a judgement for no document": (QRELS, b"Q1\tD99\t1\n", r"not in the corpus, e\.g\. 'D99'"),
    "two judgements": (QRELS, b"Q1\tD1\t2\n", r"line 6: 'Q1' and 'D1' are judged twice"),
    "a short row": (QRELS, b"Q1\tD1\n", r"line 6: 2 columns where the first line names 3"),
    "a score in words": (QRELS, b"Q1\tD2\tgood\n", r"line 6: the score 'good' is not a number"),
}
WRITTEN = {
    "no words": (CORPUS, b'{"_id": "D0", "text": "?!"}\n', r"has no words in it"),
    "no queries": (QUERIES, b"\n", r"has no rows, so there are no queries"),
    "only a zero": (
        QRELS,
        b"query-id\tcorpus-id\tscore\nQ0\tD0\t1\nQ1\tD1\t0\nQ2\tD2\t1\nQ3\tD3\t1\n",
        r"above 0",
    ),
    "no corpus file": (CORPUS, None, r"corpus\.jsonl is missing"),
    "no qrels file": (QRELS, None, r"qrels\.tsv is missing"),
}


@pytest.mark.parametrize("fault", [*APPENDED, *WRITTEN])
def test_damaged_data_is_named_with_file_and_line(fault, folder):
    name, data, message = (APPENDED | WRITTEN)[fault]
    path = folder / "tip-of-tongue/congress" / name
    if fault in APPENDED:
        append(path, data)
    else:
        path.unlink() if data is None else path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        environments.load("congress", str(folder), "all")


def test_half_a_character_in_a_text_is_replaced_and_a_blank_line_skipped(folder):
    append(
        folder / "tip-of-tongue/congress" / CORPUS,
        b'{"_id": "D9", "text": "a ferry \\ud83d"}\n  \n',
    )
    assert (
        environments.load("congress", str(folder), "all").documents["D9"].text
        == "a ferry \N{REPLACEMENT CHARACTER}"
    )


@pytest.mark.parametrize("where", ["missing", "empty"])
def test_a_missing_or_empty_folder_is_said(where, tmp_path, run):
    (tmp_path / "empty").mkdir()
    result = run("--program", "retrieve", "--task", "congress", "--data", tmp_path / where)
    assert result.code == 3 and result.err.count("\n") == 1
    assert {"missing": "is not a folder", "empty": "the documents are missing"}[where] in result.err


def test_a_split_without_queries_is_said(folder):
    inside = folder / "tip-of-tongue/congress/queries+qrels"
    (inside / "queries.jsonl").write_text('{"_id": "Q0", "text": "a ferry"}\n')
    (inside / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nQ0\tD0\t1\n")
    with pytest.raises(UsageError, match=r"the dev split of .* has no queries; use --split all"):
        environments.load("congress", str(folder), "dev")


def test_a_document_that_is_judged_not_relevant_may_be_missing_and_check_says_so(folder):
    qrels = folder / "tip-of-tongue/congress" / QRELS
    append(qrels, b"Q1\tD99\t0\n")
    assert environments.load("congress", str(folder), "all").qrels["Q1"]["D99"] == 0
    wrong = [finding.said for finding in run_checks("congress", str(folder)) if not finding.fine]
    assert len(wrong) == 1 and "('D99', 'Q1')" in wrong[0]
