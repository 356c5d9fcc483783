"""A task of documents in files and one's own queries and judgements; python-docx writes the Word document."""

import json

import docx
import pytest

from sextant import environments
from sextant.environments import __main__ as module


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    boats = docx.Document()
    boats.add_heading("Boats", 2)
    boats.add_paragraph("Red boats sail in spring.")
    row = boats.add_table(1, 2).rows[0]
    row.cells[0].text, row.cells[1].text = "port", "Hull"
    boats.save(str(folder / "boats.docx"))
    (folder / "cats.md").write_text("Cats sleep in the sun.\n")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    (folder / "latin.txt").write_bytes("Straße".encode("cp1252"))
    (folder / "broken.docx").write_bytes(b"PK nothing")
    (tmp_path / "q.tsv").write_text("id\ttext\n1\tred boats\n2\tsleeping cats\n")
    judged = "query-id\tcorpus-id\tscore\n1\tboats.docx\t2\n2\tcats.md\t1\n"
    (tmp_path / "j.tsv").write_text(judged)
    return tmp_path


def test_a_task_is_made_of_files_and_what_is_left_out_is_named(place, command_of, run):
    words = ("--corpus", place / "notes", "--queries", place / "q.tsv", "--qrels", place / "j.tsv")
    made = command_of(module)("make", place / "task", *words)
    assert made.code == 0 and str(place / ".task") not in made.out
    for name in ("broken.pdf", "latin.txt", "broken.docx"):
        assert f"left out: {name}: files that cannot be read" in made.out
    rows = map(json.loads, (place / "task" / "corpus.jsonl").read_text().splitlines())
    texts = {row["_id"]: row["text"] for row in rows}
    assert texts["boats.docx"] == "## Boats\n\nRed boats sail in spring.\n\nport | Hull"
    assert texts.keys() == {"boats.docx", "cats.md"}
    task = environments.load(str(place / "task"))
    assert task.task == "own/task" and len(task.queries) == 2
    scored = run("--program", "retrieve", "--task", place / "task", "--json").json
    assert scored["metrics"]["R@10"]["mean"] == 1.0
    again = command_of(module)("make", place / "task", *words)
    assert again.code == 2 and "is there already" in again.err
    (place / "j.tsv").write_text("query-id\tcorpus-id\tscore\n1\tnowhere\t1\n")
    none = command_of(module)("make", place / "other", *words)
    assert none.code == 3 and not (place / "other").exists()
