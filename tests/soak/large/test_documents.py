"""What the documents print of long work is what it prints."""

import re

import pytest
from conftest import ROOT


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("planner", "birco/relic"),
        ("tournament", "crumb/code_retrieval"),
        ("react", "obliq/twitter"),
    ],
)
def test_the_table_of_scores_is_what_the_programs_reach(name, task, tmp_path):
    from benchmarks.programs import score

    head, found = [], None
    for line in (ROOT / "benchmarks/RESULTS.md").read_text().splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            head = []  # the table has ended
        head = cells if cells[0] == "nDCG@10" else head
        if cells[0] == name and task.partition("/")[2] in head:
            found = cells[head.index(task.partition("/")[2])]
    assert score(name, task, tmp_path) == found


@pytest.mark.parametrize(
    "task", ["obliq/twitter", "birco/relic"]
)  # the others take minutes to encode
def test_the_table_in_the_documents_says_what_the_dense_retriever_gets(task, run):
    words = (
        "--program",
        "retrieve",
        "--task",
        task,
        "--data",
        "mini",
        "--split",
        "all",
        "--retriever",
        "dense",
    )
    table = (ROOT / "environments/mini/README.md").read_text(encoding="utf-8")
    [cell] = re.findall(rf"^\| `{task}` \|(?:[^|]*\|){{3}} ([^|]*) \|", table, re.M)[:1]
    assert float(cell) == pytest.approx(
        run(*words, "--json").json["metrics"]["nDCG@10"]["mean"], abs=0.002
    )
