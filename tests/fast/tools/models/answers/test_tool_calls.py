"""No prompt of ours has an example: neither of DSPy's types and adapters nor of our own signatures."""

import ast
import importlib
import json
import pkgutil
import re
from pathlib import Path

import dspy
import pytest

from sextant import agents, programs
from sextant.agents.react import NextStep, _ReactTools
from sextant.programs.search_tools import make_tools
from sextant.tools.models import prompting
from sextant.tools.models.answers.checks import JSON_FORM, MARKER_FORM
from sextant.tools.models.answers.fields import ToolCalls
from sextant.tools.models.prompting import Adapter
from sextant.tools.records import Query
from sextant.tools.session import Toolbox

ANNOUNCED = re.compile(
    r"(?:examples?:|e\.g\.|such as|\blike) *(?P<example>[{\[\"'].*)", re.DOTALL | re.IGNORECASE
)
JSON_VALUE = re.compile(r'\{ *"|\[ *"|\[ *\{')


def signatures():
    """Every signature of ours, by its module and name."""
    for package in (programs, agents):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found, left = {}, [dspy.Signature]
    while left:
        for signature in left.pop().__subclasses__():
            left.append(signature)
            if signature.__module__.startswith("sextant.") and signature.output_fields:
                found[f"{signature.__module__}.{signature.__name__}"] = signature
    return found


SIGNATURES = signatures()


def texts_of_dspy():
    """The examples in texts of DSPy's adapters and types, which it may put into a prompt."""
    for file in sorted(Path(dspy.adapters.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            match = ANNOUNCED.search(text) if isinstance(text, str) and "\n" not in text else None
            if match:
                yield match["example"]


def prompt(signature, monkeypatch, form):
    monkeypatch.setattr(prompting, "answer_form", lambda signature: form)
    tools = list(make_tools().values())
    inputs = {name: tools if name == "tools" else [] for name in signature.input_fields}
    messages = Adapter().format(signature, [], inputs)
    return "\n".join(str(message["content"]) for message in messages)


def test_the_example_of_dspys_calls_is_among_those_that_are_looked_for():
    examples = list(texts_of_dspy())
    assert any("cats" in example for example in examples)
    assert any('"..."' in example for example in examples)
    assert {f"{NextStep.__module__}.NextStep"} < SIGNATURES.keys() and len(SIGNATURES) > 20


def test_a_prompt_with_dspys_type_would_have_them(monkeypatch):
    sent = prompt(dspy.Signature("tools -> calls: dspy.ToolCalls"), monkeypatch, MARKER_FORM)
    present = {example for example in texts_of_dspy() if example.strip(" .)") in sent}
    assert len(present) == 2


@pytest.mark.parametrize("form", [MARKER_FORM, JSON_FORM], ids=["markers", "JSON"])
@pytest.mark.parametrize("name", SIGNATURES)
def test_no_prompt_has_an_example_of_dspys(name, form, monkeypatch):
    sent = prompt(SIGNATURES[name], monkeypatch, form)
    assert not [example for example in texts_of_dspy() if example.strip(" .)") in sent]
    assert not ANNOUNCED.search(sent)


@pytest.mark.parametrize("name", SIGNATURES)
def test_no_instruction_or_description_of_ours_has_a_value_that_could_be_an_answer(name):
    signature = SIGNATURES[name]
    descriptions = [field.json_schema_extra["desc"] for field in signature.fields.values()]
    told = "\n".join([signature.instructions, *descriptions])
    assert not JSON_VALUE.search(told)


def test_no_tool_that_is_offered_to_a_model_has_an_example():
    tools = [*make_tools().values(), *_ReactTools(Toolbox({}, None).open(Query("q", "q"))).tools]
    for tool in tools:
        offered = json.dumps(tool.format_as_litellm_function_call(), ensure_ascii=False)
        assert not ANNOUNCED.search(offered)


def test_calls_are_dspys_to_everything_that_reads_them(monkeypatch):
    calls = ToolCalls.from_dict_list([{"name": "search", "args": {"query": "trams"}}])
    theirs = dspy.ToolCalls.from_dict_list([{"name": "search", "args": {"query": "trams"}}])
    assert isinstance(calls, dspy.ToolCalls) and calls.format() == theirs.format()
    demo = {"thought": "I look.", "calls": calls}
    written = Adapter().format_assistant_message_content(NextStep, demo)
    read = Adapter().parse(NextStep, written)
    assert read["calls"].format() == theirs.format()
