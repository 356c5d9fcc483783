"""Elements, calls and repairs in texts of models are found in one pass, whatever stands around them."""

import json
import re

import dspy
import pytest

from sextant.tools.models.answers.elements import Element, find_elements
from sextant.tools.models.answers.text_calls import read_calls
from sextant.tools.models.answers.values import Ids, RepairBudget, TooBroken, convert, repair_json
from sextant.tools.models.provider_errors import read_window

TAG = re.compile(r"<(\w+)>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<a>x</a>", [("a", "x")]),
        ("<a><b>x</b></a><b>y</b>", [("a", "<b>x</b>"), ("b", "y")]),
        ("<a><a>x</a></a>", [("a", "<a>x")]),
        ("<a><b>x</b>", [("b", "x")]),
        ("<a>x</b></a>", [("a", "x</b>")]),
        ("</a><a>", []),
    ],
)
def test_an_element_ends_at_the_next_closing_tag_of_its_name(text, expected):
    found = list(find_elements(text, TAG))
    assert [(element.tag, element.body) for element in found] == expected
    assert all(text[element.start : element.end].endswith(f"</{element.tag}>") for element in found)
    assert all(isinstance(element, Element) for element in found)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("search(query='a) b')", {"query": "a) b"}),
        ('search(query="a \\") b", k=[1, (2)])', {"query": 'a ") b', "k": [1, 2]}),
        ('x = search(query="""a "b" )""")', {"query": 'a "b" )'}),
        ("search(query='a'", None),
        ("search(query='a)", None),
    ],
)
def test_a_call_as_in_python_ends_at_its_own_bracket(text, arguments):
    calls = read_calls(text, ["search"]).calls
    assert [json.loads(call["arguments"]) for call in calls] == ([arguments] if arguments else [])


def test_what_announces_a_call_is_no_part_of_the_answer():
    call = '<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call>'
    reading = read_calls(f"First this.\n\nAction: ```json\n{call} ; {call}\n```\nThen that.")
    assert len(reading.calls) == 2 and reading.rest == "First this.\nThen that."


def test_repairs_of_one_text_share_what_they_may_read():
    budget = RepairBudget()
    assert repair_json('{"a": 1', budget) == {"a": 1}
    budget.left = 3
    with pytest.raises(TooBroken):
        repair_json('{"a": 1', budget)


@pytest.mark.parametrize(
    ("text", "expected"), [("```json\n[1]\n```", [1]), ("``` [1] ```", [1]), ("```[1]```", [1])]
)
def test_a_fence_is_taken_off(text, expected):
    assert convert(list[int], text) == expected


@pytest.mark.parametrize(
    ("written", "doc_id"), [("007", "7"), ("7.0", "7"), ("0", "0"), ("00", "0"), ("7.50", None)]
)
def test_numbers_are_ids_without_zeros_that_do_not_count(written, doc_id):
    assert Ids({"7", "0"}).find(written) == doc_id


def test_a_window_of_thousands_of_digits_is_read_without_an_error():
    assert read_window(dspy.LMServerError("maximum context length is " + "9" * 9000))[0]
