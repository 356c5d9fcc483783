"""Read calls of tools in the text of an answer, if the server has no parser for its model.

Models write calls in some twenty forms, which come down to five: JSON with a name and arguments; a
name before JSON arguments; tags for function and parameters; a call as in Python; "Action:" and
"Action Input:". Small models write the arguments alone, too. Each is read here, whatever marks are
around it. To add a form, add a pattern and a reader in `_READERS`.
"""

import ast
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from sextant.tools.models.answers.elements import find_elements
from sextant.tools.models.answers.values import RepairBudget, TooBroken, plain_name, repair_json
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


# Marks around calls: a text with a mark was meant to have a call.
_MARK = re.compile(
    r"</?(?:minimax:|seed:)?(?:tool_?calls?|tool_responses?|function_?calls?|tool|tool_code|TOOLCALL|\uff5cDSML\uff5c\w+)>"
    r"|<\|/?(?:tool_calls?|python_tag|python_start|python_end|START_ACTION|END_ACTION|tool_call_start|tool_call_end"
    r"|tool_calls_section_begin|tool_calls_section_end|tool_call_begin|tool_call_end|tool_call_argument_begin)\|>"
    r"|<\|tool_call>|<tool_call\|>|<\uff5ctool\u2581[^<>]*\uff5c>|\[/?(?:AVAILABLE_)?TOOL_CALLS?\]|\[/?ARGS\]|functools(?=\[)"
    r"|functions=(?=[\[{])|<\|(?:start|channel|message|call|end|constrain)\|>",
    re.IGNORECASE,
)
_FENCE = re.compile(r"```\w*\s*```")
_CUT = "\0"  # replaces a call that was taken out
# Words before a cut, and marks behind it, that are no part of the answer.
_BEFORE_CUT = re.compile(
    r"(?:functools|functions=|(?:assistant)?(?:commentary|analysis)|assistant|(?:Action|call):"
    r"|<function>|[\[`])\Z"
)
_LONGEST_BEFORE = 40  # characters
_BEHIND_CUT = re.compile(r"[\s;,]*+(?:</function>|```|\])*+\s*+")
_META_KEYS = ("type", "id", "tool_call_id", "call_id", "index")
_LIST_KEYS = ("tool_calls", "calls", "function_calls", "actions")
_NAME_KEYS = ("name", "tool_name", "function_name", "tool", "function", "action", "recipient_name")
_ARGUMENT_KEYS = (
    *("arguments", "parameters", "args", "input", "action_input", "tool_input", "params", "kwargs"),
    *("tool_parameters", "tool_args", "function_parameters"),
)
_MAX_STARTS = 200  # positions in a text at which a JSON value or a call is tried
_LONGEST_TEXT = 200_000  # characters of a text in which calls are looked for, which takes time
_LONGEST_CALL = 20_000  # characters of a call as in Python
_MAX_SCANNED = 400_000  # characters of a text in which ends of such calls are looked for


def has_marks(text: str) -> bool:
    """Return whether a text has the marks of a call, readable or not."""
    return bool(_MARK.search(text) or re.search(r'"(?:arguments|parameters)"\s*:', text))


def has_declarations(text: str) -> bool:
    """Return whether a text has the description of a tool in it, which is copied from the prompt."""
    budget = RepairBudget()
    position = 0
    for _ in range(_MAX_STARTS):
        match = _JSON_START.search(text, position)
        if not match:
            return False
        value, end = _decode(text, match.start(), budget)
        if isinstance(value, dict):
            function = value.get("function")
            if _is_declaration(function if isinstance(function, dict) else value):
                return True
        position = max(match.start() + 1, end if isinstance(value, dict) else 0)
    return False


def read_calls(text: str, names: Collection[str] = ()) -> Reading:
    """Return the calls in a text, and the text without them.

    `names` are the names of the tools. If they are given, a call outside of any marks has to name
    one of them: JSON in an answer may be something else. If they are keys of a mapping to the
    parameters of each tool, arguments alone are a call of the only tool that takes them.
    """
    if len(text) > _LONGEST_TEXT:
        return Reading([], text)
    plain = text.replace('<|"|>', '"')  # Gemma's quotation marks
    budget = RepairBudget()
    for reader in _READERS:
        calls = list(reader(plain, names, budget))
        if calls:
            written = [_write(call, names) for call in calls]
            return Reading(written, _cut_calls(plain, calls))
    return Reading([], text)


