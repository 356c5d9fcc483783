"""Queries answered by workers come out as in one process; tests/soak/processes has every program, and how they end."""

import os
from pathlib import Path

import pytest
from run_folders import lasting

from evals import study


def test_workers_come_to_what_one_process_does(run, server, tmp_path):
    def sit(workers):
        asked = ("--task", "congress", "--program", "multihop", "--lm", server.spec, "--limit", 4)
        found = run(
            *asked, "--workers", workers, "--runs", tmp_path / f"by-{workers}", "--json"
        ).json
        books = {
            key: found["ledger"][key] for key in ("sent", "answered", "cached", "input_tokens")
        }
        return lasting(Path(found["run"])), books

    assert sit(2) == sit(1)
    assert len({str(body["messages"]) for body in server.requests}) == len(server.requests) / 2


@pytest.mark.parametrize("own", ["--program command:true", "--isolated"])
def test_a_program_with_processes_of_its_own_refuses_workers(run, own):
    refused = run("--task", "congress", "--program", "multihop", *own.split(), "--workers", 2)
    assert refused.code == 2 and f"--workers 2 does not go with {own}, which" in refused.err


STUDY = """
name = "small"
question = "Who answers?"
tasks = ["congress"]
fixed = { data = "mini", limit = 2, program = "PROGRAM", workers = 2, max_concurrent = 2 }
"""

TELLS = """
import os
from pathlib import Path

def answer(query, search):
    (Path(__file__).parent / f"by-{os.getpid()}").touch()
    return [one.doc_id for one in search(query)]
"""


def test_the_runs_of_a_study_have_the_workers_that_its_file_names(command_of, tmp_path):
    (tmp_path / "tells.py").write_text(TELLS)
    (tmp_path / "study.toml").write_text(
        STUDY.replace("PROGRAM", f"{tmp_path / 'tells.py'}:answer")
    )
    assert command_of(study)(tmp_path / "study.toml", "--runs", tmp_path / "runs").code == 0
    assert len(list(tmp_path.glob("by-*"))) == 2 and not (tmp_path / f"by-{os.getpid()}").exists()


ENDS = """
import os, signal, time

def answer(query, search):
    time.sleep(0.2)  # until others are at work beside it
    if query.query_id == "MINI-q01":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.4)
    return [one.doc_id for one in search(query)]
"""


def test_a_query_that_ends_its_worker_is_left_pending_and_those_beside_it_are_not(run, tmp_path):
    (tmp_path / "ends.py").write_text(ENDS)
    asked = (
        "--program",
        tmp_path / "ends.py:answer",
        "--task",
        "congress",
        "--split",
        "all",
        "--limit",
        8,
    )
    found = run(*asked, "--workers", 2, "--max-concurrent", 8, "--runs", tmp_path, "--json")
    assert (
        "while each had only query 'MINI-q01'" in found.err
        and found.err.count("a worker has ended") == 5
    )
    outcomes = lasting(Path(found.json["run"]))
    assert len(outcomes) == 7 and not any(one["error"] for one in outcomes.values())
