"""Read the fields of an answer that is in another form than requested.

A model may write the markers of fields in bold, in another case or in the middle of a line, a JSON
object among other words, tags, or a name and a colon. `place_markers` repairs DSPy's markers;
`read_loosely` reads answers that DSPy cannot read.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import dspy

from sextant.tools.models import call_context
from sextant.tools.models.answers.checks import schema_constraints
from sextant.tools.models.answers.elements import find_elements
from sextant.tools.models.answers.schema import SIGNATURES_CACHED, FieldValues
from sextant.tools.models.answers.text_calls import read_arguments, read_calls
from sextant.tools.models.answers.tool_calls import is_tool_calls
from sextant.tools.models.answers.values import TooBroken, convert, plain_name, repair_json
from sextant.tools.models.dspy_internals import apply_output_field_defaults, parse_value

_LAST = "completed"
_MARKER = re.compile(
    r"\[(?:\[{1,2}[ \t]*#{1,4}|[ \t]*#{2,4})[ \t]*(?P<name>[A-Za-z]\w*(?:[ -]\w+)*)[ \t]*#{0,4}[ "
    r"\t]*\]{1,3}"
    r"(?::?(?:\*{1,3}|__|`))?:?"
)
_MARKER_BEGINNING = re.compile(r"\n[ \t]*\[\[?(?: ?#[# \w]*\]?)?[ \t]*\Z")
_QUOTES = re.compile(r'(?<!\\)"')
_TAG = re.compile(r"<([A-Za-z][\w-]*)>")
_MOST_OBJECTS = 50  # in a text that are tried


def place_markers(signature: Any, answer: str) -> str:
    """Return an answer with each marker of a field in DSPy's form, at the beginning of a line.

    DSPy leaves a part of an indented marker in the value, and does not see a marker that follows
    other words.
    """
    if "##" not in answer:
        return answer
    if answer.lstrip("`json \n").startswith("{"):  # JSON may have markers in its texts
        return answer
    names = _marker_names(signature)
    placed = []
    position = 0  # up to which the answer is in `placed`
    counted = 0  # up to which the quotation marks of the line are counted
    line_start = 0
    quotes = 0  # before the marker, in its line
    for marker in _MARKER.finditer(answer):
        broken = answer.rfind("\n", counted, marker.start())
        if broken >= 0:
            line_start = counted = broken + 1
            quotes = 0
        quotes += len(_QUOTES.findall(answer, counted, marker.start()))
        counted = marker.start()
        name = names.get(plain_name(marker["name"]))
        if not name:
            continue
        quote = answer[marker.start() - 1] if marker.start() > line_start else ""
        quoted = quote in ("'", '"') and answer.startswith(quote, marker.end())
        if quoted or quotes % 2:
            continue  # the marker is in a text of JSON, or of a list as Python writes it
        line = _cut_marks(answer[line_start : marker.start()])
        placed += [answer[position:line_start], line]
        if line or (position == line_start and position > 0):
            placed.append("\n")
        placed.append(f"[[ ## {name} ## ]]")
        position = line_start = counted = marker.end()
        quotes = 0
    return "".join(placed) + answer[position:]


@lru_cache(maxsize=SIGNATURES_CACHED)
def _marker_names(signature: Any) -> dict[str, str]:
    """Return the plain name of each marker of an answer -> its name."""
    return {plain_name(name): name for name in (*signature.output_fields, _LAST)}


def _cut_marks(line: str) -> str:
    """Return the beginning of a line, without the blanks and the mark that stand before a marker."""
    bare = line.rstrip(" \t")
    has_blanks = bare != line
    if bare.endswith("#") and has_blanks:
        bare = bare.rstrip("#")
    elif bare.endswith(">"):
        bare = bare[:-1]
    elif not has_blanks and bare.endswith("*"):
        bare = bare[: max(len(bare.rstrip("*")), len(bare) - 3)]
    elif not has_blanks and bare.endswith(("__", "`")):
        bare = bare.removesuffix("__") if bare.endswith("__") else bare[:-1]
    return bare.rstrip(" \t")


def read_loosely(signature: Any, answer: str) -> FieldValues | None:
    """Return the values of all fields of an answer in another form; None if a field is missing."""
    for texts in _candidates(signature, answer):
        values = _convert_all(signature, texts)
        if values is not None:
            return values
    return None


def read_parts(signature: Any, answer: str) -> FieldValues:
    """Return what an answer has of its fields, unconverted, in the form in which it has most of them.

    The fields are in the order of the answer, without the beginning of a marker at its end.
    """
    parts = dict[str, Any]()
    whole_markers = place_markers(signature, _MARKER_BEGINNING.sub("", answer))
    for texts in _candidates(signature, whole_markers):
        if len(texts) > len(parts):
            parts = dict(texts)
    return parts


def _candidates(signature: Any, answer: str) -> Iterator[Mapping[str, Any]]:
    """Yield candidates for the fields, by name, the most certain form first."""
    names = {plain_name(name): name for name in signature.output_fields}
    yield _by_markers(names, answer)
    yield from _by_objects(names, answer)
    yield _by_tags(names, answer)
    yield _by_labels(names, answer)
    types = {name: field.annotation for name, field in signature.output_fields.items()}
    call_fields = [name for name, annotation in types.items() if is_tool_calls(annotation)]
    if call_fields:
        yield from _by_calls(types, call_fields[0], answer)
    elif len(types) == 1:  # the value alone, if its type tells it from other words
        [(name, annotation)] = types.items()
        if annotation is not str and answer.strip():
            yield {name: answer}


def _by_calls(
    types: Mapping[str, Any], call_field: str, answer: str
) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of an answer with calls in its text: the first text field has the words around the calls."""
    reading = read_calls(answer, _offered_tools())
    if reading.calls:
        text_fields = [name for name, annotation in types.items() if annotation is str]
        fields = dict.fromkeys(text_fields, "")
        if text_fields:
            fields[text_fields[0]] = reading.rest
        yield {**fields, call_field: answer}


