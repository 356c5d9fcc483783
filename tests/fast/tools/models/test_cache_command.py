"""`sextant cache`: what was paid for, seen, taken along and cleared away."""

import json
import sqlite3
from pathlib import Path

import pytest
from conftest import on_congress

from sextant.evals import cache as cache_command
from sextant.tools.models.storage.ledger import NAME, ModelResponse, open_ledger, split_and_compress
from sextant.tools.records import Usage

TASK = on_congress("rewrite", 3)


@pytest.fixture
def cache(command_of, tmp_path):
    command = command_of(cache_command)
    return lambda kind, *words: command(kind, *words, "--runs", tmp_path / "runs")


@pytest.fixture
def paid(run, server):
    """A run with three answers, as --json tells it."""
    result = run(*TASK, "--lm", server.spec, "--json")
    assert result.code == 0 and len(server.requests) == 3, result.err
    return result.json


def test_what_is_cleared_is_gone_and_gives_its_space_back_also_while_the_file_is_open_elsewhere(
    cache, place
):
    for number in range(20):
        open_ledger(place).answered(
            "q", f"{number:016x}", "tiny", ModelResponse(["much " * 20_000], Usage())
        )
    other = sqlite3.connect(place.parent.parent / NAME)
    assert other.execute("SELECT count(*) FROM calls").fetchall() == [(20,)]
    assert cache("clear", "--all").code == 0
    left = b"".join(path.read_bytes() for path in place.parent.parent.glob(f"{NAME}*"))
    assert b"much" not in left and len(left) < 100_000
    other.close()


def listed(cache):
    return cache("list", "--json").json


def test_the_list_has_answers_by_model_and_what_each_run_sent(cache, paid, run, server):
    assert run(*TASK, "--lm", server.spec, "--k", 5, "--json").json["ledger"]["cached"] == 3
    told = listed(cache)
    [(model, row)] = told["models"].items()
    assert row["answers"] == 3 and row["usage"]["input_tokens"] == paid["usage"]["input_tokens"]
    assert (
        row["first"] <= row["last"]
        and cache("list", "--model", "none", "--json").json["models"] == {}
    )
    second_folder = run(*TASK, "--lm", server.spec, "--k", 5, "--json").json["run"]
    first, second = (
        next(
            usage_totals
            for name, usage_totals in told["runs"].items()
            if Path(folder).name in name.split("/")
        )
        for folder in (paid["run"], second_folder)
    )
    assert (first["sent"], first["answered"], first["cached"]) == (3, 3, 0)
    assert (second["sent"], second["answered"], second["cached"]) == (0, 0, 3)
    lines = [line.split() for line in cache("list").out.splitlines()]
    assert [model, "3"] in [line[:2] for line in lines]
    [heads] = [line for line in lines if line[:2] == ["run", "sent"]]
    assert heads[:4] == ["run", "sent", "answered", "failed"] and heads[-2:] == ["price", "faults"]
    for folder, counts, price in (
        (paid["run"], ["3", "3", "0", "0"], "unknown"),
        (second_folder, ["0", "0", "0", "3"], "$0.0000"),
    ):
        assert [*counts, price] in [
            line[1:] for line in lines if line and Path(folder).name in line[0]
        ]


def test_an_answer_is_shown_by_the_beginning_of_its_key(cache, paid, server, tmp_path):
    key = json.loads(exported(cache, tmp_path)[1])["key"]
    for part in (key, key[:6]):
        shown = cache("show", part, "--json").json
        assert shown["key"] == key and shown["finish"] == "stop" and shown["run"].count("/") == 2
        assert "[[ ## rewritten ## ]]" in shown["outputs"][0] and shown["usage"]["calls"] == 1
    assert (
        shown["messages"] in [sent["messages"] for sent in server.requests]
        and shown["settings"]["temperature"] == 0
    )
    told = cache("show", key).out
    assert "──── system ────\nYour input fields are:" in told
    assert f"──── answer ────\n{shown['outputs'][0][:20]}" in told
    calls = cache("list", "--calls", "--run", paid["run"], "--json").json["calls"]
    [row] = [one for one in calls if one["key"] == key]
    assert row["begins"].startswith("[[ ## rewritten ## ]]")
    listed_rows = [line.split() for line in cache("list", "--calls").out.splitlines()]
    assert [key, row["at"], row["query_id"]] in [line[:3] for line in listed_rows]


