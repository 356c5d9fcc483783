"""What was sent is kept beside its answer: it can be read, equal parts are there once, and no secret is."""

import json
import sqlite3
from contextlib import closing

import pytest
import zstandard

from sextant.tools.errors import DataError
from sextant.tools.models import language_model
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.storage.ledger import (
    NAME,
    AnswerFilter,
    ModelResponse,
    open_answers,
    open_ledger,
    split_and_compress,
)
from sextant.tools.models.storage.request_store import read_call
from sextant.tools.records import Usage

PASSAGES = [
    {"id": f"d{number}", "text": f"passage {number} on blue blood " * 40} for number in range(5)
]
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "search", "arguments": '{"query": "ü"}'},
}


def conversation(question, passages=PASSAGES):
    return [
        {"role": "system", "content": "Find what is asked for. " * 20},
        {"role": "user", "content": f"{question}\n{json.dumps(passages)}"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "a\u2028b \N{PILE OF POO} \\n"},
    ]


def connect(server, place, **given):
    settings = language_model.ModelSettings(api=given.pop("api", "chat"))
    model = language_model.connect(server.spec, RunResources(**given), settings=settings)
    model.begin(place, Usage())
    return model.lm


def calls_in(path):
    """All calls of a file, in the order in which they were made; the keys are read by SQLite alone."""
    with closing(sqlite3.connect(path)) as connection:
        keys = connection.execute("SELECT key FROM calls ORDER BY id").fetchall()
    return [read_call(path, key) for (key,) in keys]


def parts_in(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM parts").fetchone()[0]


@pytest.fixture
def path(place):
    return place.parent.parent / NAME


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_what_was_sent_and_what_came_back_can_be_read_whichever_the_protocol(
    api, server, place, path
):
    thought = {"summary": [{"type": "summary_text", "text": "Hm."}]}
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "blue"}],
    }
    replies = {
        "chat": {
            "choices": [
                {
                    "message": {"content": "blue", "reasoning_content": "Hm."},
                    "finish_reason": "stop",
                }
            ]
        },
        "responses": {"output": [{"type": "reasoning", **thought}, said], "status": "completed"},
    }
    server.reply = lambda path, body: replies[api]
    model, sent = connect(server, place, api=api), conversation("A colour? \ud83d")
    assert model.converse(sent, [TOOL])["content"] == "blue"
    model("half of \ud83d and <think>")
    first, second = calls_in(path)
    assert first["messages"] == sent and first["settings"]["model"] == "tiny"
    assert first["tools"][0]["type"] == "function" and first["outputs"] == [
        {"content": "blue", "tool_calls": []}
    ]
    assert first["reasoning"] == "Hm."
    assert (
        second["messages"] == [{"role": "user", "content": "half of \ud83d and <think>"}]
        and second["tools"] == []
    )
    assert second["outputs"] == ["blue"] and second["key"] != first["key"]


def test_what_goes_through_dspy_can_be_read_too(place, path):
    sent = language_model._dumps([conversation("Why?"), {"temperature": 0.5, "tools": [TOOL]}])
    answer = ModelResponse([{"text": "so", "reasoning_content": "Hm."}], Usage())
    open_ledger(place).answered("q", "ab" * 8, "anthropic/x", answer, split_and_compress(sent, ()))
    (call,) = calls_in(path)
    assert (call["messages"], call["tools"]) == (conversation("Why?"), [TOOL])
    assert call["settings"] == {"temperature": 0.5} and call["reasoning"] == "Hm."


def test_equal_parts_are_there_once_and_go_with_the_last_answer_that_needs_them(
    server, place, path
):
    server.answer = lambda prompt: {"raw": "an answer"}
    model, counts = connect(server, place), []
    for asked, passages in (
        ("One?", PASSAGES),
        ("Two?", PASSAGES),
        ("Three?", PASSAGES[::-1]),
        ("One?", PASSAGES),
    ):
        model(messages=conversation(asked, passages))
        counts.append(parts_in(path))
    assert counts[0] > 6 and counts[1] == counts[0] + 1 and counts[2] - counts[1] <= 4, (
        "the question, the order"
    )
    answers, before = open_answers(path), calls_in(path)
    assert answers.clear(AnswerFilter(key=before[0]["key"])) == 1
    assert calls_in(path) == [None, *before[1:]] and len(before) == 3
    assert parts_in(path) < counts[2]
    answers.clear(AnswerFilter())
    assert parts_in(path) == 0
    model(messages=before[1]["messages"])
    assert calls_in(path)[-1]["messages"] == before[1]["messages"], "it is written again"


def test_no_secret_is_kept_nor_any_prompt_where_none_is_wanted(server, place, path, monkeypatch):
    monkeypatch.setenv("SEXTANT_API_KEY", 'a-secret"with-quotes')
    server.answer = lambda prompt: {"raw": "an answer"}
    connect(server, place)('it is a-secret"with-quotes, is it')
    other = connect(server, place, prompts=False)
    other("something else")
    other('it is a-secret"with-quotes, is it')  # the answer is there
    first, second = calls_in(path)
    assert first["messages"][0]["content"] == "it is ***, is it"
    assert second["messages"] is None and second["outputs"] == ["an answer"]


def test_answers_of_an_earlier_version_have_no_prompt_and_those_that_follow_in_their_file_have(
    server, place, path
):
    server.answer = lambda prompt: {"raw": "an answer"}
    open_ledger(place).answered("q", "ab" * 8, "tiny", ModelResponse(["old"], Usage()))
    open_answers(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:  # as it was
        connection.executescript(
            "ALTER TABLE calls DROP request; ALTER TABLE calls DROP reasoning; DROP TABLE parts"
        )
    assert read_call(path, "ab" * 8)["messages"] is None
    connect(server, place)("new")
    old, new = calls_in(path)
    assert (
        old["messages"] is None
        and old["outputs"] == ["old"]
        and new["messages"][0]["content"] == "new"
    )
    assert read_call(path, "00" * 8) is None and read_call(path.with_name("none"), "ab" * 8) is None


@pytest.mark.parametrize(
    "damage",
    [b"no zstd", zstandard.compress(b"5"), zstandard.compress(b'{"messages": [1]}'), "text"],
)
def test_a_damaged_part_is_said_to_be_and_which_answer_to_clear(damage, place, path):
    open_ledger(place).answered(
        "q", "ab" * 8, "tiny", ModelResponse(["so"], Usage()), split_and_compress(b"[[], {}]", ())
    )
    assert read_call(path, "ab" * 8)["messages"] == []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE parts SET text = ?", (damage,))
    with pytest.raises(DataError, match="cache clear --key abab"):
        read_call(path, "ab" * 8)
