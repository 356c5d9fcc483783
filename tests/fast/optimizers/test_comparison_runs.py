"""The ordinary runs at the end of a compilation: what they answer, cost and leave behind."""

import csv
import json
import math
from pathlib import Path
from statistics import fmean

import pytest
from openai_server import given

from sextant import environments
from sextant.evals import compare
from sextant.evals.running.evaluate import Result as Ran
from sextant.optimizers import comparison_runs
from sextant.tools.records import Usage, usage_json

TASK = environments.load("congress", "mini", "all")
TUNED = ("--range", "rerank=0|20", "-P", "hops=2")  # which gains on the miniature


def text_of(query):
    """The text of a document that is relevant to a query of the miniature."""
    return TASK.documents[next(iter(TASK.qrels[query.query_id]))].text


def scored(folder):
    """The values of nDCG@10 of a run by query."""
    with (Path(folder) / "scores.csv").open(encoding="utf-8", newline="") as file:
        return {row["query_id"]: float(row["nDCG@10"]) for row in csv.DictReader(file)}


def counted(learnt):
    """The runs on validation, each with its number of queries."""
    return [
        (compared["task"], len(scored(folder)))
        for compared in learnt["on_validation"]
        for folder in folders(compared)
    ]


def folders(compared):
    """The runs of a comparison: of the program as it was, and of the compiled one."""
    return [compared["baseline"], *compared["runs"]]


def test_runs_on_validation_have_the_values_that_candidates_were_chosen_by(compiles):
    learnt = json.loads(compiles(*TUNED, "--json", optimizer="tune").out)
    assert counted(learnt) == [("obliq/congress", 6)] * 2
    ties = 0.01  # of R@100, which candidates are chosen by, too
    [compared] = learnt["on_validation"]
    for folder, key in zip(folders(compared), ("before", "after"), strict=True):
        mean = fmean(scored(folder).values())
        assert mean == pytest.approx(learnt[key]["mean"], abs=ties)
    [row] = compared["comparisons"]
    assert row["tests"] == learnt["candidates"] and row["p_holm"] >= row["p"]


def test_each_of_several_tasks_has_runs_on_its_own_validation_queries(compiles):
    tasks = "congress,legal_qa"
    learnt = json.loads(compiles(*TUNED, "--json", task=tasks, optimizer="tune").out)
    assert counted(learnt) == [
        ("obliq/congress", 6),
        ("obliq/congress", 6),
        ("crumb/legal_qa", 1),
        ("crumb/legal_qa", 1),
    ]


def test_the_comparisons_of_both_splits_are_printed_with_the_folders_of_their_runs(
    compiles, command_of
):
    result = compiles(*TUNED, "--held-out", optimizer="tune")
    learnt = json.loads(compiles(*TUNED, "--held-out", "--json", optimizer="tune").out)
    for compared, queries in zip(
        (*learnt["on_validation"], *learnt["held_out"]), (6, 24), strict=True
    ):
        assert all(folder in result.out for folder in folders(compared))
        again = command_of(compare)(*folders(compared), "--json")
        assert again.code == 0, again.err
        assert json.loads(again.out)["comparisons"][0]["queries"] == queries


def test_nothing_is_sent_for_the_runs_on_validation(server, compiles):
    wanted = {query.text: text_of(query) for query in TASK.queries}

    def answer(prompt):
        if "## cases ##" in prompt:
            return {"objective": "Find it."}
        knows = "Find it." in given(prompt, "objective")
        said = wanted[given(prompt, "description")][:300] if knows else "a law of leases"
        return {"analysis": "none", "brainstorming": "none", "document": said}

    server.answer = answer
    words = ("--lm", server.spec, "-O", "drafts=1", "--limit", "8", "--json")
    done = compiles(*words, program="query_to_doc", optimizer="objective")
    learnt = json.loads(done.out)
    assert learnt["kept"] == "compiled" and len(learnt["on_validation"]) == 1, done.err
    assert learnt["usage"]["calls"] == len(server.requests)
    assert fmean(scored(learnt["on_validation"][0]["runs"][0]).values()) > 0.2


def test_a_compilation_without_a_gain_leaves_no_runs(compiles):
    done = compiles("--limit", "4", "-P", "hops=1", "--json", optimizer="labeled")
    assert "on_validation" not in json.loads(done.out)
    assert all(file.startswith("compiled/") for file in done.files)


def test_the_held_out_answer_has_what_is_left_of_the_time(compiles, tmp_path, monkeypatch):
    handed, ran = [], Ran(tmp_path, None, {"usage": usage_json(Usage())})
    monkeypatch.setattr(
        comparison_runs,
        "run_request",
        lambda request, opening: handed.append(opening(request).resources.budget) or ran,
    )
    compared = {"comparisons": [], "task": "obliq/congress"}
    monkeypatch.setattr(comparison_runs, "compare", lambda runs, metrics, **_: compared)
    assert (
        compiles(*TUNED, "--held-out", "--json", "--time-limit", "10m", optimizer="tune").code == 0
    )
    held_out = handed[-2:]  # after the two runs on validation, which need no budget offline
    assert len(handed) == 4 and held_out[0] is held_out[1] and held_out[0].calls > 0
    assert held_out[0].ends < math.inf
