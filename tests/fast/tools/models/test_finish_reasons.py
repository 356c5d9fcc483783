"""Why an answer ended, in the words of every server that has other ones."""

import json

import pytest

from sextant.tools.models.provider_response import read_finish_reason
from sextant.tools.models.transport.openai_client import read_completion

WORDS = [
    ("length", ["length", "LENGTH", "max_tokens", "MAX_TOKENS", "max-tokens", "model_length"]),
    ("length", ["max_output_tokens", "max_new_tokens", "incomplete", "truncated", "token_limit"]),
    ("length", ["model_context_window_exceeded", "max_completion_tokens", "max_length"]),
    ("stop", ["stop", "", None]),
]
KEPT = ["tool_calls", "content_filter", "SAFETY", "end_turn", "eos"]


@pytest.mark.parametrize(("ours", "theirs"), WORDS)
def test_every_word_for_an_answer_that_was_cut_is_read_alike(ours, theirs):
    assert {read_finish_reason(word) for word in theirs} == {ours}


def test_other_words_stay_as_they_are():
    assert [read_finish_reason(word) for word in KEPT] == KEPT


@pytest.mark.parametrize(("tokens", "finish"), [(9, "stop"), (10, "length"), (11, "length")])
def test_without_a_word_an_answer_of_as_many_tokens_as_its_limit_was_cut(tokens, finish):
    choice = {"finish_reason": None, "message": {"content": "on and on"}}
    usage = {"prompt_tokens": 5, "completion_tokens": tokens}
    body = json.dumps({"choices": [choice], "usage": usage}).encode()
    assert read_completion("chat", body, "tiny", limit=10).finish == finish
    assert read_completion("chat", body, "tiny").finish == "stop"


@pytest.mark.parametrize("details", [{"reason": "max_output_tokens"}, {}, None])
def test_an_incomplete_response_was_cut_unless_it_names_another_reason(details):
    item = {"type": "message", "content": [{"type": "output_text", "text": "on and"}]}
    answer = {"status": "incomplete", "output": [item], "incomplete_details": details}
    assert read_completion("responses", json.dumps(answer).encode(), "tiny").finish == "length"
    answer["incomplete_details"] = {"reason": "content_filter"}
    reply = read_completion("responses", json.dumps(answer).encode(), "tiny")
    assert reply.finish == "content_filter"
