"""OpenAI's two protocols, held to OpenAI's own client and types; and whatever servers make of them."""

import json
import time

import dspy
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sextant.tools.models import language_model, provider_errors
from sextant.tools.models.model_spec import ModelSettings, ServerInfo
from sextant.tools.models.server_detection import KINDS
from sextant.tools.models.transport.http_client import HttpResponse
from sextant.tools.models.transport.openai_client import (
    Completion,
    OpenAIClient,
    UnreadableResponse,
    error_from_response,
    read_completion,
    write_server_limits,
)


def body(api, *request):
    return OpenAIClient("tiny", "http://127.0.0.1", settings=ModelSettings(api=api)).body(*request)


SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    },
}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "search", "arguments": '{"query": "ü"}'},
}
CONVERSATION = [
    {"role": "system", "content": "Search."},
    {"role": "user", "content": "Blue blood? \u2028 </x>"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "[]"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{**CALL, "id": "c2"}, {**CALL, "id": "c3"}],
    },
    {"role": "tool", "tool_call_id": "c2", "content": "none"},
    {"role": "tool", "tool_call_id": "c3", "content": ""},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "One more step."},
]
SETTINGS = {"temperature": 0.0, "seed": 7, "reasoning_effort": "low", "max_tokens": 50}


def client(server):
    return openai.OpenAI(base_url=server.spec.partition("@")[2], api_key="key", max_retries=0)


def as_responses(output, status="completed", **more):
    usage = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    usage |= {
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens_details": {"reasoning_tokens": 1},
    }
    about = {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "tiny",
        "parallel_tool_calls": True,
    }
    rest = {
        "tools": [],
        "tool_choice": "auto",
        "error": None,
        "incomplete_details": None,
        "usage": usage,
    }
    return about | rest | {"status": status, "output": output} | more


def message(*parts):
    return {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": list(parts),
    }


def said(text):
    return {"type": "output_text", "text": text, "annotations": []}


def called(name, arguments, number=1):
    about = {
        "type": "function_call",
        "id": f"fc-{number}",
        "call_id": f"call-{number}",
        "status": "completed",
    }
    return about | {"name": name, "arguments": arguments}


REASONING = {
    "type": "reasoning",
    "id": "rs",
    "summary": [{"type": "summary_text", "text": "Hm, a secret thought."}],
}


def test_a_conversation_over_responses_is_what_openai_s_client_sends_for_it(server):
    server.reply = lambda path, request: as_responses([message(said("yes"))])
    call = {"type": "function_call", "name": "search", "arguments": '{"query": "ü"}'}
    client(server).responses.create(
        model="tiny",
        input=[
            {"role": "system", "content": "Search."},
            {"role": "user", "content": "Blue blood? \u2028 </x>"},
            {"role": "assistant", "content": "I look."},
            {**call, "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "[]"},
            {**call, "call_id": "c2"},
            {**call, "call_id": "c3"},
            {"type": "function_call_output", "call_id": "c2", "output": "none"},
            {"type": "function_call_output", "call_id": "c3", "output": ""},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "One more step."},
        ],
        tools=[{"type": "function", "strict": False, **SEARCH["function"]}],
        reasoning={"effort": "low"},
        max_output_tokens=50,
        temperature=0.0,
        store=False,
    )
    ours = write_server_limits(
        body("responses", CONVERSATION, [SEARCH], SETTINGS), ["max_output_tokens"]
    )
    assert json.loads(ours) == server.requests[0]


def test_a_conversation_over_chat_is_what_openai_s_client_sends_for_it(server):
    server.answer = lambda prompt: {"raw": "yes"}
    client(server).chat.completions.create(
        model="tiny", messages=CONVERSATION, tools=[SEARCH], **SETTINGS
    )
    assert json.loads(body("chat", CONVERSATION, [SEARCH], SETTINGS)) == server.requests[0]


def test_lone_surrogates_in_a_text_reach_a_server_as_json():
    asked = [{"role": "user", "content": "half of \ud83d"}]
    for api in ("chat", "responses"):
        sent = json.loads(body(api, asked, (), {}))
        assert sent.get("messages", sent.get("input")) == asked


