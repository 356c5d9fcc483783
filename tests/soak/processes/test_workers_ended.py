"""Every program by one, two and four workers, which end in every way: outcomes are the same, and no process is left."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from openai_server import fill
from run_folders import lasting
from searchers import every_program
from waiting import still_running, wait_for

ALL = f"{every_program.__file__}:All"


@pytest.fixture
def sitting(tmp_path, server):
    """Starts `sextant.evals.run` as a process."""
    server.answer, server.delay = fill, 0.02

    def start(runs, workers):
        asked = ["--program", ALL, "--task", "congress", "--split", "all", "--lm", server.spec]
        asked += ["--max-concurrent", 8, "--workers", workers, "--runs", tmp_path / runs, "--json"]
        return subprocess.Popen(
            [sys.executable, "-m", "sextant.evals.run", *map(str, asked)], stdout=subprocess.DEVNULL
        )

    return start


def told(place: Path):
    [path] = place.glob("*/*/outcomes.jsonl")
    return lasting(path.parent)


def done(place: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in place.glob("*/*/outcomes.jsonl"))


def wait_until_done(place: Path, count: int) -> None:
    wait_for(lambda: done(place) >= count)


@pytest.mark.smoke
def test_a_budget_holds_over_all_workers_and_equal_requests_are_sent_once(run, server, tmp_path):
    server.delay = 0.05
    asked = (
        "--program",
        "multihop",
        "--task",
        "congress",
        "--lm",
        server.spec,
        "--max-concurrent",
        8,
    )
    stopped = run(*asked, "--workers", 2, "--budget-calls", 10, "--json")
    assert stopped.code == 8 and stopped.json["ledger"]["sent"] == len(server.requests) == 10
    assert len({str(body["messages"]) for body in server.requests}) == 10


def test_outcomes_are_the_same_by_any_number_of_workers_and_however_these_end(sitting, tmp_path):
    for workers in (1, 2, 4):
        assert sitting(f"by-{workers}", workers).wait() in (
            0,
            7,
        )  # what is said fails some programs
    one = told(tmp_path / "by-1")
    assert one == told(tmp_path / "by-2") == told(tmp_path / "by-4")

    coordinator = sitting(
        "lost", 2
    )  # its workers, one after another, in the middle of what they do
    for count in (3, 6, 9, 12):
        wait_until_done(tmp_path / "lost", count)
        random.choice(psutil.Process(coordinator.pid).children(recursive=True)[1:]).kill()
    assert coordinator.wait() in (0, 7)
    assert told(tmp_path / "lost") == one

    for number, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
        runs = tmp_path / f"ended-{number}"
        coordinator = sitting(runs, 2)
        wait_until_done(runs, 5)
        family = psutil.Process(coordinator.pid).children(recursive=True)
        assert len(family) == 3
        os.kill(coordinator.pid, number)
        assert coordinator.wait() == code
        assert not still_running(family, 2.0)
        assert done(runs) < len(one)
        assert sitting(runs, 4).wait() in (0, 7)
        assert told(runs) == one
