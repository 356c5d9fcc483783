"""The papers' tables as data: figures read off the papers by eye, averages recomputed, and never beside a miniature."""

import re
from collections import defaultdict

import pytest

from sextant import environments
from sextant.environments.ranking_metrics import PAIRWISE, RANKING
from sextant.evals.papers.published import PaperFigure, figures

# Read off the papers by eye: task, system, metric, judgements, value, table.
BY_EYE = [
    ("obliq/twitter", "GPT-5.2 Multi-Hop Agent", "nDCG@10", "pooled", 0.215, "Table 2"),
    ("obliq/twitter", "Oracle GPT-5.2 Tournament", "R@100", "gold", 0.745, "Table 2"),
    ("obliq/wildchat", "Gemini-2-Embedding", "nDCG@50", "pooled", 0.148, "Table 2"),
    ("obliq/wildchat", "BM25", "R@10", "pooled", 0.005, "Table 2"),
    ("birco/doris_mae", "E5-L-v2", "nDCG@10", "", 0.720, "Table 5"),
    ("birco/arguana", "Subtask+O GPT4", "nDCG@10", "", 0.695, "Table 5"),
    ("birco/clinical_trial", "RankLLaMA", "R@5", "", 0.098, "Table 5"),
    ("birco/relic", "Rank+O GPT4", "nDCG@10", "", 0.623, "Table 5"),
    ("multiconir/*:complexity", "BM25", "Win(1)", "", 0.2859, "Table 1"),
    ("multiconir/*:complexity", "GritLM-7B", "Win(10)", "", 0.7595, "Table 1"),
    ("multiconir/books:format", "GritLM-7B", "Flip", "", 0.0535, "Table 2"),
    ("multiconir/*:format", "BM25", "Flip", "", 0.1619, "Table 2"),
]


@pytest.mark.parametrize("task, system, metric, judgements, value, table", BY_EYE)
def test_a_figure_is_what_the_paper_prints(task, system, metric, judgements, value, table):
    printed = [
        f
        for f in figures()
        if (f.task, f.system, f.metric, f.table) == (task, system, metric, table)
    ]
    assert [f.value for f in printed if judgements in ("", f.judgements)] == [value]


def test_every_figure_is_a_fraction_of_a_known_task_and_metric_with_its_source():
    known = set(environments.tasks())
    for figure in figures():
        plain = figure.task.partition(":")[0]
        assert plain in known or plain.endswith("/*"), figure
        kind = re.split(r"[@(]", figure.metric)[0]
        assert kind in {*RANKING, *PAIRWISE, "AP", "Decline"}, figure
        assert (-1 if kind == "Decline" else 0) <= figure.value <= 1, figure
        assert figure.table.startswith("Table ") and figure.row, figure
    assert len(figures()) > 3500


def test_bircos_averages_are_those_of_its_five_tasks():
    cells: dict[str, list[float]] = defaultdict(list)
    printed: dict[str, PaperFigure] = {}
    for figure in figures():
        if figure.table == "Table 5" and figure.metric == "nDCG@10":
            if figure.task == "birco/*":
                printed[figure.system] = figure
            else:
                cells[figure.system].append(figure.value)
    compared = 0
    for system, figure in printed.items():
        if len(cells[system]) == 5 and "differs from the mean" not in figure.note:
            assert figure.value == pytest.approx(sum(cells[system]) / 5, abs=0.0011), system
            compared += 1
    assert compared > 20
