"""A build as a process: killed at random, two at once, interrupted."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from building import prepare
from building.knowing import Knowing
from conftest import ROOT

from sextant.evals.running.request import WORKERS

KILLS = 50
RECIPE = {
    "attribute": {"lens": "stance"},
    "screen": {
        "kinds": {"implied": "it is implied", "other": "it is not"},
        "eligible": ["implied"],
        "batch": 5,
    },
    "extract": {"batch": 5},
    "limits": {"min_positives": 2},
    "write": {"words": [5, 60]},
    "judge": {"batch": 4},
    "pool": {"retrievers": ["bm25"]},
}


@pytest.fixture
def start(tmp_path, server):
    """Starts the build in a folder as a process, with a model that knows the groups."""
    server.answer = Knowing("obliq/twitter")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SEXTANT_HOME": str(tmp_path / "home")}

    def started(name, *words, lm=True):
        folder = tmp_path / name / "built"  # the folder's name is in the release
        if not folder.exists():
            prepare(folder, "latent", "task:obliq/twitter", **RECIPE)
        command = [sys.executable, "-m", "sextant_construction", "run", str(folder), *words]
        command += ["--lm", server.spec] if lm else []
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes)

    return started


def results(folder):
    """What a build leaves that has to be the same however it went."""
    files = [*(folder / "release").rglob("*"), folder / "dropped.jsonl", folder / "funnel.json"]
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in files if path.is_file()
    }


def bodies(requests):
    return Counter(json.dumps(body, sort_keys=True) for body in requests)


def finish(process):
    said, complained = process.communicate()
    assert process.returncode == 0, complained
    return said


def test_killed_fifty_times_over_all_stages_it_ends_in_the_same_bytes_and_asks_nothing_twice(
    tmp_path, server, start
):
    finish(start("one"))
    once, moments = len(server.requests), random.Random(22)
    assert set(bodies(server.requests).values()) == {1}
    server.requests.clear()
    server.delay = 0.05  # so that some are in flight whenever it is killed
    killed = 0
    while killed < KILLS:
        process, wanted = (
            start("two"),
            len(server.requests) + moments.randint(0, max(1, 2 * once // KILLS - 1)),
        )
        while process.poll() is None and len(server.requests) < wanted:
            time.sleep(0.002)
        time.sleep(moments.random() * 0.1)
        if process.poll() is not None:
            break  # it is done
        process.kill()
        process.communicate()
        killed += 1
    finish(start("two"))
    print(f"{killed} kills, {len(server.requests)} requests for {once}")  # noqa: T201
    assert results(tmp_path / "two/built") == results(tmp_path / "one/built")
    assert len(bodies(server.requests)) == once
    assert len(server.requests) - once <= WORKERS * killed  # those in flight at a kill
    units = [
        json.loads(line)["query_id"]
        for path in tmp_path.glob("two/**/outcomes.jsonl")
        for line in path.open()
    ]
    assert len(units) == len(set(units)) and killed == KILLS


def test_of_two_at_once_the_second_is_told_so_in_a_line(server, start):
    knowing, done = server.answer, threading.Event()
    server.answer = lambda prompt: done.wait(60) and knowing(prompt)
    first = start("one")
    while not server.requests:
        time.sleep(0.01)
    second = start("one")
    _, complained = second.communicate()
    done.set()
    assert second.returncode not in (0, 1) and complained.count("\n") == 1, complained
    assert "another process is at " in complained and "wait for it" in complained
    finish(first)


@pytest.mark.smoke
def test_interrupted_it_says_so_in_a_line_and_goes_on(tmp_path, server, start):
    finish(start("one"))
    sent = len(server.requests)
    server.delay = 0.1
    process = start("two")
    while len(server.requests) < sent + 15:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate()
    assert process.returncode == 130 and not said
    assert "Traceback" not in complained and "interrupted" in complained.splitlines()[-1].lower(), (
        complained
    )
    finish(start("two"))
    assert results(tmp_path / "two/built") == results(tmp_path / "one/built")
