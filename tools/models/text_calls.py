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
from itertools import islice
from typing import Any, NamedTuple

from tools.models.elements import find_elements
from tools.models.values import RepairBudget, TooBroken, repair_json


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
    r"|<\|tool_call>|<tool_call\|>|<\uff5ctool\u2581[^<>]*\uff5c>|\[/?(?:AVAILABLE_)?TOOL_CALLS?\]|\[/?ARGS\]|functools(?=\[)"
    r"|functions=(?=[\[{])|<\|(?:start|channel|message|call|end|constrain)\|>",
    re.IGNORECASE,
)
_FENCE = re.compile(r"```\w*\s*```")
_CUT = "\0"  # stands where a call was
# What stands before a cut, and is no part of the answer, and what stands behind it.
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
_MOST_STARTS = 200  # of JSON values, and of calls, in a text that are tried
_LONGEST_CALL = 20_000  # characters of a call as in Python
_MOST_SCANNED = 400_000  # characters in which ends of such calls are looked for, of one text


def has_marks(text: str) -> bool:
    """Whether a text has the marks of a call, be it one that can be read or not."""
    return bool(_MARK.search(text) or re.search(r'"(?:arguments|parameters)"\s*:', text))


def read_calls(text: str, names: Collection[str] = ()) -> Reading:
    """Return the calls in a text, and the text without them.

    `names` are those of the tools. Where they are given, a call outside of any marks has to be of one of them: JSON in
    an answer may be something else.
    """
    plain = text.replace('<|"|>', '"')  # Gemma's quotation marks
    budget = RepairBudget()
    for reader in _READERS:
        calls = list(reader(plain, names, budget))
        if calls:
            break
    else:
        return Reading([], text)
    rest = ""
    place = 0
    for call in calls:
        rest += plain[place : call.start] + _CUT
        place = max(place, call.end)
    rest = _remove_cuts(_MARK.sub("", rest + plain[place:]))
    return Reading([_write(call, names) for call in calls], rest.strip())


def _remove_cuts(text: str) -> str:
    """Return a text with a line break for each cut and what belongs to the call around it."""
    first, *others = text.split(_CUT)
    parts = [_cut_end(first) if others else first]
    for number, other in enumerate(others, start=1):
        is_last = number == len(others)
        if not is_last and not other.strip(" \t\r\n;,"):
            continue  # between two cuts
        behind = other[_BEHIND_CUT.match(other).end() :]  # type: ignore[union-attr]  # it matches nothing, too
        parts.append(behind if is_last else _cut_end(behind))
    return "\n".join(parts)


def _cut_end(text: str) -> str:
    """Return a text without a fence and a word that announce a call at its end."""
    bare = text.rstrip()
    before, fence, language = bare.rpartition("```")
    if fence and re.fullmatch(r"\w*", language):
        bare = before.rstrip()
    place = max(0, len(bare) - _LONGEST_BEFORE)
    word = _BEFORE_CUT.search(bare, place)
    return bare[: word.start()].rstrip() if word else bare


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


def _read_tags(text: str, names: Collection[str], budget: RepairBudget) -> Iterator[TextCall]:
    starts = list(_FUNCTION.finditer(text))
    for place, start in enumerate(starts):
        most = starts[place + 1].start() if place + 1 < len(starts) else len(text)
        ended = _FUNCTION_END.search(text, start.end(), most)
        body = text[start.end() : ended.start() if ended else most]
        given: dict[str, Any] | str = {
            one["name"]: _plain(one["value"]) for one in _PARAMETER.finditer(body)
        }
        if not given and body.strip():
            given = _object(body, budget) or body.strip()
        yield TextCall(start.start(), ended.end() if ended else most, start[1], given)
    for call in _GLM.finditer(text):
        yield TextCall(call.start(), call.end(), call[1], _read_pairs(call[2]))


def _read_pairs(text: str) -> dict[str, Any]:
    """Return the arguments in GLM's tags: <arg_key>query</arg_key><arg_value>ferry</arg_value>."""
    pairs = dict[str, Any]()
    for part in text.split("<arg_key>")[1:]:
        key, closing, behind = part.partition("</arg_key>")
        before, opening, value = behind.partition("<arg_value>")
        if closing and opening and not before.strip():
            pairs[key.strip()] = _plain(value.partition("</arg_value>")[0])
    return pairs


def _plain(value: str) -> Any:
    """Return what stands in a tag: a list or an object where it is one, else the text."""
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
    for start in islice(_BEFORE_JSON.finditer(text), _MOST_STARTS):
        value, end = _decode(text, start.end(), budget)
        if isinstance(value, dict):
            yield TextCall(start.start(), end, next(filter(None, start.groups())), value)
    if not names:
        return
    known = "|".join(re.escape(name) for name in names)
    at_beginning = re.compile(
        rf"^[ \t`]*+(?:functions\.)?({known})\s*+[:=]?\s*+(?=\{{)", re.MULTILINE
    )
    for start in islice(at_beginning.finditer(text), _MOST_STARTS):
        value, end = _decode(text, start.end(), budget)
        if isinstance(value, dict):
            yield TextCall(start.start(), end, start[1], value)


# JSON with a name and arguments


