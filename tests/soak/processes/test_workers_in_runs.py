"""Workers of a study, of a run with a small window, and of a query that ends its worker."""

import os
from pathlib import Path

from run_folders import lasting
from small_window import refusing

from sextant.evals import study

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


def test_what_one_worker_has_been_refused_for_the_other_learns_too(run, bad):
    bad.script = refusing(4096)
    job = (
        "--program",
        "tournament",
        "--task",
        "congress",
        "--limit",
        6,
        "--max-concurrent",
        2,
        "--lm",
        bad.spec,
    )
    result = run(*job, "--workers", 2, "--json")
    assert result.code == 0 and result.json["failed"] == 0 and result.json["shortened"] > 0
    refused = [one for one in bad.tries if one.status == 400]
    assert (
        1
        <= result.err.count("as its refusal says; --context ")
        <= len(refused)
        <= 8
        < len(bad.tries)
    )
