"""`sextant reach` of a task and of a run: sums, searches that are made, stale files, the page."""

import json

import pytest

from sextant import environments
from sextant.evals import evaluate
from sextant.evals import reach as module
from sextant.evals.running.reach import measure_run, measure_task
from sextant.evals.scoring.behaviour import compare_behaviour
from sextant.evals.scoring.reach import PARTS, REACH_FILE, read_reach
from sextant.evals.scoring.scored_run import read_scored_run
from sextant.evals.viewer.data import ViewerApi
from sextant.tools.retrievers import build


@pytest.fixture(scope="module")
def run_path(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    return evaluate(program="multihop", task="congress", split="dev", limit=5, runs=runs).folder


@pytest.fixture(scope="module")
def measured(run_path):
    return measure_run(run_path)


def test_the_parts_of_never_surfaced_sum_to_it(run_path, measured):
    losses = read_scored_run(run_path).scores["losses"]
    share = losses["at"][str(losses["cutoff"])]["never_surfaced"]
    assert sum(measured["never_surfaced"].values()) == pytest.approx(share, abs=1e-12)
    assert len(measured["lost"]) == losses["documents"]["never_surfaced"] > 0
    for row in measured["lost"]:
        assert (row["within"] > measured["threshold"]) == (row["part"] != "not_from_these_words")


def test_each_best_search_brings_its_document(run_path, measured):
    environment = environments.load("congress", split="dev")
    retriever = build("bm25", environment.documents)
    ranked = [row for row in measured["documents"] if row["rank"]]
    assert ranked
    for row in ranked:
        hits = retriever.search(row["best"], 100)
        assert hits.doc_ids[row["rank"] - 1] == row["unit"]


def test_a_measurement_is_of_the_scores_that_it_was_made_of(run_path, measured, tmp_path):
    run = read_scored_run(run_path)
    assert read_reach(run) == json.loads((run_path / REACH_FILE).read_text())
    [summary] = compare_behaviour([run_path])["runs"]
    assert summary["reach"] == measured["never_surfaced"]
    kept = (run_path / REACH_FILE).read_text()
    (run_path / REACH_FILE).write_text(json.dumps(measured | {"scores": "others"}))
    assert read_reach(run) is None
    (run_path / REACH_FILE).write_text(kept)


def test_the_page_lists_the_words_of_a_query(run_path, measured):
    answers = ViewerApi([run_path.parent.parent])
    run_id = "/".join(run_path.parts[-2:])
    lost = measured["lost"][0]
    found = json.loads(answers(f"run/{run_id}/reach/{lost['query_id']}.json"))
    assert found["parts"] == PARTS
    assert lost in found["lost"]


def test_another_retriever_s_chances_are_not_kept_as_the_run_s(run_path, measured):
    kept = (run_path / REACH_FILE).read_text()
    other = measure_run(run_path, "bm25(k1=1.5,b=0.75)")
    assert other["retriever"] != measured["retriever"]
    assert (run_path / REACH_FILE).read_text() == kept


def test_a_run_over_a_pool_is_searched_in_its_pool(tmp_path):
    run = evaluate(
        program="retrieve", task="congress", split="dev", limit=2, pool="union:20", runs=tmp_path
    )
    outcomes = read_scored_run(run.folder).outcomes
    rows = measure_run(run.folder)["documents"]
    assert {row["is_relevant"] for row in rows} == {True, False}
    for row in rows:
        pool = outcomes[row["query_id"]]["ranking"]
        assert row["unit"] in pool or row["is_relevant"]
        assert row["unit"] in pool or (row["chance"], row["rank"]) == (0, 0)


def test_relevant_documents_are_beside_as_many_random_ones():
    measured = measure_task("arguana", "mini", "test", "bm25", limit=3)
    relevant = [row for row in measured["documents"] if row["is_relevant"]]
    assert len(measured["documents"]) == 2 * len(relevant) > 0
    assert "never_surfaced" not in measured
    again = measure_task("arguana", "mini", "test", "bm25", limit=3)
    assert again == measured


def test_vectors_are_searched_by_sentences_and_by_feedback(tmp_path):
    run = evaluate(
        program="multihop", task="theorem_retrieval", limit=1, retriever="dense", runs=tmp_path
    )
    measured = measure_run(run.folder)
    assert measured["pieces"] == "sentences"
    assert set(measured["feedback"]) == {"10", "100"}


def test_the_command_prints_tables_and_refuses_what_is_no_task(run_path, capsys):
    assert module.command(module.parser().parse_args([str(run_path)])) == 0
    out = capsys.readouterr().out
    assert "never surfaced, as shares of the run's relevant documents" in out
    assert "2 words of query" in out
