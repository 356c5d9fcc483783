"""A provider of LiteLLM's, through dspy.LM: vLLM's, whose address may be a local server's."""

import time

import pytest
from bad_server import fine, silent
from openai_server import Failure

MULTIHOP = ("--program", "multihop", "--task", "congress", "--split", "dev", "--data", "mini")
SPEC = "hosted_vllm/tiny"


@pytest.fixture
def litellm(server, monkeypatch):
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", server.spec.partition("@")[2])
    monkeypatch.setenv("HOSTED_VLLM_API_KEY", "a-key-of-nobodys")
    return server


def test_it_finds_what_our_own_client_finds_and_its_books_are_the_servers(run, litellm, tmp_path):
    direct = run(*MULTIHOP, "--lm", litellm.spec, "--json", "--runs", tmp_path / "direct")
    asked = [request["messages"] for request in litellm.requests]
    litellm.requests.clear()
    through = run(*MULTIHOP, "--lm", SPEC, "--json")
    assert through.code == 0
    assert through.json["metrics"] == direct.json["metrics"]
    assert sorted(map(str, (request["messages"] for request in litellm.requests))) == sorted(map(str, asked))
    books = through.json["ledger"]
    assert books["sent"] == books["answered"] == len(litellm.requests)
    assert books["input_tokens"] == direct.json["ledger"]["input_tokens"] > 0


def test_what_fails_is_sent_again_by_us_and_by_nobody_below(run, litellm):
    answer, failures = litellm.answer, iter([Failure(500), Failure(429, retry_after=0.01), Failure(503)])

    def sometimes(prompt):
        if failure := next(failures, None):
            raise failure
        return answer(prompt)

    litellm.answer = sometimes
    result = run(*MULTIHOP, "--lm", SPEC, "--json", "--limit", "2")
    assert result.code == 0
    books = result.json["ledger"]
    assert books["failed"] == 3 and books["sent"] == len(litellm.requests)


def test_a_refused_key_ends_the_run_and_is_not_repeated(run, litellm):
    def refuses(prompt):
        raise Failure(401, message="no such key: a-key-of-nobodys")

    litellm.answer = refuses
    result = run(*MULTIHOP, "--lm", SPEC, "--json")
    assert result.code == 4 and result.err.count("\n") == 1
    assert "a-key-of-nobodys" not in result.out + result.err
    assert len(litellm.requests) <= 8, "one a worker"


def test_a_call_is_cut_off_when_the_time_of_its_query_is_up(run, bad, monkeypatch):
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", bad.spec.partition("@")[2])
    bad.script = lambda number, body: fine() if number == 1 else silent()
    started = time.monotonic()
    ask = (*MULTIHOP, "--lm", SPEC, "--json", "--limit", "1", "--query-timeout", "2")
    result = run(*ask)
    assert result.code == 7 and result.json["owed"] == 1
    assert time.monotonic() - started < 10
    assert result.json["ledger"]["answered"] == 1


def test_another_timeout_is_no_other_call(run, litellm, tmp_path):
    ask = (*MULTIHOP, "--lm", SPEC, "--json", "--limit", "2")
    assert run(*ask, "-P", "hops=1").code == 0
    asked = len(litellm.requests)
    # Another run, whose first calls are the same.
    assert run(*ask, "-P", "hops=1", "-P", "max_searches=50", "--call-timeout", "90").json["ledger"]["cached"] == asked
    assert len(litellm.requests) == asked
