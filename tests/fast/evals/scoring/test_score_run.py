"""Looks at the test split: what counts as one, and that counting never ends a run."""

import json

import pytest
from run_folders import CONFIG

from sextant.evals.scoring.score_run import count_test_uses, record_test_use
from sextant.tools.platform.files import sextant_home


@pytest.fixture
def look(tmp_path):
    """A run is scored; the number of looks since."""

    def scored(name, **changes) -> int:
        config = CONFIG | changes
        record_test_use(config, tmp_path / "runs" / name)
        return count_test_uses(config)

    return scored


def lines() -> list[dict]:
    return [json.loads(line) for line in (sextant_home() / "looks.jsonl").read_text().splitlines()]


def test_every_run_on_test_queries_is_a_look(look):
    assert [look("multihop-offline-1"), look("multihop-offline-2"), look("multihop-offline-3")] == [
        1,
        2,
        3,
    ]
    assert look("multihop-offline-4", compiled={"digest": "ab12", "optimizer": "gepa"}) == 4
    last, kept = lines()[-1], ("task", "data", "data_fingerprint", "split", "program")
    assert last.pop("when")[:2] == "20"
    named = {"compiled": "ab12", "lm": "offline", "run": "multihop-offline-4"}
    assert last == {key: CONFIG[key] for key in kept} | named


def test_torn_and_damaged_lines_are_skipped(look):
    look("multihop-offline-1")
    file = sextant_home() / "looks.jsonl"
    with file.open("ab") as opened:
        opened.write(
            b'\xff\xfe\n[1]\n{"run": 3}\n{"run": "x", "task": ["obliq/congress"]}\n\n{"run": "multihop-off'
        )
    assert count_test_uses(CONFIG) == 1
    assert look("multihop-offline-2") == 2
    assert file.read_bytes().endswith(b"}\n")


def test_a_home_that_cannot_be_written_or_read_is_no_error(look, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("SEXTANT_HOME", str(file))
    assert look("multihop-offline-1") == 0
    (tmp_path / "home").mkdir()
    (tmp_path / "home/looks.jsonl").mkdir()
    monkeypatch.setenv("SEXTANT_HOME", str(tmp_path / "home"))
    assert look("multihop-offline-1") == 0
    monkeypatch.setenv("SEXTANT_HOME", "~nobody-of-that-name")
    assert look("multihop-offline-1") == 0


def test_a_run_says_which_look_it_is_from_the_second_on(run, tmp_path):
    task = ("--program", "retrieve", "--task", "congress")
    assert run(*task, "--split", "dev", "--json").json["looks"] == 0
    assert "look " not in run(*task).out
    assert run(*task, "--json").json["looks"] == 1  # the same run again
    assert (
        "evaluation 2 of retrieve on these test queries of obliq/congress (mini)\n"
        in run(*task, "--split", "all").out
    )
    assert "look " not in run(*task, "--split", "dev").out
    assert run(*task, "--k", 20, "--json").json["looks"] == 3
    scores = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("scores.json")]
    assert len(scores) == 4 and not any("looks" in score for score in scores)


def test_a_run_that_stops_before_its_end_has_shown_what_it_reaches_and_is_a_look(run, server):
    task = (
        "--program",
        "rewrite",
        "--task",
        "congress",
        "--lm",
        server.spec,
        "--max-concurrent",
        1,
        "--json",
    )
    assert run(*task, "--split", "dev", "--budget-calls", 5).json["looks"] == 0
    stopped = run(*task, "--budget-calls", 5)
    assert stopped.code == 8 and stopped.json["partial"]["metrics"] and stopped.json["looks"] == 1
    assert run(*task).json["looks"] == 1, "going on with it is the same look"
    assert run(*task, "--k", 20, "--budget-calls", 5).json["looks"] == 2