def test_a_run_that_keeps_no_prompts_is_the_same_run_and_keeps_none(cache, run, server):
    without = run(*TASK, "--lm", server.spec, "--no-prompts", "--json").json
    assert cache("list", "--calls").out.count("not kept") == 3
    again = run(*TASK, "--lm", server.spec, "--json").json
    assert again["run"] == without["run"] and len(server.requests) == 3


def test_what_a_conversation_holds_cannot_reach_the_terminal_as_anything_but_text(cache, place):
    sent = json.dumps(
        [[{"role": "user\x1b[31m", "content": "a\tb\x1b]0;title\x07\nnext"}], {}]
    ).encode()
    answer = ModelResponse(
        [{"content": "", "tool_calls": [{"name": "search", "arguments": "{}\x1b[2J"}]}], Usage()
    )
    open_ledger(place).answered("q", "ab" * 8, "tiny", answer, split_and_compress(sent, ()))
    told = cache("show", "ab").out
    assert "\x1b" not in told and "\x07" not in told and "\nnext\n" in told and "search({}" in told
    assert "\x1b" not in cache("list", "--calls").out


def exported(cache, tmp_path, *words):
    file = tmp_path / "exported"
    assert cache("export", file, *words).code == 0
    return file.read_text().splitlines()


def test_what_is_exported_is_a_cassette_of_the_run(cache, paid, run, server, tmp_path):
    run(*on_congress("multihop", 1), "--lm", server.spec)
    everything = len(exported(cache, tmp_path))
    by_folder = exported(cache, tmp_path, "--run", paid["run"])
    name = "/".join(Path(paid["run"]).parts[-2:])
    assert (
        by_folder == exported(cache, tmp_path, "--run", name) and len(by_folder) == 4 < everything
    )
    server.close()
    words = (
        *TASK,
        "--lm",
        server.spec,
        "--cassette",
        tmp_path / "exported",
        "--runs",
        tmp_path / "elsewhere",
    )
    again = run(*words, "--json")
    assert (
        again.code == 0
        and again.json["metrics"] == paid["metrics"]
        and again.json["ledger"]["sent"] == 0
    )


def test_what_is_cleared_is_asked_again_and_what_it_cost_stays_in_the_books(
    cache, paid, run, server
):
    before = listed(cache)["runs"]
    assert cache("clear", "--all", "--json").json == {"cleared": 3}
    after = listed(cache)
    assert after["models"] == {} and after["runs"] == before
    again = run(*TASK, "--lm", server.spec, "--k", 5, "--json")
    assert again.code == 0 and len(server.requests) == 6 and again.json["ledger"]["sent"] == 3
    assert listed(cache)["runs"].keys() > before.keys()


@pytest.mark.parametrize("which", ["--run", "--model", "--key", "--days"])
def test_what_is_named_is_cleared_and_nothing_else(which, cache, paid, run, server, tmp_path):
    key = json.loads(exported(cache, tmp_path)[1])["key"]
    run(*on_congress("multihop", 1), "--lm", server.spec)
    everything = len(exported(cache, tmp_path)) - 1
    model = next(iter(listed(cache)["models"]))
    value, cleared = {
        "--run": (paid["run"], 3),
        "--model": (model, everything),
        "--key": (key, 1),
        "--days": (1, 0),  # nothing is so old
    }[which]
    assert cache("clear", which, value, "--json").json == {"cleared": cleared}
    left = [json.loads(line)["key"] for line in exported(cache, tmp_path)[1:]]
    assert len(left) == everything - cleared and (key in left) == (which == "--days")


REFUSED = (
    (("show", "xyz"), 2, "is no key"),
    (("show", "*"), 2, "is no key"),
    (("show", ""), 2, "is no key"),
    (("show", "0123456789abcdef"), 3, "no answer has the key"),
    (("clear",), 2, "say which"),
    (("clear", "--days", "0"), 2, "--days"),
    (("clear", "--key", "nonsense"), 2, "is no key"),
    (("clear", "--run", "*/*"), 3, "no run"),
    (("clear", "--run", "congress/none"), 3, "no run"),
    (("export",), 2, "FILE"),
    (("burn",), 2, "burn"),
)


def test_what_cannot_be_is_refused_in_a_line_and_nothing_is_cleared(cache, paid, tmp_path):
    for words, code, message in REFUSED:
        result = cache(*words)
        assert result.code == code and message in result.err.splitlines()[-1], result.err
    assert len(exported(cache, tmp_path)) == 4


def test_a_place_without_answers_is_said_to_be_one_and_stays_as_it_is(cache, tmp_path):
    result = cache("list")
    assert (
        result.code == 3
        and str(tmp_path / "runs" / NAME) in result.err
        and not (tmp_path / "runs").exists()
    )
