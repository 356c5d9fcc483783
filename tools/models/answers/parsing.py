"""DSPy's two forms of an answer, fields under markers and a JSON object, and a bound on their repair.

Answers in other forms are read in fields.py, values of other types in values.py.
"""

import json
import re
from typing import Any

import dspy

from sextant.tools.models.answers.schema import make_schema
from sextant.tools.models.answers.values import repair_json

# DSPy's two forms of prompts and answers.
MARKER_FORM = dspy.ChatAdapter()
JSON_FORM = dspy.JSONAdapter()

# Of a field, at the beginning of a line of an answer.
_MARKER = re.compile(r"^[^\S\n]*\[\[ ## (\w+) ## \]\]", re.MULTILINE)


def answer_form(signature: Any) -> dspy.ChatAdapter:
    """Return DSPy's adapter for the form in which the active model has to answer."""
    structured = getattr(dspy.settings.lm, "structured", False) and make_schema(signature)
    return JSON_FORM if structured else MARKER_FORM


def check_repairable(signature: Any, answer: str) -> None:
    """Raise an error of `repair_json` for an answer that DSPy would take too long to repair.

    DSPy repairs the text of each field that is no text, with json_repair, which has no bound: some
    answers of a few thousand characters would take it minutes.
    """
    fields = signature.output_fields  # which DSPy puts together each time
    for name, text in _sections(answer).items():
        field = fields.get(name)
        if field is not None and field.annotation is not str:
            repair_json(text)


def find_object(signature: Any, answer: str) -> str:
    """Return the JSON object with the fields of an answer, repaired; "" if the answer is in markers or has none.

    It raises errors of `repair_json`, as `check_repairable` does.
    """
    names = signature.output_fields
    start = answer.find("{")
    if start < 0 or _sections(answer).keys() & names.keys():
        return ""
    values = repair_json(answer[start:])
    if not isinstance(values, dict) or not values.keys() & names.keys():
        return ""
    for name, value in values.items():
        if isinstance(value, str) and name in names and names[name].annotation is not str:
            repair_json(value)
    return json.dumps(values)


def _sections(answer: str) -> dict[str, str]:
    """Return the text of each field of an answer in markers; of several, the first counts, as in DSPy."""
    parts = _MARKER.split("\n".join(answer.splitlines()))
    texts: dict[str, str] = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        texts.setdefault(name, text)
    return texts