def _cut_calls(text: str, calls: Iterable[TextCall]) -> str:
    """Return a text without its calls and the marks around them."""
    cut_text = ""
    position = 0
    for call in calls:
        cut_text += text[position : call.start] + _CUT
        position = max(position, call.end)
    return _remove_cuts(_MARK.sub("", cut_text + text[position:])).strip()


def _remove_cuts(text: str) -> str:
    """Return a text with a line break for each cut, without the words and marks that announce a call."""
    first, *further = text.split(_CUT)
    if not further:
        return first
    parts = [_cut_end(first)]
    for part in further[:-1]:
        if part.strip(" \t\r\n;,"):
            parts.append(_cut_end(_cut_beginning(part)))
    return "\n".join([*parts, _cut_beginning(further[-1])])


def _cut_beginning(text: str) -> str:
    """Return a text without the marks that end a call at its beginning."""
    marks = _BEHIND_CUT.match(text)
    return text[marks.end() :] if marks else text


def _cut_end(text: str) -> str:
    """Return a text without the fence and the word at its end that announce a call."""
    bare = text.rstrip()
    before, fence, language = bare.rpartition("```")
    if fence and re.fullmatch(r"\w*", language):
        bare = before.rstrip()
    start = max(0, len(bare) - _LONGEST_BEFORE)
    word = _BEFORE_CUT.search(bare, start)
    return bare[: word.start()].rstrip() if word else bare


def find_tool(name: str, names: Collection[str]) -> str:
    """Return the tool that a model calls by `name`, in any case and with marks around it; `name` if there is none."""
    if name in names or not names:
        return name
    # Kimi numbers calls, and gpt-oss leaves marks of its channels behind names
    bare = re.sub(r"(?:<\|.*)?(?::\d+)?$", "", name.strip().strip("\"'`"), flags=re.DOTALL)
    last = re.split(r"[./:]|->", bare)[-1].strip("()<>[] ")
    for candidate in (bare, last):
        matches = [tool for tool in names if tool.casefold() == candidate.casefold()]
        if len(matches) == 1:
            return matches[0]
    return name


def identify(calls: Sequence[JsonMapping], conversation: Sequence[JsonMapping]) -> list[JsonObject]:
    """Return the calls of a conversation's next turn, each with an id that no other call has.

    An id of the server is kept, because the server may want to see it again. New ids are nine letters
    and digits, which every provider takes, made of the turn and the position of the call, so that an
    answer from the ledger has the same ids.
    """
    taken = set[Any]()
    for message in conversation:
        taken.update(call.get("id") for call in message.get("tool_calls") or ())
    identified = []
    for position, call in enumerate(calls):
        call_id = call.get("id")
        if not call_id or call_id in taken:
            call_id = f"c{len(conversation):05}{position:03}"
        taken.add(call_id)
        identified.append({**call, "id": call_id})
    return identified


def shorten_ids(conversation: Sequence[JsonMapping]) -> list[JsonObject]:
    """Return a conversation in which all ids of calls have nine letters and digits, for servers that refuse others."""
    short_ids = {}
    for turn, message in enumerate(conversation):
        for position, call in enumerate(message.get("tool_calls") or ()):
            is_short = re.fullmatch("[A-Za-z0-9]{9}", str(call["id"]))
            short_ids[call["id"]] = call["id"] if is_short else f"c{turn:05}{position:03}"
    messages = [dict(message) for message in conversation]
    for message in messages:
        if message.get("tool_calls"):
            message["tool_calls"] = [
                {**call, "id": short_ids[call["id"]]} for call in message["tool_calls"]
            ]
        if message.get("tool_call_id") in short_ids:
            message["tool_call_id"] = short_ids[message["tool_call_id"]]
    return messages


def _write(call: TextCall, names: Collection[str]) -> dict[str, str]:
    arguments = call.arguments
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    return {"id": "", "name": find_tool(call.name.strip(), names), "arguments": arguments}


# Tags: <function=search><parameter=query>...; <invoke name="search"><parameter name="query">...;
# <function=search>{...}

