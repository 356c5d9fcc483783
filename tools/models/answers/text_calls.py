"""Read calls of tools in the text of an answer, if the server has no parser for its model.

Four forms are read. Three follow a mark that announces a call, the fourth is told by its keys:

1. tags: <function=search><parameter=query>ferry</parameter></function>, <invoke name="search">...;
2. a name before a JSON object: [TOOL_CALLS]search{...}, to=functions.search<|message|>{...};
3. JSON between marks: <tool_call>{"name": "search", "arguments": {...}}</tool_call>;
4. the same JSON without marks, if it names a tool of the request or is all of the text.

Calls as in Python, "Action:" and "Action Input:", a tag for each tool and arguments without a name are
left out: the model is asked for a call once more.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from sextant.tools.models.answers.values import RepairBudget, repair_json
from sextant.tools.records import JsonMapping, JsonObject


class TextCall(NamedTuple):
    """A call, and its span in the text."""

    start: int
    end: int
    name: str
    arguments: JsonObject | str  # a text if it is no JSON object


class Reading(NamedTuple):
    """The calls in a text, and the text without them."""

    calls: list[dict[str, str]]  # "id" (empty), "name" and "arguments"
    rest: str


# Marks around calls: a text with a mark was meant to have a call. The second and third are the
# special tokens of models, such as <|python_tag|>, <|tool_call_begin|> and DeepSeek's.
_MARK = re.compile(
    r"</?(?:\w+:)?(?:tool_?calls?|tool_responses?|function_?calls?|tool|tool_code)>"
    r"|<\|[^<>|]{1,40}\|?>|<[^<>|]{1,40}\|>"
    r"|<\uff5c[^<>]{1,40}\uff5c>"
    r"|\[/?(?:AVAILABLE_)?(?:TOOL_CALLS?|ARGS)\]",
    re.IGNORECASE,
)
_CUT = "\0"  # replaces a mark, and a call that was taken out
_FENCE = re.compile(r"```\w*\s*\0[\0\s;,\[\]]*(?:```)?")
_NAME_KEYS = ("name", "tool_name", "tool", "action")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "action_input", "tool_input")
_DECLARATION = re.compile(
    r'"(?:parameters|input_schema)"\s*:\s*\{[^{}]*"properties"\s*:\s*\{', re.IGNORECASE
)
_MAX_STARTS = 200  # positions in a text at which a JSON object is tried
_LONGEST_TEXT = 200_000  # characters of a text in which calls are looked for, which takes time


def has_marks(text: str) -> bool:
    """Return whether a text has the marks of a call, readable or not."""
    return bool(_MARK.search(text) or re.search(r'"(?:arguments|parameters)"\s*:', text))


def has_declarations(text: str) -> bool:
    """Return whether a text has the description of a tool in it, which is copied from the prompt.

    Chat templates write the tools of a request into the prompt as JSON, and small models copy it.
    """
    return bool(_DECLARATION.search(text))


def read_calls(text: str, names: Collection[str] = ()) -> Reading:
    """Return the calls in a text, and the text without them.

    `names` are the names of the tools. If they are given, a call outside of any marks has to name
    one of them: JSON in an answer may be something else.
    """
    if len(text) > _LONGEST_TEXT:
        return Reading([], text)
    marked = _MARK.sub(_CUT, text)
    for reader in _READERS:
        calls = list(reader(marked, names))
        if calls:
            return Reading([_write(call, names) for call in calls], _cut_calls(marked, calls))
    return Reading([], text)


def _cut_calls(text: str, calls: Iterable[TextCall]) -> str:
    """Return a text without its calls and the marks and fences around them."""
    parts = []
    position = 0
    for call in calls:
        parts.append(text[position : call.start])
        position = call.end
    bare = _FENCE.sub(_CUT, _CUT.join([*parts, text[position:]]))
    kept = [part.strip(" \t\r\n;,") for part in bare.split(_CUT)]
    return "\n".join(filter(None, kept))


def find_tool(name: str, names: Collection[str]) -> str:
    """Return the tool that a model calls by `name`, in any case and with marks around it; `name` if there is none."""
    if name in names:
        return name
    # Kimi numbers calls, and gpt-oss leaves marks of its channels behind names
    tools = {tool.casefold(): tool for tool in names}
    called = {tools[word] for word in re.findall(r"[\w-]+", name.casefold()) if word in tools}
    return called.pop() if len(called) == 1 else name


def _write(call: TextCall, names: Collection[str]) -> dict[str, str]:
    arguments = call.arguments
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"id": "", "name": find_tool(call.name.strip(), names), "arguments": arguments}


_FUNCTION = re.compile(
    r"<(?:function=|invoke name=)[\"']?(?P<name>[^\"'<>\s{(]+)[\"']?>?(?P<body>.*?)"
    r"(?:</(?:function|invoke)>|(?=<function=|<invoke name=|\0|\Z))",
    re.DOTALL,
)
_PARAMETER = re.compile(
    r"<parameter(?:=| name=)[\"']?(?P<name>[^\"'<>\s]+)[^<>]*>(?P<value>.*?)"
    r"(?=</parameter>|<parameter\b|\Z)",
    re.DOTALL,
)


def _read_tags(text: str, names: Collection[str]) -> Iterator[TextCall]:
    for call in _FUNCTION.finditer(text):
        arguments: JsonObject = {
            parameter["name"]: _read_tag(parameter["value"])
            for parameter in _PARAMETER.finditer(call["body"])
        }
        yield TextCall(call.start(), call.end(), call["name"], arguments or call["body"].strip())


def _read_tag(value: str) -> Any:
    """Return the content of a tag: a list or an object if it is JSON, else the text."""
    stripped = value.strip()
    if stripped[:1] in ("[", "{"):
        with suppress(ValueError):
            return json.loads(stripped)
    return stripped


# Harmony's to=functions.search ..., [TOOL_CALLS]search[ARGS], Kimi's and DeepSeek's, behind which is JSON
_NAMED = re.compile(
    r"(?:(?:(?:assistant|commentary|analysis){1,2}+\s++)?\bto=|\0\s*+(?:function\0\s*+)?)"
    r"(?P<name>[A-Za-z_][\w.:-]*+)[\0\s]*+(?:(?:commentary|json|code)[\0\s]*+)*+(?:```json\s*+)?(?=\{)"
)


def _read_names_before_json(text: str, names: Collection[str]) -> Iterator[TextCall]:
    for start in islice(_NAMED.finditer(text), _MAX_STARTS):
        with suppress(ValueError, RecursionError):
            arguments, end = json.JSONDecoder(strict=False).raw_decode(text, start.end())
            yield TextCall(start.start(), end, start["name"], arguments)


_JSON_START = re.compile(r"\{(?=\s*[\"'])|\[(?=\s*\{)")
_JSON_END = re.compile(r"\0|```|\n\s*\n|\Z")


def _read_json(text: str, names: Collection[str]) -> Iterator[TextCall]:
    budget = RepairBudget()
    position = 0
    for _ in range(_MAX_STARTS):
        match = _JSON_START.search(text, position)
        if not match:
            return
        start = match.start()
        value, end = _decode(text, start, budget)
        # Without a mark, JSON that names no tool is a call only if it is all of the text
        is_marked = _CUT in text or not (text[:start] + text[end:]).strip("` \njson")
        position = start + 1
        for name, arguments in _find_calls(value):
            if is_marked or not names or find_tool(name, names) in names:
                position = end
                yield TextCall(start, end, name, arguments)


def _decode(text: str, start: int, budget: RepairBudget) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, repaired if it is broken, and its end; None if there is none."""
    with suppress(ValueError, RecursionError):
        return json.JSONDecoder(strict=False).raw_decode(text, start)
    end = next(_JSON_END.finditer(text, start)).start()
    with suppress(ValueError, RecursionError):
        return repair_json(text[start:end], budget), end
    return None, start


