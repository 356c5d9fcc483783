"""`sextant tasks audit`: planted faults are found, and sound data has none."""

import json
import shutil

import pytest

from sextant.environments import MINI
from sextant.environments import __main__ as tasks
from sextant_construction.audit import audit_task


@pytest.fixture
def release(tmp_path):
    """A copy of a miniature in its release's layout."""
    folder = tmp_path / "data"
    shutil.copytree(MINI / "obliq", folder)
    return folder


def leaks_of(data):
    return {finding.name for finding in audit_task("obliq/twitter", data) if finding.is_leak}


def test_a_sound_miniature_has_no_leak():
    findings = list(audit_task("obliq/twitter", "mini"))
    assert {finding.name for finding in findings} >= {"data", "power", "twins", "across", "reach"}
    assert not [finding for finding in findings if finding.is_leak]


def rewrite_lines(path, change):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def test_an_equal_text_that_nobody_judged_is_found(release):
    folder = release / "descriptive/twitter"
    rows = (folder / "queries+qrels/qrels.tsv").read_text().splitlines()
    relevant = {row.split("\t")[1] for row in rows[1:]}

    def repeat(documents):
        first = next(document for document in documents if document["_id"] in relevant)
        return [*documents, first | {"_id": "again"}]

    rewrite_lines(folder / "corpus/corpus.jsonl", repeat)
    assert "twins" in leaks_of(str(release))


def test_a_query_that_is_in_both_splits_in_other_words_is_found(release):
    folder = release / "descriptive/twitter/queries+qrels"
    rows = (folder / "qrels.tsv").read_text().splitlines()

    def repeat(queries):
        copies = [query | {"_id": f"{query['_id']}-b"} for query in queries]
        return [*queries, *copies]

    rewrite_lines(folder / "queries.jsonl", repeat)
    copied = [row.replace("\t", "-b\t", 1) for row in rows[1:]]
    (folder / "qrels.tsv").write_text("\n".join([*rows, *copied]) + "\n")
    assert "across" in leaks_of(str(release))


def test_a_document_that_has_its_query_in_it_is_found(release):
    folder = release / "descriptive/twitter"
    rows = [
        row.split("\t") for row in (folder / "queries+qrels/qrels.tsv").read_text().splitlines()[1:]
    ]
    queries = (folder / "queries+qrels/queries.jsonl").read_text().splitlines()
    texts = {query["_id"]: query["text"] for query in map(json.loads, queries)}
    asked = {document: texts[query] for query, document, _ in rows}

    def add_query(documents):
        for document in documents:
            yield document | {"text": f"{document['text']} {asked.get(document['_id'], '')}"}

    rewrite_lines(folder / "corpus/corpus.jsonl", add_query)
    assert "first" in leaks_of(str(release))


def test_the_command_prints_a_line_for_each_finding(capsys):
    words = ["audit", "obliq/twitter", "--data", "mini"]
    assert tasks.command(tasks.parser().parse_args(words)) == 0
    out = capsys.readouterr().out
    assert "0 of 1 tasks have faults in their data" in out
    assert "sextant build contamination --task obliq/twitter" in out
