"""A corpus in parts ranks as it does whole, to the last bit, and its processes end with the one that asks them."""

import gc
import os
import random
import subprocess
import sys
from multiprocessing import Pipe

import psutil
import pytest
from conftest import ROOT
from tiny_models import bert
from waiting import still_running, wait_for

from sextant.tools.corpus import open_or_store
from sextant.tools.errors import DataError
from sextant.tools.records import Document
from sextant.tools.retrievers import build, canonicalize, contract
from sextant.tools.retrievers.base import Search
from sextant.tools.retrievers.sharded import PartProcess

CHANCE = random.Random(0)
WORDS = [
    one + two
    for one in ("ship", "sea", "wind", "oar", "the")
    for two in ("", "s", "er", "ing", " and", ", 7")
]


def processes(of=None):
    """Those of parts, whose starter is not one of them."""
    starters = [
        one for one in psutil.Process(of).children() if "be_starter" in " ".join(one.cmdline())
    ]
    return [one for starter in starters for one in starter.children()]


def text(most):
    return " ".join(CHANCE.choices(WORDS, weights=range(1, 31), k=CHANCE.randint(1, most)))


DOCUMENTS = [
    Document(f"{CHANCE.random()}", text(30), CHANCE.choice(["", "Wind"])) for _ in range(60)
]
IDS = [document.doc_id for document in DOCUMENTS]
SEARCHES = [
    Search(text(6), "", CHANCE.sample(IDS, 9), CHANCE.choice([None, CHANCE.sample(IDS, 20)]))
    for _ in range(40)
]
INNER = ("bm25", "bm25(analyzer=english)", "bm25s", "dense:MODEL", "dense:MODEL(search=int8)")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(bert(tmp_path_factory.mktemp("models") / "bert"))


@pytest.fixture(params=INNER)
def pair(request, model, tmp_path):
    """A retriever over a stored corpus, and what makes it in so many parts; no other one is there."""
    gc.collect()  # those of tests before, which end their processes
    wait_for(lambda: not processes())
    corpus = open_or_store(tmp_path / "corpus", lambda: iter(DOCUMENTS))
    inner = request.param.replace("MODEL", model)

    def make(parts):
        for n in range(
            parts if inner.startswith("dense") else 0
        ):  # so that no other process has to load the model
            build(inner, corpus.slice(60 * n // parts, 60 * (n + 1) // parts), tmp_path)
        return build(f"sharded({inner},parts={parts})", corpus, tmp_path)

    return build(inner, corpus, tmp_path), make


def assert_same(whole, parts):
    assert parts.name == whole.name and parts.left_out("ship " * 999) == whole.left_out(
        "ship " * 999
    )
    for k in (1, 7, 100):
        assert parts.search_many(SEARCHES, k) == whole.search_many(SEARCHES, k)


@pytest.mark.parametrize("parts", [1, 4])
def test_any_number_of_parts_gives_the_ranking_of_one(pair, parts):
    whole, make = pair
    assert_same(whole, make(parts))


def test_a_part_that_ends_is_started_again_once(pair, monkeypatch):
    whole, make = pair
    parts = make(3)
    [first, second] = processes()
    first.kill()
    assert_same(whole, parts)
    second.kill()
    for one in parts._others:
        monkeypatch.setattr(one, "_begin", lambda: Pipe()[0])  # whose other end nobody has
    with pytest.raises(DataError, match=r"part . of 3 of the index has ended by itself twice"):
        parts.search_many(SEARCHES, 7)
    monkeypatch.undo()
    assert_same(whole, parts)


def test_no_process_outlives_a_kill_of_the_one_that_asks(tmp_path):
    (file := tmp_path / "script.py").write_text("""
from sextant.tools.retrievers import build, contract
made = build("sharded(bm25,parts=3)", contract.CORPUS)
print(flush=True)
input()
""")
    how = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "env": os.environ | {"PYTHONPATH": str(ROOT)},
    }
    with subprocess.Popen([sys.executable, file], cwd=ROOT, **how) as script:
        assert script.stdout.readline()
        [busy, _] = family = processes(script.pid)
        busy.suspend()  # it hears of nothing
        script.kill()
    assert not still_running(family, 10.0)


def test_in_parts_it_keeps_the_contract_of_retrievers():
    assert {
        holds: wrong
        for holds, wrong in contract.run(canonicalize("sharded(bm25,parts=3)"))
        if wrong
    } == {}


def test_parts_can_be_actors_of_a_ray_cluster(pair):
    ray = pytest.importorskip("ray")
    whole, make = pair
    ray.init(num_cpus=1, object_store_memory=100_000_000, include_dashboard=False)
    try:
        parts = make(3)
        assert not processes()
        assert_same(whole, parts)
        family = psutil.Process().children(recursive=True)
        title = f"ray::{PartProcess.__name__}"
        [one, _] = [process for process in family if process.cmdline()[0].startswith(title)]
        one.kill()
        assert_same(whole, parts)
    finally:
        ray.shutdown()