_FUNCTION = re.compile(
    r"<(?:\uff5cDSML\uff5c)?(?:function|invoke)(?:\s*+=\s*+|\s++name\s*+=\s*+)[\"']?([^\"'<>\s{(]++)[\"']?"
    r"(?:[^<>{]*+>|\s*+(?=\{))"
)
_FUNCTION_END = re.compile(r"</(?:\uff5cDSML\uff5c)?(?:function|invoke)>|(?=</tool_call>)")
_PARAMETER = re.compile(
    r"<(?:\uff5cDSML\uff5c)?param(?:eter)?(?:\s*+=\s*+|\s++name\s*+=\s*+)[\"']?(?P<name>[^\"'<>\s]++)[\"']?"
    r"[^<>]*+>"
    r"(?P<value>.*?)(?=</(?:\uff5cDSML\uff5c)?param(?:eter)?>|<(?:\uff5cDSML\uff5c)?param(?:eter)?\b|$)",
    re.DOTALL,
)
_GLM = re.compile(r"<tool_call>\s*+([\w.-]++)\s*+(<arg_key>.*?)(?:</tool_call>|$)", re.DOTALL)


def _read_tags(
    text: str,
    names: Collection[str],
    budget: RepairBudget,
) -> Iterator[TextCall]:
    starts = list(_FUNCTION.finditer(text))
    for index, start in enumerate(starts):
        limit = len(text)
        if index + 1 < len(starts):
            limit = starts[index + 1].start()
        closing = _FUNCTION_END.search(text, start.end(), limit)
        body = text[start.end() : closing.start() if closing else limit]
        arguments: JsonObject | str = {
            parameter["name"]: _plain(parameter["value"]) for parameter in _PARAMETER.finditer(body)
        }
        if not arguments and body.strip():
            arguments = _object(body, budget) or body.strip()
        end = closing.end() if closing else limit
        yield TextCall(start.start(), end, start[1], arguments)
    for call in _GLM.finditer(text):
        yield TextCall(call.start(), call.end(), call[1], _read_pairs(call[2]))


def _read_pairs(text: str) -> JsonObject:
    """Return the arguments in GLM's tags: <arg_key>query</arg_key><arg_value>ferry</arg_value>."""
    pairs = {}
    for part in text.split("<arg_key>")[1:]:
        key, closing, behind = part.partition("</arg_key>")
        before, opening, value = behind.partition("<arg_value>")
        if closing and opening and not before.strip():
            pairs[key.strip()] = _plain(value.partition("</arg_value>")[0])
    return pairs


def _plain(value: str) -> Any:
    """Return the content of a tag: a list or an object if it is JSON, else the text."""
    stripped = value.strip()
    if stripped[:1] in ("[", "{"):
        with suppress(ValueError):
            return json.loads(stripped)
    return stripped


# A name before JSON: harmony's to=functions.search ... {...}, [TOOL_CALLS]search[ARGS]{...},
# Kimi's, DeepSeek's

_NAME = r"(?P<name>[A-Za-z_][\w.\-]*+(?::\d++)?)"
_BEFORE_JSON = re.compile(
    rf"(?:\bto=(?P<to>[\w.\-]++)(?:\s*+<\|channel\|>\s*+\w++)?\s*+(?:<\|constrain\|>)?\s*+(?:json|code)?\s*+"
    rf"(?:<\|message\|>)?\s*+"
    rf"|\[TOOL_CALLS\]\s*+{_NAME.replace('?P<name>', '?P<mistral>')}\s*+(?:\[CALL_ID\]\s*+\w++\s*+)?(?:\[ARGS\])?\s*+"
    rf"|<\|tool_call_begin\|>\s*+{_NAME.replace('?P<name>', '?P<kimi>')}\s*+<\|tool_call_argument_begin\|>\s*+"
    rf"|<\uff5ctool\u2581call\u2581begin\uff5c>\s*+(?:function<\uff5ctool\u2581sep\uff5c>)?"
    rf"{_NAME.replace('?P<name>', '?P<deepseek>')}\s*+(?:<\uff5ctool\u2581sep\uff5c>)?\s*+(?:```json)?\s*+"
    rf"|(?:<\|tool_call>\s*+call:|<\|tool_call\|>\s*+|<tool_call>\s*+|>>>\s*+)"
    rf"{_NAME.replace('?P<name>', '?P<other>')}\s*+)(?=\{{)"
)


