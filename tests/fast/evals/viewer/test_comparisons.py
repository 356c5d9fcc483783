"""Runs compared on the page: the numbers of the commands, by the places of the runs."""

import json

import pytest
from run_folders import make, run_in

from sextant.evals.scoring.comparison import compare, compare_pairs
from sextant.evals.scoring.statistics import holm, sign_flip
from sextant.evals.viewer.comparisons import letter
from sextant.evals.viewer.data import ViewerApi
from sextant.tools.errors import UsageError

A = [0.1, 0.2, 0.3, 0.1, 0.0, 0.2, 0.1, 0.0, 0.3, 0.1]
B = [0.5, 0.6, 0.7, 0.5, 0.4, 0.6, 0.5, 0.4, 0.7, 0.5]
C = [0.1, 0.2, 0.3, 0.1, 0.0, 0.2, 0.1, 0.0, 0.4, 0.2]


@pytest.fixture
def runs(tmp_path):
    """Runs of three programs on the same ten queries; B is better than the others in each."""
    for name, values in (("a", A), ("b", B), ("c", C)):
        make(
            tmp_path / "runs" / name, {"nDCG@10": values, "R@10": A}, {"program": f"program-{name}"}
        )
    return tmp_path / "runs"


def answer(runs, path):
    return json.loads(ViewerApi([runs])(path))


def test_two_runs_have_the_differences_that_the_command_prints(runs):
    found = answer(runs, "compare/a,b/all.json")
    rows = compare([runs / "a", runs / "b"])["comparisons"]
    for shown, row in zip(found["comparisons"], rows, strict=True):
        assert shown["run"] == 1
        assert {key: shown[key] for key in ("difference", "low", "high", "p_holm", "wins")} == {
            key: row[key] for key in ("difference", "low", "high", "p_holm", "wins")
        }
    assert found["verdicts"] == [
        "program-b over bm25 (B) against program-a over bm25 (A) in nDCG@10: better"
    ]
    assert found["pairs"] == []


def test_the_spread_of_two_is_their_difference_and_of_three_the_range(runs):
    two = answer(runs, "compare/b,a/all.json")
    assert two["spread"]["nDCG@10"] == pytest.approx([-0.4] * 10)
    assert two["moved"] == {"nDCG@10": 10, "R@10": 0}
    three = answer(runs, "compare/a,b,c/all.json")
    assert three["spread"]["nDCG@10"] == pytest.approx([0.4] * 10)


def test_all_pairs_are_tested_together(runs):
    found = answer(runs, "compare/a,b,c/all.json")
    assert [(pair["baseline"], pair["run"]) for pair in found["pairs"]] == [(0, 1), (0, 2), (1, 2)]
    series = [(A, B), (A, C), (B, C)]
    p = [sign_flip([y - x for x, y in zip(*pair, strict=True)]) for pair in series]
    assert [pair["p_holm"] for pair in found["pairs"]] == pytest.approx(holm(p))


def test_pairs_are_compared_in_the_metric_that_is_named(runs):
    rows = compare_pairs([runs / "a", runs / "b"], "R@10")
    assert [(row["metric"], row["difference"]) for row in rows] == [("R@10", 0.0)]


def test_runs_that_share_no_query_say_why_they_are_not_compared(runs):
    other = {"program": "other", "asked": {"limit": None, "query_ids": ["z"]}}
    place = make(runs / "d", {"nDCG@10": [0.3]}, other)
    table = (place / "scores.csv").read_text().replace("q0", "z")
    (place / "scores.csv").write_text(table)
    found = answer(runs, "compare/a,d/all.json")
    assert "without a common query there is nothing to pair" in found["why"]
    assert found["query_ids"][-1] == "z" and found["spread"]["nDCG@10"][-1] is None


def test_one_run_alone_is_refused(runs):
    with pytest.raises(UsageError, match="choose two or more"):
        answer(runs, "compare/a,a/all.json")


def test_curves_and_behaviour_are_those_of_the_commands(tmp_path):
    first = run_in(tmp_path, "--program", "retrieve", "--task", "congress", "--limit", 4)
    second = run_in(tmp_path, "--program", "multihop", "--task", "congress", "--limit", 4)
    ids = ",".join("/".join(path.parts[-2:]) for path in (first, second))
    found = answer(tmp_path / "runs", f"curves/{ids}/all.json")
    scores = json.loads((second / "scores.json").read_text())
    [curve] = [one for one in found["axes"]["searches"]["curves"] if one["run"] == 1]
    assert curve["end"] == pytest.approx(scores["metrics"]["nDCG@10"]["mean"])
    behaviour = answer(tmp_path / "runs", f"behaviours/{ids}/all.json")
    assert len(behaviour["runs"]) == 2
    assert behaviour["pairs"][0]["runs"] == [0, 1]


def test_runs_after_the_twenty_sixth_have_letters_with_a_number():
    assert [letter(place) for place in (0, 25, 26, 53)] == ["A", "Z", "A2", "B3"]
