"""A provider of LiteLLM's, through dspy.LM: vLLM's, whose address may be a local server's."""

import threading
import time

import dspy
import pytest
from bad_server import (
    OWN,
    REFUSING,
    UNCLEAR,
    Fault,
    always,
    bomb,
    drips,
    empty_choice,
    fine,
    moved,
    once,
    silent,
    throttled,
)
from litellm.cost_calculator import cost_per_token
from litellm.types.utils import CompletionTokensDetailsWrapper, PromptTokensDetailsWrapper, Usage
from openai_server import Failure, OpenAIServer, sensible
from waiting import wait_for

from sextant.tools.models import language_model, provider_errors
from sextant.tools.models.call_limits import RetryPolicy
from sextant.tools.models.prices import price
from sextant.tools.models.run_resources import RunResources

MULTIHOP = ("--program", "multihop", "--task", "congress", "--split", "dev", "--data", "mini")
SPEC = "hosted_vllm/tiny"
KEY = "sk-a-key-of-nobodys"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("HOSTED_VLLM_API_KEY", KEY)


def leads_to(monkeypatch, server):
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", server.spec.partition("@")[2])


@pytest.fixture
def litellm(server, monkeypatch):
    leads_to(monkeypatch, server)
    return server


@pytest.mark.smoke
def test_it_finds_what_our_own_client_finds_and_its_books_are_the_servers(run, litellm, tmp_path):
    direct = run(*MULTIHOP, "--lm", litellm.spec, "--json", "--runs", tmp_path / "direct")
    asked = [request["messages"] for request in litellm.requests]
    litellm.requests.clear()
    through = run(*MULTIHOP, "--lm", SPEC, "--json")
    assert through.code == 0
    assert through.json["metrics"] == direct.json["metrics"]
    assert sorted(map(str, (request["messages"] for request in litellm.requests))) == sorted(
        map(str, asked)
    )
    usage_totals = through.json["ledger"]
    assert usage_totals["sent"] == usage_totals["answered"] == len(litellm.requests)
    assert usage_totals["input_tokens"] == direct.json["ledger"]["input_tokens"] > 0


def test_an_agent_calls_tools_of_other_providers_and_its_signed_thoughts_go_back(
    run, server, monkeypatch
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_BASE", server.spec.partition("@")[2].removesuffix("/v1"))
    thought = {"type": "thinking", "thinking": f"Hm, {KEY}.", "signature": "signed"}
    uses = iter([("search", {"query": "vote"}), ("finish", {"doc_ids": []})])

    def reply(path, request):
        name, given = next(uses)
        content = [thought, {"type": "tool_use", "id": f"t_{name}", "name": name, "input": given}]
        about = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "x",
            "stop_reason": "tool_use",
        }
        return about | {"content": content, "usage": {"input_tokens": 2000, "output_tokens": 20}}

    server.reply = reply
    ask = (
        "--program",
        "react",
        *MULTIHOP[2:],
        "--lm",
        "anthropic/claude-sonnet-4-5",
        "--limit",
        "1",
        "--json",
    )
    result = run(*ask, "--reasoning-tokens", "1500")
    assert (
        result.code == 0
        and result.json["usage"]["calls"] == 2
        and result.json["usage"]["paid_usd"] > 0
    )
    first, second = server.requests
    assert {tool["name"] for tool in first["tools"]} == {"search", "read", "select", "finish"}
    assert (
        first["thinking"] == {"type": "enabled", "budget_tokens": 1500}
        and "temperature" not in first
    )
    back, found = second["messages"][1:]
    assert [part["type"] for part in back["content"]] == ["thinking", "tool_use"]
    assert (
        back["content"][0] == thought | {"thinking": "Hm, ***."}
        and found["content"][0]["tool_use_id"] == "t_search"
    )
    assert "cache_control" in str(found) and "cache_control" not in str(first), "the first is short"
    assert (
        run(*ask[:-4], "groq/x", "--reasoning-tokens", "5").code == 2 and len(server.requests) == 2
    )


def test_what_fails_is_sent_again_by_us_and_by_nobody_below(run, litellm):
    answer, failures = (
        litellm.answer,
        iter([Failure(500), Failure(429, retry_after=0.01), Failure(503)]),
    )

    def sometimes(prompt):
        if failure := next(failures, None):
            raise failure
        return answer(prompt)

    litellm.answer = sometimes
    result = run(*MULTIHOP, "--lm", SPEC, "--json", "--limit", "2")
    assert result.code == 0
    usage_totals = result.json["ledger"]
    assert usage_totals["failed"] == 3 and usage_totals["sent"] == len(litellm.requests)


