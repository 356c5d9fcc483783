"""A run in shards, each with its own folder and answers, is joined into the run that one command would have made."""

import json
import re
import shutil
import sqlite3
from contextlib import closing

import pytest

from sextant.evals import gather as module

NAMED = (
    "--program",
    "multihop",
    "--task",
    "congress",
    "--data",
    "mini",
    "--split",
    "dev",
    "--max-concurrent",
    "1",
)


@pytest.fixture
def gather(command_of):
    return command_of(module)


@pytest.fixture
def shards(run, tmp_path):
    """The folders of three shards with seven queries, without a model."""
    words = (*NAMED, "--limit", "7")
    done = [
        run(*words, "--runs", tmp_path / "runs", "--shard", f"{number}/3", "--json")
        for number in (1, 2, 3)
    ]
    assert [one.code for one in done] == [0, 0, 0] and [one.json["queries"] for one in done] == [
        3,
        2,
        2,
    ]
    return [tmp_path / "runs" / one.json["run"].partition("/runs/")[2] for one in done]


def contents(path):
    """What a run folder has, but for times and the order of outcomes, and its rows and texts of answers.sqlite3."""
    text = re.sub(
        rb'"(seconds|started|digest)": ?[^,}]+', b"", (path / "outcomes.jsonl").read_bytes()
    )
    found = [
        sorted(text.splitlines()),
        json.loads((path / "scores.json").read_text())
        | {"digest": "", "made_of": {}, "query_seconds": 0.0},
    ]
    found += [
        (path / name).read_bytes()
        for name in ("config.json", "run.trec", "scores.csv", "attribution.jsonl")
    ]
    if (path / "run-id").exists():
        run = f"{path.parent.name}/{path.name}/{(path / 'run-id').read_text().strip()}"
        columns = "key, query_id, model, fault, usage, outputs, request"
        with closing(sqlite3.connect(path.parents[1] / "answers.sqlite3")) as file:
            found.append(
                sorted(file.execute(f"SELECT {columns} FROM calls WHERE run = ?", [run]).fetchall())
            )
            found.append(sorted(file.execute("SELECT id, text FROM parts").fetchall()))
    return found


def test_shards_joined_twice_are_the_run_made_in_one_go(run, gather, shards, tmp_path):
    whole = run(*NAMED, "--limit", "7", "--runs", tmp_path / "one", "--json").json
    name = whole["run"].rpartition("one/")[2]
    sealed = {line for path in shards for line in (path / "outcomes.jsonl").open("rb")}
    for path in (tmp_path / "runs" / name, shards[1]):
        assert gather(path, "--json").json["run"] == str(tmp_path / "runs" / name)
        assert contents(tmp_path / "runs" / name) == contents(tmp_path / "one" / name)
        assert (
            sealed == set((tmp_path / "runs" / name / "outcomes.jsonl").open("rb"))
            and len(sealed) == 7
        )


def test_shards_with_a_model_bring_their_books_and_their_answers(run, gather, server, tmp_path):
    words = (*NAMED, "--lm", server.spec, "--limit", "4")
    whole = run(*words, "--runs", tmp_path / "one", "--json").json
    for number in (1, 2):
        run(*words, "--runs", tmp_path / "runs", "--shard", f"{number}/2")
    sent, name = len(server.requests), whole["run"].rpartition("one/")[2]
    for _ in range(2):
        assert gather(tmp_path / "runs" / name, "--json").json["ledger"] == whole["ledger"]
        assert contents(tmp_path / "runs" / name) == contents(tmp_path / "one" / name)
    shutil.rmtree(tmp_path / "runs" / name)  # a later run takes the answers of these
    assert run(*words, "--runs", tmp_path / "runs", "--json").json["metrics"] == whole["metrics"]
    assert len(server.requests) == sent


def test_what_is_missing_pending_or_does_not_belong_is_said_in_a_line(gather, shards):
    first, second, third = (path / "outcomes.jsonl" for path in shards)
    shutil.rmtree(third.parent)
    second.write_bytes(second.read_bytes()[:-100])  # as after a kill
    done = gather(second.parent)
    assert (
        done.code == 7
        and "3 of 7 queries" in done.err
        and "--shard 2/3 (1), 3/3 (2, missing)" in done.err
    )
    first.write_bytes(first.read_bytes().replace(b'"error":null', b'"error":"x"', 1))
    done = gather(first.parent)
    assert (
        done.code == 3 and f"{first}, line 1 is damaged" in done.err and done.err.count("\n") == 1
    )
    config = second.with_name("config.json")
    config.write_text(config.read_text().replace('"depth": 1000', '"depth": 100'))
    assert gather(second.parent).code == 3
    shutil.copytree(
        second.parent,
        second.parents[3] / "shard-1-of-2" / second.parent.relative_to(second.parents[2]),
    )
    done = gather(first.parent)
    assert done.code == 2 and "of 2 and of 3" in done.err


@pytest.mark.parametrize("shard", ["0/3", "4/3", "3", "a/b", "13/13"])
def test_a_shard_that_there_is_not_is_refused(run, shard):
    done = run(*NAMED, "--shard", shard)
    assert done.code == 2 and "--shard" in done.err
