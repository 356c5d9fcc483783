"""Use the part of an answer that can be used, if the answer as a whole cannot.

One rule holds for the answers to all programs:

1. fields that are whole are taken, in the first form in which the answer has them;
2. of the field in which the answer was cut off, a text is taken up to the cut, and of a list the
   items that are whole;
3. of a list, items of another type are left out;
4. in a field of ids, a value is read as the shown ids that stand in it, or as the passage whose
   text it repeats; the rest is left out;
5. a field that is missing gets its fallback if that is an empty text or list (`ask` in
   tools/models/prompting.py).

The part is used only if every field has a value, one at least is the answer's own, and the checks of
the call pass.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple, get_origin

import pydantic

from sextant.tools.models.answers.checks import (
    InvalidAnswer,
    accept_any,
    run_checks,
    schema_constraints,
)
from sextant.tools.models.answers.faults import copies_prompt
from sextant.tools.models.answers.fields import convert_field, read_parts
from sextant.tools.models.answers.schema import FieldValues
from sextant.tools.models.answers.values import Ids, TooBroken, convert_items, find_items
from sextant.tools.models.call_context import CallContext
from sextant.tools.models.passages import Passage
from sextant.tools.platform.number_format import abbreviate

_UNREADABLE = (ValueError, TypeError, TooBroken, RecursionError, MemoryError)
# Characters of a passage's text that no other passage of a call is likely to have.
_LEAST_QUOTED = 20
_MAX_DESCRIBED = 80  # characters of a value in the trace
# The ends of a list's last item, if it is whole, by the item's type.
_END_OF_OBJECT = tuple("}],\n`")
_END_OF_TEXT = tuple("\"'],\n`}")


class Part(NamedTuple):
    """The usable part of an answer."""

    values: FieldValues  # a value for each output field
    unknown_ids: set[str]  # values of fields of ids that are no id, and were left out
    has_checked_fields: bool  # every field that a check of the call names is the answer's own


def _fill_missing(
    signature: Any, values: FieldValues, fallback: Mapping[str, Any]
) -> FieldValues | None:
    """Return a value for each output field, of a default or the fallback if need be; None if a field has none."""
    filled = {}
    for name, field in signature.output_fields.items():
        if name in values:
            filled[name] = values[name]
        elif not field.is_required():
            filled[name] = field.get_default(call_default_factory=True)
        elif may_be_empty(fallback, name):
            filled[name] = deepcopy(fallback[name])
        else:
            return None
    return filled


def salvage(
    signature: Any, context: CallContext, parsed: FieldValues | None, *, is_cut: bool
) -> Part | None:
    """Return the usable part of the context's last answer; None if there is none.

    `parsed` are the values of the answer if it could be parsed.
    """
    text = context.answer.text
    try:
        parts = parsed or read_parts(signature, text)
    except _UNREADABLE:
        return None
    reader = _Reader(
        signature,
        context,
        next(reversed(parts), "") if is_cut else "",
    )
    read_values = reader.read(parts)
    values = _fill_missing(signature, read_values, context.fallback) if read_values else None
    if not values:
        return None
    try:
        run_checks(values, context.checks)
    except InvalidAnswer as fault:
        is_missing = fault.kind == "empty" and _lacks_optional(values, context.fallback)
        if not (fault.tolerable or is_missing):
            return None
    tests = [check for check in context.checks if check.test is not accept_any]
    checked = schema_constraints(tests).keys() & signature.output_fields.keys()
    return Part(values, reader.unknown_ids, checked <= read_values.keys())


def may_be_empty(fallback: Mapping[str, Any], name: str) -> bool:
    """Return whether an answer may lack a field."""
    return isinstance(fallback.get(name), str | list) and not fallback[name]


def _lacks_optional(values: FieldValues, fallback: Mapping[str, Any]) -> bool:
    """Return whether only fields that may be missing are blank, and one of them is."""
    blank = [name for name, value in values.items() if _is_blank(value)]
    return bool(blank) and all(may_be_empty(fallback, name) for name in blank)


def _is_blank(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return not any(str(item).strip() for item in items)


def describe(values: Mapping[str, Any]) -> str:
    """Return the values of fields in a line, for the trace."""
    described = []
    for name, value in values.items():
        words = _describe_value(value)
        described.append(f"{name}: {words}")
    return ", ".join(described)


def _describe_value(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} of a list" if value else "none"
    text = " ".join(str(value).split())
    return json.dumps(abbreviate(text, _MAX_DESCRIBED), ensure_ascii=False) if text else "none"


class _Reader:
    """Reads the fields of an answer one by one."""

    def __init__(
        self,
        signature: Any,
        context: CallContext,
        last: str,
    ) -> None:
        """`last` is the field in which the answer was cut off; "" if it was not."""
        self.unknown_ids = set[str]()
        self._signature = signature
        self._answer = context.answer.text
        self._last = last
        self._constraints = schema_constraints(context.checks)
        self._shown_ids = dict[str, Ids]()
        for check in context.checks:
            self._shown_ids |= check.ids
        self._passages = _passages(context)

    def read(self, parts: Mapping[str, Any]) -> FieldValues:
        """Return the values of the fields that can be read."""
        values = FieldValues()
        for name, part in parts.items():
            if name in self._signature.output_fields and not copies_prompt(self._signature, part):
                with suppress(*_UNREADABLE):
                    value = self._read_field(name, part)
                    is_copy = copies_prompt(
                        self._signature,
                        value,
                    )
                    if not is_copy:
                        values[name] = value
        return values

    def _read_field(self, name: str, part: Any) -> Any:
        annotation = self._signature.output_fields[name].annotation
        is_cut = name == self._last
        if get_origin(annotation) is list:
            return self._read_list(
                name,
                annotation,
                part,
                is_cut=is_cut,
            )
        value = convert_field(
            annotation,
            part,
            self._constraints.get(name),
        )
        is_whole = annotation is str or self._answer.rstrip(" \t").endswith(_END_OF_TEXT)
        if is_cut and not is_whole:
            raise ValueError(f"{value!r} may go on behind the cut")
        return value.strip() if annotation is str else value

    def _read_list(
        self,
        name: str,
        annotation: Any,
        part: Any,
        *,
        is_cut: bool,
    ) -> list[Any]:
        """Return the usable items of a list; ValueError if it has items, and none is usable."""
        has_ids = name in self._shown_ids
        written = []
        is_empty = False
        with suppress(*_UNREADABLE):
            written = find_items(part)
            is_empty = not written and (not is_cut or str(part).rstrip().endswith("]"))
        if is_empty:
            return []
        if is_cut and written:
            written = _whole_items(
                written,
                self._answer,
                are_texts=not has_ids,
            )
        items = convert_items(annotation, written)
        if has_ids:
            items = self._find_ids(
                items or ([] if is_cut else [part]),
                self._shown_ids[name],
            )
        if not items:
            raise ValueError(f"no item of {name} can be used")
        return items

    def _find_ids(
        self,
        items: list[Any],
        shown: Ids,
    ) -> list[Any]:
        """Return the shown ids, or the rows with shown ids, among the items."""
        kept = []
        for item in items:
            is_row = hasattr(item, "id")
            written = item.id if is_row else item
            text = written if isinstance(written, str) else json.dumps(written, default=str)
            found = _resolve(
                text,
                shown,
                self._passages,
            )
            if not found:
                self.unknown_ids.add(text)
            elif is_row:
                kept.append(item.model_copy(update={"id": found[0]}))
            else:
                kept += [doc_id for doc_id in found if doc_id not in kept]
        return kept


def _whole_items(
    items: list[Any],
    answer: str,
    *,
    are_texts: bool,
) -> list[Any]:
    """Return the items of a list before the cut; of a single free text the part before it."""
    is_object = isinstance(items[-1], pydantic.BaseModel | Mapping)
    if answer.rstrip(" \t").endswith(_END_OF_OBJECT if is_object else _END_OF_TEXT):
        return items
    is_only_text = len(items) == 1 and are_texts and isinstance(items[0], str)
    return items if is_only_text else items[:-1]


def _resolve(
    written: str,
    shown: Ids,
    passages: Mapping[str, str],
) -> list[str]:
    """Return the shown ids that a text names."""
    if (doc_id := shown.find(written)) is not None:
        return [doc_id]
    if inside := shown.find_in_text(written):
        return inside
    quoted = _plain(written)
    if len(quoted) < _LEAST_QUOTED:
        return []
    alike = [doc_id for doc_id, text in passages.items() if quoted in text]
    return alike if len(alike) == 1 and alike[0] in shown.among else []


def _passages(context: CallContext) -> dict[str, str]:
    """Return the plain texts of the call's passages, by id."""
    call = context.predictor_call
    texts = dict[str, str]()
    for value in call.inputs.values() if call else ():
        if isinstance(value, list):
            texts |= {
                passage.id: _plain(passage.text)
                for passage in value
                if isinstance(passage, Passage)
            }
    return texts


def _plain(text: str) -> str:
    """Return the words of a text without case and punctuation."""
    return " ".join(re.findall(r"\w+", text.casefold()))