def test_a_call_is_cut_off_when_the_time_of_its_query_is_up(run, bad, monkeypatch):
    leads_to(monkeypatch, bad)
    bad.script = lambda number, body: fine() if number == 1 else silent()
    started = time.monotonic()
    ask = (*MULTIHOP, "--lm", SPEC, "--json", "--limit", "1", "--query-timeout", "2")
    result = run(*ask)
    assert result.code == 7 and result.json["owed"] == 1
    assert time.monotonic() - started < 30
    assert result.json["ledger"]["answered"] == 1


@pytest.mark.parametrize(
    ("fault", "kind"), [(bomb(), "too large"), (Fault("slow", way=drips(0.1)), "timeout")]
)
def test_an_answer_has_the_bounds_of_our_own_client_and_leaves_no_thread(
    fault, kind, bad, monkeypatch
):
    leads_to(monkeypatch, bad)
    model = language_model.connect(
        SPEC, RunResources(patience=RetryPolicy(attempts=1, call=3.0))
    ).lm
    model("yes?")
    before = threading.active_count()
    bad.script = always(fault)
    with pytest.raises(dspy.LMError) as caught:
        model("no?")
    assert provider_errors.error_label(caught.value) == kind
    wait_for(lambda: threading.active_count() == before)


def test_another_server_is_another_model(run, litellm, monkeypatch, tmp_path):
    ask = (*MULTIHOP, "--lm", SPEC, "--json", "--limit", "2")
    run(*ask)
    other = OpenAIServer()
    leads_to(monkeypatch, other)
    assert run(*ask, "-P", "max_searches=50").json["ledger"]["cached"] == 0
    assert len(other.requests) == len(litellm.requests)
    other.close()


WHOSE = [(kind, "refused") for kind in ("401", "no_quota", "LiteLLM", "Anthropic")]
WHOSE += [(kind, "provider") for kind in ("DeepSeek", "unprocessable", "wall 413")]
WHOSE += [(kind, "system") for kind in ("too_long", "filtered_400")]


@pytest.mark.parametrize(("kind", "whose"), WHOSE)
def test_whose_fault_it_is_is_told_as_by_our_own_client(kind, whose, bad, monkeypatch):
    leads_to(monkeypatch, bad)
    bad.script = always((REFUSING | UNCLEAR | OWN)[kind])
    for spec in (SPEC, bad.spec):
        model = language_model.connect(spec)
        model.resources.answered_before = True  # else whatever is not clear is refused
        with pytest.raises(dspy.LMError) as caught:
            model.lm("yes?")
        assert provider_errors.responsible_party(caught.value) == whose


def test_a_key_that_the_server_says_back_is_in_no_file(run, litellm, tmp_path):
    def says_it(prompt):
        if len(litellm.requests) % 3 == 0:
            raise Failure(400, "content_filter", f"bad content near {KEY}")
        return {name: f"{text} {KEY}" for name, text in sensible(prompt).items()}

    litellm.answer = says_it
    result = run(
        "--program", "rewrite", *MULTIHOP[2:], "--lm", SPEC, "--json", "--runs", tmp_path / "runs"
    )
    assert result.json["failed"] and result.json["queries"] > result.json["failed"]
    for path in (tmp_path / "runs").rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("first", "seconds"), [(throttled(1.5), 1.4), (empty_choice(), 0.0)], ids=["wait", "nothing"]
)
def test_a_wait_that_is_asked_for_is_kept_and_an_answer_without_a_choice_is_none(
    first, seconds, run, bad, monkeypatch
):
    leads_to(monkeypatch, bad)
    bad.script = once(first, at=1)
    result = run("--program", "rewrite", *MULTIHOP[2:], "--lm", SPEC, "--json", "--limit", "1")
    assert result.code == 0 and [one.kind for one in bad.tries][1:] == ["fine"]
    assert bad.tries[1].arrived - bad.tries[0].ended >= seconds
    assert (result.json["ledger"]["sent"], result.json["ledger"]["failed"]) == (2, 1)


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize(
    "model", ["anthropic/claude", "gemini/gemini-2.5-flash", "azure/gpt-4o", "deepseek/v3", SPEC]
)
def test_a_redirect_is_named_and_not_followed_with_a_key_or_a_prompt(
    run, bad, elsewhere, monkeypatch, model, status
):
    provider = model.partition("/")[0].upper()
    for name, value in {"KEY": KEY, "BASE": bad.url, "VERSION": "2024-10-21"}.items():
        monkeypatch.setenv(f"{provider}_API_{name}", value)
    bad.script = always(moved(f"http://localhost:{elsewhere.port}/v1/{KEY}", status))
    result = run("--program", "rewrite", *MULTIHOP[2:], "--lm", model, "--limit", "1", "--json")
    assert result.code == 4 and result.err.count("\n") == 1
    said = f"redirects to http://localhost:{elsewhere.port}/v1/*** (status {status}), where nothing is sent"
    assert said in result.err
    assert len(bad.tries) == 1 and not elsewhere.tries


