"""Read what a model wrote: fields under DSPy's markers or in a JSON object, their values, calls of tools.

`read_answer` returns every field as its type, as an adapter has to; salvage.py takes what
`find_fields` finds, one by one. A field that DSPy can read is read as DSPy reads it. A value is
converted only if it can mean a single thing: 101 into "101", "8/10" into 8, lines into a list; what
has no form below is pydantic's to read or to refuse. Names as headings, with colons or in tags are
left out: such an answer is asked for once more.

Calls of tools are read in the text of an answer if the server has no parser for its model. Of four
forms, three follow a mark that announces a call, the fourth is told by its keys:

1. tags: <function=search><parameter=query>ferry</parameter></function>, <invoke name="search">...;
2. a name before a JSON object: [TOOL_CALLS]search{...}, to=functions.search<|message|>{...};
3. JSON between marks: <tool_call>{"name": "search", "arguments": {...}}</tool_call>;
4. the same JSON without marks, if it names a tool of the request or is all of the text.

Calls as in Python, "Action:" and "Action Input:", a tag for each tool and arguments without a name are
left out: the model is asked for a call once more.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from inspect import isclass
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import dspy
import json_repair
import pydantic

from sextant.tools import schemas
from sextant.tools.models.dspy_internals import apply_output_field_defaults, parse_value
from sextant.tools.records import JsonMapping, JsonObject


class ToolCalls(dspy.ToolCalls):
    """Calls of tools, each with the name of the tool and its arguments."""

    @classmethod
    def description(cls) -> str:
        """Return the description of the type that stands in prompts."""
        return (
            "A JSON object with `tool_calls`, a list of calls. A call has `name`, the name of a "
            "tool, and `args`, an object with the arguments of the tool by their names."
        )


def is_tool_calls(annotation: Any) -> bool:
    """Return whether an output field has calls of tools."""
    return isinstance(annotation, type) and issubclass(annotation, dspy.ToolCalls)


FieldValues = dict[str, Any]  # by the name of a field
Inputs = Mapping[str, Any]  # of a predictor's call
UNREADABLE = (ValueError, TypeError, RecursionError, MemoryError)
_MARKER = re.compile(
    r"\[{1,3}[ \t]*#{1,4}[ \t]*(?P<name>[A-Za-z]\w*(?:[ -]\w+)*)[ \t]*#{0,4}[ \t]*\]{1,3}[*_`]*:?"
)
_MARKS = " \t>*#_`-"  # of Markdown, before a marker
_MOST_OBJECTS = 50  # in a text that are tried


def read_answer(
    signature: Any, completion: str, bounds: Mapping[str, Mapping[str, Any]], inputs: Inputs
) -> FieldValues:
    """Return the values of all fields of an answer. AdapterParseError if one is missing, or not of its type.

    `bounds` are keywords of JSON Schema by field; tools are those among the `inputs` of the call.
    """
    values = FieldValues()
    for name, content in find_fields(signature, completion, inputs).items():
        annotation = signature.output_fields[name].annotation
        try:
            values[name] = read_field(annotation, content, bounds.get(name), inputs)
        except UNREADABLE as error:
            message = f"Failed to parse field {name} with value {content}: {error}"
            raise dspy.AdapterParseError("Adapter", signature, completion, message) from None
    whole = apply_output_field_defaults(signature, values)
    if not values or whole.keys() != signature.output_fields.keys():
        raise dspy.AdapterParseError("Adapter", signature, completion, parsed_result=whole)
    return dict(whole)


def find_fields(signature: Any, answer: str, inputs: Inputs) -> FieldValues:
    """Return what an answer has of its fields, unconverted, in the form in which it has most of them.

    The fields are in the order of the answer.
    """
    best = FieldValues()
    for fields in _candidates(signature, answer, inputs):
        if len(fields) > len(best):
            best = fields
    return best


def _candidates(signature: Any, answer: str, inputs: Inputs) -> Iterator[FieldValues]:
    """Yield candidates for the fields, the most certain form first."""
    names = {plain_name(name): name for name in signature.output_fields}
    begins_with_object = answer.lstrip("`json \n").startswith("{")
    if begins_with_object:
        yield from _by_objects(names, answer)
    yield _by_markers(names, answer)
    if not begins_with_object:
        yield from _by_objects(names, answer)
    types = {name: field.annotation for name, field in signature.output_fields.items()}
    call_field = next(filter(lambda name: is_tool_calls(types[name]), types), None)
    if call_field:
        reading = read_calls(answer, _offered_tools(inputs))
        texts = [name for name, annotation in types.items() if annotation is str]
        if reading.calls:
            words = dict.fromkeys(texts, "") | dict.fromkeys(texts[:1], reading.rest)
            yield {**words, call_field: answer}
    elif len(types) == 1 and str not in types.values() and answer.strip():
        yield dict.fromkeys(types, answer)  # the value alone


def _by_markers(names: Mapping[str, str], answer: str) -> FieldValues:
    """Return the text behind each marker, up to the next; of several with one name, the first counts, as in DSPy."""
    text = "\n".join(answer.splitlines())
    texts = FieldValues()
    current = None
    position = 0
    for marker in _MARKER.finditer(text):
        before, _, line = text[position : marker.start()].rpartition("\n")
        begins_line = not line.strip(_MARKS) and (before or not position)
        name = names.get(plain_name(marker["name"]))
        is_quoted = line.count('"') % 2 == 1  # in a text of JSON, or of a Python list
        is_quoted |= line.endswith("'") and text.startswith("'", marker.end())
        if is_quoted or not (name or begins_line or marker["name"] == "completed"):
            continue
        if current:
            texts.setdefault(current, (before if begins_line else f"{before}\n{line}").strip())
        current = name
        position = marker.end()
    if current:
        texts.setdefault(current, text[position:].strip())
    return texts


def _by_objects(names: Mapping[str, str], answer: str) -> Iterator[FieldValues]:
    """Yield the fields in each JSON object of an answer, and in its objects; a broken object comes last."""
    start = position = answer.find("{")
    for _ in range(_MOST_OBJECTS):
        if position < 0:
            break
        try:
            value, position = json.JSONDecoder(strict=False).raw_decode(answer, position)
        except (ValueError, RecursionError):
            position += 1
        else:
            yield from (_name_fields(names, content) for content in (value, *value.values()))
        position = answer.find("{", position)
    if start >= 0:
        with suppress(ValueError, RecursionError):
            yield _name_fields(names, repair_json(answer[start:]))


def _name_fields(names: Mapping[str, str], value: Any) -> FieldValues:
    """Return the fields in a JSON value by their own names; empty if it is no object."""
    contents = value.items() if isinstance(value, dict) else ()
    return {
        names[plain]: content for key, content in contents if (plain := plain_name(key)) in names
    }


def read_field(
    annotation: Any, value: Any, bounds: Mapping[str, Any] | None, inputs: Inputs
) -> Any:
    """Return the value of a field as its type, as DSPy reads it if it can; one of UNREADABLE if it is none."""
    if isinstance(value, str) and annotation is not str:
        with suppress(RecursionError):
            repair_json(value)  # ValueError for JSON that would take DSPy minutes
    with suppress(*UNREADABLE):
        return parse_value(value, annotation)
    if is_tool_calls(annotation):
        return annotation.from_dict_list(_read_tool_calls(value, inputs))
    return convert(annotation, value, bounds)


def _read_tool_calls(value: Any, inputs: Inputs) -> list[FieldValues]:
    text = value if isinstance(value, str) else json.dumps(value)
    tools = _offered_tools(inputs)
    calls = []
    for call in read_calls(text, tools).calls:
        arguments = read_arguments(call["arguments"], tools.get(call["name"]))
        if arguments is None:
            raise ValueError("arguments that cannot be read")
        calls.append({"name": call["name"], "args": arguments})
    if not calls and text.strip() not in ("[]", "{}"):
        raise ValueError("no call that can be read")
    return calls


def _offered_tools(inputs: Inputs) -> Mapping[str, Mapping[str, Any]]:
    """Return the tools among the inputs of a call, with their parameters."""
    offered = {}
    for value in inputs.values():
        for tool in value if isinstance(value, list) else ():
            if isinstance(tool, dspy.Tool):
                offered[str(tool.name)] = tool.args or {}
    return offered


# Characters that a repair may read: half a second. A list of 1,000 ids takes a tenth of that.
_LOOKS = 500_000


class TooBroken(ValueError):
    """JSON that would take too long to repair."""


class RepairBudget:
    """Characters that the repairs of a text may read, together."""

    def __init__(self) -> None:
        self.left = _LOOKS


class _ReadLimitedStr(str):
    """A text that raises TooBroken after a bounded number of characters was read.

    json_repair's time grows with the square of stray quotes.
    """

    budget: RepairBudget

    def __getitem__(self, index: Any) -> str:
        text = super().__getitem__(index)
        self.budget.left -= len(text)
        if self.budget.left < 0:
            raise TooBroken
        return text


def repair_json(text: str, budget: RepairBudget | None = None) -> Any:
    """Return the value of a JSON text, repaired if it is broken; "" if it has none.

    TooBroken if the repair would take too long.
    """
    with suppress(ValueError):
        return json.loads(text)
    watched = _ReadLimitedStr(text)
    watched.budget = budget or RepairBudget()
    if watched.budget.left < 0:
        raise TooBroken
    return json_repair.loads(watched, skip_json_loads=True)


def plain_name(name: Any) -> str:
    """Return a name without case and separators: docIds, doc-ids and "Doc IDs" are equal."""
    return re.sub(r"[\W_]+", "", str(name)).casefold()


def fold_name(name: str) -> str:
    """Return a plain name without its plural: doc_ids and docId are equal."""
    return plain_name(name).removesuffix("s")


_ID_KEYS = (
    "doc_id",
    "document_id",
    "doc",
    "id",
    "passage_id",
    "pid",
    "docno",
    "document",
    "identifier",
)
_FOLDED_ID_KEYS = tuple(map(fold_name, _ID_KEYS))
_NOTHING = ("", "none", "null", "n/a", "[]", "-")
_QUOTES = "\"'`\u2018\u2019\u201c\u201d*"
_ITEM = re.compile(r"^\s*(?:[-*\u2022\u2013]|\(?\d+[.)\]:](?=\s))\s+")
_CHAIN = re.compile(r"\[[^\[\]\"']++\](?:\s*+>\s*+\[[^\[\]\"']++\])++")  # as RankGPT asks for it
_NUMBER = re.compile(
    r"(?:[A-Za-z][\w ]{0,30}[:=]\s*+)?(?P<number>[-+]?\d+(?:\.\d+)?)\.?\s*+"
    r"(?:(?:/|out of)\s*+(?P<most>\d+)\s*+)?(?:\(.*|[,;:\u2013\u2014-]\s++(?!\d).*)?",
    re.DOTALL | re.IGNORECASE,
)
_FIRST_WORD = re.compile(r"(\w+)\s*(?:$|[.,;:!(\u2013\u2014-])")


def convert(
    annotation: Any,
    value: Any,
    bounds: Mapping[str, Any] | None = None,
) -> Any:
    """Return `value` as a value of the type `annotation`; ValueError if it cannot be one.

    `bounds` may have the "minimum" and "maximum" of a number, which tell the meaning of "4/5".
    """
    try:
        plain = _read_value(annotation, value, bounds or {})
        return schemas.type_adapter(annotation).validate_python(plain)
    except TypeError as error:  # a type that cannot be hashed, or that pydantic does not know
        raise ValueError(str(error)) from None


def _read_value(annotation: Any, value: Any, bounds: Mapping[str, Any]) -> Any:
    """Return a value in the form that pydantic reads as `annotation`, if one is known."""
    origin = get_origin(annotation)
    inside = get_args(annotation)
    if origin is Annotated:
        return _read_value(inside[0], value, bounds)
    if origin is Literal:
        return _choose(inside, value)
    base = origin or annotation
    if not isclass(base) or issubclass(base, dspy.Type):  # DSPy's own types read their own forms
        return value
    if issubclass(base, str):
        if isinstance(value, Mapping):
            doc_id = find_id(value)
            value = _only_item(value) if doc_id is None else doc_id
        return read_text(value)
    if issubclass(base, bool):  # pydantic reads the first word of a text: yes, no, true, ...
        word = _FIRST_WORD.match(unfence(value).strip(_QUOTES)) if isinstance(value, str) else None
        return word[1] if word else value
    if issubclass(base, int | float):
        return _read_number(value, bounds)
    if issubclass(base, list):
        items = [item for item in find_items(value) if item is not None]
        return [_read_value(inside[0], item, {}) for item in items] if inside else items
    value = _parse(value) if isinstance(value, str) else value
    return _read_model(base, value) if issubclass(base, pydantic.BaseModel) else value


def _only_item(value: Any) -> Any:
    """Return the item of a list or an object that has only one; any other value as it is."""
    if isinstance(value, Mapping) and len(value) == 1:
        return next(iter(value.values()))
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def read_text(value: Any) -> str:
    """Read a text, also from a number or a list of one item. ValueError for anything else."""
    if isinstance(value, list | tuple) and len(value) == 1:
        return read_text(value[0])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (isinstance(value, str) or (is_number and math.isfinite(value))):
        raise ValueError(f"{str(value)[:80]!r} is no text")
    return str(value)


def find_id(value: Mapping[Any, Any]) -> Any:
    """Return the id in an object that stands for a document, as a search shows it; None if it has none."""
    contents = {fold_name(str(name)): content for name, content in value.items()}
    return next((contents[key] for key in _FOLDED_ID_KEYS if contents.get(key) is not None), None)


def convert_items(annotation: Any, items: Iterable[Any]) -> list[Any]:
    """Return those items that are of the type of a list's items."""
    item_types = get_args(annotation) or (Any,)
    converted = []
    for item in items:
        with suppress(ValueError):
            converted.append(convert(item_types[0], item))
    return converted


