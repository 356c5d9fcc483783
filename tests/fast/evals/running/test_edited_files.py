"""What is read back of a run folder is what was written: an edited file is refused, whenever it was edited."""

import json

import pytest
from run_folders import run_in

from sextant.evals import curves, export, report
from sextant.evals.scoring.scored_run import read_scored_run
from sextant.tools.errors import DataError

READERS = {
    "attribution.jsonl": [(curves, (), 3), (report, ("--out", "page"), 0)],
    "outcomes.jsonl": [(curves, (), 3), (export, ("--to", "trec", "--out", "out"), 3)],
    "run.trec": [(export, ("--to", "trec", "--out", "out"), 3)],
    "scores.csv": [(curves, (), 3), (export, ("--to", "trec", "--out", "out"), 3)],
}


@pytest.fixture
def path(tmp_path):
    return run_in(tmp_path, "--program", "retrieve", "--task", "congress", "--limit", 2)


def edit(file):
    """Exchange one digit of a figure for another, so that length and form stay."""
    text = file.read_text(encoding="utf-8")
    place = max(text.rfind(digit) for digit in "123456789")
    file.write_text(
        f"{text[:place]}{int(text[place]) % 9 + 1}{text[place + 1 :]}", encoding="utf-8"
    )


@pytest.mark.parametrize("name", READERS)
def test_an_edited_file_of_a_run_is_named_by_all_that_read_it(
    name, path, command_of, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    edit(path / name)
    for module, words, code in READERS[name]:
        done = command_of(module)(path, *words)
        told = done.err if code else (tmp_path / "page/report.md").read_text().replace("\\", "")
        assert done.code == code and name in told and str(path.name) in told, (done.err, done.out)


@pytest.mark.parametrize("rows", ["judged", "outcomes"])
def test_a_line_that_is_edited_while_a_run_is_open_is_refused(rows, path):
    opened = getattr(read_scored_run(path), rows)
    query_id = next(iter(opened))
    assert opened[query_id]["query_id"] == query_id
    line = json.loads(opened.path.read_bytes().splitlines()[0])
    other = opened.path.read_bytes().replace(json.dumps(line["query_id"]).encode(), b'"x"', 1)
    opened.path.write_bytes(other.ljust(opened.path.stat().st_size))
    with pytest.raises(DataError, match="has changed since the file was opened"):
        opened[query_id]
