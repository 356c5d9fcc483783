"""One question has one answer: whichever command tests it, and whoever prints it."""

from pathlib import Path

import pytest

from sextant import evals
from sextant.evals import study
from sextant.evals.reporting.findings import judge
from sextant.evals.scoring.comparison import compare
from sextant.evals.scoring.scored_run import read_scored_run
from sextant.evals.viewer.comparisons import compare_runs

SYSTEMS = (
    {"program": "retrieve"},
    {"program": "multihop"},
    {"program": "retrieve", "retriever": "bm25(k1=1.5,b=0.75)"},
)


@pytest.mark.parametrize("systems", [SYSTEMS[:2], SYSTEMS])
def test_compare_study_experiment_and_page_agree_on_the_headline(tmp_path, monkeypatch, systems):
    monkeypatch.chdir(tmp_path)
    fields = {"data": "mini", "split": "all", "runs": tmp_path / "runs"}
    table = evals.experiment(systems, "congress", names="abc"[: len(systems)], **fields)
    rows = []
    for name, system in zip("abc", systems, strict=False):
        settings = ", ".join(f'{key} = "{value}"' for key, value in system.items())
        rows.append(f'{{ name = "{name}", {settings} }}')
    (tmp_path / "study.toml").write_text(
        f'name = "s"\nquestion = "?"\ntasks = ["congress"]\nrow = [{", ".join(rows)}]\n'
        'fixed = { data = "mini", split = "all" }\n'
    )
    studied = study.run(tmp_path / "study.toml", tmp_path / "runs")
    cells = sorted(studied.json["cells"], key=lambda cell: cell["row"])
    folders = [Path(cell["run"]) for cell in cells]
    compared = compare(folders)
    page = compare_runs([read_scored_run(folder) for folder in folders], "")

    headline = [row for row in compared["comparisons"] if row["metric"] == "nDCG@10"]
    assert [row["family"] for row in headline] == ["nDCG@10"] * (len(systems) - 1)
    keys = ("difference", "low", "high", "p", "p_holm", "detectable", "tests")
    expected = [[row[key] for key in keys] for row in headline]
    assert [[test[key] for key in keys] for test in studied.json["tests"]] == expected
    assert [
        [row[key] for key in keys] for row in page["comparisons"] if row["metric"] == "nDCG@10"
    ] == expected
    assert [
        [row[key] for key in keys]
        for row in table.json()["comparisons"]
        if row["metric"] == "nDCG@10"
    ] == expected
    verdicts = [line.rpartition(": ")[2] for line in page["verdicts"]]
    tests = [judge({**test, "metric": "nDCG@10"}) for test in studied.json["tests"]]
    assert verdicts == tests