def _convert_all(signature: Any, texts: Mapping[str, Any]) -> FieldValues | None:
    constraints = schema_constraints(call_context.current().checks)
    values = {}
    try:
        for name, field in signature.output_fields.items():
            if name in texts:
                values[name] = convert_field(
                    field.annotation,
                    texts[name],
                    constraints.get(name),
                )
        values = apply_output_field_defaults(signature, values)
    except (ValueError, TypeError, TooBroken, RecursionError):
        return None
    if not texts.keys() & values.keys() or values.keys() != signature.output_fields.keys():
        return None
    return {name: values[name] for name in signature.output_fields}


def convert_field(
    annotation: Any,
    value: Any,
    bounds: Mapping[str, Any] | None,
) -> Any:
    """Return the value of a field as its type; ValueError if it is none, TooBroken for hopeless JSON."""
    if annotation is str:
        return value if isinstance(value, str) else _text(value)
    if is_tool_calls(annotation):
        text = value if isinstance(value, str) else json.dumps(value)
        tools = _offered_tools()
        calls = read_calls(text, tools).calls
        if not calls and text.strip() not in ("[]", "{}", '{"tool_calls": []}'):
            raise ValueError("no call that can be read")
        parsed_calls = []
        for call in calls:
            arguments = read_arguments(call["arguments"], tools.get(call["name"]))
            if arguments is None:
                raise ValueError("arguments that cannot be read")
            parsed_calls.append({"name": call["name"], "args": arguments})
        return annotation.from_dict_list(parsed_calls)
    if isinstance(annotation, type) and issubclass(annotation, dspy.Type):
        return parse_value(value, annotation)
    return convert(annotation, value, bounds)


def _offered_tools() -> Mapping[str, Mapping[str, Any]]:
    """Return the tools among the inputs of the present call, with their parameters."""
    call = call_context.current().predictor_call
    offered = {}
    for value in call.inputs.values() if call else ():
        for tool in value if isinstance(value, list) else ():
            if isinstance(tool, dspy.Tool):
                offered[str(tool.name)] = tool.args or {}
    return offered


def _text(value: Any) -> str:
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _by_markers(names: Mapping[str, str], answer: str) -> dict[str, str]:
    sections = re.split(r"^\[\[ ## (\w+) ## \]\]", answer, flags=re.MULTILINE)
    texts = dict[str, str]()
    for name, text in zip(sections[1::2], sections[2::2], strict=True):
        field = names.get(plain_name(name))
        if field is not None:
            texts.setdefault(field, text.strip())
    return texts


def _by_objects(names: Mapping[str, str], answer: str) -> Iterator[FieldValues]:
    """Yield the fields in each JSON object of an answer, also in nested objects; a broken object
    comes last.
    """
    position = 0
    for _ in range(_MOST_OBJECTS):
        position = answer.find("{", position)
        if position < 0:
            break
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(answer, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        position = end
        for candidate in (value, *value.values()):
            if isinstance(candidate, dict) and (fields := _named(names, candidate)):
                yield fields
    start = answer.find("{")
    if start < 0:
        return
    with suppress(TooBroken, RecursionError, ValueError):
        repaired = repair_json(answer[start:])
        if isinstance(repaired, dict) and (fields := _named(names, repaired)):
            yield fields


def _named(names: Mapping[str, str], value: Mapping[str, Any]) -> FieldValues:
    fields = {}
    for key, content in value.items():
        name = names.get(plain_name(key))
        if name is not None:
            fields[name] = content
    return fields


def _by_tags(names: Mapping[str, str], answer: str) -> dict[str, str]:
    texts = dict[str, str]()
    for element in find_elements(answer, _TAG):
        field = names.get(plain_name(element.tag))
        if field is not None:
            texts.setdefault(field, element.body.strip())
    return texts


def _by_labels(names: Mapping[str, str], answer: str) -> dict[str, str]:
    """Return the texts behind lines that begin with a field's name: a heading, in bold, or with a colon."""
    texts = dict[str, str]()
    labels = list(_label_pattern((*names.values(), _LAST)).finditer(answer))
    for index, match in enumerate(labels):
        end = len(answer)
        if index + 1 < len(labels):
            end = labels[index + 1].start()
        name = names.get(plain_name(match["heading"] or match["bold"] or match["colon"]))
        if name:
            texts.setdefault(name, answer[match.end() : end].strip())
    return texts


def _label_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of a field's name at the beginning of a line, by the form that it has there."""
    spelled = "|".join(re.sub(r"_", r"[ _-]?", re.escape(name)) for name in names)
    return re.compile(
        rf"^[ \t>]*(?:\d+[.)][ \t]+|[-*][ \t]+)?(?:"
        rf"\#{{1,6}}[ \t]*+[*`_]*(?:\d+[.)][ \t]*+)?(?P<heading>{spelled})[*`_]*+[ "
        rf"\t]*+\#*+:?[*`_]*+(?=[ \t]*+$|:)"
        rf"|(?:\*{{1,3}}|__)(?:\d+[.)][ \t]*)?[`\"]?(?P<bold>{spelled})[`\"]?:?(?:\*{{1,3}}|__):?"
        rf"|[`\"]?(?P<colon>{spelled})[`\"]?[ \t]*(?::|=(?!=))"
        rf")[ \t]*:?",
        re.IGNORECASE | re.MULTILINE,
    )