def _read_names_before_json(
    text: str, names: Collection[str], budget: RepairBudget
) -> Iterator[TextCall]:
    for start in islice(_BEFORE_JSON.finditer(text), _MAX_STARTS):
        value, end = _decode(text, start.end(), budget)
        if isinstance(value, dict):
            yield TextCall(start.start(), end, next(filter(None, start.groups())), value)
    if not names:
        return
    tools = "|".join(re.escape(name) for name in names)
    at_beginning = re.compile(
        rf"^[ \t`]*+(?:functions\.)?({tools})\s*+[:=]?\s*+(?=\{{)", re.MULTILINE
    )
    for start in islice(at_beginning.finditer(text), _MAX_STARTS):
        value, end = _decode(text, start.end(), budget)
        if isinstance(value, dict):
            yield TextCall(start.start(), end, start[1], value)


# JSON with a name and arguments

_JSON_START = re.compile(r"[\[{](?=\s*[\[{\"'\w])")


class _JsonCall(NamedTuple):
    name: str
    arguments: JsonObject | str


def _read_json(
    text: str,
    names: Collection[str],
    budget: RepairBudget,
) -> Iterator[TextCall]:
    marked = bool(_MARK.search(text))
    unmarked = _FENCE.sub("", _MARK.sub("", text)).strip().strip("`").strip()
    answer = unmarked.removeprefix("json").strip()
    position = 0
    for _ in range(_MAX_STARTS):
        match = _JSON_START.search(text, position)
        if not match:
            return
        start = match.start()
        position = start + 1
        value, end = _decode(text, start, budget)
        if not isinstance(value, dict | list):
            continue
        calls = list(_find_calls(value, names, budget))
        if names and not marked and answer != text[start:end].strip():
            calls = [call for call in calls if find_tool(call.name, names) in names]
        if not all(call.arguments for call in calls) and has_declarations(text):
            # The last description that is copied is often cut off before its parameters.
            calls = [call for call in calls if call.arguments]
        for call in calls:
            yield TextCall(start, end, call.name, call.arguments)
        if calls or (isinstance(value, dict) and not names):
            position = max(position, end)


def _find_calls(
    value: Any,
    names: Collection[str],
    budget: RepairBudget,
) -> Iterator[_JsonCall]:
    """Yield the calls in a JSON value: a call, or a list of calls."""
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                yield from _find_calls(item, names, budget)
        return
    for key in _LIST_KEYS:
        if isinstance(value.get(key), list):
            yield from _find_calls(value[key], names, budget)
            return
    if isinstance(value.get("function"), dict):
        yield from _find_calls(value["function"], names, budget)
        return
    if _is_declaration(value):
        return
    call = _read_call(value, names, budget)
    if call:
        yield call


def _is_declaration(value: JsonMapping) -> bool:
    """Return whether a JSON object describes a tool, as the prompt does, and calls none.

    Chat templates write the tools of a request into the prompt in this form, and small models copy it.
    """
    return any(
        isinstance(schema, dict)
        and schema.get("type") == "object"
        and isinstance(schema.get("properties"), dict)
        for schema in (value.get("parameters"), value.get("input_schema"))
    )


def _read_call(value: JsonObject, names: Collection[str], budget: RepairBudget) -> _JsonCall | None:
    """Return the call that a JSON object states; None if it states none."""
    name_key = _first_key(value, _NAME_KEYS, lambda name: isinstance(name, str) and name.strip())
    argument_key = _first_key(value, _ARGUMENT_KEYS, lambda arguments: True)
    if name_key and argument_key:
        arguments = value[argument_key]
        if isinstance(arguments, str):  # JSON in a text, as in the protocol
            parsed = _object(arguments, budget)
            arguments = arguments if parsed is None else parsed
        return _JsonCall(value[name_key], arguments if isinstance(arguments, dict | str) else {})
    if name_key and find_tool(value[name_key], names) in names:
        keys = [key for key in value if key not in (name_key, *_META_KEYS)]
        return _JsonCall(value[name_key], {key: value[key] for key in keys})
    if len(value) == 1:
        [(name, arguments)] = value.items()
        if names and find_tool(name, names) in names and isinstance(arguments, dict):
            return _JsonCall(name, arguments)
    return None


