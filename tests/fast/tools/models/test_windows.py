"""How long an answer may be, and how much a model takes: said, asked for, or learnt from a refusal."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from bad_server import fine, told
from small_window import refusing

from sextant.tools.models import language_model, provider_errors
from sextant.tools.models.run_resources import RunResources


@pytest.mark.parametrize("program", ["tournament", "multihop", "react"])
def test_the_first_refusal_tells_how_much_a_model_takes_and_its_query_is_answered_again(
    program, run, bad
):
    bad.script = refusing(4096)
    job = (
        "--program",
        program,
        "--task",
        "congress",
        "--limit",
        2,
        "--max-concurrent",
        1,
        "--lm",
        bad.spec,
    )
    result = run(*job, "--json")
    assert result.code == 0 and result.json["failed"] == 0 and result.json["shortened"] > 0
    refused = [one for one in bad.tries if one.status == 400]
    assert 1 <= len(refused) <= 4
    assert result.err.count("as its refusal says; --context ") == len(refused)
    config = json.loads((Path(result.json["run"]) / "config.json").read_text())
    assert config["lm"]["max_tokens"] == 4096 and config["lm"]["window"] is None, (
        "what was asked for"
    )
    assert {one.body["max_tokens"] for one in bad.tries if one not in refused} != {4096}, (
        "what is left of the window"
    )


def test_a_recorded_run_has_what_was_learnt_so_that_it_is_replayed_with_the_same_prompts(
    run, bad, tmp_path
):
    bad.script, bad.models = refusing(4096), {"data": [{"id": "tiny", "owned_by": "vllm"}]}
    job = ("--program", "multihop", "--task", "congress", "--limit", 1, "--lm", bad.spec, "--json")
    first = run(*job, "--cassette", tmp_path / "c.jsonl")
    bad.forget(lambda number, body: told("down", 500, "nobody is there"))
    again = run(*job, "--cassette", tmp_path / "c.jsonl", "--runs", tmp_path / "again")
    assert again.code == 0 and not bad.tries
    assert (again.json["metrics"], again.json["shortened"]) == (
        first.json["metrics"],
        first.json["shortened"],
    )
    head = json.loads((tmp_path / "c.jsonl").read_text().partition("\n")[0])
    [found] = head["servers"].values()
    assert found["kind"] == "vllm" and found["window"] is None and 1000 < found["learnt"] < 4096


def test_a_model_that_takes_nothing_is_a_fault_of_the_system_after_a_few_tries(run, bad):
    words = "the input length exceeds the context length"  # Ollama's
    bad.script = lambda number, body: told("long", 500, words)
    result = run(
        "--program", "rewrite", "--task", "congress", "--limit", 1, "--lm", bad.spec, "--json"
    )
    assert result.json["failed"] == 1 and len(bad.tries) <= 4


# What servers answered to a prompt that was too long, and the tokens of window and prompt that it tells.
WORDS = {
    "maximum context length is 4096 tokens. However, you requested 5000 tokens (4500 in the messages,": (
        4096,
        4500,
    ),
    "This model's maximum context length is 8,192 tokens. However, your messages resulted in 9001 tokens": (
        8192,
        9001,
    ),
    "maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens": (
        4096,
        4097,
    ),
    "context length is 4096 tokens and your request has 900 input tokens (4096 > 4096 - 900)": (
        None,
        900,
    ),
    "You passed 900 input tokens. However, the model's context length is only 700 tokens": (
        700,
        900,
    ),
    "Prompt contains 900 tokens, too large for model with 600 maximum context length": (600, 900),
    "Request body too large for gpt-4o model. Max size: 8000 tokens.": (8000, None),
    "prompt token count of 900 exceeds the limit of 600": (600, 900),
    "Range of input length should be [1, 30720]": (30720, None),
    "Your request exceeded model token limit: 8192 (requested: 9001)": (8192, 9001),
    "Input length (900 tokens) exceeds the maximum allowed length (600 tokens).": (600, 900),
    "the number of input tokens 900 cannot exceed the total tokens limit 600": (600, 900),
    "Requested tokens (5234) exceed context window of 4096": (4096, 5234),
    "request (5234 tokens) exceeds the available context size (4096 tokens), try increasing it": (
        4096,
        5234,
    ),
    "prompt is too long: 210000 tokens > 200000 maximum": (200000, 210000),
    "input token count (1100000) exceeds the maximum number of tokens allowed (1048576).": (
        1048576,
        1100000,
    ),
    "Input length (5000) exceeds model's maximum context length (4096).": (4096, 5000),
    "Please reduce the length of the messages. Current length is 9000 while limit is 8192": (
        8192,
        9000,
    ),
    "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4500 `inputs` tokens and 500": (
        4096,
        4500,
    ),
    "input is too long": (None, None),
}


@pytest.mark.parametrize("words", WORDS)
def test_a_refusal_s_own_words_tell_the_window_and_the_prompt(words):
    assert provider_errors.read_window(Exception(words)) == WORDS[words]


def test_the_limit_of_an_answer_is_the_user_s_or_that_of_the_model_and_never_too_long(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    file = tmp_path / "prices.toml"
    file.write_text('["tiny@http://127.0.0.1:9/v1"]\ninput = 0\noutput = 0\nmax_tokens = 700\n')
    settings = language_model.ModelSettings(max_tokens=50, reasoning_tokens=20)

    def limit(spec, settings=language_model.DEFAULTS):
        return language_model.connect(spec, RunResources(prices=file), settings=settings).settings[
            "max_tokens"
        ]

    assert (
        limit("tiny@http://127.0.0.1:9/v1") == 700 and limit("other@http://127.0.0.1:9/v1") == 4096
    )
    assert limit("openai/gpt-5.2") == 16_384 and limit("gpt-5.2@http://127.0.0.1:9/v1") == 16_384
    assert limit("openai/gpt-5.2", settings) == 70
    model = language_model.connect(
        "azure/gpt-5-mini", RunResources(), settings=language_model.ModelSettings(max_tokens=70)
    ).lm
    assert model.kwargs["max_completion_tokens"] == 70, "which DSPy finds too small to make it with"


def test_a_server_that_asks_for_another_word_for_the_limit_is_sent_that_one(bad):
    words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    refused = told("word", 400, words, "unsupported_parameter")
    bad.script = lambda number, body: refused if "max_tokens" in body else fine()
    model = language_model.connect(bad.spec).lm
    assert model("yes?") and model("no?")
    assert [sorted(one.body)[0] for one in bad.tries] == ["max_tokens"] + [
        "max_completion_tokens"
    ] * 2


ASKED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Search."},
    {"role": "assistant", "content": "", "tool_calls": []},
    {"role": "tool", "tool_call_id": "1", "content": "[]"},
    {"role": "user", "content": "Again."},
]


@pytest.mark.parametrize(
    ("status", "words", "refuses", "roles"),
    [
        (400, "System role not supported", {"system"}, "uatau"),
        (500, "Jinja Exception: System role not supported", {"system"}, "uatau"),
        (400, "Developer instruction is not enabled for models/gemma-3", {"system"}, "uatau"),
        (400, "Unexpected role 'user' after role 'tool'", {"tool user"}, "suatau"),
        (400, "Conversation roles must alternate user/assistant/...", {"tool user", "system"}, "uatau"),
    ],
)  # fmt: skip
def test_a_server_whose_template_refuses_roles_is_sent_those_that_it_takes(
    status, words, refuses, roles, bad
):
    def answer(number, body):
        sent = [message["role"] for message in body["messages"]]
        pairs = {" ".join(pair) for pair in pairwise(sent)}
        return told("roles", status, words) if refuses & {*sent, *pairs} else fine()

    bad.script = answer
    model = language_model.connect(bad.spec).lm
    assert model(messages=ASKED) and model(messages=ASKED)
    last = bad.tries[-1].body["messages"]
    assert "".join(message["role"][0] for message in last) == roles
    told_once = "\n\n".join(message["content"] for message in last if message["role"] != "tool")
    assert told_once.startswith("Be brief.\n\nSearch.") and told_once.endswith("Again.")
    assert len(bad.tries) <= 4
