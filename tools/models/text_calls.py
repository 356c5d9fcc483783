"""Calls of tools that stand in the text of an answer, because the server has no parser for its
model.

Models write calls in some twenty forms, which come down to five: JSON with a name and arguments; a
name before JSON arguments; tags for function and parameters; a call as in Python; "Action:" and
"Action Input:". Each is read here, whatever marks are around it. To add a form: a pattern, and a
reader in `_READERS`.
"""

import ast
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tools.models.values import TooBroken, repair_json


class TextCall(NamedTuple):
    """One call, and the part of the text that it is."""

    start: int
    end: int
    name: str
    arguments: dict[str, Any] | str  # a text where it is no JSON object


class Reading(NamedTuple):
    """What a text has of calls."""

    calls: list[dict[str, str]]  # "id" (empty), "name" and "arguments", as wire.Reply has them
    rest: str  # the text without them


# Marks around calls: where one of them is, a call was meant.
_MARK = re.compile(
    r"</?(?:minimax:|seed:)?(?:tool_?calls?|function_?calls?|tool|tool_code|TOOLCALL|\uff5cDSML\uff5c\w+)>"
    r"|<\|/?(?:tool_calls?|python_tag|python_start|python_end|START_ACTION|END_ACTION|tool_call_start|tool_call_end"
    r"|tool_calls_section_begin|tool_calls_section_end|tool_call_begin|tool_call_end|tool_call_argument_begin)\|>"
    r"|<\|tool_call>|<tool_call\|>|<\uff5ctool\u2581[^>]*\uff5c>|\[/?(?:AVAILABLE_)?TOOL_CALLS?\]|\[/?ARGS\]|functools(?=\[)"
    r"|functions=(?=[\[{])|<\|(?:start|channel|message|call|end|constrain)\|>",
    re.IGNORECASE,
)
_FENCE = re.compile(r"```\w*\s*```")
_CUT = "\0"  # stands where a call was
_AROUND = re.compile(
    rf"\s*(?:functools|functions=|(?:assistant)?(?:commentary|analysis)|assistant|(?:Action|call):|<function>|[\[`])?\s*"
    rf"(?:```\w*)?\s*{_CUT}[\s;,{_CUT}]*(?:</function>|```|\])*\s*"
)
_META_KEYS = ("type", "id", "tool_call_id", "call_id", "index")
_LIST_KEYS = ("tool_calls", "calls", "function_calls", "actions")
_NAME_KEYS = ("name", "tool_name", "function_name", "tool", "function", "action", "recipient_name")
_ARGUMENT_KEYS = (
    *("arguments", "parameters", "args", "input", "action_input", "tool_input", "params", "kwargs"),
    *("tool_parameters", "tool_args", "function_parameters"),
)
_MOST_STARTS = 200  # of JSON values in a text that are tried


def has_marks(text: str) -> bool:
    """Whether a text has the marks of a call, be it one that can be read or not."""
    return bool(_MARK.search(text) or re.search(r'"(?:arguments|parameters)"\s*:', text))


def read_calls(text: str, names: Collection[str] = ()) -> Reading:
    """Return the calls in a text, and the text without them.

    `names` are those of the tools. Where they are given, a call outside of any marks has to be of one of them: JSON in
    an answer may be something else.
    """
    plain = text.replace('<|"|>', '"')  # Gemma's quotation marks
    for reader in _READERS:
        calls = list(reader(plain, names))
        if calls:
            break
    else:
        return Reading([], text)
    rest = ""
    place = 0
    for call in calls:
        rest += plain[place : call.start] + _CUT
        place = max(place, call.end)
    rest = _AROUND.sub("\n", _MARK.sub("", rest + plain[place:]))
    return Reading([_write(call, names) for call in calls], rest.strip())


def find_tool(name: str, names: Collection[str]) -> str:
    """Return the tool that a model calls by `name`, whatever is around it or its case; `name` where there is none."""
    if name in names or not names:
        return name
    bare = re.sub(r":\d+$", "", name.strip().strip("\"'`"))  # Kimi numbers calls
    last = re.split(r"[./]|::|->", bare)[-1].strip("()<>[] ")
    for candidate in (bare, last):
        alike = [known for known in names if known.casefold() == candidate.casefold()]
        if len(alike) == 1:
            return alike[0]
    return name