def _first_key(value: JsonMapping, keys: Iterable[str], fits: Callable[[Any], Any]) -> str | None:
    return next((key for key in keys if key in value and fits(value[key])), None)


def _decode(
    text: str,
    start: int,
    budget: RepairBudget,
) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, repaired if it is broken, and its end; None if there is none."""
    with suppress(ValueError, RecursionError):
        return json.JSONDecoder(strict=False).raw_decode(text, start)
    if budget.left < 0 or not re.match(r"[\[{]\s*[\[{\"'\w]", text[start : start + 40]):
        return None, start
    ends = re.compile(r"</|```|<\||\[/|<\uff5c|<tool_call\||\n\s*\n").search(text, start)
    end = ends.start() if ends else len(text)
    with suppress(TooBroken, RecursionError, ValueError):
        value = repair_json(text[start:end], budget)
        if isinstance(value, dict) and not all(re.fullmatch(r"[\w ]+", str(key)) for key in value):
            return None, start
        return value, end
    return None, start


def _object(text: str, budget: RepairBudget) -> JsonObject | None:
    with suppress(ValueError, RecursionError):
        value = json.loads(text, strict=False)
        return value if isinstance(value, dict) else None
    stripped = text.strip()
    value = _decode(stripped, 0, budget)[0] if stripped.startswith("{") else None
    return value if isinstance(value, dict) else None


# Calls as in Python: search(query="..."), alone, in a list, or in a block of code


# The tokens by which the end of a call is found: texts, in which brackets do not count, and brackets.
_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+"""|"(?:[^"\\\n]|\\.)*+"'
    r"|'''(?:[^'\\]|\\.|'(?!''))*+'''|'(?:[^'\\\n]|\\.)*+'"
    r"|[()\[\]{}]",
    re.DOTALL,
)


def _read_python(
    text: str,
    names: Collection[str],
    budget: RepairBudget,
) -> Iterator[TextCall]:
    marked = bool(_MARK.search(text)) or "```tool_code" in text
    remaining = _MAX_SCANNED
    for call in re.finditer(r"(?<![\w.])([A-Za-z_][\w.]*+)\(", text):
        start = call.start()
        name = call[1]
        if not marked and (find_tool(name, names) not in names or not _is_alone(text, start)):
            continue
        end = _find_end(text, call.end(), min(_LONGEST_CALL, remaining))
        remaining -= (end or call.end() + _LONGEST_CALL) - start
        if remaining <= 0:
            return
        arguments = _parse_python(text[start:end]) if end else None
        if end and arguments is not None and (arguments or not marked or name in names):
            yield TextCall(start, end, name, arguments)


def _is_alone(text: str, start: int) -> bool:
    """Return whether a call begins a line or a value, and is not in the middle of a sentence."""
    position = start - 1
    while position >= 0 and text[position].isspace() and text[position] != "\n":
        position -= 1
    return position < 0 or text[position] in "\n[,;:`(="


def _find_end(
    text: str,
    start: int,
    max_chars: int,
) -> int | None:
    """Return the end of the bracket that was opened before `start`; None if it has no end within `max_chars`."""
    depth = 1
    for token in _TOKEN.finditer(text, start, start + max_chars):
        if token[0] in ("(", "[", "{"):
            depth += 1
        elif token[0] in (")", "]", "}"):
            depth -= 1
        if not depth:
            return token.end()
    return None