# What the user asks for: what is in the body of chat, and of responses, and the limit of an answer:
# the signature's is 500 with 48 for its form
SETTABLE = {
    ("--max-tokens", 9): ({"temperature": 0.0}, {"temperature": 0.0}, 9),
    ("--temperature", "0.7"): ({"temperature": 0.7}, {"temperature": 0.7}, 548),
    ("--reasoning-effort", "high"): (
        {"temperature": 0.0, "reasoning_effort": "high"},
        {"temperature": 0.0, "reasoning": {"effort": "high"}},
        4096,
    ),
}


@pytest.mark.parametrize("asked", SETTABLE)
def test_what_the_user_sets_reaches_the_request_and_nothing_else_does(asked, run, server):
    chat = server.reply
    arguments = (
        "--program",
        "rewrite",
        "--task",
        "congress",
        "--limit",
        1,
        "--lm",
        server.spec,
        "--json",
    )
    assert run(*arguments, *asked).code == 0

    def reply(path, request):
        answer = chat(path, {"model": "tiny", "messages": request["input"]})
        return as_responses([message(said(answer["choices"][0]["message"]["content"]))])

    server.reply = reply
    assert run(*arguments, *asked, "--api", "responses").code == 0
    ours, others = server.requests
    in_chat, in_responses, limit = SETTABLE[asked]
    assert ours.pop("max_tokens") == others.pop("max_output_tokens") == limit
    ours = {name: value for name, value in ours.items() if name not in ("model", "messages")}
    assert ours == in_chat
    others = {name: value for name, value in others.items() if name not in ("model", "input")}
    assert others == in_responses | {"store": False}


def test_a_limit_of_reasoning_is_where_the_server_has_it_and_else_refused_before_a_call(
    run, server
):
    arguments = ("--program", "rewrite", "--task", "congress", "--limit", 1, "--lm", server.spec)
    refused = run(*arguments, "--reasoning-tokens", 500)
    assert refused.code == 2 and "--extra-body" in refused.err and not server.requests
    server.answer = lambda prompt: {"raw": "yes"}
    asked = [{"role": "user", "content": "?"}]
    found = {
        "vllm": {"thinking_token_budget": 500},
        "openrouter": {"reasoning": {"max_tokens": 500}},
        "gemini": {"extra_body": {"google": {"thinking_config": {"thinking_budget": 500}}}},
    }
    for kind, words in found.items():
        transport = OpenAIClient(
            "tiny",
            server.spec.partition("@")[2],
            settings=ModelSettings(reasoning_tokens=500, stream="off"),
        )
        transport.server = ServerInfo(KINDS[kind])
        body = transport.body(asked, (), {"reasoning_tokens": 500})
        transport.send(body, "", None, time.monotonic() + 30)
        assert server.requests[-1] == {"model": "tiny", "messages": asked} | words


def test_two_queries_of_a_predictor_begin_alike_and_the_beginning_is_marked_for_a_cache_that_needs_it(
    server,
):
    predict = dspy.Predict("description -> text")
    predict.demos = [{"description": "a long one " * 1000, "text": "yes"}]
    for name in ("tiny", "anthropic/claude-sonnet-4.5"):
        model = language_model.connect(server.spec.replace("tiny", name))
        model.lm.transport.server = ServerInfo(KINDS["openrouter"])
        with model.active():
            predict(description="crabs"), predict(description="squids")
        ours, others = (list(request["messages"]) for request in server.requests[-2:])
        assert [one["role"] for one in ours] == ["system", "user", "assistant", "user"]
        assert ours[:-1] == others[:-1] and ours[-1] != others[-1]
        assert ("cache_control" in str(ours[2])) == (name != "tiny") and "cache_control" not in str(
            ours[3]
        )


def test_a_seed_reaches_the_request_and_is_refused_where_the_protocol_has_none(run, server):
    arguments = (
        "--program",
        "rewrite",
        "--task",
        "congress",
        "--limit",
        1,
        "--lm",
        server.spec,
        "--seed",
        5,
    )
    assert run(*arguments).code == 0 and server.requests[0]["seed"] == 5
    refused = run(*arguments, "--api", "responses")
    assert refused.code == 2 and "takes no seed" in refused.err and len(server.requests) == 1


