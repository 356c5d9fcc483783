"""`sextant models check`: what works on a server is told apart from what does not, with a command that does."""

import shlex

import pytest
from bad_server import always, fine, told

from sextant.tools.errors import UsageError
from sextant.tools.models import __main__ as models
from sextant.tools.models import model_check
from sextant.tools.models.call_limits import Speed
from sextant.tools.models.model_spec import parse


@pytest.fixture
def check(command_of):
    command = command_of(models)
    return lambda *words: command("check", *words)


def test_what_works_and_what_is_needed_is_told_and_the_command_that_it_recommends_is_one(
    check, bad, run
):
    bad.models = {"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 4096}]}
    no_schema = told("no schema", 400, "response_format is not supported")
    bad.script = lambda number, body: no_schema if "response_format" in body else fine()
    found = check(bad.spec, "--json", "--seed", 3).json
    assert (found["chat"], found["server"], found["window"]) == ("works", "vllm", 4096)
    assert found["tools"].startswith("no call of the tool") and "not supported" in found["schema"]
    assert (
        found["requests"] == len(bad.tries)
        and found["tokens_out"] > 0
        and found["tokens_a_second"] > 0
    )
    assert {
        one.body.get("max_tokens", one.body.get("max_completion_tokens")) for one in bad.tries
    } == {64, 512}
    words = shlex.split(found["first_run"])
    assert words[-6:] == ["--seed", "3", "--max-tokens", "1024", "--structured", "off"]
    assert run(*words[2:], "--dry-run").code == 0
    text = check(bad.spec).out
    assert all(
        said in text
        for said in ("window                4,096\n", "price                 unknown\n")
    )


def test_a_name_that_the_server_refuses_is_answered_with_the_nearest_that_it_has(check, bad):
    bad.models = {"data": [{"id": "qwen3:8b"}, {"id": "llama"}]}
    bad.script = always(told("no model", 404, "no such model"))
    refused = check(bad.spec.replace("tiny", "qwen3"))
    assert refused.code == 4 and "did you mean 'qwen3:8b'" in refused.err and len(bad.tries) == 1
    assert check("@" + bad.spec.partition("@")[2]).out.split() == ["models", "qwen3:8b,", "llama"]


@pytest.mark.parametrize(
    ("spec", "code", "says"),
    [
        ("offline", 2, "nothing to check"),
        ("tiny", 2, "names no model"),
        ("openai/gpt-5-mini", 4, "$OPENAI_API_KEY"),
        ("x@http://127.0.0.1:1/v1 --header X-Team=TEAM_IS_NOT_SET", 2, "$TEAM_IS_NOT_SET"),
        ("@http://127.0.0.1:1/v1", 7, "lists no models"),
    ],
)
def test_what_cannot_be_checked_is_said_in_a_line(check, spec, code, says):
    done = check(*spec.split())
    assert done.code == code and says in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("spec", "name", "url"),
    [
        ("qwen@127.0.0.1:9999/v1", "openai/qwen", "http://127.0.0.1:9999/v1"),
        ("qwen2.5:7b@localhost:11434/v1", "openai/qwen2.5:7b", "http://localhost:11434/v1"),
        ("org/model@gpu7:8000/v1", "openai/org/model", "http://gpu7:8000/v1"),
        ("qwen@[::1]/v1", "openai/qwen", "http://[::1]/v1"),
        ("qwen@https://gpu7:8000/v1", "openai/qwen", "https://gpu7:8000/v1"),
        ("vertex_ai/claude@20240620", "vertex_ai/claude@20240620", ""),
        ("cloudflare/@cf/meta/llama-2", "cloudflare/@cf/meta/llama-2", ""),
    ],
)
def test_an_address_with_a_port_or_of_this_machine_needs_no_scheme(spec, name, url):
    assert parse(spec) == (name, url)


def test_any_other_address_without_a_scheme_is_refused_without_showing_what_may_be_a_key():
    with pytest.raises(
        UsageError, match=r"'qwen@\.\.\.' names a server without http; write"
    ) as error:
        parse("qwen@key:secret@api.example.com/v1")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("speed", "begins", "max_tokens"),
    [
        (Speed(), "--program multihop --task congress --limit 3", 4096),
        (Speed(5000.0, 80.0), "--program multihop --task congress --limit 3", 4096),
        (Speed(400.0, 30.0), "--program multihop --task congress --limit 2", 512),
        (Speed(300.0, 15.0), "--program multihop --task congress --limit 1", 512),
        (Speed(20.0, 5.0), "--program rewrite --task congress --limit 3", 256),
        (Speed(2.0, 1.0), "--program rewrite --task congress --limit 1", 128),
    ],
)
def test_the_slower_a_server_is_the_smaller_is_the_first_run(speed, begins, max_tokens):
    chosen = model_check._choose_first_run(speed, 4096)
    assert chosen.words.startswith(begins) and chosen.max_tokens == max_tokens
    assert chosen.minutes is None or chosen.minutes <= 5 or speed.write == 1.0


def test_a_long_prompt_measures_the_speed_which_the_next_command_knows(check, bad):
    found = check(bad.spec, "--json").json
    longest = max(len(str(one.body["messages"])) for one in bad.tries)
    assert longest > 1000 and found["requests"] == len(bad.tries)
    assert found["first_run_minutes"] is None, "its answers come whole, so nothing tells how fast"