def _find_calls(value: Any) -> Iterator[tuple[str, JsonObject | str]]:
    """Yield the name and the arguments of each call in a JSON value; the description of a tool is none."""
    if isinstance(value, dict):
        name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), "")
        arguments = next((value[key] for key in _ARGUMENT_KEYS if key in value), None)
        if not name:
            yield from _find_calls([*value.values()])
        elif isinstance(arguments, str) or (
            isinstance(arguments, dict) and "properties" not in arguments
        ):
            yield name, arguments
    elif isinstance(value, list):
        for item in value:
            yield from _find_calls(item)


_READERS: tuple[Callable[[str, Collection[str]], Iterator[TextCall]], ...] = (
    _read_tags,
    _read_names_before_json,
    _read_json,
)


def read_arguments(written: Any, parameters: JsonMapping | None = None) -> JsonObject | None:
    """Return the arguments of a call as an object; None if they are no arguments.

    They may be JSON, broken JSON of the tool's `parameters`, and JSON inside JSON; a text that is no
    JSON is the value of the only parameter.
    """
    value: Any = written
    for _ in range(2):  # JSON in JSON
        if isinstance(value, str):
            with suppress(ValueError, RecursionError):
                value = json.loads(value.strip() or "{}", strict=False)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        [value] = value
    if isinstance(value, dict) or value is None:
        return value or {}
    names = list(parameters or ())
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            repaired = repair_json(value)
            if isinstance(repaired, dict) and repaired and set(repaired) <= set(names):
                return repaired
        return None
    return {names[0]: value} if len(names) == 1 else None
