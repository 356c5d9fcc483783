"""Read answers, in fields under markers or as a JSON object, into the values of a signature's output fields."""

import json
import re
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from inspect import isclass
from typing import Any, Literal, Union, get_origin

import dspy
import pydantic

from tools.models.answer_schema import SIGNATURES_CACHED, FieldValues, make_schema
from tools.models.values import repair_json

# DSPy's two forms of prompts and answers.
MARKER_FORM = dspy.ChatAdapter()
JSON_FORM = dspy.JSONAdapter()

_MARKER = re.compile(r"\[\[ ## (\w+) ## \]\]")  # of a field, in an answer


def answer_form(signature: Any) -> dspy.ChatAdapter:
    """Return DSPy's adapter for the form in which the active model has to answer."""
    structured = getattr(dspy.settings.lm, "structured", False) and make_schema(signature)
    return JSON_FORM if structured else MARKER_FORM


def read_answer(signature: Any, answer: str) -> FieldValues | None:
    """Return an answer's values in field order; None if DSPy has to read it.

    Errors are those of repair_json, for an answer that nothing should read.
    """
    validators = _validators(signature)
    # If a field has several sections, the first counts.
    texts = dict(reversed(_sections(answer)))
    if not texts.keys() & validators.keys():
        return _read_object(signature, answer)
    values = FieldValues()
    for name, validate in validators.items():
        if name in texts:
            values[name] = texts[name] if validate is str else repair_json(texts[name])
    try:
        for name, validate in validators.items():
            is_no_json = values[name] == "" and validate is not str
            if validate is None or is_no_json:
                return None
            values[name] = validate(values[name])
    except (KeyError, ValueError):
        return None
    return values


def _read_object(signature: Any, answer: str) -> FieldValues | None:
    """Return the values of an answer that is a JSON object, with DSPy's errors; None for any other answer."""
    validators = _validators(signature)
    start = answer.find("{")
    if start < 0:
        return None
    fields = repair_json(answer[start:])
    if not isinstance(fields, dict) or not fields.keys() & validators.keys():
        return None
    try:
        return {name: validate(fields[name]) for name, validate in validators.items()}  # type: ignore[misc]
    except (KeyError, TypeError, ValueError):
        # This includes the types that DSPy reads in its own way.
        values: FieldValues = JSON_FORM.parse(signature, json.dumps(fields))
        return values


def _sections(answer: str) -> list[tuple[str, str]]:
    """Divide an answer at its markers, as DSPy does, into (field, text); the text before the first has no field."""
    name = ""
    lines = []
    sections = []
    for line in answer.splitlines():
        marker = _MARKER.match(line.strip()) if "[[ ##" in line else None
        if not marker:
            lines.append(line)
            continue
        sections.append((name, "\n".join(lines).strip()))
        name = marker[1]
        lines = [line[marker.end() :].strip()]
    sections.append((name, "\n".join(lines).strip()))
    return sections


# Cached by signature: fields of a signature never change, because DSPy makes a new signature for
# other fields.
@lru_cache(maxsize=SIGNATURES_CACHED)
def _validators(signature: Any) -> Mapping[str, Callable[[Any], Any] | None]:
    """Return a function that checks a value, for each output field; None if DSPy has to read the field."""
    return {name: _validator(field.annotation) for name, field in signature.output_fields.items()}


def _validator(annotation: Any) -> Callable[[Any], Any] | None:
    """Return a function from JSON to values of `annotation`; None for types that DSPy reads in its own way."""
    if annotation is str:
        return str
    if get_origin(annotation) in (Union, types.UnionType, Literal):
        return None
    is_plain_class = isclass(annotation) and get_origin(annotation) is None
    if is_plain_class and issubclass(annotation, dspy.Type | Enum):
        return None
    try:
        return pydantic.TypeAdapter(annotation).validate_python
    except Exception:  # noqa: BLE001  # a type unknown to pydantic, which DSPy reports on reading
        return None
