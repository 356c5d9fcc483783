"""Calls of tools that a server hands over as text are read out of it, in each form that models write."""

import json
import time

import pytest

from sextant.tools.models.answers.fields import (
    find_tool,
    has_declarations,
    has_marks,
    read_arguments,
    read_calls,
)

TOOLS = ("search", "read", "select", "finish")
GIVEN = {"query": "rope tram"}
JSON = '{"query": "rope tram"}'
NAMED = f'{{"name": "search", "arguments": {JSON}}}'
BAR, LOW = "\uff5c", "\u2581"  # of DeepSeek's tokens
BEGINS, SEPARATED, ENDS = (
    f"<{BAR}tool{LOW}{word}{BAR}>" for word in (f"call{LOW}begin", "sep", f"call{LOW}end")
)

WRITTEN = {
    "Hermes, Qwen": f"I look.\n<tool_call>\n{NAMED}\n</tool_call>",
    "never closed": f"<tool_call>\n{NAMED}",
    "as a result": f"I look.\n\n<tool_response>\n{NAMED}\n</tool_response>",
    "after an empty result": f"I look.\n\n<tool_response>\n</tool_response>\n\n{NAMED}\n",
    "broken at its end": f"<tool_call>\n{NAMED[:-1]}\n</tool_call>",
    "in a fence": f"I look.\n```json\n{NAMED}\n```",
    "alone": NAMED,
    "in single quotes": NAMED.replace('"', "'"),
    "Mistral": f"[TOOL_CALLS] [{NAMED}]",
    "Mistral, newer": f"[TOOL_CALLS]search[ARGS]{JSON}",
    "Llama": f'<|python_tag|>{{"name": "search", "parameters": {JSON}}}',
    "Llama, without its mark": f'{{"type": "function", "name": "search", "parameters": {JSON}}}',
    "Llama, a brace short": f'{{"type": "function", "function": {{"name": "search", "parameters": {JSON}}}',
    "Llama, a tag": f"<function=search>{JSON}</function>",
    "harmony": f"<|channel|>commentary to=functions.search <|constrain|>json<|message|>{JSON}<|call|>",
    "harmony, to a role": f"<|start|>assistant to=functions.search<|channel|>commentary json<|message|>{JSON}<|call|>",
    "harmony without its tokens": f"assistantcommentary to=functions.search json{JSON}",
    "Qwen3-Coder": "<tool_call>\n<function=search>\n<parameter=query>\nrope tram\n</parameter></function></tool_call>",
    "Qwen3-Coder, hardly closed": "<tool_call>\n<function=search>\n<parameter=query>\nrope tram\n\n</tool_call>",
    "MiniMax": '<minimax:tool_call><invoke name="search"><parameter name="query">rope tram</parameter></invoke>',
    "Kimi": f"<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{JSON}<|tool_call_end|>",
    "DeepSeek 3": f"{BEGINS}function{SEPARATED}search\n```json\n{JSON}\n```{ENDS}",
    "DeepSeek 3.1": f"<{BAR}tool{LOW}calls{LOW}begin{BAR}>{BEGINS}search{SEPARATED}{JSON}{ENDS}",
    "Phi": f"<|tool_call|>[{NAMED}]<|/tool_call|>",
    "Cohere": f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "search", "parameters": {JSON}}}]<|END_ACTION|>',
    "LangChain": f'```json\n{{"action": "search", "action_input": {JSON}}}\n```',
    "DSPy": f'{{"tool_calls": [{{"name": "search", "args": {JSON}}}]}}',
    "OpenAI": '{"tool_calls": [{"function": {"name": "search", "arguments": "{\\"query\\": \\"rope tram\\"}"}}]}',
    "a prefix": NAMED.replace("search", "functions.search"),
    "blanks and case": NAMED.replace("search", " Search "),
}


# As chat templates write a tool into the prompt, where small models find it and copy it.
DECLARED = json.dumps(
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the collection.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }
)


@pytest.mark.parametrize("form", WRITTEN)
def test_a_call_in_the_text_is_read(form):
    reading = read_calls(WRITTEN[form], TOOLS)
    [call] = reading.calls
    assert call["name"] == "search" and read_arguments(call["arguments"], GIVEN) == GIVEN
    assert reading.rest in ("", "I look.")


@pytest.mark.parametrize(
    "text",
    [
        f'<tool_call>{NAMED}</tool_call>\n<tool_call>{{"name": "read", "arguments": {{"doc_id": 1}}}}</tool_call>',
        f'{NAMED}; {{"name": "read", "parameters": {{"doc_id": "1"}}}}',
        f'[TOOL_CALLS]search[ARGS]{JSON}[TOOL_CALLS]read[ARGS]{{"doc_id": "1"}}',
    ],
)
def test_several_calls_are_read_in_their_order(text):
    assert [call["name"] for call in read_calls(text, TOOLS).calls] == ["search", "read"]


@pytest.mark.parametrize(
    "text",
    [
        "I would search(query) for it.",
        'A passage has {"name": "Bob", "arguments": ["x"]} in it, and {"doc_id": "1"}.',
        "I will use select and then finish.",
        '[{"doc_id": "1", "text": "x"}]',
        "[1] > [2]",
        "finish",
        DECLARED,
        f"<tools>\n{DECLARED}\n</tools>",
        f"```json\n[{DECLARED}]\n```",
    ],
)
def test_what_is_no_call_is_none(text):
    assert read_calls(text, TOOLS) == ([], text)


def test_the_description_of_a_tool_is_told_from_a_call():
    assert has_declarations(f"<tools>\n{DECLARED}\n{DECLARED[:-40]}")
    assert has_declarations(json.dumps([json.loads(DECLARED)["function"]]))
    assert not any(has_declarations(text) for text in WRITTEN.values())


def test_a_call_of_an_unknown_tool_is_one_where_it_is_marked_or_all_of_the_text():
    flying = '{"name": "fly", "arguments": {}}'
    for text in (f"<tool_call>{flying}</tool_call>", flying, f"```json\n{flying}\n```"):
        assert read_calls(text, TOOLS).calls == [{"id": "", "name": "fly", "arguments": "{}"}]
    assert not read_calls(f"They write {flying} there.", TOOLS).calls
    assert has_marks("<tool_call>search the trams</tool_call>") and not has_marks(
        "I search the trams."
    )
    assert find_tool("fly", TOOLS) == "fly"
    for name in ("search<|channel|>commentary", "functions.search:0", "default_api:search"):
        assert find_tool(name, TOOLS) == "search"


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ("", {}), (None, {}), ("{}", {}), (GIVEN, GIVEN), (JSON, GIVEN), ('"{\\"query\\": \\"rope tram\\"}"', GIVEN),
        (f"[{JSON}]", GIVEN), ('{"query": "rope tram"', GIVEN), ("rope tram", GIVEN), ("{not json", None),
    ],
)  # fmt: skip
def test_arguments_are_read_in_each_form(written, given):
    assert read_arguments(written, GIVEN) == given


def test_what_announces_a_call_is_no_part_of_the_answer():
    call = '<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call>'
    reading = read_calls(f"First this.\n\n```json\n{call} ; {call}\n```\nThen that.")
    assert len(reading.calls) == 2 and reading.rest == "First this.\nThen that."


@pytest.mark.parametrize("part", ["[[ ##", "[", '{"a":', "<tool_call>", "search("])
def test_a_text_of_a_million_characters_takes_no_second(part):
    started = time.process_time()
    assert not read_calls(part * (1_000_000 // len(part)), TOOLS).calls
    assert time.process_time() - started < 1.0