ANSWERS = {
    "a text": ([message(said("blue"))], {}, "stop"),
    "a text in parts": ([message(said("bl"), said("ue")), message(said("!"))], {}, "stop"),
    "thoughts before it": ([REASONING, message(said("blue"))], {}, "stop"),
    "thoughts alone": ([REASONING], {}, "stop"),
    "a call": ([REASONING, called("search", '{"query": "ü"}')], {}, "stop"),
    "calls beside a text": (
        [message(said("I look.")), called("search", "{}"), called("read", '{"doc_id": "d1"}', 2)], {}, "stop",
    ),
    "a refusal": ([message({"type": "refusal", "refusal": "I won't."})], {}, "refusal"),
    "cut off": (
        [message(said("bl"))],
        {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
        "length",
    ),
    "cut off while thinking": (
        [REASONING], {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length",
    ),
    "filtered": (
        [], {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter",
    ),
    "of a kind that is not asked for": (
        [{"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "x"}},
         message(said("blue"))], {}, "stop",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_over_responses_is_what_openai_s_client_reads_in_it(case, server):
    output, more, finish = ANSWERS[case]
    answer = as_responses(output, **more)
    server.reply = lambda path, request: answer
    theirs = client(server).responses.create(model="tiny", input="?")
    calls = [
        {"id": item.call_id, "name": item.name, "arguments": item.arguments}
        for item in theirs.output
        if item.type == "function_call"
    ]
    ours = read_completion("responses", json.dumps(answer).encode(), "tiny")
    thoughts = [
        part.text for item in theirs.output if item.type == "reasoning" for part in item.summary
    ]
    messages = [item for item in theirs.output if item.type == "message"]
    refusal = "".join(
        part.refusal for item in messages for part in item.content if part.type == "refusal"
    )
    assert ours == Completion(
        theirs.output_text or refusal, calls, finish, answer["usage"], "".join(thoughts)
    )


@pytest.mark.parametrize("error", [None, {"code": "server_error", "message": "not now"}, "not now"])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_error_or_nothing_in_a_200_is_no_answer_and_keeps_its_words_and_what_it_used(api, error):
    answer = as_responses([], status="failed" if error else "completed", error=error)
    with pytest.raises(dspy.LMError, match="not now" if error else "no message") as caught:
        read_completion(api, json.dumps(answer).encode(), "tiny")
    assert (
        caught.value.usage == answer["usage"]
        and provider_errors.responsible_party(caught.value) == "provider"
    )
    assert (
        dspy.is_retryable_lm_error(caught.value)
        and not provider_errors.error_label(caught.value).isdigit()
    )


def chat(said, **more):
    return {
        "choices": [{"index": 0, "message": said, "finish_reason": "stop", **more}],
        "usage": {"prompt_tokens": 1},
    }


ODD = {
    "null content": (chat({"content": None}), "", [], "stop"),
    "no content": (chat({"role": "assistant"}), "", [], "stop"),
    "content in parts": (chat({"content": [{"text": "bl"}, {"text": "ue"}, "x", 3]}), "blue", [], "stop"),
    "content that is no text": (chat({"content": 7}), "", [], "stop"),
    "no reason": (chat({"content": "blue"}, finish_reason=None), "blue", [], "stop"),
    "cut off": (chat({"content": "bl"}, finish_reason="length"), "bl", [], "length"),
    "a refusal": (chat({"content": None, "refusal": "I won't."}), "I won't.", [], "refusal"),
    "null calls": (chat({"content": "blue", "tool_calls": None}), "blue", [], "stop"),
    "arguments as an object": (
        chat({"content": "", "tool_calls": [{"id": "1", "function": {"name": "read", "arguments": {"doc_id": "d1"}}}]}),
        "", [{"id": "1", "name": "read", "arguments": '{"doc_id": "d1"}'}], "stop",
    ),
    "a call of nothing": (
        chat({"content": "", "tool_calls": [{"id": 5, "function": None}, {}]}),
        "", [{"id": "5", "name": "", "arguments": ""}, {"id": "", "name": "", "arguments": ""}], "stop",
    ),
    "arguments beside the name": (
        chat({"content": "", "tool_calls": {"id": None, "name": "read", "arguments": "{}"}}),
        "", [{"id": "", "name": "read", "arguments": "{}"}], "stop",
    ),
    "the one call of earlier days": (
        chat({"content": None, "function_call": {"name": "read", "arguments": "{}"}}, finish_reason="function_call"),
        "", [{"id": "", "name": "read", "arguments": "{}"}], "function_call",
    ),
    "cut off, says Mistral": (chat({"content": "bl"}, finish_reason="model_length"), "bl", [], "length"),
    "cut off, says Gemini": (chat({"content": "bl"}, finish_reason="MAX_TOKENS"), "bl", [], "length"),
    "no message, as thoughts took all tokens": (
        {"choices": [{"index": 0, "finish_reason": "length"}], "usage": None}, "", [], "length",
    ),
    "no message, says a filter": (chat(None, finish_reason="content_filter"), "", [], "content_filter"),
    "a second choice": (
        {"choices": [*chat({"content": "blue"})["choices"], *chat({"content": "red"})["choices"]], "usage": None},
        "blue", [], "stop",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_an_odd_answer_over_chat_is_read_as_far_as_it_can_be(case):
    answer, text, calls, finish = ODD[case]
    assert read_completion("chat", json.dumps(answer).encode(), "tiny") == Completion(
        text, calls, finish, answer["usage"]
    )


THOUGHTS = {
    "reasoning_content": {"content": "blue", "reasoning_content": "hm"},
    "reasoning": {"content": "blue", "reasoning": "hm"},
    "both": {"content": "blue", "reasoning_content": "hm", "reasoning": "hm"},
    "Ollama": {"content": "blue", "thinking": "hm"},
    "LiteLLM": {
        "content": "blue",
        "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "x"}],
    },
    "OpenRouter": {
        "content": "blue",
        "reasoning_details": [{"type": "reasoning.text", "text": "hm"}],
    },
    "Anthropic": {
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "blue"}]
    },
    "Mistral": {
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "text", "text": "blue"},
        ]
    },
    "parts of reasoning": {
        "content": [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "blue"}]
    },
}


@pytest.mark.parametrize("case", THOUGHTS)
def test_thoughts_beside_the_content_or_in_its_parts_are_reasoning_and_no_text(case):
    reply = read_completion(
        "chat", json.dumps(chat({"role": "assistant", **THOUGHTS[case]})).encode(), "tiny"
    )
    assert (reply.text, reply.reasoning) == ("blue", "hm")
    deltas = [{name: value} for name, value in THOUGHTS[case].items()]
    events = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    body = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    streamed = read_completion("chat", body, "tiny")
    assert (streamed.text, streamed.reasoning) == ("blue", "hm")


def test_an_answer_that_a_server_has_taken_for_thoughts_is_the_answer():
    form = "[[ ## words ## ]]\nblue\n\n[[ ## completed ## ]]"
    for said, text in ((form, form), ("Let me think of blue.", "")):
        answer = chat({"content": None, "reasoning_content": said})
        reply = read_completion("chat", json.dumps(answer).encode(), "tiny")
        assert (reply.text, reply.reasoning) == (text, "" if text else said)


NO_ANSWER = {
    b"": "empty",
    b"<html>soon</html>": "<html>soon</html>",
    b'{"id": "x", "choi': "unexpected",
    b"\xff\xfe{}": "UTF-8",
    b"null": "no message",
    b"[1]": "no message",
    b'{"choices": []}': "no message",
    b'{"choices": [{"message": null}]}': "no message",
    b'{"choices": null, "base_resp": {"status_msg": "insufficient balance"}}': "insufficient balance",
    b'{"choices": {"0": 1}}': "no message",
    b'{"choices": [{"message": {"content": NaN}}]}': "unexpected",
    b'{"choices": [{"message": {"tool_calls": ["x"]}}]}': "no message",
}


@pytest.mark.parametrize("page", NO_ANSWER)
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_what_is_no_answer_is_said_in_one_line_and_is_the_provider_s_fault(page, api):
    with pytest.raises(UnreadableResponse) as caught:
        read_completion(api, page, "tiny")
    assert "\n" not in str(caught.value) and "no answer that can be read" in str(caught.value)
    assert api == "responses" or NO_ANSWER[page] in str(caught.value)
    assert (
        provider_errors.responsible_party(caught.value) == "provider"
        and provider_errors.error_label(caught.value) == "unreadable"
    )
    assert dspy.is_retryable_lm_error(caught.value)


@pytest.mark.parametrize(
    ("usage", "billed"),
    [
        ({"prompt_tokens": 1000, "completion_tokens": 0, "total_tokens": 1000}, True),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, False),
        ({"prompt_tokens": "many"}, False),
        (None, False),
    ],
)
def test_what_cannot_be_read_says_whether_it_was_billed(usage, billed):
    with pytest.raises(UnreadableResponse) as caught:
        read_completion(
            "chat",
            json.dumps({"choices": None, "usage": usage}).encode(),
            "tiny",
        )
    assert caught.value.billed == billed and caught.value.usage == usage


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.just(0.5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "message", "content", "text", "tool_calls", "function", "arguments", "name", "id", "output",
             "type", "status", "incomplete_details", "reason", "usage", "error", "code", "refusal", "finish_reason"]
        ),
        inner | st.sampled_from(["message", "function_call", "output_text", "refusal", "incomplete", "failed"]),
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(anything, st.sampled_from(["chat", "responses"]), st.booleans())
def test_of_any_json_at_all_texts_are_read_or_it_is_no_answer(value, api, wrap):
    if wrap:  # so that the insides are reached more often
        value = {
            "choices": [{"message": value}],
            "output": [value, {"type": "message", "content": value}],
        }
    try:
        reply = read_completion(api, json.dumps(value).encode(), "tiny")
    except dspy.LMError:
        return
    assert (
        isinstance(reply.text, str) and reply.finish.isprintable() and 0 < len(reply.finish) <= 100
    )
    for call in reply.tool_calls:
        assert call.keys() == {"id", "name", "arguments"} and all(
            isinstance(one, str) for one in call.values()
        )


@pytest.mark.parametrize("depth", [10, 400, 3000])
def test_an_answer_that_is_nested_without_end_is_read_or_it_is_no_answer(depth):
    for start, end in (
        ('{"content": %s}', "x"),
        ('{"tool_calls": [{"function": {"arguments": %s}}]}', ""),
    ):
        content = '[{"text": ' * depth + '"x"' + "}]" * depth
        try:
            reply = read_completion(
                "chat", ('{"choices": [{"message": %s}]}' % (start % content)).encode(), "tiny"
            )
        except UnreadableResponse:
            assert depth > 10
        else:
            assert reply.text == end


@given(
    st.integers(100, 599),
    st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), st.text(max_size=20)),
    anything.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60),
    st.booleans(),
)
def test_any_other_answer_is_one_of_dspy_s_errors(status, headers, data, tools):
    error = error_from_response(HttpResponse(status, headers, data), "tiny", tools=tools)
    assert (
        isinstance(error, dspy.LMError)
        and provider_errors.error_label(error)
        and provider_errors.responsible_party(error)
    )
    if status >= 500 and status != 501:
        assert provider_errors.responsible_party(error) == "provider", (
            "no such answer may cost a query its score"
        )


