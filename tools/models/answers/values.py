"""Convert values as models write them into the types of fields: 101 into "101", "8/10" into 8, lines into a list.

A value is converted only if it can mean a single thing; what has no form below is pydantic's to
read or to refuse. Ids are looked for among the ids that were shown: ids.py.
"""

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from inspect import isclass
from typing import Annotated, Any, Literal, get_args, get_origin

import dspy
import json_repair
import pydantic

from sextant.tools import schemas

# Characters that a repair may read: half a second. A list of 1,000 ids takes a tenth of that.
_LOOKS = 500_000


class TooBroken(ValueError):
    """JSON that would take too long to repair."""


class RepairBudget:
    """Characters that the repairs of a text may read, together."""

    def __init__(self) -> None:
        self.left = _LOOKS


class _ReadLimitedStr(str):
    """A text that raises TooBroken after a bounded number of characters was read.

    json_repair's time grows with the square of stray quotes.
    """

    budget: RepairBudget

    def __getitem__(self, index: Any) -> str:
        text = super().__getitem__(index)
        self.budget.left -= len(text)
        if self.budget.left < 0:
            raise TooBroken
        return text


def repair_json(text: str, budget: RepairBudget | None = None) -> Any:
    """Return the value of a JSON text, repaired if it is broken; "" if it has none.

    TooBroken if the repair would take too long.
    """
    with suppress(ValueError):
        return json.loads(text)
    watched = _ReadLimitedStr(text)
    watched.budget = budget or RepairBudget()
    if watched.budget.left < 0:
        raise TooBroken
    return json_repair.loads(watched, skip_json_loads=True)


def plain_name(name: Any) -> str:
    """Return a name without case and separators: docIds, doc-ids and "Doc IDs" are equal."""
    return re.sub(r"[\W_]+", "", str(name)).casefold()


def fold_name(name: str) -> str:
    """Return a plain name without its plural: doc_ids and docId are equal."""
    return plain_name(name).removesuffix("s")


_ID_KEYS = (
    "doc_id",
    "document_id",
    "doc",
    "id",
    "passage_id",
    "pid",
    "docno",
    "document",
    "identifier",
)
_FOLDED_ID_KEYS = tuple(map(fold_name, _ID_KEYS))
_NOTHING = ("", "none", "null", "n/a", "[]", "-")
_QUOTES = "\"'`\u2018\u2019\u201c\u201d*"
_ITEM = re.compile(r"^\s*(?:[-*\u2022\u2013]|\(?\d+[.)\]:](?=\s))\s+")
_CHAIN = re.compile(r"\[[^\[\]\"']++\](?:\s*+>\s*+\[[^\[\]\"']++\])++")  # as RankGPT asks for it
_NUMBER = re.compile(
    r"(?:[A-Za-z][\w ]{0,30}[:=]\s*+)?(?P<number>[-+]?\d+(?:\.\d+)?)\.?\s*+"
    r"(?:(?:/|out of)\s*+(?P<most>\d+)\s*+)?(?:\(.*|[,;:\u2013\u2014-]\s++(?!\d).*)?",
    re.DOTALL | re.IGNORECASE,
)
_WORD = re.compile(r"(\w+)\s*(?:$|[.,;:!(\u2013\u2014-])")


def convert(
    annotation: Any,
    value: Any,
    bounds: Mapping[str, Any] | None = None,
) -> Any:
    """Return `value` as a value of the type `annotation`; ValueError if it cannot be one.

    `bounds` may have the "minimum" and "maximum" of a number, which tell the meaning of "4/5".
    """
    try:
        plain = _read(annotation, value, bounds or {})
        return schemas.type_adapter(annotation).validate_python(plain)
    except TypeError as error:  # a type that cannot be hashed, or that pydantic does not know
        raise ValueError(str(error)) from None


def _read(annotation: Any, value: Any, bounds: Mapping[str, Any]) -> Any:
    """Return a value in the form that pydantic reads as `annotation`, if one is known."""
    origin = get_origin(annotation)
    inside = get_args(annotation)
    if origin is Annotated:
        return _read(inside[0], value, bounds)
    if origin is Literal:
        return _choose(inside, value)
    base = origin or annotation
    if not isclass(base) or issubclass(base, dspy.Type):  # DSPy's own types read their own forms
        return value
    if issubclass(base, str):
        return _read_id_or_text(value)
    if issubclass(base, bool):
        return _read_bool(value)
    if issubclass(base, int | float):
        return _read_number(value, bounds)
    if issubclass(base, list):
        items = [item for item in find_items(value) if item is not None]
        return [_read(inside[0], item, {}) for item in items] if inside else items
    value = _parse(value) if isinstance(value, str) else value
    return _read_model(base, value) if issubclass(base, pydantic.BaseModel) else value