def find_items(value: Any) -> list[Any]:
    """Return the items of a list in any of its forms: JSON, an object that has it, lines, names between commas.

    ValueError if it is broken JSON that cannot be repaired.
    """
    if value is None:
        return []
    if isinstance(value, str):
        text = unfence(value)
        if _CHAIN.fullmatch(text) or text[:1] not in ("[", "{", "("):
            return split_list(text)
        value = _parse(text)
        if isinstance(value, str):
            raise ValueError(f"{text[:80]!r} is no list")
    content = _only_item(value) if isinstance(value, Mapping) else value
    return list(content) if isinstance(content, list | tuple | set) else [value]


def split_list(text: str) -> list[str]:
    """Return the parts of a list in words: lines without their marks, or names between commas; else the whole text."""
    if text.strip(_QUOTES + ". \n").lower() in _NOTHING:
        return []
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1:
        return [_ITEM.sub("", line).strip().rstrip(",").strip(_QUOTES) for line in lines]
    parts = [part.strip().strip(_QUOTES + "[]") for part in re.split(r"[,;>|]", text)]
    if len(parts) > 1 and all(part and len(part.split()) == 1 for part in parts):
        return parts
    return [_ITEM.sub("", text).strip().strip(_QUOTES)]


def _read_number(value: Any, bounds: Mapping[str, Any]) -> Any:
    value = _only_item(value)
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is no number")
    if not isinstance(value, str):
        return value
    match = _NUMBER.fullmatch(unfence(value).strip(_QUOTES))
    if match is None:
        raise ValueError(f"{value[:80]!r} is no number")
    number = float(match["number"])
    highest = bounds.get("maximum")
    if match["most"] and highest is not None and not bounds.get("minimum"):
        return number / float(match["most"]) * highest  # of the scale that was asked for
    return number


