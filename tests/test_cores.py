"""Threads that share a core: which one, and for how long."""

import os
import threading

import pytest

from tools import cores
from tools.retrievers import check, words_only

ALLOWED = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
several = pytest.mark.skipif(len(ALLOWED) < 2, reason="there is one core")


def places(monkeypatch, *looks):
    """Have the cores idle as `looks` say, one after the other: {core: ticks}."""
    coming = iter(looks)

    class Stat:
        def read_text(self, encoding):
            rows = [f"cpu{core} 5 0 5 {ticks} 0 0 0 0 0 0" for core, ticks in next(coming).items()]
            return "\n".join(["cpu  1 2 3 4", *rows, "intr 12345", ""])

    monkeypatch.setattr(cores, "_STAT", Stat())


@several
def test_threads_that_are_started_inside_stay_on_the_core_that_idles_most_and_others_do_not(monkeypatch):
    first, second = sorted(ALLOWED)[:2]
    places(monkeypatch, {first: 100, second: 900}, {first: 105, second: 901})
    seen = []

    def look():
        seen.append(os.sched_getaffinity(0))

    with cores.one_core():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        look()
    look()
    assert seen == [{first}, {first}, ALLOWED]


@several
def test_a_core_that_may_not_be_used_is_not_taken(monkeypatch):
    first = min(ALLOWED)
    other = max(ALLOWED) + 1
    places(monkeypatch, {first: 0, other: 0}, {first: 1, other: 5})
    with cores.one_core():
        assert os.sched_getaffinity(0) == {first}


@pytest.mark.parametrize("stat", ["", "cpu0 x", "cpu0 1 2"], ids=["nothing", "no numbers", "too few"])
def test_where_it_cannot_be_told_nothing_is_done(monkeypatch, tmp_path, stat):
    monkeypatch.setattr(cores, "_STAT", tmp_path / "stat")
    if stat:
        (tmp_path / "stat").write_text(stat)
    with cores.one_core():
        assert os.sched_getaffinity(0) == ALLOWED


def test_only_retrievers_that_compute_in_python_are_light():
    light = ("bm25", "fusion(bm25,rank_bm25)", "rerank(bm25,bm25s)")
    assert all(words_only(check(spec)) for spec in light)
    assert not any(words_only(check(spec)) for spec in ("dense", "fusion(bm25,dense)", "chroma:dense", "lens(bm25)"))
