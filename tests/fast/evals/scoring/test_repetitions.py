"""Repetitions of a system: unbiased pass@k and pass^k, the noise of seeds, and the command."""

import json
from itertools import combinations
from statistics import fmean, stdev

import pytest
import run_folders

from sextant.evals.scoring.repetitions import repeat_scores
from sextant.evals.scoring.scored_run import read_scored_run
from sextant.evals.studies.study_file import StudyFile, expand_cells
from sextant.evals.studies.variance import analyse, read_runs
from sextant.tools.errors import DataError, UsageError

SCORES = [[1.0, 0.0, 0.6, 0.2], [0.4, 0.0, 0.9, 0.7], [0.8, 0.1, 0.5, 0.0]]


@pytest.fixture
def runs(tmp_path):
    folders = [
        run_folders.make(tmp_path / f"seed-{seed}", {"nDCG@10": scores})
        for seed, scores in enumerate(SCORES)
    ]
    return [read_scored_run(folder) for folder in folders]


def test_passes_are_those_of_all_choices_of_repetitions(runs):
    found = repeat_scores(runs, 0.5)
    assert found.successes == {"q0": 2, "q1": 0, "q2": 3, "q3": 1}
    for k in (1, 2, 3):
        chosen = list(combinations(SCORES, k))
        some = [any(run[query] >= 0.5 for run in choice) for choice in chosen for query in range(4)]
        every = [
            all(run[query] >= 0.5 for run in choice) for choice in chosen for query in range(4)
        ]
        assert found.pass_at[k] == pytest.approx(fmean(some))
        assert found.pass_all[k] == pytest.approx(fmean(every))


def test_the_spread_is_that_of_the_runs_means(runs):
    found = repeat_scores(runs, 0.5)
    assert found.spreads["nDCG@10"] == pytest.approx(stdev(map(fmean, SCORES)))
    assert found.metrics["nDCG@10"].mean == pytest.approx(fmean(map(fmean, SCORES)))


def test_a_run_is_repeated_with_other_seeds(run, server):
    words = ("--program", "rewrite", "--task", "congress", "--limit", "1", "--lm", server.spec)
    told = json.loads(run(*words, "--repeat", "3", "--seed", "5", "--json").out)
    assert len(set(told["repetitions"]["runs"])) == 3
    assert sorted(body["seed"] for body in server.requests) == [5, 6, 7]
    assert set(told["repetitions"]["pass_at"]) == {"1", "2", "3"}


def test_a_run_without_a_seed_is_no_repetition(run):
    done = run("--program", "retrieve", "--task", "congress", "--limit", "1", "--repeat", "2")
    assert done.code == 2
    assert "depends on a seed" in done.err


def test_the_repeats_of_a_study_are_seeds_of_its_cells():
    study = StudyFile(
        name="s", tasks=["congress"], repeats=3, rows={"program": ["rewrite"], "lm": "openai/m"}
    )
    assert [cell.request.seed for cell in expand_cells(study)] == [0, 1, 2]


def test_variance_reads_the_cells_of_a_study(tmp_path):
    cells = []
    for number, (tools, scores) in enumerate([("a", SCORES[0]), ("b", SCORES[1])]):
        run_folders.make(tmp_path / f"t/run-{number}", {"nDCG@10": scores})
        cell = {"row": tools, "task": "obliq/congress", "factors": {"tools=": tools}}
        cells.append(cell | {"run": f"t/run-{number}"})
    folder = tmp_path / "studies/s"
    folder.mkdir(parents=True)
    (folder / "cells.json").write_text(json.dumps({"cells": cells}))
    [found] = analyse(read_runs(folder))
    assert found.levels == {"tools": {"a": pytest.approx(0.45), "b": pytest.approx(0.5)}}
    with pytest.raises(UsageError, match="has no R@7"):
        analyse(read_runs(folder), "R@7")
    with pytest.raises(DataError, match="no folder of a study"):
        read_runs(tmp_path)