def _choose(choices: Iterable[Any], value: Any) -> Any:
    """Return the choice that a text means, in any case, with words behind it."""
    text = str(value).strip(_QUOTES + " .").casefold()
    words = (text, re.split(r"[ .,;:!]", text)[0])
    alike = [choice for choice in choices if str(choice).casefold() in words]
    return alike[0] if len(alike) == 1 else value


def _read_model(model: type[pydantic.BaseModel], value: Any) -> Any:
    """Return the values of a model's fields by its own names for them."""
    if isinstance(value, list):
        value = _only_item(value)
    if not isinstance(value, Mapping):
        return value
    written = {plain_name(name): name for name in value}
    values = dict(value)
    for name, field in model.model_fields.items():
        names = [name, *(_ID_KEYS if name == "id" else ())]
        found = next((written[key] for key in map(plain_name, names) if key in written), None)
        if found is not None:
            values[name] = _read_value(field.annotation, values.pop(found), {})
    return values


def _parse(text: str) -> Any:
    """Return the value of a JSON or Python text, repaired if it is broken; if there is none, the text."""
    text = unfence(text)
    with suppress(ValueError):
        return json.loads(text, strict=False)
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(text)
    with suppress(TooBroken, RecursionError):
        return repair_json(text) or text
    return text


def unfence(text: str) -> str:
    """Return a text without blanks and a fence around it: ```json ... ```."""
    fenced = re.fullmatch(r"\s*```[\w-]*(.*)```\s*", text, re.DOTALL)
    return (fenced[1] if fenced else text).strip()


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
_CALL_MARK = re.compile(
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
    return bool(_CALL_MARK.search(text) or re.search(r'"(?:arguments|parameters)"\s*:', text))


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
    marked = _CALL_MARK.sub(_CUT, text)
    for reader in _READERS:
        calls = list(reader(marked, names))
        if calls:
            return Reading([_write_call(call, names) for call in calls], _cut_calls(marked, calls))
    return Reading([], text)


def _cut_calls(text: str, calls: Iterable[TextCall]) -> str:
    """Return a text without its calls and the marks and fences around them."""
    parts = []
    position = 0
    for call in calls:
        parts.append(text[position : call.start])
        position = call.end
    bare = _FENCE.sub(_CUT, _CUT.join([*parts, text[position:]]))
    return "\n".join(kept for part in bare.split(_CUT) if (kept := part.strip(" \t\r\n;,")))


def find_tool(name: str, names: Collection[str]) -> str:
    """Return the tool that a model calls by `name`, in any case and with marks around it; `name` if there is none."""
    if name in names:
        return name
    # Kimi numbers calls, and gpt-oss leaves marks of its channels behind names
    tools = {tool.casefold(): tool for tool in names}
    called = {tools[word] for word in re.findall(r"[\w-]+", name.casefold()) if word in tools}
    return called.pop() if len(called) == 1 else name


def _write_call(call: TextCall, names: Collection[str]) -> dict[str, str]:
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