def refused(words="no", code="", status=400, tools=False):
    data = json.dumps(
        {"error": {"message": words, "type": "invalid_request_error", "code": code or None}}
    ).encode()
    return error_from_response(
        HttpResponse(status, {"retry-after": "3"}, data), "tiny", tools=tools
    )


@pytest.mark.parametrize(
    ("error", "kind", "whose"),
    [
        (refused(code="model_not_found"), dspy.LMUnsupportedModelError, "refused"),
        (refused(code="unsupported_parameter"), dspy.LMInvalidRequestError, "refused"),
        (refused(status=529), dspy.LMServerError, "provider"),
        (refused(status=302), dspy.LMConfigurationError, "refused"),
        (refused(code="context_length_exceeded"), dspy.ContextWindowExceededError, "system"),
        (refused("the context length is too long: 9 tokens in the functions", tools=True),
         dspy.ContextWindowExceededError, "system"),
        (refused("this model does not support tools", tools=True), dspy.LMUnsupportedFeatureError, "system"),
        (refused("this model does not support tools"), dspy.LMInvalidRequestError, "provider"),
        (refused("tools param requires --jinja flag", status=500, tools=True),
         dspy.LMUnsupportedFeatureError, "system"),
        (refused("error parsing tool call: invalid character", status=500, tools=True), dspy.LMServerError, "provider"),
    ],
)  # fmt: skip
def test_a_refusal_is_told_by_its_status_its_code_and_its_words(error, kind, whose):
    assert type(error) is kind and provider_errors.responsible_party(error) == whose


def test_a_page_is_told_by_its_status_and_a_redirection_by_its_place():
    page = b"<!DOCTYPE html><html><head><title>no</title></head><body><h1>Bad  Gateway</h1></body></html>"
    assert (
        str(error_from_response(HttpResponse(502, {}, page), "tiny"))
        == "[tiny] status 502, with a page that begins 'Bad Gateway'"
    )
    moved = str(
        error_from_response(
            HttpResponse(307, {"location": "https://elsewhere.example/v1?key=secret"}, b""), "tiny"
        )
    )
    assert (
        "redirects to https://elsewhere.example/v1 (status 307)" in moved and "secret" not in moved
    )