def identify(
    calls: Sequence[Mapping[str, Any]], conversation: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the calls of a conversation's next turn, each with an id that no other call has.

    An id that came is kept, because the server may want to see it again. Others are nine letters and digits, which
    every provider takes, made of turn and place: so they are the same when the answer is taken from the ledger.
    """
    taken = {call.get("id") for message in conversation for call in message.get("tool_calls") or ()}
    identified = list[dict[str, Any]]()
    for place, call in enumerate(calls):
        came = call.get("id")
        known = came if came and came not in taken else f"c{len(conversation):05}{place:03}"
        taken.add(known)
        identified.append({**call, "id": known})
    return identified


def shorten_ids(conversation: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation in which all ids of calls have nine letters and digits, for servers that refuse others."""
    short = dict[str, str]()
    for turn, message in enumerate(conversation):
        for place, call in enumerate(message.get("tool_calls") or ()):
            is_short = re.fullmatch("[A-Za-z0-9]{9}", str(call["id"]))
            short[call["id"]] = call["id"] if is_short else f"c{turn:05}{place:03}"
    shortened = list[dict[str, Any]]()
    for message in conversation:
        made = dict(message)
        if made.get("tool_calls"):
            made["tool_calls"] = [{**call, "id": short[call["id"]]} for call in made["tool_calls"]]
        if made.get("tool_call_id") in short:
            made["tool_call_id"] = short[made["tool_call_id"]]
        shortened.append(made)
    return shortened


def _write(call: TextCall, names: Collection[str]) -> dict[str, str]:
    given = call.arguments
    arguments = (
        given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
    )
    return {"id": "", "name": find_tool(call.name.strip(), names), "arguments": arguments}


# Tags: <function=search><parameter=query>...; <invoke name="search"><parameter name="query">...;
# <function=search>{...}

_FUNCTION = re.compile(
    r"<(?:\uff5cDSML\uff5c)?(?:function|invoke)(?:\s*=\s*|\s+name\s*=\s*)[\"']?([^\"'>\s{(]+)[\"']?"
    r"(?:[^>{]*>|\s*(?=\{))"
)
_FUNCTION_END = re.compile(r"</(?:\uff5cDSML\uff5c)?(?:function|invoke)>|(?=</tool_call>)")
_PARAMETER = re.compile(
    r"<(?:\uff5cDSML\uff5c)?param(?:eter)?(?:\s*=\s*|\s+name\s*=\s*)[\"']?(?P<name>[^\"'>\s]+)[\"']?[^>]*>"
    r"(?P<value>.*?)(?=</(?:\uff5cDSML\uff5c)?param(?:eter)?>|<(?:\uff5cDSML\uff5c)?param(?:eter)?\b|$)",
    re.DOTALL,
)
_GLM = re.compile(r"<tool_call>\s*([\w.-]+)\s*(<arg_key>.*?)(?:</tool_call>|$)", re.DOTALL)
_GLM_PAIR = re.compile(
    r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|(?=<arg_key>)|$)", re.DOTALL
)


def _read_tags(text: str, names: Collection[str]) -> Iterator[TextCall]:
    starts = list(_FUNCTION.finditer(text))
    for place, start in enumerate(starts):
        most = starts[place + 1].start() if place + 1 < len(starts) else len(text)
        ended = _FUNCTION_END.search(text, start.end(), most)
        body = text[start.end() : ended.start() if ended else most]
        given: dict[str, Any] | str = {
            one["name"]: _plain(one["value"]) for one in _PARAMETER.finditer(body)
        }
        if not given and body.strip():
            given = _object(body) or body.strip()
        yield TextCall(start.start(), ended.end() if ended else most, start[1], given)
    for call in _GLM.finditer(text):
        pairs = {key.strip(): _plain(value) for key, value in _GLM_PAIR.findall(call[2])}
        yield TextCall(call.start(), call.end(), call[1], pairs)


def _plain(value: str) -> Any:
    """Return what stands in a tag: a list or an object where it is one, else the text."""
    stripped = value.strip()
    if stripped[:1] in ("[", "{"):
        with suppress(ValueError):
            return json.loads(stripped)
    return stripped


