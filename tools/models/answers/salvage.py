"""Use the part of an answer that can be used, if the answer as a whole cannot.

One rule holds for the answers to all programs:

1. fields that are whole are taken, in the first form in which the answer has them;
2. of the field in which the answer was cut off, a text is taken up to the cut, and of a list the
   items that are whole;
3. of a list, items of another type are left out;
4. in a field of ids, a value is read as the shown ids that stand in it; the rest is left out;
5. a field that is missing gets its fallback if that is an empty text or list (`ask` in
   tools/models/prompting.py).

The part is used only if every field has a value, one at least is the answer's own, and the checks of
the call pass.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple, get_origin

from sextant.tools.models.answers.checks import (
    CallContext,
    Ids,
    InvalidAnswer,
    accept_any,
    copies_prompt,
    run_checks,
    schema_constraints,
)
from sextant.tools.models.answers.fields import (
    UNREADABLE,
    FieldValues,
    convert_items,
    find_fields,
    find_items,
    read_field,
)
from sextant.tools.models.dspy_internals import apply_output_field_defaults
from sextant.tools.platform.number_format import abbreviate

_MAX_DESCRIBED = 80  # characters of a value in the trace
# The end of a text in which the last value is whole, by whether that is an object.
_WHOLE_END = {True: tuple("}],\n`"), False: tuple("\"'],\n`}")}
_MARKER_BEGINNING = re.compile(r"\n[ \t]*\[\[?(?: ?#[# \w]*\]?)?[ \t]*\Z")


class Part(NamedTuple):
    """The usable part of an answer."""

    values: FieldValues  # a value for each output field
    unknown_ids: set[str]  # values of fields of ids that are no id, and were left out
    has_checked_fields: bool  # every field that a check of the call names is the answer's own


def salvage(
    signature: Any, context: CallContext, parsed: FieldValues | None, *, is_cut: bool
) -> Part | None:
    """Return the usable part of the context's last answer; None if there is none.

    `parsed` are the values of the answer if it could be parsed.
    """
    text = context.answer.text
    if is_cut:
        text = _MARKER_BEGINNING.sub("", text)
    parts = parsed or find_fields(signature, text, context.inputs)
    reader = _Reader(signature, context, text)
    own = FieldValues()
    for name, part in parts.items():
        with suppress(*UNREADABLE):
            value = reader.read(name, part, is_cut=is_cut and name == next(reversed(parts)))
            if not copies_prompt(signature, value):
                own[name] = value
    optional = {
        name: deepcopy(value)
        for name, value in context.fallback.items()
        if isinstance(value, str | list) and not value
    }
    filled = optional | apply_output_field_defaults(signature, own)
    if not own or not filled.keys() >= signature.output_fields.keys():
        return None
    values = {name: filled[name] for name in signature.output_fields}
    try:
        run_checks(values, context.checks)
    except InvalidAnswer as fault:
        blank = {name for name, value in values.items() if _is_blank(value)}
        is_missing = fault.kind == "empty" and blank and blank <= optional.keys()
        if not (fault.tolerable or is_missing):
            return None
    tests = [check for check in context.checks if check.test is not accept_any]
    checked = schema_constraints(tests).keys() & signature.output_fields.keys()
    return Part(values, reader.unknown_ids, checked <= own.keys())


def _is_blank(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return not any(str(item).strip() for item in items)


def describe(values: Mapping[str, Any]) -> str:
    """Return the values of fields in a line, for the trace."""
    return ", ".join(f"{name}: {_describe_value(value)}" for name, value in values.items())


def _describe_value(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} of a list" if value else "none"
    text = " ".join(str(value).split())
    return json.dumps(abbreviate(text, _MAX_DESCRIBED), ensure_ascii=False) if text else "none"


class _Reader:
    """Reads the fields of an answer one by one."""

    def __init__(self, signature: Any, context: CallContext, text: str) -> None:
        self.unknown_ids = set[str]()
        self._types = {name: field.annotation for name, field in signature.output_fields.items()}
        self._inputs = context.inputs
        self._text = text.rstrip(" \t")
        self._constraints = schema_constraints(context.checks)
        self._shown_ids = dict[str, Ids]()
        for check in context.checks:
            self._shown_ids |= check.ids

    def read(self, name: str, part: Any, *, is_cut: bool) -> Any:
        """Return the value of a field, or of one in which the answer `is_cut` the part before that.

        One of UNREADABLE if nothing of it can be used.
        """
        annotation = self._types[name]
        if get_origin(annotation) is list:
            return self._read_list(name, part, is_cut=is_cut)
        value = read_field(annotation, part, self._constraints.get(name), self._inputs)
        if annotation is str:
            return value.strip()
        if is_cut and not self._text.endswith(_WHOLE_END[False]):
            raise ValueError(f"{value!r} may go on behind the cut")
        return value

    def _read_list(self, name: str, part: Any, *, is_cut: bool) -> list[Any]:
        shown = self._shown_ids.get(name)
        written = find_items(part)
        if not written and (not is_cut or str(part).rstrip().endswith("]")):
            return []
        last = written[-1] if written else ""
        is_whole = self._text.endswith(_WHOLE_END[not isinstance(last, str)])
        is_only_text = len(written) == 1 and isinstance(last, str) and not shown
        if is_cut and not (is_whole or is_only_text):
            del written[-1:]
        items = convert_items(self._types[name], written)
        if shown:
            items = self._find_ids(items or ([] if is_cut else [part]), shown)
        if not items:
            raise ValueError(f"no item of {name} can be used")
        return items

    def _find_ids(self, items: Iterable[Any], shown: Ids) -> list[Any]:
        """Return the shown ids, or the rows with shown ids, among the items."""
        kept = []
        for item in items:
            written = getattr(item, "id", item)
            text = written if isinstance(written, str) else json.dumps(written, default=str)
            doc_id = shown.find(text)
            named = shown.find_in_text(text) if doc_id is None else [doc_id]
            if not named:
                self.unknown_ids.add(text)
            elif hasattr(item, "id"):
                kept.append(item.model_copy(update={"id": named[0]}))
            else:
                kept += [doc_id for doc_id in named if doc_id not in kept]
        return kept
