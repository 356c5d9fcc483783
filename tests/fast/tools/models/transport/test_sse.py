"""Streamed answers: each says what the same answer says in one piece, and what OpenAI's own client reads in it."""

import json
import ssl
import time

import openai
import pytest
from openai_server import streamed

from tools.errors import UsageError
from tools.models import language_model, model_spec, secrets
from tools.models.answer_faults import COMPLETED
from tools.models.retry_policy import RetryPolicy
from tools.models.run_resources import RunResources
from tools.models.server_detection import KINDS
from tools.models.transport import sse
from tools.models.transport.openai_client import UnreadableResponse, read_completion

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def answer(finish="stop", **message):
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": None} | message,
    }
    about = {"id": "x", "object": "chat.completion", "created": 1, "model": "tiny"}
    return about | {"choices": [choice], "usage": USAGE}


def call(number, arguments):
    return {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": "search", "arguments": arguments},
    }


ANSWERS = {
    "text": answer(content='[[ ## search ## ]]\n"ü" 🐟 \\ud83d\n\n[[ ## completed ## ]]'),
    "thoughts": answer(content="yes", reasoning_content="It may be, or not."),
    "refusal": answer(refusal="I won't."),
    "tools": answer(
        "tool_calls", content="I look.", tool_calls=[call(1, '{"query": "ü"}'), call(2, "{}")]
    ),
    "nothing": answer(content=""),
}


@pytest.mark.parametrize("whole", ANSWERS.values(), ids=ANSWERS.keys())
def test_a_stream_says_what_the_answer_says_in_one_piece_and_what_openai_s_client_reads_in_it(
    whole, server
):
    reference = read_completion("chat", json.dumps(whole).encode(), "tiny")
    for letters in (1, 7, 1000):
        assert read_completion("chat", b"".join(streamed(whole, letters)), "tiny") == reference
    server.reply = lambda path, body: whole
    client = openai.OpenAI(base_url=server.spec.partition("@")[2], api_key="key", max_retries=0)
    with client.chat.completions.stream(
        model="tiny", messages=[], stream_options={"include_usage": True}
    ) as theirs:
        message = theirs.get_final_completion().choices[0].message
    calls = [
        (one.id, one.function.name, one.function.arguments) for one in message.tool_calls or ()
    ]
    text = message.content or message.refusal or ""
    assert (text, calls) == (reference.text, [tuple(one.values()) for one in reference.tool_calls])


EVENTS = streamed(ANSWERS["text"], 7)
ERROR = b'data: {"error": {"message": "out of memory", "code": 503}}\n\n'


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"".join(EVENTS[:4]), "broke off"),
        (b"".join(EVENTS[:4]) + b'data: {"choices": [{"del', "no answer that can be read"),
        (b"".join([*EVENTS[:4], ERROR, EVENTS[-1]]), "out of memory"),
        (b"data: [1]\n\n", "no answer that can be read"),
        (b": nothing yet\n\n", "broke off"),
    ],
)
def test_a_stream_that_breaks_off_or_meets_an_error_is_no_answer(body, error):
    with pytest.raises((UnreadableResponse, language_model.dspy.LMError), match=error):
        read_completion("chat", body, "tiny")


def test_comments_line_ends_of_windows_and_calls_that_all_have_one_number_are_read():
    pieces = [{"index": 0, **call(1, '{"query": "a"}')}, {"index": 0, **call(2, '{"query": "b"}')}]
    events = [json.dumps({"choices": [{"delta": {"tool_calls": [one]}}]}) for one in pieces]
    body = "\r\n\r\n".join([": waiting", *(f"data: {event}" for event in (*events, "[DONE]")), ""])
    reply = read_completion("chat", body.encode(), "tiny")
    assert [one["arguments"] for one in reply.tool_calls] == ['{"query": "a"}', '{"query": "b"}']


