"""The page opens a run of 10,000 trajectories of 20 steps within two seconds, served and exported."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext

import pytest
from chromium import Watched
from many_outcomes import make

from evals.showing import page_server
from evals.showing.page_data import Answers

MOST = 2.0  # seconds, on a machine of two cores that does nothing else
if "PYTEST_XDIST_WORKER" in os.environ:  # other tests have the second core, and a browser takes two
    MOST *= 2
VIEWS = {"": "overview", "#/run/wanderer": "run", "#/run/wanderer/q/q04999": "query"}


@pytest.fixture(scope="module")
def runs(browser, tmp_path_factory):
    place = tmp_path_factory.mktemp("large") / "runs"
    make(place / "wanderer", 10_000, 20)
    assert sum(1 for _ in (place / "wanderer/outcomes.jsonl").open("rb")) == 10_000
    return place


@pytest.fixture(scope="module")
def exported(runs):
    file = runs.parent / "page.html"
    assert 1e6 < page_server.write_page(Answers([runs], exported=True), file) < 60e6
    return file.as_uri()


@contextmanager
def started(runs):
    """The address of a server that has just been started."""
    words = [sys.executable, "-m", "evals.view", str(runs), "--no-open", "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("where", ["served", "exported"])
@pytest.mark.parametrize("route", VIEWS)
def test_the_page_opens_at_once(runs, exported, browser, route, where):
    """One of three attempts takes no longer than it may; more, where other work has this machine's cores."""
    taken = []
    while not any(one < MOST for one in taken) and len(taken) < 3:
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        with Watched(browser) as watched:
            begun = time.perf_counter()
            with started(runs) if where == "served" else nullcontext(exported) as address:
                watched.go(address + route, VIEWS[route])
                taken.append((time.perf_counter() - begun) / busy)
            assert watched.problems() == []
    assert min(taken) < MOST, taken
