"""A signature's fields made ready once: how DSPy writes inputs into a prompt, and how it reads an answer.

DSPy looks up the fields of a signature, and makes pydantic's serializers and validators, anew in every call, which
takes longer than the rest of the call. Here they are kept by signature and type. Text and values are DSPy's own to the
letter (tests/fast/models/test_adapter.py). What is out of the ordinary is left to DSPy itself: histories, tools and its
other types, unions, and every answer that is not read at once, so that errors are DSPy's, too.
"""

import json
import re
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from inspect import isclass
from typing import Any, Literal, Union, get_origin

import dspy
import json_repair
import orjson
import pydantic

_MARKER = re.compile(r"\[\[ ## (\w+) ## \]\]")  # of a field, in an answer
_SIGNATURES = 1024  # kept at once; optimizers make them by the hundred
_LOOKS = 500_000  # characters that a repair may look at, about half a second; a list of 1,000 ids takes a tenth of it


class TooBroken(Exception):
    """A field's text that would take too long to repair, or is nested too deep."""


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of one signature."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Callable[[Any], Any] | None]  # what checks the value of each field; None is DSPy's to read
    requirements: str | None  # how a prompt ends: the fields to answer with


@lru_cache(maxsize=_SIGNATURES)
def form(signature: Any) -> Form:
    """The fields of `signature`, which nobody changes: DSPy makes a new signature for other fields."""
    outputs = {name: _validator(field.annotation) for name, field in signature.output_fields.items()}
    return Form(signature.input_fields, outputs, dspy.ChatAdapter().user_message_output_requirements(signature))


@lru_cache(maxsize=_SIGNATURES)
def system_message(signature: Any, doc: str) -> str:
    """DSPy's. `doc` is a part of the key because instructions can be changed on the signature itself."""
    return str(dspy.ChatAdapter().format_system_message(signature))


def read(signature: Any, answer: str) -> dict[str, Any] | None:
    """The values of a model's answer in the order of the fields; None where DSPy has to read it.

    TooBroken for one that DSPy should not try to read, either: its own repair has no end.
    """
    outputs = form(signature).outputs
    texts = dict[str, str]()
    for name, text in _sections(answer):
        if name in outputs:
            texts.setdefault(name, text)
    found = {name: texts[name] if outputs[name] is str else _repair(texts[name]) for name in outputs if name in texts}
    try:
        return {name: _valid(validate, found[name]) for name, validate in outputs.items()}
    except (KeyError, ValueError):
        return None


def _valid(validate: Callable[[Any], Any] | None, value: Any) -> Any:
    """The value of a field; ValueError where DSPy has to read it."""
    if validate is None or (value == "" and validate is not str):  # "": it is not JSON
        raise ValueError
    return validate(value)


def _sections(answer: str) -> list[tuple[str, str]]:
    """Divide an answer at its markers, as DSPy does."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    for line in answer.splitlines():
        if "[[ ##" in line and (marker := _MARKER.match(line.strip())):
            sections.append((marker[1], [line[marker.end() :].strip()]))
        else:
            sections[-1][1].append(line)
    return [(name, "\n".join(lines).strip()) for name, lines in sections]


def _validator(annotation: Any) -> Callable[[Any], Any] | None:
    """Return a function from JSON to values of `annotation`; None for types that DSPy reads in a way of its own."""
    if annotation is str:
        return str
    union = get_origin(annotation) in (Union, types.UnionType, Literal)
    if union or (isclass(annotation) and get_origin(annotation) is None and issubclass(annotation, dspy.Type | Enum)):
        return None
    try:
        return pydantic.TypeAdapter(annotation).validate_python
    except Exception:  # noqa: BLE001  # a type that pydantic does not know: DSPy says so when the answer is there
        return None


class _Watched(str):
    """Text that may be looked at only so often: stray quotes take json_repair a time that grows with their square."""

    left: int  # characters

    def __getitem__(self, place: Any) -> str:
        found = super().__getitem__(place)
        self.left -= len(found)
        if self.left < 0:
            raise TooBroken
        return found


def _repair(text: str) -> Any:
    """`json_repair.loads(text)`, with an end."""
    watched = _Watched(text)
    watched.left = _LOOKS
    try:
        with suppress(ValueError):
            return json.loads(text)
        return json_repair.loads(watched, skip_json_loads=True)
    except RecursionError:
        raise TooBroken from None


def write_value(value: Any) -> str:
    """Write the value of an input field as DSPy does; but for lists in a field of text."""
    if isinstance(value, str):
        return value
    try:
        plain = _serializer(value.__class__).dump_python(value, mode="json", fallback=str)
    except Exception:  # noqa: BLE001  # as in DSPy: what pydantic cannot take is written as Python prints it
        plain = str(value)
    return _json(plain) if isinstance(plain, dict | list) else str(plain)


def _json(value: Any) -> str:
    """`json.dumps(value, ensure_ascii=False)`, with orjson for the texts: documents are long."""
    if isinstance(value, str):
        with suppress(TypeError):  # lone surrogates
            return orjson.dumps(value).decode()
    if isinstance(value, list):
        return f"[{', '.join(map(_json, value))}]"
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return "{" + ", ".join(f"{_json(key)}: {_json(one)}" for key, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=256)
def _serializer(kind: Any) -> Any:
    return pydantic.TypeAdapter(kind)
