"""The page opens a run of 10,000 trajectories of 20 steps within two seconds, served and exported."""

import json
import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext

import pytest
from chromium import Watched
from conftest import lines
from foreign_runs import world
from run_folders import CONFIG

from sextant.environments.base import Judgements
from sextant.evals.scoring.score_run import score
from sextant.evals.viewer import server
from sextant.evals.viewer.data import ViewerApi
from sextant.tools.corpus import Corpus
from sextant.tools.records import Document, Query, Step, Trace, Usage, trace_json, usage_json

MOST = 2.0  # seconds, on a machine of two cores that does nothing else
if "PYTEST_XDIST_WORKER" in os.environ:  # other tests have the second core, and a browser takes two
    MOST *= 2
VIEWS = {"": "overview", "#/run/wanderer": "run", "#/run/wanderer/q/q4999": "query"}
QUERIES, STEPS, DRAWN = (
    10_000,
    20,
    200,
)  # trajectories are drawn, and repeated under other query ids
DOC_IDS = [f"hearing-{number:05d}_p{number % 97:04d}" for number in range(5_000)]
USED = Usage(1, 0, 900, 80, 0.0004, 0.0004)


@pytest.fixture(scope="module")
def runs(browser, tmp_path_factory):
    place = tmp_path_factory.mktemp("large") / "runs"
    (place / "wanderer").mkdir(parents=True)
    chance = random.Random(0)
    drawn = [outcome(chance) for _ in range(DRAWN)]
    rows = {f"q{number}": drawn[number % DRAWN] for number in range(QUERIES)}
    environment = world(
        documents=Corpus(
            Document(doc_id, f"What the committee heard, as {doc_id}.") for doc_id in DOC_IDS
        ),
        queries=tuple(
            Query(query_id, f"{query_id}: who spoke of the orchard? " * 8) for query_id in rows
        ),
        judgements={
            "gold": Judgements(
                {q: dict.fromkeys(row["ranking"][3:30:13], 1.0) for q, row in rows.items()}
            )
        },
        metrics=("nDCG@10", "R@10", "R@100", "RR@10"),
    )
    config = CONFIG | {
        "task": "made/up",
        "program": "wanderer",
        "data_fingerprint": environment.fingerprint,
    }
    (place / "wanderer/config.json").write_text(json.dumps(config))
    lines(
        place / "wanderer/outcomes.jsonl",
        (json.dumps({"query_id": q} | row) for q, row in rows.items()),
    )
    score(place / "wanderer", environment)
    return place


def outcome(chance):
    """What a query came to, without its id."""
    steps = []
    for number in range(0, STEPS, 2):
        seen, about = (
            tuple(chance.sample(DOC_IDS, 12)),
            {"hop": number // 4 + 1, "seconds": 1.5, "usage": USED},
        )
        text = f"orchard county committee testimony {number} " * 3
        steps.append(
            Step(
                "search", text, seen, **about, retriever="bm25(k1=0.9,b=0.4)", k=12, started=number
            )
        )
        steps.append(
            Step(
                "judge",
                "",
                seen,
                **about,
                started=number + 1,
                shown=(300,) * 12,
                lengths=(1500,) * 12,
            )
        )
    ranking = list(dict.fromkeys(doc_id for step in steps for doc_id in step.doc_ids))[:100]
    rest = {"answer": "", "error": None, "seconds": 30.0, "usage": usage_json(USED)}
    return {
        "ranking": ranking,
        "trace": trace_json(Trace("", steps, ["the orchard was in the county"])),
        **rest,
    }


@pytest.fixture(scope="module")
def exported(runs):
    file = runs.parent / "page.html"
    assert 1e6 < server.write_page(ViewerApi([runs], exported=True), file) < 60e6
    return file.as_uri()


@contextmanager
def started(runs):
    """The address of a server that has just been started."""
    words = [sys.executable, "-m", "sextant.evals.view", str(runs), "--no-open", "--port", "0"]
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
