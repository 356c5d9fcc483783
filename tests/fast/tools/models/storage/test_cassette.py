"""A run's model calls in one file: replayed without a key, a server or a bill, to the same rankings and scores."""

import json
from pathlib import Path

import pytest
from conftest import on_congress

from sextant.tools.models.storage.cassette import write_cassette
from sextant.tools.models.storage.ledger import ModelResponse
from sextant.tools.records import Usage

TASK = (
    *on_congress("multihop", 3),
    "-P",
    "hops=2",
    "--json",
)


def kept(result):
    """What a run is measured by, as bytes."""
    folder = Path(result.json["run"])
    return [
        (folder / name).read_bytes() for name in ("run.trec", "scores.csv", "attribution.jsonl")
    ]


@pytest.fixture
def cassette(tmp_path):
    return tmp_path / "calls.cassette"


@pytest.fixture
def recorded(run, server, cassette):
    """A run with a server that is gone afterwards; its spec is in `recorded.json`."""
    result = run(*TASK, "--lm", server.spec, "--cassette", cassette)
    assert result.code == 0, result.err
    server.close()
    return result


def replayed(run, recorded, tmp_path, cassette, *more):
    return run(
        *TASK,
        "--lm",
        recorded.json["lm"],
        "--cassette",
        cassette,
        "--runs",
        tmp_path / "elsewhere",
        *more,
    )


def test_a_replay_elsewhere_gives_the_same_byte_for_byte_and_sends_nothing(
    run, server, recorded, tmp_path, cassette
):
    sent, before = len(server.requests), cassette.read_bytes()
    again = replayed(run, recorded, tmp_path, cassette, "--max-concurrent", 1)
    assert again.code == 0 and cassette.read_bytes() == before, again.err
    assert kept(again) == kept(recorded) and again.json["metrics"] == recorded.json["metrics"]
    assert len(server.requests) == sent and again.json["ledger"]["sent"] == 0
    assert (
        again.json["ledger"]["cached"]
        == again.json["usage"]["calls"]
        == recorded.json["usage"]["calls"]
    )
    assert again.json["run"] != recorded.json["run"]


