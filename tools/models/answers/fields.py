"""Find the fields of an answer: under DSPy's markers or in a JSON object, wherever these stand.

`read_answer` returns every field as its type, as an adapter has to; salvage.py takes what
`find_fields` finds, one by one. A field that DSPy can read is read as DSPy reads it. Names as
headings, with colons or in tags are left out: such an answer is asked for once more.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import dspy

from sextant.tools.models import call_context
from sextant.tools.models.answers.checks import schema_constraints
from sextant.tools.models.answers.schema import FieldValues
from sextant.tools.models.answers.text_calls import read_arguments, read_calls
from sextant.tools.models.answers.tool_calls import is_tool_calls
from sextant.tools.models.answers.values import convert, plain_name, repair_json
from sextant.tools.models.dspy_internals import apply_output_field_defaults, parse_value

UNREADABLE = (ValueError, TypeError, RecursionError, MemoryError)
_MARKER = re.compile(
    r"\[{1,3}[ \t]*#{1,4}[ \t]*(?P<name>[A-Za-z]\w*(?:[ -]\w+)*)[ \t]*#{0,4}[ \t]*\]{1,3}[*_`]*:?"
)
_MARKS = " \t>*#_`-"  # of Markdown, before a marker
_MOST_OBJECTS = 50  # in a text that are tried


def read_answer(signature: Any, completion: str) -> FieldValues:
    """Return the values of all fields of an answer. AdapterParseError if one is missing, or not of its type."""
    constraints = schema_constraints(call_context.current().checks)
    values = FieldValues()
    for name, content in find_fields(signature, completion).items():
        annotation = signature.output_fields[name].annotation
        try:
            values[name] = read_field(annotation, content, constraints.get(name))
        except UNREADABLE as error:
            message = f"Failed to parse field {name} with value {content}: {error}"
            raise dspy.AdapterParseError("Adapter", signature, completion, message) from None
    whole = apply_output_field_defaults(signature, values)
    if not values or whole.keys() != signature.output_fields.keys():
        raise dspy.AdapterParseError("Adapter", signature, completion, parsed_result=whole)
    return dict(whole)


def find_fields(signature: Any, answer: str) -> FieldValues:
    """Return what an answer has of its fields, unconverted, in the form in which it has most of them.

    The fields are in the order of the answer.
    """
    best = FieldValues()
    for fields in _candidates(signature, answer):
        if len(fields) > len(best):
            best = fields
    return best


def _candidates(signature: Any, answer: str) -> Iterator[FieldValues]:
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
        reading = read_calls(answer, _offered_tools())
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


def read_field(annotation: Any, value: Any, bounds: Mapping[str, Any] | None) -> Any:
    """Return the value of a field as its type, as DSPy reads it if it can; one of UNREADABLE if it is none."""
    if isinstance(value, str) and annotation is not str:
        with suppress(RecursionError):
            repair_json(value)  # ValueError for JSON that would take DSPy minutes
    with suppress(*UNREADABLE):
        return parse_value(value, annotation)
    if is_tool_calls(annotation):
        return annotation.from_dict_list(_read_tool_calls(value))
    return convert(annotation, value, bounds)


def _read_tool_calls(value: Any) -> list[FieldValues]:
    text = value if isinstance(value, str) else json.dumps(value)
    tools = _offered_tools()
    calls = []
    for call in read_calls(text, tools).calls:
        arguments = read_arguments(call["arguments"], tools.get(call["name"]))
        if arguments is None:
            raise ValueError("arguments that cannot be read")
        calls.append({"name": call["name"], "args": arguments})
    if not calls and text.strip() not in ("[]", "{}"):
        raise ValueError("no call that can be read")
    return calls


def _offered_tools() -> Mapping[str, Mapping[str, Any]]:
    """Return the tools among the inputs of the present call, with their parameters."""
    call = call_context.current().predictor_call
    offered = {}
    for value in call.inputs.values() if call else ():
        for tool in value if isinstance(value, list) else ():
            if isinstance(tool, dspy.Tool):
                offered[str(tool.name)] = tool.args or {}
    return offered
