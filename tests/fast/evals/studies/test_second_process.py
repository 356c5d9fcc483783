"""The second process of a study: which cells it gets, what it makes, and what becomes of them if it is killed."""

import os
import signal
import time
from collections import deque
from pathlib import Path

import pytest

from evals.scoring.scored_run import read_scored_run
from evals.studies import run_cells, study_file
from evals.studies.second_process import SecondProcess

LONG = 3600.0  # seconds of a cell: so the process is worth its start


@pytest.fixture
def cells(tmp_path):
    """Return a function that makes the cells of rows over three queries of the miniature."""

    def make(runs="runs", **rows):
        fixed = {"data": "mini", "limit": 3, "program": "retrieve"}
        study = study_file.StudyFile(name="s", tasks=["congress"], fixed=fixed, rows=rows)
        return study_file.expand_cells(study, tmp_path / runs)

    return make


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})


def read_values(results):
    return [read_scored_run(result.folder).columns for result in results]


def test_it_makes_cells_from_the_end_as_one_process_would(cells):
    rows = cells(retriever=["bm25", "bm25(b=0.1)", "bm25(b=0.9)"])
    waiting = deque(range(3))
    made = {}
    with SecondProcess(rows, "") as second:
        second.give(waiting, LONG)
        assert list(waiting) == [0] and second.numbers == [2, 1]
        while second.numbers:
            made |= dict(second.take(deque()))
    alone = run_cells.run_cells(cells(retriever=["bm25", "bm25(b=0.1)", "bm25(b=0.9)"]))
    assert [alone[number].folder for number in (1, 2)] == [made[1].folder, made[2].folder]
    assert made[1].bounds == alone[0].bounds
    elsewhere = run_cells.run_cells(cells("elsewhere", retriever=["bm25(b=0.1)", "bm25(b=0.9)"]))
    assert read_values(elsewhere) == read_values([made[1], made[2]])


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ({"retriever": ["bm25", "bm25(b=0.1)"]}, 0.1),
        ({"retriever": ["bm25"], "lm": ["tiny@http://127.0.0.1:9/v1"]}, LONG),
        ({"retriever": ["dense"]}, LONG),
        ({"retriever": ["bm25"], "pool": ["union:20"]}, LONG),
        ({"retriever": ["bm25"], "time_limit": [600.0]}, LONG),
    ],
)
def test_short_studies_models_weights_pools_and_limits_stay_in_this_process(cells, rows, seconds):
    waiting = deque(range(len(cells(**rows))))
    with SecondProcess(cells(**rows), "") as second:
        second.give(waiting, seconds)
        assert len(waiting) == len(cells(**rows)) and not second.numbers


def test_cells_of_a_process_that_is_killed_wait_again(cells):
    rows = cells(retriever=["bm25", "bm25(b=0.1)", "bm25(b=0.9)"])
    waiting = deque(range(3))
    with SecondProcess(rows, "") as second:
        second.give(waiting, LONG)
        for thread in Path("/proc/self/task").iterdir():
            for pid in (thread / "children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        while second.numbers:
            assert not second.take(waiting)
            time.sleep(0.05)
        assert sorted(waiting) == [0, 1, 2]
        second.give(waiting, LONG)
        assert len(waiting) == 3
