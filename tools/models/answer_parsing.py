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


# Made once for a signature: its fields never change, because DSPy makes a new signature for other
# fields.
@lru_cache(maxsize=SIGNATURES_CACHED)
def _validators(signature: Any) -> Mapping[str, Callable[[Any], Any] | None]:
    """Return what checks the value of each output field; None where DSPy has to read it."""
    return {name: _validator(field.annotation) for name, field in signature.output_fields.items()}


def answer_form(signature: Any) -> dspy.ChatAdapter:
    """Return DSPy's adapter for the form in which the active model is to answer."""
    structured = getattr(dspy.settings.lm, "structured", False) and make_schema(signature)
    return JSON_FORM if structured else MARKER_FORM


def read_answer(signature: Any, answer: str) -> FieldValues | None:
    """Return an answer's values in field order; None where DSPy has to read it, an error where nobody should."""
    validators = _validators(signature)
    # of several sections, the first counts
    texts = dict(reversed(_sections(answer)))
    values = FieldValues()
    if not texts.keys() & validators.keys():
        return _read_object(signature, answer)
    for name, validate in validators.items():
        if name in texts:
            values[name] = texts[name] if validate is str else repair_json(texts[name])
    try:
        for name, validate in validators.items():
            if validate is None or (
                values[name] == "" and validate is not str
            ):  # "": it is not JSON
                return None
            values[name] = validate(values[name])
    except (KeyError, ValueError):
        return None
    return values


def _read_object(signature: Any, answer: str) -> FieldValues | None:
    """Return the values of an answer that is a JSON object, with DSPy's errors; None for any other."""
    validators = _validators(signature)
    start = answer.find("{")
    found = repair_json(answer[start:]) if start >= 0 else None
    if not isinstance(found, dict) or not found.keys() & validators.keys():
        return None
    try:
        return {name: validate(found[name]) for name, validate in validators.items()}  # type: ignore[misc]
    except (KeyError, TypeError, ValueError):  # what DSPy reads in a way of its own is among them
        values: FieldValues = JSON_FORM.parse(signature, json.dumps(found))
        return values


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
    if union or (
        isclass(annotation)
        and get_origin(annotation) is None
        and issubclass(annotation, dspy.Type | Enum)
    ):
        return None
    try:
        return pydantic.TypeAdapter(annotation).validate_python
    except Exception:  # noqa: BLE001  # a type that pydantic does not know: DSPy says so when the answer is there
        return None