def _only_item(value: Any) -> Any:
    """Return the item of a list or an object that has only one; any other value as it is."""
    if isinstance(value, Mapping) and len(value) == 1:
        return next(iter(value.values()))
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def read_text(value: Any) -> str:
    """Read a text, also from a number or a list of one item. ValueError for anything else."""
    if isinstance(value, list | tuple) and len(value) == 1:
        return read_text(value[0])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (isinstance(value, str) or (is_number and math.isfinite(value))):
        raise ValueError(f"{str(value)[:80]!r} is no text")
    return str(value)


def find_id(value: Mapping[Any, Any]) -> Any:
    """Return the id in an object that stands for a document, as a search shows it; None if it has none."""
    contents = {fold_name(str(name)): content for name, content in value.items()}
    return next((contents[key] for key in _FOLDED_ID_KEYS if contents.get(key) is not None), None)


def _read_id_or_text(value: Any) -> str:
    if isinstance(value, Mapping):
        doc_id = find_id(value)
        return read_text(_only_item(value) if doc_id is None else doc_id)
    return read_text(value)


def convert_items(annotation: Any, items: Iterable[Any]) -> list[Any]:
    """Return those items that are of the type of a list's items."""
    item_types = get_args(annotation) or (Any,)
    converted = []
    for item in items:
        with suppress(ValueError):
            converted.append(convert(item_types[0], item))
    return converted


def find_items(value: Any) -> list[Any]:
    """Return the items of a list in any of its forms: JSON, an object that has it, lines, names between commas.

    ValueError if it is broken JSON that cannot be repaired.
    """
    if value is None:
        return []
    if isinstance(value, str):
        text = unfence(value)
        if _CHAIN.fullmatch(text) or text[:1] not in ("[", "{", "("):
            return split_list(text)
        value = _parse(text)
        if isinstance(value, str):
            raise ValueError(f"{text[:80]!r} is no list")
    content = _only_item(value) if isinstance(value, Mapping) else value
    return list(content) if isinstance(content, list | tuple | set) else [value]


def split_list(text: str) -> list[str]:
    """Return the parts of a list in words: lines without their marks, or names between commas; else the whole text."""
    if text.strip(_QUOTES + ". \n").lower() in _NOTHING:
        return []
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1:
        return [_ITEM.sub("", line).strip().rstrip(",").strip(_QUOTES) for line in lines]
    parts = [part.strip().strip(_QUOTES + "[]") for part in re.split(r"[,;>|]", text)]
    if len(parts) > 1 and all(part and len(part.split()) == 1 for part in parts):
        return parts
    return [_ITEM.sub("", text).strip().strip(_QUOTES)]


def _read_bool(value: Any) -> Any:
    """Return the first word of a text, which pydantic reads: yes, no, true, ..."""
    word = _WORD.match(unfence(value).strip(_QUOTES)) if isinstance(value, str) else None
    return word[1] if word else value


def _read_number(value: Any, bounds: Mapping[str, Any]) -> Any:
    value = _only_item(value)
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is no number")
    if not isinstance(value, str):
        return value
    match = _NUMBER.fullmatch(unfence(value).strip(_QUOTES))
    if match is None:
        raise ValueError(f"{value[:80]!r} is no number")
    number = float(match["number"])
    highest = bounds.get("maximum")
    if match["most"] and highest is not None and not bounds.get("minimum"):
        return number / float(match["most"]) * highest  # of the scale that was asked for
    return number


def _choose(choices: Iterable[Any], value: Any) -> Any:
    """Return the choice that a text means, in any case, with words behind it."""
    text = str(value).strip(_QUOTES + " .").casefold()
    words = (text, re.split(r"[ .,;:!]", text)[0])
    alike = [choice for choice in choices if str(choice).casefold() in words]
    return alike[0] if len(alike) == 1 else value


def _read_model(model: type[pydantic.BaseModel], value: Any) -> Any:
    """Return the values of a model's fields by its own names for them."""
    if isinstance(value, list):
        value = _only_item(value)
    if not isinstance(value, Mapping):
        return value
    written = {plain_name(name): name for name in value}
    values = dict(value)
    for name, field in model.model_fields.items():
        names = [name, *(_ID_KEYS if name == "id" else ())]
        found = next((written[key] for key in map(plain_name, names) if key in written), None)
        if found is not None:
            values[name] = _read(field.annotation, values.pop(found), {})
    return values


def _parse(text: str) -> Any:
    """Return the value of a JSON or Python text, repaired if it is broken; if there is none, the text."""
    text = unfence(text)
    with suppress(ValueError):
        return json.loads(text, strict=False)
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(text)
    with suppress(TooBroken, RecursionError):
        return repair_json(text) or text
    return text


def unfence(text: str) -> str:
    """Return a text without blanks and a fence around it: ```json ... ```."""
    fenced = re.fullmatch(r"\s*```[\w-]*(.*)```\s*", text, re.DOTALL)
    return (fenced[1] if fenced else text).strip()
