"""The door to models, against a local server that speaks the OpenAI protocol."""

import asyncio

import dspy
import pytest
from openai_server import Failure, sensible

from sextant.programs.query_rewriting import Rewrite, RewriteDescription
from sextant.tools.errors import UsageError
from sextant.tools.models import language_model
from sextant.tools.models import model_spec as spec
from sextant.tools.models.call_limits import RetryPolicy
from sextant.tools.models.language_model import LanguageModel
from sextant.tools.models.prices import price
from sextant.tools.models.run_resources import RunResources
from sextant.tools.session import current

TASK = ("--task", "congress", "--split", "dev", "--limit", "3")


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr(
        "sextant.tools.models.run_resources.PATIENCE",
        RetryPolicy(first=0.01, before=0.3, after=0.3),
    )


@pytest.mark.parametrize(
    "spec",
    [
        "gpt-5.2",
        "openai/",
        "/x",
        "@http://x/v1",
        "m@ftp://x/v1",
        "m@http://user:secret@x/v1",
        "m@http://x/v1/chat/completions",
    ],
)
def test_a_spec_that_names_no_model_is_refused(spec, run):
    result = run("--program", "rewrite", *TASK, "--lm", spec)
    assert (
        result.code == 2
        and "--lm" in result.err
        and result.err.count("\n") == 1
        and "secret" not in result.err
    )


def test_a_name_may_have_an_at_sign_in_it():
    spec.parse("vertex_ai/claude-3-5-sonnet@20240620")
    for name in ("claude-3-5-sonnet@20240620", "@cf/meta/llama-3.1-8b-instruct"):
        assert spec.parse(f"{name}@http://x/v1") == (f"openai/{name}", "http://x/v1")


@pytest.mark.parametrize(
    "failure",
    [Failure(404), Failure(400, "", "no such thing"), Failure(405)],
    ids=["404", "a first 400", "405"],
)
def test_a_wrong_address_or_request_ends_the_run_and_poisons_nothing(failure, run, server):
    arguments = ("--program", "rewrite", *TASK, "--lm", server.spec, "--json")
    server.answer = lambda prompt: (_ for _ in ()).throw(failure)
    result = run(*arguments)
    assert result.code == 4 and (result.json["owed"], result.json["failed"]) == (3, 0)
    server.answer = sensible
    assert run(*arguments).code == 0


def test_a_400_that_comes_first_after_a_resume_is_a_fault_of_the_system_too(run, server):
    arguments = (
        "--program",
        "rewrite",
        *TASK,
        "--lm",
        server.spec,
        "--max-concurrent",
        1,
        "--json",
    )
    assert run(*arguments, "--budget-calls", 1).json["owed"] == 2
    server.answer = lambda prompt: (_ for _ in ()).throw(Failure(400, "content_filter"))
    result = run(*arguments)
    assert result.code == 7 and (result.json["owed"], result.json["failed"]) == (0, 2), (
        "the model has answered before"
    )


def test_an_outage_that_the_program_swallowed_is_not_an_outcome(run, server, monkeypatch):
    forward = Rewrite.forward

    def lenient(self, query):
        try:
            return forward(self, query)
        except dspy.LMError:
            session = current()
            return session.submit([snippet.doc_id for snippet in session.search(query.text, 10)])

    monkeypatch.setattr(Rewrite, "forward", lenient)
    server.answer = lambda prompt: (_ for _ in ()).throw(Failure(503))
    result = run("--program", "rewrite", *TASK, "--lm", server.spec, "--json")
    assert result.code == 7 and result.json["owed"] == 3


def test_the_list_price_takes_no_account_of_the_providers_cache():
    metered = LanguageModel("openai/gpt-5.2", RunResources(), cost=price("openai/gpt-5.2"))
    reported = {
        "prompt_tokens": 1000,
        "completion_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 900},
    }
    usage = metered.client.usage_of(reported)
    assert 0 < usage.paid_usd < usage.list_usd == price("openai/gpt-5.2").of(1000, 0, 10)


def test_an_awaited_answer_is_repaired_too(server):
    server.answer = lambda prompt: (
        sensible(prompt) if "no fields" in prompt else {"raw": "no fields"}
    )

    async def ask():
        with language_model.connect(server.spec).active():
            return await dspy.Predict(RewriteDescription).acall(
                objective="", description="a harbour ferry"
            )

    assert asyncio.run(ask()).rewritten
    assert len(server.requests) == 2


def test_a_missing_key_is_said_before_anything_is_made(run, monkeypatch, tmp_path):
    spec, key = "openai/gpt-5.2", "OPENAI_API_KEY"
    monkeypatch.delenv(key, raising=False)
    result = run("--program", "rewrite", *TASK, "--lm", spec)
    assert result.code == 4 and result.err.count("error:") == 1 and f"${key}" in result.err
    assert result.out == "" and not list(tmp_path.rglob("config.json"))
    assert run("--program", "rewrite", *TASK, "--lm", spec, "--dry-run").code == 0


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        (Failure(400, "unsupported_value", "'temperature' does not support 0"), "--temperature 1"),
        (Failure(404), "which ends in /v1"),
    ],
    ids=["temperature", "404"],
)
def test_a_refusal_says_what_to_do_about_it(failure, remedy, run, server):
    def refuse(prompt):
        raise failure

    server.answer = refuse
    result = run("--program", "rewrite", *TASK, "--lm", server.spec)
    assert result.code == 4 and remedy in result.err


@pytest.mark.parametrize(
    ("spec", "temperature"), [("openai/gpt-4o-mini", 0.0), ("openai/gpt-5.2", None)]
)
def test_a_reasoning_model_is_sent_no_temperature(spec, temperature, run, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    monkeypatch.setenv("OPENAI_BASE_URL", server.spec.partition("@")[2])
    result = run("--program", "rewrite", *TASK, "--lm", spec, "--json", "--budget-usd", 1)
    assert result.code == 0, result.err
    assert server.requests[0].get("temperature") == temperature
    assert 0 < result.json["usage"]["paid_usd"] == result.json["usage"]["list_usd"] < 1


@pytest.mark.parametrize("field", ["model", "messages", "input"])
def test_extra_fields_that_each_request_has_are_refused_before_anything_is_sent(field, server):
    settings = spec.ModelSettings(extra_body={field: None})
    with pytest.raises(UsageError, match=f"--extra-body has '{field}'"):
        language_model.connect(server.spec, settings=settings)
    assert not server.requests