def test_a_stream_of_responses_is_its_last_event():
    item = {"type": "message", "content": [{"type": "output_text", "text": "yes"}]}
    whole = {
        "status": "completed",
        "output": [item],
        "usage": {"input_tokens": 9, "output_tokens": 3},
    }
    parts = [
        {"type": "response.output_text.delta", "delta": "yes"},
        {"type": "response.completed", "response": whole},
    ]
    body = b"".join(
        b"event: %s\ndata: %s\n\n" % (one["type"].encode(), json.dumps(one).encode())
        for one in parts
    )
    assert read_completion("responses", body, "tiny") == read_completion(
        "responses", json.dumps(whole).encode(), "tiny"
    )
    assert body[: sse.first_token_offset(body)].endswith(b'"delta": "y')


def connected(server, kind="", **settings):
    made = language_model.connect(
        server.spec,
        RunResources(patience=RetryPolicy(attempts=1)),
        settings=language_model.ModelSettings(**settings),
    ).lm
    made.wire.server = made.wire.server._replace(kind=KINDS[kind])
    return made


def sent(model):
    body = model.wire.body([{"role": "user", "content": "?"}], (), model.kwargs)
    return model.wire.send(body, time.monotonic() + 60, last=COMPLETED)[0]


@pytest.mark.parametrize(
    ("kind", "when", "streams"),
    [("vllm", "auto", True), ("", "auto", False), ("vllm", "off", False), ("", "on", True)],
)
def test_a_stream_is_asked_for_where_it_is_wanted_and_what_is_kept_is_the_same(
    kind, when, streams, server
):
    server.answer = lambda prompt: {"raw": "yes"}
    more = {"chat_template_kwargs": {"thinking": False}}
    model = connected(server, kind, stream=when, max_tokens=50, extra_body=more)
    reply = sent(model)
    assert reply.text == "yes" and (reply.first is not None) == streams == server.requests[0].get(
        "stream", False
    )
    assert more.items() <= server.requests[0].items()
    assert b"stream" not in model.wire.body([], (), model.kwargs)
    server.page = json.dumps(
        answer("length", content="on and on")
    ).encode()  # in one piece, whatever was asked for
    assert sent(model).finish == "length"


def test_a_stream_is_left_when_the_last_field_is_complete_and_what_was_used_until_then_is_known():
    whole = answer(content=f"[[ ## search ## ]]\nblood\n\n{COMPLETED}\n" + "and on " * 50)
    is_enough, taken = sse.make_stop_condition(COMPLETED), b""
    for number, event in enumerate(streamed(whole, 3)):
        piece = event.replace(
            b'"usage": null', b'"usage": {"prompt_tokens": 9, "completion_tokens": %d}' % number
        )
        taken += piece
        if is_enough(piece):
            break
    reply = read_completion("chat", taken + sse.DONE, "tiny")
    assert reply.text.partition(COMPLETED)[2].strip() in ("", "a", "an") and reply.finish == "stop"
    assert 0 < reply.usage["completion_tokens"] < 40


def test_a_header_has_the_value_of_its_variable_which_is_nowhere_else(server, monkeypatch, place):
    monkeypatch.setenv("GATEWAY", secret := "a-long-secret-of-the-gateway")
    server.answer = lambda prompt: {"raw": f"yes {secret}"}
    headers = {"Authorization": "GATEWAY", "X-Team": "GATEWAY"}
    model = language_model.connect(
        server.spec, settings=language_model.ModelSettings(headers=headers)
    )
    assert model.lm("is it?") == ["yes ***"]
    assert server.authorizations == [secret] == [server.headers[0]["X-Team".lower()]]
    assert secret in secrets.secret_values() and secret not in json.dumps(model.settings)
    assert model.settings["headers"] == headers
    with pytest.raises(UsageError, match=r"X-Team=NOWHERE: \$NOWHERE is not set"):
        model_spec.check_key(server.spec, {"X-Team": "NOWHERE"})


def test_a_client_shows_its_certificate_to_a_server_that_asks_for_one(
    server, certificate, tmp_path, monkeypatch
):
    file, context = certificate
    ours = tmp_path / "ours.pem"
    ours.write_bytes(file.read_bytes() + (file.parent / "key.pem").read_bytes())
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(file)
    server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
    server.spec = server.spec.replace("http:", "https:")
    server.answer = lambda prompt: {"raw": "yes"}
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert sent(connected(server, client_certificate=ours)).text == "yes"
    with pytest.raises(UsageError, match="--client-certificate"):
        sent(connected(server, client_certificate=file))  # without its key
