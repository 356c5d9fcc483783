"""Failures as a data set: `sextant compare --write-ids FILE`, then `sextant run --query-ids FILE`."""

import json
from pathlib import Path

import pytest
import run_folders

from sextant.evals import compare as module
from sextant.evals.query_id_files import parse_query_ids, write_query_ids
from sextant.tools.errors import UsageError

TASK = ("--program", "retrieve", "--task", "congress", "--json")


@pytest.fixture
def command(command_of):
    """`sextant compare ARGUMENTS`, in this process."""
    return command_of(module)


def make_pair(tmp_path, before, after, metric="nDCG@10"):
    return (
        run_folders.make(tmp_path / "base", {metric: before}),
        run_folders.make(tmp_path / "new", {metric: after}, run_folders.retrieve()),
    )


def test_queries_that_are_worse_are_written_worst_first(command, tmp_path):
    pair = make_pair(tmp_path, [0.5, 0.5, 0.5, 0.9, 0.1], [0.4, 0.5, 0.8, 0.1, 0.0])
    given = command(*pair, "--write-ids", tmp_path / "worse.txt")
    assert given.code == 0
    assert given.err.splitlines()[-1].endswith("worse.txt: 3 queries, worst first, by nDCG@10")
    text = (tmp_path / "worse.txt").read_text()
    assert parse_query_ids(text) == ["q3", "q0", "q4"]
    assert text.startswith("# 3 queries, worst first, by nDCG@10\n") and text.count("#") == 1
    [worse] = command(*pair, "--json").json["worse"]
    assert worse["query_ids"] == ["q3", "q0", "q4"] and worse["metric"] == "nDCG@10"


def test_more_of_a_metric_may_be_worse(command, tmp_path):
    pair = make_pair(tmp_path, [0.5, 0.5], [0.4, 0.6], "Flip")
    assert command(*pair, "--write-ids", tmp_path / "worse.txt").code == 0
    assert parse_query_ids((tmp_path / "worse.txt").read_text()) == ["q1"]


def test_no_query_that_is_worse_is_said_and_the_file_has_a_comment_only(command, run, tmp_path):
    pair = make_pair(tmp_path, [0.5, 0.5], [0.5, 0.6])
    file = tmp_path / "worse.txt"
    given = command(*pair, "--write-ids", file)
    assert given.code == 0 and "0 queries, worst first, by nDCG@10" in given.err
    assert len(file.read_text().splitlines()) == 1
    refused = run(*TASK, "--query-ids", file)
    assert refused.code == 2 and "worse.txt names no query" in refused.err


def test_more_than_two_systems_have_no_such_file(command, tmp_path):
    folders = [
        run_folders.make(tmp_path / f"r{hops}", {"R@10": [0.1]}, {"parameters": {"hops": hops}})
        for hops in range(3)
    ]
    given = command(*folders, "--write-ids", tmp_path / "worse.txt")
    assert given.code == 2 and "--write-ids compares two systems, not 3" in given.err
    assert not (tmp_path / "worse.txt").exists()


@pytest.mark.parametrize("query_id", ["#1", " q1", "q\n1", ""])
def test_an_id_that_could_not_be_read_back_is_not_written(tmp_path, query_id):
    with pytest.raises(UsageError, match="cannot be a line"):
        write_query_ids(tmp_path / "ids.txt", ["q1", query_id], "two")
    assert not (tmp_path / "ids.txt").exists()


def test_a_run_asks_the_queries_of_a_file_as_it_asks_those_of_options(run, tmp_path):
    file = tmp_path / "ids.txt"
    file.write_text("\ufeff# two\n\nMINI-q03 \r\n  MINI-q01\n", encoding="utf-8")
    by_file = run(*TASK, "--query-ids", file).json
    assert by_file["queries"] == 2
    config = json.loads((Path(by_file["run"]) / "config.json").read_text())
    assert config["asked"]["query_ids"] == ["MINI-q03", "MINI-q01"]
    by_options = run(*TASK, "--query-id", "MINI-q03", "--query-id", "MINI-q01").json
    assert by_options["run"] == by_file["run"]
    both = run(*TASK, "--query-ids", file, "--query-id", "MINI-q04", "--query-ids", file).json
    assert both["queries"] == 3


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"MINI-q01\nnone\nnil\n", 2, "no query of obliq/congress, test split, is called 'none'"),
        (b"# nothing\n", 2, "names no query"),
        (b"\xff\n", 2, "is not UTF-8 text"),
        (None, 3, "No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_line(run, tmp_path, content, code, said):
    if content is not None:
        (tmp_path / "ids.txt").write_bytes(content)
    given = run(*TASK, "--query-ids", tmp_path / "ids.txt")
    [line] = given.err.splitlines()
    assert given.code == code and said in line