# A name before JSON: harmony's to=functions.search ... {...}, [TOOL_CALLS]search[ARGS]{...},
# Kimi's, DeepSeek's

_NAME = r"(?P<name>[A-Za-z_][\w.\-]*(?::\d+)?)"
_BEFORE_JSON = re.compile(
    rf"(?:\bto=(?P<to>[\w.\-]+)(?:\s*<\|channel\|>\s*\w+)?\s*(?:<\|constrain\|>)?\s*(?:json|code)?\s*(?:<\|message\|>)?\s*"
    rf"|\[TOOL_CALLS\]\s*{_NAME.replace('?P<name>', '?P<mistral>')}\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*"
    rf"|<\|tool_call_begin\|>\s*{_NAME.replace('?P<name>', '?P<kimi>')}\s*<\|tool_call_argument_begin\|>\s*"
    rf"|<\uff5ctool\u2581call\u2581begin\uff5c>\s*(?:function<\uff5ctool\u2581sep\uff5c>)?"
    rf"{_NAME.replace('?P<name>', '?P<deepseek>')}\s*(?:<\uff5ctool\u2581sep\uff5c>)?\s*(?:```json)?\s*"
    rf"|(?:<\|tool_call>\s*call:|<\|tool_call\|>\s*|<tool_call>\s*|>>>\s*)"
    rf"{_NAME.replace('?P<name>', '?P<other>')}\s*)(?=\{{)"
)


def _read_names_before_json(text: str, names: Collection[str]) -> Iterator[TextCall]:
    for start in _BEFORE_JSON.finditer(text):
        value, end = _decode(text, start.end())
        if isinstance(value, dict):
            yield TextCall(start.start(), end, next(filter(None, start.groups())), value)
    known = "|".join(re.escape(name) for name in names)
    for start in (
        re.finditer(rf"^[\s`]*(?:functions\.)?({known})\s*[:=]?\s*(?=\{{)", text, re.MULTILINE)
        if known
        else ()
    ):
        value, end = _decode(text, start.end())
        if isinstance(value, dict):
            yield TextCall(start.start(), end, start[1], value)


# JSON with a name and arguments


def _read_json(text: str, names: Collection[str]) -> Iterator[TextCall]:
    outside = _FENCE.sub("", _MARK.sub("", text)).strip().strip("`").strip()
    marked = bool(_MARK.search(text))
    place = 0
    tried = 0
    while tried < _MOST_STARTS and (
        start := re.compile(r"[\[{](?=\s*[\[{\"'\w])").search(text, place)
    ):
        tried = tried + 1
        place = start.start() + 1
        value, end = _decode(text, start.start())
        if not isinstance(value, dict | list):
            continue
        found = list(_shaped(value, names))
        is_all = outside.removeprefix("json").strip() == text[start.start() : end].strip()
        if not (marked or is_all):
            found = [
                (name, given)
                for name, given in found
                if not names or find_tool(name, names) in names
            ]
        for name, given in found:
            yield TextCall(start.start(), end, name, given)
        if found or (isinstance(value, dict) and not names):
            place = max(place, end)


def _shaped(value: Any, names: Collection[str]) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield the name and arguments of each call in a JSON value that is one, or a list of them."""
    if isinstance(value, list):
        for one in value:
            if isinstance(one, dict):
                yield from _shaped(one, names)
        return
    for key in _LIST_KEYS:
        if isinstance(value.get(key), list):
            yield from _shaped(value[key], names)
            return
    if isinstance(value.get("function"), dict):
        yield from _shaped(value["function"], names)
        return
    name_key = next(
        (key for key in _NAME_KEYS if isinstance(value.get(key), str) and value[key].strip()), None
    )
    argument_key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    if name_key and argument_key:
        given = value[argument_key]
        if isinstance(given, str) and (inside := _object(given)) is not None:
            given = inside  # JSON in a text, as in the protocol
        yield value[name_key], given if isinstance(given, dict | str) else {}
    elif name_key and find_tool(value[name_key], names) in names:
        yield (
            value[name_key],
            {key: value[key] for key in value if key not in (name_key, *_META_KEYS)},
        )
    elif len(value) == 1:
        [(name, given)] = value.items()
        if names and find_tool(name, names) in names and isinstance(given, dict):
            yield name, given


def _decode(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, mended where it is broken, and where it ends; None for none."""
    with suppress(ValueError, RecursionError):
        return json.JSONDecoder(strict=False).raw_decode(text, start)
    if not re.match(r"[\[{]\s*[\[{\"'\w]", text[start : start + 40]):
        return None, start
    ends = re.compile(r"</|```|<\||\[/|<\uff5c|<tool_call\||\n\s*\n").search(text, start)
    end = ends.start() if ends else len(text)
    with suppress(TooBroken, RecursionError, ValueError):
        value = repair_json(text[start:end])
        if isinstance(value, dict) and not all(re.fullmatch(r"[\w ]+", str(key)) for key in value):
            return None, start
        return value, end
    return None, start


