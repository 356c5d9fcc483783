"""Readers of what models write take a fraction of a second for 100,000 characters that were made to hold them up."""

import time
from contextlib import suppress
from typing import Literal

import dspy
import pytest

from sextant.tools.models import provider_errors, provider_response
from sextant.tools.models.answers import checks, fields

CHARACTERS = 100_000
MOST_SECONDS = 1.5  # of the processor; a pattern that goes back takes minutes
NAMES = ("search", "read", "submit")


class Ranking(dspy.Signature):
    """Rank."""

    query: str = dspy.InputField()
    reasoning: str = dspy.OutputField()
    doc_ids: list[str] = dspy.OutputField()


READERS = {
    "calls of known tools": lambda text: fields.read_calls(text, NAMES),
    "calls of any tool": fields.read_calls,
    "arguments": lambda text: fields.read_arguments(text, {"query": {}}),
    "thoughts": provider_response.part_thoughts,
    "fields": lambda text: fields.find_fields(Ranking, text, {}),
    "a list": lambda text: fields.convert(list[str], text),
    "a number": lambda text: fields.convert(float, text, {"minimum": 0, "maximum": 10}),
    "a choice": lambda text: fields.convert(Literal["yes", "no"], text),
    "ids": lambda text: checks.Ids({"d1", "d2"}).read([text]),
    "a refused id": lambda text: provider_errors.refuses_call_ids(dspy.LMServerError(text)),
    "a window": lambda text: provider_errors.read_window(dspy.LMServerError(text)),
}
# (what a text begins with, what is repeated in it)
TEXTS = [
    *(("", blank) for blank in (" ", "\n", "\t", "\u2003", "\x85", "\n ")),
    *(
        (word, " ")
        for word in ("a", "to=a", "```", "1", "[a]", "<think", '"a":', "Action: a", "d1")
    ),
    *((word, "\n") for word in ("[a]", "Action: a", "search", "Action:", "```json")),
    *(("", digits) for digits in ("0", "1", "1,", "1.")),
    *(("", opening) for opening in ("{", "[", "(", '{"a":', "[{", '"', "'", "\\", "\0", "#", "*")),
    *(
        ("", tag)
        for tag in ("<a>", "<search>", "<search><a>", "<search>{", "<arg_key>", "<function=")
    ),
    *(
        ("", tag)
        for tag in ("<parameter=", "<function=a", "<invoke name=", "<tool_call>a<arg_key>")
    ),
    *(("<function=a>", tag) for tag in ("<parameter=a", "<parameter=a>")),
    *(("<tool_call>a", tag) for tag in ("<arg_key>", "<arg_key>a</arg_key>", "</arg_key>")),
    *(
        ("", mark)
        for mark in ("[TOOL_CALLS]", "to=a{", "<|tool_call|>a{", "<\uff5ctool\u2581", ">>>a ")
    ),
    *(("", call) for call in ("search(", 'search("', "search(a) ", "x(", "search (")),
    *(("search('", end) for end in (")", "')", "(")),
    *(("[TOOL_CALLS] search(", end) for end in (")", "(", '"')),
    *(("", word) for word in ("Action: a\n", "Action: a\nInput\n", "Action:", "\nObservation")),
    *(("", mark) for mark in ("</think>", "<think>", "<think a=", "[[ ## a ## ]] </think>")),
    *(("", mark) for mark in ("[[ ## reasoning ## ]]", '"[[ ## reasoning ## ]]', "[[ ## ", " #")),
    *(("", word) for word in ("reasoning:", "# reasoning **", "assistantanalysis", "analysis")),
    *(('"a": [', part) for part in ('"b",', '"b" , ', '"b')),
    *(("", word) for word in ("the ", "no ", "doc_", "id:", " - ", "and ", "tool call ", "[1] > ")),
]


@pytest.mark.parametrize("reader", READERS)
def test_no_text_of_a_model_holds_its_reader_up(reader):
    slow = dict[str, float]()
    for beginning, repeated in TEXTS:
        body = beginning + repeated * (CHARACTERS // len(repeated))
        for text in (body, f"{body}!"):
            started = time.process_time()
            with suppress(ValueError, RecursionError):
                READERS[reader](text)
            if (seconds := time.process_time() - started) > MOST_SECONDS:
                slow[f"{beginning!r} {repeated!r} {text[-3:]!r}"] = round(seconds, 1)
    assert not slow
