"""Compiling on data of one's own, however it is named, leaves a compiled program."""

import json

import pytest
from conftest import lines

from sextant import environments
from sextant.optimizers import compile as module
from sextant.optimizers import compile_program
from sextant.tools.errors import DataError

TUNED = (
    "--optimizer",
    "tune",
    "-P",
    "hops=1",
    "-P",
    "per_hop=1",
    "--range",
    "per_hop=1|50",
    "--metric",
    "R@100",
    "-O",
    "trials=2",
)
TASK = """
from pathlib import Path
FOLDER = Path(__file__).parent / "mine"
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder `mine` with the queries of a miniature, and a file that names it."""
    folder = tmp_path / "mine"
    (folder / "qrels").mkdir(parents=True)
    whole = environments.load("congress", "mini", "all")
    texts = [{"_id": one.doc_id, "text": one.text} for one in whole.documents.stream()]
    lines(folder / "corpus.jsonl", map(json.dumps, texts))
    lines(
        folder / "queries.jsonl",
        (json.dumps({"_id": one.query_id, "text": one.text}) for one in whole.queries),
    )
    for split in ("dev", "test"):
        qrels = environments.load("congress", "mini", split).qrels
        rows = [
            f"{query_id}\t{doc_id}\t1" for query_id, grades in qrels.items() for doc_id in grades
        ]
        lines(folder / f"qrels/{split}.tsv", ["query-id\tcorpus-id\tscore", *rows])
    (tmp_path / "task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ["--task", "mine", "--held-out"],
        ["--task", "own/other", "--data", "mine", "--held-out"],
        ["--task", "task.py:FOLDER", "--held-out", "congress"],
        ["--task", "mine,congress", "--held-out"],
    ],
    ids=["folder", "own name and data", "file", "several"],
)
def test_own_data_is_found_again_after_all_is_paid(names, mine, command_of, tmp_path):
    done = command_of(module)(
        "--program", "multihop", *names, *TUNED, "--runs", tmp_path / "runs", "--json"
    )
    assert done.code == 0, done.err
    assert (tmp_path / done.json["compiled"]).exists() and done.json["held_out"]


def test_prompts_that_cannot_be_looked_through_are_written_all_the_same(
    mine, command_of, tmp_path, monkeypatch
):
    def fail(*of):
        raise DataError("the test split is gone")

    monkeypatch.setattr(compile_program, "_list_leaks", fail)
    words = [
        "--program",
        "multihop",
        "--task",
        "mine",
        "--optimizer",
        "labeled",
        "--limit",
        "4",
        "-P",
        "hops=1",
    ]
    done = command_of(module)(*words, "--runs", tmp_path / "runs")
    assert done.code == 3 and "compiled.json, and the same command goes on" in done.err
    assert len([*tmp_path.glob("runs/compiled/*/*/compiled.json")]) == 1


def test_two_places_of_one_name_are_refused(mine, command_of, tmp_path):
    (mine.parent / "c").mkdir()
    other = mine.parent / "c/mine"
    other.mkdir()
    done = command_of(module)(
        "--program", "multihop", "--task", "mine,c/mine", "--optimizer", "labeled"
    )
    assert done.code == 2 and "two of mine, c/mine have the same name" in done.err