def _parse_python(written: str) -> JsonObject | str | None:
    """Return the arguments of a call, by name, or the only argument without a name; None if it is no call of values."""
    with suppress(SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        call = ast.parse(written, mode="eval").body
        if not isinstance(call, ast.Call):
            return None
        arguments = {
            keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg
        }
        if call.args:
            first = ast.literal_eval(call.args[0])
            if len(call.args) == 1 and not arguments and not isinstance(first, dict):
                return first if isinstance(first, str) else json.dumps(first)
            if isinstance(first, dict):
                arguments = first | arguments
        json.dumps(arguments)  # TypeError for `...` and sets, which are no values of an argument
        return arguments
    return None


# ReAct's own words, and a tag for each tool

_ACTION = re.compile(
    r"^[^\w\n]*+(?:Action|(?:Tool|Function)(?:[ _](?:call|name))?)[^\w\n]*:\**+\s*+`?"
    r"(?P<name>[\w.\-]++)(?:[^\S\n]|[`*])*+\n"
    r"\W*+(?:(?:Action|Tool)[ _])?(?:Input|Arguments?|Args|Parameters)\W*:\**+",
    re.MULTILINE | re.IGNORECASE,
)
_OBSERVATION = re.compile(r"^[^\w\n]*+Observation[^\w\n]*:", re.MULTILINE | re.IGNORECASE)
_ARGUMENT_TAG = re.compile(r"<(\w+)>")


def _read_words(
    text: str,
    names: Collection[str],
    budget: RepairBudget,
) -> Iterator[TextCall]:
    if action := _ACTION.search(text):
        observation = _OBSERVATION.search(text, action.end())
        end = observation.start() if observation else len(text)
        written = text[action.end() : end].strip().removeprefix("```json").strip("` \n")
        arguments = _object(written, budget) or written
        yield TextCall(action.start(), len(text), action["name"], arguments)
    yield from _read_tags_of_names(text, names, budget)


def _read_tags_of_names(
    text: str,
    names: Collection[str],
    budget: RepairBudget,
) -> Iterator[TextCall]:
    for name in names:
        for element in find_elements(text, re.compile(rf"<({re.escape(name)})>")):
            body = element.body.strip()
            if not (body.startswith("{") or _ARGUMENT_TAG.match(body)):
                continue
            fields = _object(body, budget)
            if fields is None:
                fields = {
                    argument.tag: _plain(argument.body)
                    for argument in find_elements(body, _ARGUMENT_TAG)
                }
            yield TextCall(element.start, element.end, name, fields)


# Arguments without a name: {"query": "..."}, as all of the text or all of a block

_BLOCK = re.compile(r"```\w*[^\S\n]*\n(.*?)(?:```|\Z)", re.DOTALL)


def _read_bare_arguments(
    text: str,
    names: Collection[str],
    budget: RepairBudget,
) -> Iterator[TextCall]:
    if not isinstance(names, Mapping):
        return
    for block in _BLOCK.finditer(text):
        name, arguments = _identify_tool(block[1], names, budget)
        if name:
            yield TextCall(block.start(), block.end(), name, arguments)
    name, arguments = _identify_tool(_MARK.sub("", text), names, budget)
    if name:
        yield TextCall(0, len(text), name, arguments)


def _identify_tool(
    text: str,
    parameters: Mapping[str, Collection[str]],
    budget: RepairBudget,
) -> tuple[str, JsonObject]:
    """Return the only tool that takes the arguments of which a text consists; "" if there is none."""
    arguments = _object(text, budget) if text.strip().endswith("}") else None
    if not arguments:
        return "", {}
    given = set(map(plain_name, arguments))
    matches = []
    for name, own in parameters.items():
        if set(map(plain_name, own)) == given:
            matches.append(name)
    return (matches[0], arguments) if len(matches) == 1 else ("", {})


_READERS: tuple[Callable[[str, Collection[str], RepairBudget], Iterator[TextCall]], ...] = (
    _read_tags,
    _read_names_before_json,
    _read_json,
    _read_words,
    _read_python,
    _read_bare_arguments,
)


def read_arguments(written: Any, parameters: JsonMapping | None = None) -> JsonObject | None:
    """Return the arguments of a call as an object, from any of their forms; None if they are no arguments.

    With the names of the tool's `parameters`, a text that is no JSON is the value of the only
    parameter.
    """
    if isinstance(written, dict):
        return written
    if written is None or (isinstance(written, str) and not written.strip()):
        return {}
    value: Any = written
    for _ in range(2):  # JSON in JSON
        if isinstance(value, str):
            with suppress(ValueError, RecursionError):
                value = json.loads(value, strict=False)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0]
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    names = list(parameters or ())
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        repaired = _object(value, RepairBudget())
        return repaired if repaired and set(repaired) <= set(names) else None
    return {names[0]: value} if len(names) == 1 else None