def test_a_certificate_that_nobody_vouches_for_is_refused_with_what_to_do(
    litellm, certificate, monkeypatch
):
    litellm._server.socket = certificate[1].wrap_socket(litellm._server.socket, server_side=True)
    monkeypatch.setenv(
        "HOSTED_VLLM_API_BASE", litellm.spec.partition("@")[2].replace("http:", "https:")
    )
    with pytest.raises(dspy.LMError, match=r"\$SSL_CERT_FILE") as error:
        language_model.connect(SPEC, RunResources(patience=RetryPolicy(attempts=1))).lm("x")
    assert provider_errors.responsible_party(
        error.value
    ) == "refused" and not dspy.is_retryable_lm_error(error.value)


def test_a_missing_key_and_a_provider_that_nobody_knows_are_said_before_anything_is_made(
    run, monkeypatch, tmp_path
):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    result = run("--program", "rewrite", *MULTIHOP[2:], "--lm", "anthropic/claude-sonnet-4-5")
    assert (
        result.code == 4 and result.err.count("error:") == 1 and "$ANTHROPIC_API_KEY" in result.err
    )
    assert result.out == "" and not list(tmp_path.rglob("config.json"))
    result = run(
        "--program", "rewrite", *MULTIHOP[2:], "--lm", "antropic/claude-sonnet-4-5", "--dry-run"
    )
    assert result.code == 2 and "did you mean 'anthropic'" in result.err


# (input, cached, output, reasoning, cache-written): short, long on both sides of where prices rise, cached, thinking
CALLS = [
    *(
        (1_000, 0, 100, 0, 0),
        (1_000, 600, 100, 40, 0),
        (32_000, 0, 500, 0, 0),
        (128_001, 0, 500, 0, 0),
    ),
    *((200_000, 50_000, 1_000, 300, 0), (200_001, 50_000, 1_000, 300, 0), (300_000, 0, 10, 0, 0)),
]
MODELS = [
    "openai/gpt-5.2",
    "openai/gpt-5.4",  # dearer above 272,000 tokens
    "anthropic/claude-sonnet-4-5",
    "gemini/gemini-2.5-pro",  # dearer above 200,000 tokens
    "vertex_ai/gemini-2.5-pro",  # in the table without its provider
    "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0",
    "xai/grok-4.3",  # dearer from 200,000 tokens on
    "dashscope/qwen3-max",  # a price for each range of prompt lengths
    "dashscope/qwen-turbo",  # thinking is dearer than the answer
    "deepseek/deepseek-chat",
    "mistral/mistral-large-latest",
    "groq/openai/gpt-oss-120b",
    "ollama/llama3",
]


def by_litellm(spec, call):
    """Dollars by LiteLLM's calculator."""
    tokens_in, cached, tokens_out, reasoning, written = call
    provider, _, model = spec.partition("/")
    usage = Usage(
        prompt_tokens=tokens_in,
        completion_tokens=tokens_out,
        total_tokens=tokens_in + tokens_out,
        prompt_tokens_details=PromptTokensDetailsWrapper(
            cached_tokens=cached, cache_creation_tokens=written
        ),
        completion_tokens_details=CompletionTokensDetailsWrapper(reasoning_tokens=reasoning),
    )
    return sum(cost_per_token(model=model, custom_llm_provider=provider, usage_object=usage))


@pytest.mark.parametrize("spec", MODELS)
def test_a_call_costs_what_litellm_calculates(spec):
    known = price(spec)
    calls = (
        [*CALLS, (10_000, 2_000, 100, 0, 5_000)] if spec.startswith("anthropic/") else CALLS
    )  # writes to its cache
    assert [known.of(*call) for call in calls] == pytest.approx(
        [by_litellm(spec, call) for call in calls]
    )
