"""Studies as processes: killed at random, two at once, against a server; and what a study costs beside its cells."""

import gc
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT
from openai_server import Failure, sensible

from sextant.evals.studies import run_cells, study_file
from sextant.tools.corpus import Corpus
from sextant.tools.retrievers.lexical.bm25 import BM25

LARGE = """
    name = "large"
    tasks = ["congress", "legal_qa", "relic:corpus"]
    fixed = { data = "mini", limit = 1 }
    [rows]
    program = ["retrieve", "rewrite", "multihop", "decompose", "query_to_doc"]
    retriever = ["bm25", "rank_bm25", "bm25s", "fusion(bm25,rank_bm25)"]
"""
KILLS = 10


def start(place: Path, *words: str) -> subprocess.Popen[str]:
    """The study in a folder, with relative paths, as a process."""
    place.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "sextant.evals.study",
        str(place.parent / "study.toml"),
        *words,
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {
        "PYTHONPATH": str(ROOT),
        "SEXTANT_HOME": str(place.parent / "home"),
        "PATH": "/usr/bin:/bin",
    }
    return subprocess.Popen(command, cwd=place, env=environment, **pipes)


def results(place: Path) -> dict[str, bytes]:
    """The files of the study's folder that do not hold seconds."""
    folder = next((place / "runs/studies").iterdir())
    found = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    return {name: path.read_bytes() for name, path in found.items() if "seconds" not in name}


def answered(place: Path) -> Counter[str]:
    """How many outcomes each run has of each query."""
    lines = [
        (path.parent.name, line) for path in place.rglob("outcomes.jsonl") for line in path.open()
    ]
    return Counter(f"{name} {json.loads(line)['query_id']}" for name, line in lines)


def outcomes(place: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in place.rglob("outcomes.jsonl"))


def test_killed_ten_times_it_ends_in_the_same_bytes_and_so_do_two_at_once(tmp_path):
    (tmp_path / "study.toml").write_text(LARGE)
    undisturbed = start(tmp_path / "one")
    said, complained = undisturbed.communicate()
    assert undisturbed.returncode == 0, complained
    assert "60 of 60: " in complained and "report: runs/studies/large/index.html" in said

    moments = random.Random(21)
    for _ in range(KILLS):
        process, more = start(tmp_path / "two"), moments.randint(1, 5)
        wanted = outcomes(tmp_path / "two") + more
        while process.poll() is None and outcomes(tmp_path / "two") < wanted:
            time.sleep(0.01)
        assert process.poll() is None
        process.kill()
        process.communicate()
    assert start(tmp_path / "two").wait() == 0
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert set(answered(tmp_path / "two").values()) == {1}

    both = [start(tmp_path / "three") for _ in range(2)]
    worked = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], worked
    assert results(tmp_path / "three") == results(tmp_path / "one")
    assert answered(tmp_path / "three") == answered(tmp_path / "one")


@pytest.mark.smoke
def test_equal_requests_are_sent_once_over_all_cells_and_one_budget_holds_for_them(
    tmp_path, server
):
    text = f"""
        name = "equal"
        tasks = ["congress"]
        fixed = {{ data = "mini", lm = "{server.spec}" }}
        rows = {{ program = ["rewrite", "multihop"], limit = [2, 4] }}
    """
    file = tmp_path / "study.toml"
    file.write_text(f"{text}\n[budget]\ncalls = 5\n")
    first = start(tmp_path / "place")
    report, _ = first.communicate()
    assert "the budget of 5 model calls is used up" in report and first.returncode == 8
    assert len(server.requests) == 5
    file.write_text(text)
    second = start(tmp_path / "place")
    assert second.communicate() and second.returncode == 0
    bodies = Counter(json.dumps(body, sort_keys=True) for body in server.requests)
    assert set(bodies.values()) == {1}
    calls = [
        json.loads(path.read_text())["usage"]["calls"] for path in tmp_path.rglob("scores.json")
    ]
    assert len(calls) == 4 and sum(calls) > 1.4 * len(bodies)


