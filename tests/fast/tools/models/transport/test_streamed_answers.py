"""Streamed answers: each says what the same answer says in one piece, and what OpenAI's own client reads in it."""

import json
import math
import ssl
import time
from contextlib import nullcontext

import httpx
import openai
import pytest
from openai_server import streamed

from sextant.tools.errors import UsageError
from sextant.tools.models import language_model, model_spec, secrets
from sextant.tools.models.answers.checks import COMPLETED
from sextant.tools.models.call_limits import RetryPolicy
from sextant.tools.models.model_spec import ModelSettings
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.server_detection import KINDS
from sextant.tools.models.transport import streams
from sextant.tools.models.transport.openai_client import (
    OpenAIClient,
    UnreadableResponse,
    read_completion,
)
from sextant.tools.models.transport.streams import StreamReader

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
        (b'error: {"code": 500, "message": "the cache is full"}\n\n', "the cache is full"),
        (b'event: error\r\ndata: {"message": "out of memory"}\r\n\r\n', "out of memory"),
        (b'event: error\ndata: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (b'data: {"object": "error", "message": "no such model"}\n\ndata: [DONE]\n\n', "no such"),
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
    assert body[: streams.first_token_offset(body)].endswith(b'"delta": "y')


def connected(server, kind="", **settings):
    made = language_model.connect(
        server.spec,
        RunResources(patience=RetryPolicy(attempts=1)),
        settings=language_model.ModelSettings(**settings),
    ).lm
    made.transport.server = made.transport.server._replace(kind=KINDS[kind])
    return made


def sent(model):
    body = model.transport.body([{"role": "user", "content": "?"}], (), model.kwargs)
    return model.transport.send(body, "", None, time.monotonic() + 60, last=COMPLETED)


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
    assert reply.outputs == ["yes"] and (reply.first is not None) == streams == server.requests[
        0
    ].get("stream", False)
    assert more.items() <= server.requests[0].items()
    assert b"stream" not in model.transport.body([], (), model.kwargs)
    server.page = json.dumps(
        answer("length", content="on and on")
    ).encode()  # in one piece, whatever was asked for
    assert sent(model).finish == "length"


def test_a_stream_is_left_when_the_last_field_is_complete_and_what_was_used_until_then_is_known():
    whole = answer(content=f"[[ ## search ## ]]\nblood\n\n{COMPLETED}\n" + "and on " * 50)
    reader = StreamReader(COMPLETED)
    taken = b""
    for number, event in enumerate(streamed(whole, 3)):
        piece = event.replace(
            b'"usage": null', b'"usage": {"prompt_tokens": 9, "completion_tokens": %d}' % number
        )
        taken += piece
        if reader.take(piece):
            break
    assert reader.finish == "stop"
    reply = read_completion("chat", streams.end_stream(taken), "tiny")
    assert reply.text.partition(COMPLETED)[2].strip() in ("", "a", "an") and reply.finish == "stop"
    assert 0 < reply.usage["completion_tokens"] < 40


LOOP = "flood relief\n" + '"D12", "D7", ' * 900
SAYING = {
    "text": ({"content": LOOP}, lambda reply: reply.outputs[0]),
    "thoughts": ({"content": "", "reasoning_content": LOOP}, lambda reply: reply.reasoning[:26]),
    "call": (
        {"content": "", "tool_calls": [call(1, LOOP)]},
        lambda reply: reply.outputs[0]["tool_calls"][0]["arguments"],
    ),
}


@pytest.mark.parametrize(("message", "read"), SAYING.values(), ids=SAYING.keys())
@pytest.mark.parametrize("metered", [True, False])
def test_a_stream_that_repeats_itself_is_left_and_used_up_to_there(
    message, read, metered, monkeypatch
):
    events = streamed(answer("length", **message), 3)
    sent_events = []

    def stream():
        for number, event in enumerate(events):
            if metered:
                usage = b'"usage": {"prompt_tokens": 9, "completion_tokens": %d}' % (number + 1)
                event = event.replace(b'"usage": null', usage)
            sent_events.append(event)
            # Pieces end anywhere, and the last one inside an event
            middle = len(event) // 2
            yield event[:middle]
            yield event[middle:]

    class Client:
        def post(self, path, **request):
            return httpx.Response(200, content=stream())

    transport = OpenAIClient("tiny", "http://127.0.0.1:9/v1", settings=ModelSettings(stream="on"))
    monkeypatch.setattr(transport, "asking", lambda deadline, tools: nullcontext((Client(), None)))
    asked = transport.body([{"role": "user", "content": "is it?"}], (), {"max_tokens": 4096})
    tools = "tool_calls" in message
    reply = transport.send(asked, "", 4096, math.inf, tools=tools, last=COMPLETED)
    assert len(sent_events) < 400 < len(events)
    assert reply.finish == "repetition"
    assert read(reply) == 'flood relief\n"D12", "D7", '
    written = reply.usage["completion_tokens"]
    # Without the server's count it is ours, and an event has a token at least
    assert abs(written - len(sent_events)) < 5 or (not metered and written > len(sent_events))


def test_a_stream_of_responses_is_followed_by_its_deltas_alone():
    text = "The witness spoke of the flood, and of what came after it. " * 3
    deltas = [text[at : at + 9] for at in range(0, len(text), 9)]
    events = [{"type": "response.output_text.delta", "delta": delta} for delta in deltas]
    whole = {"output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]}
    ends = [{"type": "response.output_text.done", "text": text}] * 5
    ends.append({"type": "response.completed", "response": whole})
    reader = StreamReader(chat=False)
    bodies = [b"data: %s\n\n" % json.dumps(event).encode() for event in (*events, *ends)]
    assert not any(map(reader.take, bodies))
    left = read_completion("responses", streams.end_stream(b"".join(bodies[:5])), "tiny")
    assert (left.text, left.finish) == (text[:45], "length")
    with pytest.raises(language_model.dspy.LMError, match="broke off"):
        read_completion("responses", b"".join(bodies[:5]), "tiny")


PACE = 0.01  # seconds from token to token
TIME = 2.0  # seconds until a call is cut; a loaded machine writes a token meanwhile
SILENCE = 0.8  # seconds without a word until a call is cut


@pytest.fixture
def slow(server, place):
    """A model that writes on until its time is up."""
    resources = RunResources(patience=RetryPolicy(attempts=3, first=0.01, call=TIME))
    model = language_model.connect(server.spec, resources, settings=ModelSettings(stream="on"))
    server.answer = lambda prompt: {"raw": "yes"}
    model.lm("is it?")  # the connection is there
    server.requests.clear()
    resources.open(place)
    server.pace = PACE
    server.answer = lambda prompt: {"raw": " ".join(map(str, range(5000)))}
    return model


def test_an_answer_that_goes_on_when_its_time_is_up_is_cut_and_not_asked_for_again(slow, server):
    [text] = slow.lm("count")
    assert "0 1 2 3".startswith(text[:7]) and len(text) > 7
    usage_totals = slow.resources.usage_totals
    assert (usage_totals.sent, usage_totals.answered, usage_totals.faults) == (2, 2, {})
    assert usage_totals.usage.output_tokens > 3 and not usage_totals.usage.unmetered
    assert slow.lm("count") == [text], "from the ledger"
    assert len(server.requests) == 1


def test_an_answer_that_is_cut_by_the_time_of_its_query_is_asked_for_again(slow, server):
    slow.resources.query_seconds = TIME
    slow.resources.patience = RetryPolicy(attempts=3, first=0.01, call=60 * TIME)
    with slow.active(), pytest.raises(language_model.dspy.LMTimeoutError, match="time is up"):
        slow.lm("count")
    usage_totals = slow.resources.usage_totals
    assert (usage_totals.answered, sum(usage_totals.faults.values())) == (1, 1)
    assert usage_totals.usage.output_tokens > 3


def test_a_call_without_a_word_says_that_the_time_of_its_query_is_up(slow, server):
    slow.resources.query_seconds = 0.3
    server.reply = lambda path, body: time.sleep(2) or {}
    with (
        slow.active(),
        pytest.raises(language_model.dspy.LMTimeoutError, match=r"time is up.*no whole"),
    ):
        slow.lm("count")


@pytest.mark.parametrize("words", ["", "one two"])
def test_a_server_that_falls_silent_until_the_deadline_is_at_fault(slow, server, words):
    def reply(path, body):
        if not words:
            time.sleep(2 * SILENCE)
        return {"choices": [{"message": {"content": words}, "finish_reason": "stop"}]}

    server.reply = reply
    slow.resources.patience = RetryPolicy(attempts=3, first=0.01, call=SILENCE)
    server.pace = SILENCE if words else 0.0
    with pytest.raises(language_model.dspy.LMTimeoutError, match="no whole answer in time"):
        slow.lm("count")
    assert slow.resources.usage_totals.answered == 1


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
    assert sent(connected(server, client_certificate=ours)).outputs == ["yes"]
    with pytest.raises(UsageError, match="--client-certificate"):
        sent(connected(server, client_certificate=file))  # without its key
