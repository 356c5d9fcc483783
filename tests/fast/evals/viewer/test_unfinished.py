"""A run without scores: how far it is, its mean so far, and its trajectories, as the page shows them."""

import json
import shutil
import time
import urllib.request
from pathlib import Path

import pytest
from run_folders import run_in

from sextant.evals import view
from sextant.evals.running import run_status
from sextant.evals.scoring import scored_run
from sextant.evals.viewer.data import ViewerApi
from sextant.tools.errors import DataError, RunIncomplete


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run of congress in miniature, to be copied."""
    place = tmp_path_factory.mktemp("made")
    return run_in(place, "--program", "multihop", "--task", "congress", "--limit", 4)


@pytest.fixture
def finished(made):
    return scored_run.read_scored_run(made)


@pytest.fixture
def path(made, tmp_path):
    """The same run, with two of its four queries answered."""
    copied = Path(shutil.copytree(made, tmp_path / "runs" / made.parent.name / made.name))
    for name in ("scores.json", "scores.csv", "attribution.jsonl", "run.trec", "sittings.jsonl"):
        (copied / name).unlink()
    lines = (made / "outcomes.jsonl").read_bytes().splitlines(keepends=True)
    (copied / "outcomes.jsonl").write_bytes(b"".join(lines[:2]))
    return copied


def answer(answers, path):
    return json.loads(answers(path))


def write_status(path, at, **more):
    status = {"state": "running", "reason": "", "time": at, "queries": 4, "done": 2}
    (path / "status.json").write_text(json.dumps(status | more))


def page(path):
    return ViewerApi([path.parents[1]])


def run_id(path):
    return "/".join(path.parts[-2:])


def test_a_run_that_has_no_answer_yet_is_listed_and_has_no_queries(path):
    (path / "outcomes.jsonl").unlink()
    write_status(path, time.time(), done=0)
    answers = page(path)
    [one] = answer(answers, "live.json")["unfinished"]
    assert (one["state"], one["done"], one["queries"]) == ("running", 0, 4)
    assert answers.run_ids == []
    assert answer(answers, f"run/{run_id(path)}.json")


def test_a_run_under_way_is_listed_with_its_progress_and_newest_queries(path, finished):
    write_status(path, time.time(), mean=0.25, low=0.1, high=0.5, metric="nDCG@10")
    answers = page(path)
    [one] = answer(answers, "live.json")["unfinished"]
    assert (one["state"], one["live"], one["done"], one["queries"]) == ("running", True, 2, 4)
    assert (one["mean"], one["low"], one["high"]) == (0.25, 0.1, 0.5)
    assert one["newest"] == finished.query_ids[1::-1]
    assert answer(answers, "runs.json")["runs"] == []


def test_a_status_that_nobody_writes_any_more_is_of_a_run_that_broke_off(path):
    write_status(path, time.time() - 2 * run_status.STALE_SECONDS)
    [one] = answer(page(path), "live.json")["unfinished"]
    assert (one["state"], one["live"]) == ("broke off", False)
    assert one["remedy"] == "Give its command again to resume it"


def test_a_run_that_broke_off_names_its_command_and_no_mean_of_fewer_queries(path):
    command = "sextant run --task congress --limit 4"
    long_ago = time.time() - 2 * run_status.STALE_SECONDS
    write_status(path, long_ago, command=command, done=1, metric="nDCG@10", mean=0.5)
    [one] = answer(page(path), "live.json")["unfinished"]
    assert one["remedy"] == f"Its command goes on with it: {command}"
    assert (one["done"], one["mean"]) == (2, None)


def test_its_answered_queries_have_the_values_and_fates_that_the_whole_run_has(
    path, made, finished
):
    run = answer(page(path), f"run/{run_id(path)}.json")
    whole = answer(ViewerApi([made]), f"run/{run_id(made)}.json")
    assert run["query_ids"] == finished.query_ids[:2]
    assert run["values"] == {name: values[:2] for name, values in whole["values"].items()}
    assert run["fates"] == whole["fates"][:2]
    mean = sum(run["values"]["nDCG@10"]) / 2
    assert run["scores"]["metrics"]["nDCG@10"]["mean"] == pytest.approx(mean)


def test_its_trajectories_open_as_those_of_a_finished_run(path, made, finished):
    address = f"run/{{}}/query/{finished.query_ids[1]}.json"
    shown = answer(page(path), address.format(run_id(path)))
    whole = answer(ViewerApi([made]), address.format(run_id(made)))
    assert {**shown, "reading": 0} == {**whole, "reading": 0}


def test_outcomes_that_are_added_are_read_and_a_torn_line_waits(path, made, finished):
    answers = page(path)
    assert answer(answers, "live.json")["unfinished"][0]["done"] == 2
    lines = (made / "outcomes.jsonl").read_bytes().splitlines(keepends=True)
    with (path / "outcomes.jsonl").open("ab") as file:
        file.write(lines[2] + lines[3][:40])
        file.flush()
        assert answer(answers, "live.json")["unfinished"][0]["done"] == 3
        file.write(lines[3][40:])
    run = answer(answers, f"run/{run_id(path)}.json")
    assert run["query_ids"] == finished.query_ids
    assert run["live"]["state"] == "not scored"


def test_a_run_that_ends_changes_the_version_so_that_the_page_shows_its_scores(path, made):
    answers = page(path)
    before = answer(answers, "live.json")
    for file in made.iterdir():
        if file.is_file():
            shutil.copy(file, path)
    after = answer(answers, "live.json")
    assert after["version"] != before["version"]
    assert after["unfinished"] == []
    assert [one["id"] for one in answer(answers, "runs.json")["runs"]] == [run_id(path)]


def test_an_unfinished_run_is_left_out_of_an_exported_page_with_the_reason(path):
    answers = ViewerApi([path.parents[1]], exported=True)
    [(folder, reason)] = answers.unreadable
    assert folder == path and "there are no scores" in reason
    with pytest.raises(DataError, match="there are no scores"):
        answers(f"run/{run_id(path)}.json")


def test_a_folder_may_be_empty_before_its_first_run(tmp_path):
    answers = ViewerApi([tmp_path], empty=True)
    assert answer(answers, "runs.json")["runs"] == []


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A terminal on which Ctrl-C is pressed when the page waits for it, once the page has answered."""
    pages = list[bytes]()

    def press(_):
        [address] = [word for word in told if word.startswith("http")]
        with urllib.request.urlopen(address) as answer:
            pages.append(answer.read())
        raise KeyboardInterrupt

    told = list[str]()
    monkeypatch.setattr(view, "print_stderr", lambda text: told.extend(text.split()))
    monkeypatch.setattr(view, "_is_read", lambda: True)
    monkeypatch.setattr(view, "_open_browser", lambda _: None)
    monkeypatch.setattr(view, "wait_until", press)
    return pages


def test_the_page_of_a_run_that_broke_off_stays_until_it_is_ended(watched, tmp_path, capsys):
    def work():
        raise RunIncomplete("4 of 4 queries are pending")

    assert view.watch(tmp_path, work) == RunIncomplete.exit_code
    assert len(watched) == 1
    assert capsys.readouterr().err == "error: 4 of 4 queries are pending\n"


def test_the_page_of_a_run_with_failed_queries_stays_too(watched, tmp_path):
    assert view.watch(tmp_path, lambda: 7) == 7
    assert len(watched) == 1


def test_an_interrupted_run_takes_its_page_down(watched, tmp_path):
    def work():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        view.watch(tmp_path, work)
    assert not watched
