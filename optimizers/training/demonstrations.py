"""What a demonstration keeps of a predictor's traced call: a few passages, cut short."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import dspy

from programs.parts.compiled import plain

SHOWN = 6  # entries that a demonstration keeps of a list; of passages those that the answer names first
CUT = 400  # characters of each text in such a list


def trim(step: Any) -> tuple[Any, dict[str, Any], dspy.Prediction]:
    """Return a predictor's traced call as plain data: long lists and texts of what it was shown are cut."""
    predictor, inputs, outputs = step
    answer = plain(outputs)
    named, shown = set(_texts(answer)), {name: plain(value) for name, value in inputs.items()}
    # What is a text by itself, such as the description, stays whole.
    shown = {name: value if isinstance(value, str) else _cut(value, named) for name, value in shown.items()}
    # DSPy draws among demonstrations by a digest of their pickle, in which it matters whether two equal texts are one
    # object: a parser's cache would decide. Read anew, none are.
    shown, answer = json.loads(json.dumps([shown, answer]))
    return predictor, shown, dspy.Prediction(**answer)


def _cut(value: Any, named: set[str]) -> Any:
    """Cut long lists and texts of `value`: left are the passages that are named, else the latest of a list."""
    if isinstance(value, str):
        return value[:CUT]
    if isinstance(value, Mapping):
        return {key: _cut(one, named) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    if all(isinstance(one, Mapping) and {"id", "text"} <= one.keys() for one in value):
        chosen = sorted(value, key=lambda one: one["id"] not in named)[:SHOWN]  # stable: else as they were shown
        return [_cut(one, named) for one in value if one in chosen]
    return [_cut(one, named) for one in value[-SHOWN:]]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)
