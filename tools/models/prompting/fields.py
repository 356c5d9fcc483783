"""A signature's fields made ready once: how DSPy writes inputs into a prompt, and how it reads an answer.

DSPy looks up the fields of a signature, and makes pydantic's serializers and validators, anew in every call, which
takes longer than the rest of the call. Here they are kept by signature and type. Text and values are DSPy's own to the
letter (tests/fast/models/test_adapter.py). What is out of the ordinary is left to DSPy itself: histories, tools and its
other types, unions, and every answer that is not read at once, so that errors are DSPy's, too.
"""

import enum
import json
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import isclass
from typing import Any, Literal, Union, get_args, get_origin

import dspy
import json_repair
import pydantic
from dspy.adapters.chat_adapter import field_header_pattern
from dspy.adapters.utils import format_field_value, parse_value

_SIGNATURES = 1024  # kept at once; optimizers make them by the hundred
_LOOKS = 500_000  # characters that a repair may look at, about half a second; a list of 1,000 ids takes a tenth of it


class TooBroken(Exception):
    """A field's text that would take too long to repair, or is nested too deep."""


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of one signature."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Callable[[str], Any]]  # what reads the text of each field
    plain: bool  # no field has a type that DSPy treats specially on the way to the model or back
    requirements: str | None  # how a prompt ends: the fields to answer with


@lru_cache(maxsize=_SIGNATURES)
def form(signature: Any) -> Form:
    """The fields of `signature`, which nobody changes: DSPy makes a new signature for other fields."""
    inputs, outputs = signature.input_fields, signature.output_fields
    special = [field for field in outputs.values() if _is_dspys(field.annotation)]
    history = [field for field in inputs.values() if field.annotation == dspy.History]
    return Form(
        inputs,
        {name: _reader(field.annotation) for name, field in outputs.items()},
        not special and not history,
        dspy.ChatAdapter().user_message_output_requirements(signature),
    )


@lru_cache(maxsize=_SIGNATURES)
def system_message(signature: Any, doc: str) -> str:
    """DSPy's. `doc` is a part of the key because instructions can be changed on the signature itself."""
    return str(dspy.ChatAdapter().format_system_message(signature))


def read(signature: Any, answer: str) -> dict[str, Any] | None:
    """The values of a model's answer in the order of the fields; None where one is missing or not to be read.

    TooBroken for one that DSPy should not try to read, either.
    """
    readers = form(signature).outputs
    found: dict[str, Any] = {}
    for name, text in _sections(answer):
        if name in readers and name not in found:
            try:
                found[name] = readers[name](text)
            except ValueError:
                return None
    return {name: found[name] for name in readers} if len(found) == len(readers) else None


def _sections(answer: str) -> list[tuple[str, str]]:
    """What stands under each marker, as DSPy divides an answer."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    for line in answer.splitlines():
        if "[[ ##" in line and (marker := field_header_pattern.match(line.strip())):
            sections.append((marker[1], [line[marker.end() :].strip()]))
        else:
            sections[-1][1].append(line)
    return [(name, "\n".join(lines).strip()) for name, lines in sections]


def _reader(annotation: Any) -> Callable[[str], Any]:
    """What makes a value of `annotation` out of a field's text."""
    if annotation is str:
        return str
    union = get_origin(annotation) in (Union, types.UnionType)
    if isinstance(annotation, enum.EnumMeta) or (union and {str, type(None)} <= {*get_args(annotation)}):
        return partial(parse_value, annotation=annotation)  # nothing is repaired
    left_to_dspy = partial(_read_by_dspy, annotation=annotation)
    if union or _is_dspys(annotation) or get_origin(annotation) is Literal:
        return left_to_dspy
    try:
        validate = pydantic.TypeAdapter(annotation).validate_python
    except Exception:  # noqa: BLE001  # a type that pydantic does not know: DSPy says so when the answer is there
        return left_to_dspy

    def decoded(text: str) -> Any:
        candidate = _repaired(text)
        return left_to_dspy(text) if candidate == "" else validate(candidate)  # "": it is not JSON

    return decoded


def _read_by_dspy(text: str, annotation: Any) -> Any:
    _repaired(text)  # DSPy's own repair has no end
    try:
        return parse_value(text, annotation)
    except (RecursionError, MemoryError):  # of Python's parser, which DSPy asks last
        raise TooBroken from None


class _Watched(str):
    """Text that may be looked at only so often: stray quotes take json_repair a time that grows with their square."""

    left: int  # characters

    def __getitem__(self, place: Any) -> str:
        found = super().__getitem__(place)
        self.left -= len(found)
        if self.left < 0:
            raise TooBroken
        return found


def _repaired(text: str) -> Any:
    """`json_repair.loads(text)`, with an end."""
    watched = _Watched(text)
    watched.left = _LOOKS
    try:
        with suppress(ValueError):
            return json.loads(text)
        return json_repair.loads(watched, skip_json_loads=True)
    except RecursionError:
        raise TooBroken from None


def _is_dspys(annotation: Any) -> bool:
    return isclass(annotation) and get_origin(annotation) is None and issubclass(annotation, dspy.Type)


def written(field: Any, value: Any) -> Any:
    """The value of an input field as DSPy writes it into a prompt."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and field.annotation is str:
        return format_field_value(field_info=field, value=value)  # a numbered list
    try:
        plain = _serializer(value.__class__).dump_python(value, mode="json", fallback=str)
    except Exception:  # noqa: BLE001  # as in DSPy: what pydantic cannot take is written as Python prints it
        plain = str(value)
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, dict | list) else str(plain)


@lru_cache(maxsize=256)
def _serializer(kind: Any) -> Any:
    return pydantic.TypeAdapter(kind)