def _read_json(text: str, names: Collection[str], budget: RepairBudget) -> Iterator[TextCall]:
    outside = _FENCE.sub("", _MARK.sub("", text)).strip().strip("`").strip()
    marked = bool(_MARK.search(text))
    place = 0
    tried = 0
    while tried < _MOST_STARTS and (
        start := re.compile(r"[\[{](?=\s*[\[{\"'\w])").search(text, place)
    ):
        tried = tried + 1
        place = start.start() + 1
        value, end = _decode(text, start.start(), budget)
        if not isinstance(value, dict | list):
            continue
        found = list(_shaped(value, names, budget))
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


def _shaped(
    value: Any, names: Collection[str], budget: RepairBudget
) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield the name and arguments of each call in a JSON value that is one, or a list of them."""
    if isinstance(value, list):
        for one in value:
            if isinstance(one, dict):
                yield from _shaped(one, names, budget)
        return
    for key in _LIST_KEYS:
        if isinstance(value.get(key), list):
            yield from _shaped(value[key], names, budget)
            return
    if isinstance(value.get("function"), dict):
        yield from _shaped(value["function"], names, budget)
        return
    name_key = next(
        (key for key in _NAME_KEYS if isinstance(value.get(key), str) and value[key].strip()), None
    )
    argument_key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    if name_key and argument_key:
        given = value[argument_key]
        if isinstance(given, str) and (inside := _object(given, budget)) is not None:
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


def _decode(text: str, start: int, budget: RepairBudget) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, mended where it is broken, and where it ends; None for none."""
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


def _object(text: str, budget: RepairBudget) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        value = json.loads(text, strict=False)
        return value if isinstance(value, dict) else None
    stripped = text.strip()
    value = _decode(stripped, 0, budget)[0] if stripped.startswith("{") else None
    return value if isinstance(value, dict) else None


# Calls as in Python: search(query="..."), alone, in a list, or in a block of code


# What the end of a call is found by: texts, in which brackets do not count, and brackets.
_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+"""|"(?:[^"\\\n]|\\.)*+"'
    r"|'''(?:[^'\\]|\\.|'(?!''))*+'''|'(?:[^'\\\n]|\\.)*+'"
    r"|[()\[\]{}]",
    re.DOTALL,
)


def _read_python(text: str, names: Collection[str], budget: RepairBudget) -> Iterator[TextCall]:
    marked = bool(_MARK.search(text)) or "```tool_code" in text
    left = _MOST_SCANNED
    for start in re.finditer(r"(?<![\w.])([A-Za-z_][\w.]*+)\(", text):
        if not marked and find_tool(start[1], names) not in names:
            continue
        if not (marked or _is_alone(text, start.start())):
            continue
        end = _find_end(text, start.end(), min(_LONGEST_CALL, left))
        left -= (end or start.end() + _LONGEST_CALL) - start.start()
        if left <= 0:
            return
        given = _parse_python(text[start.start() : end]) if end else None
        if end and given is not None and (given or not marked or start[1] in names):
            yield TextCall(start.start(), end, start[1], given)


def _is_alone(text: str, start: int) -> bool:
    """Whether a call stands at the beginning of a line or a value, and not in the midst of a sentence."""
    place = start - 1
    while place >= 0 and text[place].isspace() and text[place] != "\n":
        place -= 1
    return place < 0 or text[place] in "\n[,;:`(="


def _find_end(text: str, start: int, most: int) -> int | None:
    """Return where the bracket ends that was opened before `start`; None where it does not within `most` characters."""
    depth = 1
    for token in _TOKEN.finditer(text, start, start + most):
        if token[0] in ("(", "[", "{"):
            depth += 1
        elif token[0] in (")", "]", "}"):
            depth -= 1
        if not depth:
            return token.end()
    return None


def _parse_python(written: str) -> dict[str, Any] | str | None:
    """Return the arguments of a call, which have to be values, by name, or one by its place; None where it is none."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        call = ast.parse(written, mode="eval").body
        if not isinstance(call, ast.Call):
            return None
        given = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
        if call.args:
            first = ast.literal_eval(call.args[0])
            if isinstance(first, dict):
                given = first | given
            elif len(call.args) == 1 and not given:
                return first if isinstance(first, str) else json.dumps(first)
        return given
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


def _read_words(text: str, names: Collection[str], budget: RepairBudget) -> Iterator[TextCall]:
    if action := _ACTION.search(text):
        observed = _OBSERVATION.search(text, action.end())
        written = text[action.end() : observed.start() if observed else len(text)].strip()
        written = written.removeprefix("```json").strip("` \n")
        given = _object(written, budget) or written
        yield TextCall(action.start(), len(text), action["name"], given)
    for name in names:
        for element in find_elements(text, re.compile(rf"<({re.escape(name)})>")):
            body = element.body.strip()
            if not (body.startswith("{") or _ARGUMENT_TAG.match(body)):
                continue
            inside = _object(body, budget)
            if inside is None:
                inside = {
                    argument.tag: _plain(argument.body)
                    for argument in find_elements(body, _ARGUMENT_TAG)
                }
            yield TextCall(element.start, element.end, name, inside)


_READERS: tuple[Callable[[str, Collection[str], RepairBudget], Iterator[TextCall]], ...] = (
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
        mended = _object(value, RepairBudget())
        return mended if mended and set(mended) <= set(names) else None
    return {names[0]: value} if len(names) == 1 else None
