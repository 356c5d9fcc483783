"""The second process that draws most of a study's plots, and what becomes of them if it ends."""

import os

import pytest

from evals.reporting.report_plots import Panel, Point, Series
from evals.studies import paper_plots

PANEL = Panel("", "nDCG@10", [Series("bm25", [Point(0.0, 0.5, 0.4, 0.6)], 0)], {0.0: "congress"})


@pytest.fixture
def draw(monkeypatch):
    """Return a function that draws the panel on a number of cores, with a module of the worker's."""

    def make(cores, worker=paper_plots.WORKER):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
        monkeypatch.setattr(paper_plots, "WORKER", worker)
        monkeypatch.setattr(paper_plots, "COLUMNS", ["acl-column", "acm-page"])
        with paper_plots.drawing([("means", "Means", PANEL)]) as finish:
            return finish()

    return make


def test_plots_are_the_same_however_many_processes_draw_them(draw):
    alone = draw(1)
    assert len(alone) == 2 * len(paper_plots.COLUMNS)
    together = draw(2)
    assert together == alone and list(together) == list(alone)
    assert draw(2, worker="os") == alone  # which has nothing that serves