def test_a_replay_needs_no_key_and_costs_nothing_now_and_the_same_at_list_price(
    run, server, tmp_path, cassette, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", server.spec.partition("@")[2])
    first = run(*TASK, "--lm", "openai/gpt-4o-mini", "--cassette", cassette)
    assert first.code == 0 and first.json["usage"]["paid_usd"] > 0, first.err
    assert "sk-secret" not in cassette.read_text()
    monkeypatch.delenv("OPENAI_API_KEY")
    again = replayed(run, first, tmp_path, cassette, "--budget-usd", 0.000001)
    assert again.code == 0 and kept(again) == kept(first), again.err
    assert again.json["usage"]["paid_usd"] == 0
    assert again.json["usage"]["list_usd"] == pytest.approx(first.json["usage"]["list_usd"])


def test_a_call_that_is_not_in_it_ends_the_run_with_one_line_that_says_what_to_do(
    run, recorded, tmp_path, cassette
):
    for other in (("-P", "per_hop=3"), ("--temperature", 0.5), ("--limit", 4)):
        result = replayed(run, recorded, tmp_path, cassette, *other)
        assert result.code == 4 and result.err.count("\n") == 1
        assert str(cassette) in result.err and "name a new file to record" in result.err
        assert result.json["failed"] == 0 and result.json["owed"] > 0, "it is nobody's outcome"


@pytest.mark.parametrize(
    ("spoil", "number"),
    [
        (lambda lines: [], 1),
        (lambda lines: ["{not json\n", *lines[1:]], 1),
        (lambda lines: lines[1:], 1),
        (lambda lines: ['{"cassette": 99}\n', *lines[1:]], 1),
        (lambda lines: [lines[0], "{}\n", *lines[1:]], 2),
        (lambda lines: [*lines[:2], lines[2].replace('"outputs": [', '"outputs": [7, ')], 3),
        (lambda lines: [*lines[:2], lines[2][:-20]], 3),
    ],
)
def test_a_damaged_file_is_named_with_its_line_and_nothing_is_sent(
    spoil, number, run, server, cassette
):
    write_cassette(
        cassette,
        [(f"{key:016x}", ModelResponse(["yes"], Usage(1, 0, 5, 1, 0.0, 0.0))) for key in range(2)],
    )
    cassette.write_text("".join(spoil(cassette.read_text().splitlines(keepends=True))))
    result = run(*TASK, "--lm", server.spec, "--cassette", cassette)
    assert result.code == 3 and result.err.count("\n") == 1 and not server.requests
    assert f"{cassette}, line {number} " in result.err and "record it again" in result.err


def test_a_run_that_is_not_complete_leaves_no_file_and_one_that_goes_on_leaves_a_whole_one(
    run, server, tmp_path, cassette
):
    arguments = (*TASK, "--lm", server.spec, "--cassette", cassette)
    partial = run(*arguments, "--budget-calls", 2)
    assert partial.code == 8 and not cassette.exists()
    assert f"{cassette} is written when the run is complete" in partial.err
    whole = run(*arguments)
    assert whole.code == 0, whole.err
    answers = [json.loads(line)["key"] for line in cassette.read_text().splitlines()[1:]]
    assert len(answers) == len(server.requests) and answers == sorted(set(answers))
    server.close()
    again = replayed(run, whole, tmp_path, cassette)
    assert again.code == 0 and kept(again) == kept(whole)


def test_answers_that_an_earlier_run_had_paid_for_are_in_it_too(run, server, tmp_path, cassette):
    assert run(*TASK, "--lm", server.spec, "--limit", 2).code == 0
    whole = run(*TASK, "--lm", server.spec, "--cassette", cassette)
    assert whole.json["ledger"]["cached"] > 0, (
        "the first two queries ask the same as in the run before"
    )
    server.close()
    again = replayed(run, whole, tmp_path, cassette)
    assert again.code == 0 and kept(again) == kept(whole)


def test_failed_queries_are_replayed_as_they_were(run, server, tmp_path, cassette):
    server.answer = lambda prompt: {"raw": "no fields"}
    first = run(*TASK, "--lm", server.spec, "--cassette", cassette)
    assert first.code == 7 and first.json["failed"] == 3 and first.json["owed"] == 0
    server.close()
    again = replayed(run, first, tmp_path, cassette)
    assert (
        again.code == 7
        and kept(again) == kept(first)
        and again.json["unusable"] == first.json["unusable"]
    )


def test_embeddings_of_queries_are_replayed_over_the_same_index(
    run, server, tmp_path, cassette, monkeypatch
):
    words = (*TASK, "--lm", server.spec, "--retriever", f"api:{server.spec}")
    first = run(*words, "--cassette", cassette)
    assert first.code == 0, first.err
    sent = len(server.requests)
    server.close()
    again = run(*words, "--cassette", cassette, "--runs", tmp_path / "elsewhere")
    assert again.code == 0 and kept(again) == kept(first), again.err
    assert (
        again.json["usage"]["calls"] == first.json["usage"]["calls"]
        and again.json["ledger"]["sent"] == 0
    )
    assert len(server.requests) == sent
    monkeypatch.setenv("SEXTANT_HOME", str(tmp_path / "another home"))
    without = run(*words, "--cassette", cassette, "--runs", tmp_path / "third")
    assert without.code == 4 and "no answer" in without.err and without.err.count("\n") == 1


def test_where_nothing_can_be_recorded_that_is_said_before_anything_is_sent(
    run, server, tmp_path, cassette
):
    without = run(*TASK, "--cassette", cassette)
    assert without.code == 2 and "offline needs none" in without.err and not cassette.exists()
    nowhere = run(*TASK, "--lm", server.spec, "--cassette", tmp_path / "none" / "calls.cassette")
    assert nowhere.code == 2 and nowhere.err.count("\n") == 1 and not server.requests