def _object(text: str) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        value = json.loads(text, strict=False)
        return value if isinstance(value, dict) else None
    stripped = text.strip()
    value = _decode(stripped, 0)[0] if stripped.startswith("{") else None
    return value if isinstance(value, dict) else None


# Calls as in Python: search(query="..."), alone, in a list, or in a block of code


def _read_python(text: str, names: Collection[str]) -> Iterator[TextCall]:
    marked = bool(_MARK.search(text)) or "```tool_code" in text
    for start in re.finditer(r"(?<![\w.])([A-Za-z_][\w.]*)\(", text):
        if not marked and find_tool(start[1], names) not in names:
            continue
        if not (
            marked or re.search(r"(?:^|[\[,;:`(=])\s*$", text[: start.start()].rpartition("\n")[2])
        ):
            continue  # in the midst of a sentence
        parsed = _parse_python(text, start.start())
        if parsed is not None and (parsed[1] or not marked or start[1] in names):
            yield TextCall(start.start(), parsed[0], start[1], parsed[1])


def _parse_python(text: str, start: int) -> tuple[int, dict[str, Any] | str] | None:
    """Return where a call ends, and its arguments, which have to be values, by name; or one by its place."""
    for end in (found.end() for found in re.finditer(r"\)", text[start : start + 20_000])):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            call = ast.parse(text[start : start + end], mode="eval").body
            if not isinstance(call, ast.Call):
                return None
            given = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
            if call.args:
                first = ast.literal_eval(call.args[0])
                if isinstance(first, dict):
                    given = first | given
                elif len(call.args) == 1 and not given:
                    return start + end, first if isinstance(first, str) else json.dumps(first)
            return start + end, given
    return None


# ReAct's own words, and a tag for each tool

_ACTION = re.compile(
    r"^\W*(?:Action|(?:Tool|Function)(?:[ _](?:call|name))?)\W*:\**\s*`?(?P<name>[\w.\-]+)[\s`*]*\n"
    r"\W*(?:(?:Action|Tool)[ _])?(?:Input|Arguments?|Args|Parameters)\W*:\**\s*(?P<input>.*?)\s*"
    r"(?:^\W*Observation\W*:.*)?\Z",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)


def _read_words(text: str, names: Collection[str]) -> Iterator[TextCall]:
    for action in _ACTION.finditer(text):
        written = action["input"].strip().removeprefix("```json").strip("` \n")
        yield TextCall(action.start(), action.end(), action["name"], _object(written) or written)
    for name in names:
        for tag in re.finditer(
            rf"<{re.escape(name)}>\s*(<\w+>.*?|\{{.*?)\s*</{re.escape(name)}>", text, re.DOTALL
        ):
            inside = _object(tag[1])
            pairs = {
                key: _plain(value)
                for key, value in re.findall(r"<(\w+)>(.*?)</\1>", tag[1], re.DOTALL)
            }
            yield TextCall(tag.start(), tag.end(), name, pairs if inside is None else inside)


_READERS: tuple[Callable[[str, Collection[str]], Iterator[TextCall]], ...] = (
    _read_tags,
    _read_names_before_json,
    _read_json,
    _read_words,
    _read_python,
)


def read_arguments(
    written: Any, parameters: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return the arguments of a call as an object, in whatever form they came; None where they are none.

    With the names of the tool's `parameters`, a text that is no JSON is the value of the only one.
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
        mended = _object(value)
        return mended if mended and set(mended) <= set(names) else None
    return {names[0]: value} if len(names) == 1 else None
