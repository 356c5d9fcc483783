"""Figures that builds measure, in BIRCO's Tables 3 and 4 and appendix H.2."""

import json
import pickle
import random

import pytest

from sextant import environments
from sextant.evals import import_run, reproduce
from sextant.evals.papers.measured import read_category, read_facets
from sextant.tools.errors import DataError


@pytest.fixture
def build(tmp_path):
    """A build that has one to six facets for each query of RELIC."""
    file = tmp_path / "facets" / "release" / "provenance.jsonl"
    file.parent.mkdir(parents=True)
    queries = environments.load("birco/relic", "mini").queries
    rows = [
        {"query_id": query.query_id, "hard": [], "facets": ["x"] * (number + 1)}
        for number, query in enumerate(queries)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "facets"


@pytest.fixture
def make(command_of, tmp_path):
    command = command_of(reproduce)
    given = ("--data", "mini", "--runs", tmp_path / "runs", "--json")
    return lambda *words: command(*words, *given).json["cells"]


def test_facets_of_a_build_are_the_row_of_its_task_and_others_say_how_to_have_them(make, build):
    cells = make("birco/table4", "--facets", f"relic={build}")
    ours = {(cell["task"], cell["metric"]): cell["ours"] for cell in cells}
    assert ours["birco/relic", "facets, mean"] == 3.5
    assert ours["birco/relic", "facets, most"] == 6
    assert ours["birco/relic", "facets, least"] == 1
    others = [cell for cell in cells if cell["task"] != "birco/relic"]
    assert all(cell["ours"] is None and "--facets TASK" in cell["remark"] for cell in others)


def test_what_a_model_knows_by_heart_is_a_share_of_the_queries(make, tmp_path):
    file = tmp_path / "nq.json"
    file.write_text(json.dumps({"categories": {"same": 6, "other": 3, "worse": 1, "open": 5}}))
    cells = make("birco/table3", "--contamination", f"nq={file}")
    ours = {cell["metric"]: cell["ours"] for cell in cells if cell["task"] == "beir/nq"}
    assert ours == {"C0": 0.6, "C1": 0.3, "C2": 0.1}
    assert all("--contamination" in cell["remark"] for cell in cells if cell["ours"] is None)


def test_a_regression_is_made_of_the_authors_rankings_and_of_a_builds_facets(
    make, build, command_of, tmp_path
):
    lots = random.Random(0)
    for stem in ("GPT-4_score_O", "GPT-4_reason_O", "GPT-4_subtask_O"):
        ranks = {
            query.query_id: lots.sample(sorted(query.candidates), len(query.candidates))
            for query in environments.load("birco/relic", "mini").released.queries
        }
        file = tmp_path / "ranks" / "relic" / f"{stem}.pickle"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(ranks))
    given = ("--data", "mini", "--runs", tmp_path / "runs")
    assert command_of(import_run)(tmp_path / "ranks", "--from", "birco-ranks", *given).code == 0
    cells = make("birco/h2", "--facets", f"birco/relic={build}")
    made = {cell["metric"]: cell["ours"] for cell in cells if cell["task"] == "birco/relic"}
    assert 0 <= made["R2: facets"] <= 1 and 0 <= made["p: overlap with pool"] <= 1


def test_another_task_and_files_of_another_form_are_refused(command_of, build, tmp_path):
    done = command_of(reproduce)("birco/table4", "--facets", f"relik={build}", "--data", "mini")
    assert done.code == 2 and "birco/relic" in done.err
    (tmp_path / "none.json").write_text("[]")
    unlabelled = {"categories": {"same": 0, "other": 0, "worse": 0, "open": 9}}
    (tmp_path / "open.json").write_text(json.dumps(unlabelled))
    for name in ("none.json", "absent.json", "open.json"):
        with pytest.raises(DataError, match=name):
            read_category(tmp_path / name, "C0")
    with pytest.raises(DataError, match="facets"):
        read_facets(tmp_path)