def test_a_model_that_refuses_leaves_the_other_cells_to_be_run(tmp_path, server):
    def refuse(prompt):
        raise Failure(401)

    server.answer = refuse
    rows = f'rows = {{ lm = ["{server.spec}", "offline"] }}'
    fixed = (
        'tasks = ["congress", "writing"]\nfixed = { data = "mini", limit = 2, program = "rewrite" }'
    )
    (tmp_path / "study.toml").write_text(f'name = "refused"\n{fixed}\n{rows}\n')
    process = start(tmp_path / "place")
    said, complained = process.communicate()
    assert process.returncode == 4 and "2 cells of 4 unfinished" in complained, complained
    assert "offline" in said and "report: " in said
    assert len(server.requests) <= 2  # of the first cell, at two queries at a time


def test_a_model_whose_provider_is_out_is_found_out_before_all_its_cells_are_tried(
    tmp_path, server
):
    def fail(prompt):
        if server.requests[-1]["model"] == "tiny":
            raise Failure(503)
        return sensible(prompt)

    server.answer = fail
    rows = f'rows = {{ lm = ["{server.spec}", "{server.spec.replace("tiny", "large")}"] }}'
    # With one call at a time, the last request is the one that is answered.
    fixed = 'fixed = { data = "mini", limit = 3, program = "rewrite", max_concurrent = 1, patience = 0.001 }'
    (tmp_path / "study.toml").write_text(
        f'name = "out"\ntasks = ["congress", "writing", "math", "relic"]\n{fixed}\n{rows}'
    )
    process = start(tmp_path / "place")
    said, complained = process.communicate()
    assert (
        process.returncode == 7
        and "4 cells of 8 unfinished; the same command tries them again" in complained
    ), complained
    assert "the model's provider failed" in complained and "report: " in said
    sent = Counter(body["model"] for body in server.requests)
    assert (
        sent["large"] == 12 and sent["tiny"] == 6
    )  # in the first two cells, of three queries each
    server.answer = sensible
    assert start(tmp_path / "place").wait() == 0


def test_a_study_costs_less_than_two_per_cent_beside_its_cells(tmp_path, monkeypatch):
    spent = []

    def timed(function):
        def call(*words, **named):
            began = time.process_time()
            try:
                return function(*words, **named)
            finally:
                spent.append(time.process_time() - began)

        return call

    rows = {"program": ["rewrite", "multihop"], "retriever": ["bm25", "rank_bm25"]}
    study = study_file.StudyFile(
        name="cost", tasks=["congress", "legal_qa"], fixed={"data": "mini"}, rows=rows
    )
    run_cells.run_cells(study_file.expand_cells(study, tmp_path / "first")[:1])  # fills caches
    monkeypatch.setattr(run_cells, "run_request", timed(run_cells.run_request))
    # A run of its own would load the task, too.
    monkeypatch.setattr(run_cells, "load_task", timed(run_cells.load_task))
    shares = []
    # Whatever else the machine does adds to processor time, too, so the least of three tries counts.
    for number in range(3):
        cells = study_file.expand_cells(study, tmp_path / f"runs-{number}")
        spent.clear()
        began = time.process_time()
        run_cells.run_cells(cells)
        took = time.process_time() - began
        shares.append(took / sum(spent) - 1)
    print(f"beside its cells: {', '.join(f'{share:.2%}' for share in shares)}")  # noqa: T201
    assert min(shares) < 0.02


def test_a_study_holds_one_task_and_the_retrievers_of_a_cell_or_two_however_many_it_has(
    tmp_path, monkeypatch
):
    alive = []

    def count(result):
        gc.collect()
        every = gc.get_objects()
        alive.append([sum(type(one) is kind for one in every) for kind in (BM25, Corpus)])
        return ""

    monkeypatch.setattr(run_cells, "_describe", count)

    rows = {"program": "retrieve", "retriever": [f"bm25(b=0.{number})" for number in range(10, 19)]}
    study = study_file.StudyFile(
        name="many", tasks=["congress", "legal_qa"], fixed={"data": "mini", "limit": 1}, rows=rows
    )
    cells = study_file.expand_cells(study, tmp_path / "runs")
    run_cells.run_cells(cells, quiet=False)
    indexes, corpora = zip(*alive, strict=True)
    assert (
        len(cells) == len(alive) == 18
        and max(indexes) - indexes[0] <= 1
        and max(corpora) - corpora[0] <= 1
    )
