"""Convert values as models write them into the types of fields: 101 into "101", "yes" into true, "8/10" into 8.

A value is converted only if it can mean a single thing. Ids are looked for among the ids that were
shown.
"""

import ast
import json
import math
import re
import types
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from inspect import isclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import dspy
import json_repair
import pydantic

from sextant.tools import schemas

# Characters that a repair may read: half a second. A list of 1,000 ids takes a tenth of that.
_LOOKS = 500_000


class TooBroken(Exception):
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


# Names


def plain_name(name: Any) -> str:
    """Return a name without case and separators: docIds, doc-ids and "Doc IDs" are equal."""
    return re.sub(r"[\W_]+", "", str(name)).casefold()


def fold_name(name: str) -> str:
    """Return a plain name without its plural: doc_ids and docId are equal."""
    return plain_name(name).removesuffix("s")


# Types

_ID_KEYS = (
    "doc_id",
    "document_id",
    "docid",
    "doc",
    "id",
    "_id",
    "passage_id",
    "pid",
    "docno",
    "document",
    "identifier",
)
_FOLDED_ID_KEYS = tuple(dict.fromkeys(map(fold_name, _ID_KEYS)))
_NOTHING = ("", "none", "null", "n/a", "nil", "[]", "-", "empty", "(none)", "(empty)")
_TRUE = ("true", "yes", "y", "1", "correct")
_FALSE = ("false", "no", "n", "0", "incorrect")
_FENCE = "```"
_LANGUAGE = re.compile(r"[\w-]*+")
_QUOTES = "\"'`\u2018\u2019\u201c\u201d*"
_ITEM = re.compile(r"^\s*(?:[-*\u2022\u2013]|\(?\d+[.)\]:](?=\s))\s+")
_CHAIN = re.compile(
    r"\[[^\[\]\"']++\](?:(?:[^\S\n]*+[>,\n]|\s*+[>,])\s*+\[[^\[\]\"']++\])++"
)  # [1] > [2], as RankGPT asks for it
_NUMBER = re.compile(
    r"(?:[A-Za-z][\w ]{0,30}[:=]\s*+)?(?P<number>[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+]?\.\d+)\.?\s*+"
    r"(?P<share>%|percent\b)?\s*+(?:(?:/|out of|of)\s*+(?P<most>\d+(?:\.\d+)?))?"
    r"(?:\s*+(?:[(,;:\u2013\u2014-].*|points?\.?))?",
    re.DOTALL | re.IGNORECASE,
)


def convert(
    annotation: Any,
    value: Any,
    bounds: Mapping[str, Any] | None = None,
) -> Any:
    """Return `value` as a value of the type `annotation`; ValueError if it cannot be one.

    `bounds` may have the "minimum" and "maximum" of a number, which tell the meaning of "4/5".
    """
    if annotation is Any:
        return value
    origin = get_origin(annotation)
    inside = get_args(annotation)
    if origin is Annotated:
        return _validate(annotation, convert(inside[0], value, bounds))
    if origin in (Union, types.UnionType):
        return _convert_to_one(inside, value, bounds)
    plain_type = origin or annotation
    for base, converter in _CONVERTERS.items():
        if isclass(plain_type) and issubclass(plain_type, base):
            converted = converter(annotation, value, bounds)
            return _validate(annotation, converted)
    if origin is Literal:
        return _choose(inside, value)
    return _validate(annotation, _unfence(value))


def _validate(annotation: Any, value: Any) -> Any:
    try:
        return schemas.type_adapter(annotation).validate_python(value)
    except TypeError as error:  # a type that cannot be hashed, or that pydantic does not know
        raise ValueError(str(error)) from None


def _convert_to_one(
    kinds: Iterable[Any],
    value: Any,
    bounds: Mapping[str, Any] | None,
) -> Any:
    is_nothing = value is None
    if isinstance(value, str):
        is_nothing = value.strip().lower() in _NOTHING
    if is_nothing and type(None) in kinds:
        return None
    for member_type in kinds:
        if member_type is not type(None):
            with suppress(ValueError, TypeError):
                return convert(member_type, value, bounds)
    raise ValueError(f"{value!r} is none of the types asked for")


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
    for key in _FOLDED_ID_KEYS:
        if contents.get(key) is not None:
            return contents[key]
    return None


def _to_text(
    annotation: Any,
    value: Any,
    bounds: Any = None,
) -> str:
    if isinstance(value, list | tuple) and len(value) == 1:
        return _to_text(annotation, value[0])
    if isinstance(value, Mapping):
        doc_id = find_id(value)
        if isinstance(doc_id, str | int | float):
            return read_text(doc_id)
        if len(value) == 1:
            return _to_text(annotation, next(iter(value.values())))
    return read_text(value)


def _to_list(
    annotation: Any,
    value: Any,
    bounds: Any = None,
) -> list[Any]:
    items = find_items(value)
    arguments = get_args(annotation)
    item_types = [argument for argument in arguments if argument is not Ellipsis]
    is_tuple = get_origin(annotation) is tuple and Ellipsis not in arguments
    if is_tuple and len(item_types) > 1:
        if len(items) != len(item_types):
            raise ValueError(f"{value!r} has another number of parts")
        pairs = zip(item_types, items, strict=True)
        return [convert(item_type, item) for item_type, item in pairs]
    items = [item for item in items if item is not None]
    if not item_types:
        return items
    return [convert(item_types[0], item) for item in items]


def convert_items(annotation: Any, items: Iterable[Any]) -> list[Any]:
    """Return those items that are of the type of a list's items."""
    item_types = get_args(annotation) or (Any,)
    converted = []
    for item in items:
        with suppress(ValueError, TypeError):
            converted.append(convert(item_types[0], item))
    return converted


def find_items(value: Any) -> list[Any]:
    """Return the items of a list in any of its forms: JSON, an object that has it, lines, names between commas.

    ValueError if it is broken JSON, TooBroken if that would take too long to repair.
    """
    if value is None:
        return []
    if isinstance(value, str):
        return _find_items_in_text(value)
    if isinstance(value, Mapping) and len(value) == 1:
        [content] = value.values()
        return content if isinstance(content, list) else [value]
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]


def _find_items_in_text(value: str) -> list[Any]:
    text = _unfence(value).strip()
    if text.startswith('"'):  # JSON in JSON
        with suppress(ValueError):
            inner = json.loads(text)
            text = inner if isinstance(inner, str) else text
    if _CHAIN.fullmatch(text) or text[:1] not in ("[", "{", "("):
        return list(split_list(text))
    parsed = _parse(text)
    if isinstance(parsed, str):
        raise ValueError(f"{text[:80]!r} is no list")
    return find_items(parsed)


def split_list(text: str) -> list[str]:
    """Return the parts of a list in words: lines without their marks, or names between commas; else the whole text."""
    if text.strip().strip(_QUOTES + ".").lower() in _NOTHING:
        return []
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1:
        return [_ITEM.sub("", line).strip().rstrip(",").strip(_QUOTES) for line in lines]
    parts = [part.strip().strip(_QUOTES + "[]") for part in re.split(r"[,;>|]", text)]
    if len(parts) > 1 and all(part and len(part.split()) == 1 for part in parts):
        return parts
    return [_ITEM.sub("", text).strip().strip(_QUOTES)]


def _to_bool(
    annotation: Any,
    value: Any,
    bounds: Any = None,
) -> bool:
    if isinstance(value, str):
        word = re.match(
            r"(\w+)\s*(?:$|[.,;:!(\u2013\u2014-])", _unfence(value).strip().strip(_QUOTES).lower()
        )
        if word and word[1] in _TRUE + _FALSE:
            return word[1] in _TRUE
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ValueError(f"{str(value)[:80]!r} is neither true nor false")


def _to_number(
    annotation: Any,
    value: Any,
    bounds: Mapping[str, Any] | None = None,
) -> Any:
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, Mapping) and len(value) == 1:
        value = next(iter(value.values()))
    if isinstance(value, str):
        value = _read_number(_unfence(value).strip().strip(_QUOTES), bounds or {})
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    return int(value) if issubclass(annotation, int) and float(value).is_integer() else value


def _read_number(text: str, bounds: Mapping[str, Any]) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is no number")
    number = _read_commas(match["number"])
    highest = bounds.get("maximum")
    most = 100.0 if match["share"] else float(match["most"] or 0)
    if not most:
        return number
    if highest is not None and most != highest and not bounds.get("minimum"):
        return number / most * float(highest)
    if match["share"] and highest is None:
        raise ValueError(f"{text[:80]!r} is a share of an unknown number")
    return number


def _read_commas(digits: str) -> float:
    """Read a number with a decimal comma, as 0,5, or with commas between thousands, as 12,000."""
    if re.fullmatch(r"[-+]?\d+,\d{1,2}", digits):
        return float(digits.replace(",", "."))
    if "," in digits and not re.fullmatch(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", digits):
        raise ValueError(f"{digits[:80]!r} is no number")
    return float(digits.replace(",", ""))


def _choose(choices: Iterable[Any], value: Any) -> Any:
    choices = list(choices)
    if value in choices and not isinstance(value, bool):
        return value
    folded = _fold(str(value))
    for reading in (folded, folded.split(" ")[0].rstrip(",.;:!"), folded.split(":")[-1].strip()):
        alike = [choice for choice in choices if _fold(str(choice)) == reading]
        if len(alike) == 1:
            return alike[0]
    raise ValueError(f"{value!r} is none of {choices}")


def _to_enum(
    annotation: Any,
    value: Any,
    bounds: Any = None,
) -> Any:
    members = {member: (member.value, member.name) for member in annotation}
    for member, names in members.items():
        if value == member or value in names:
            return member
    for index in (0, 1):
        with suppress(ValueError):
            chosen = _choose([names[index] for names in members.values()], value)
            return next(member for member, names in members.items() if names[index] == chosen)
    raise ValueError(f"{value!r} is none of {[member.value for member in annotation]}")


def _to_model(
    annotation: Any,
    value: Any,
    bounds: Any = None,
) -> Any:
    if isinstance(value, annotation):
        return value
    if isinstance(value, str):
        value = _parse(_unfence(value).strip())
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is no object")
    written_names = {plain_name(name): name for name in value}
    values = {}
    read_names = set()
    for name, field in annotation.model_fields.items():
        names = [name, field.alias or name, *(_ID_KEYS if name in ("id", "doc_id") else ())]
        written = next(
            (written_names[plain] for plain in map(plain_name, names) if plain in written_names),
            None,
        )
        if written is not None and written not in read_names:
            values[field.alias or name] = convert(field.annotation, value[written])
            read_names.add(written)
    unread = {name: content for name, content in value.items() if name not in read_names}
    if annotation.model_config.get("extra") == "forbid":
        return values
    return {**unread, **values}


def _to_mapping(
    annotation: Any,
    value: Any,
    bounds: Any = None,
) -> Any:
    value = _parse(_unfence(value).strip()) if isinstance(value, str) else value
    inside = get_args(annotation)
    if not isinstance(value, Mapping) or len(inside) != 2:
        return value
    converted = {}
    for key, content in value.items():
        converted[convert(inside[0], key)] = convert(inside[1], content)
    return converted


_CONVERTERS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    dspy.Type: lambda annotation, value, bounds: value,  # DSPy's own types read their own forms
    Enum: _to_enum,
    bool: _to_bool,
    int: _to_number,
    float: _to_number,
    str: _to_text,
    list: _to_list,
    set: _to_list,
    frozenset: _to_list,
    tuple: _to_list,
    pydantic.BaseModel: _to_model,
    dict: _to_mapping,
}


def _unfence(value: Any) -> Any:
    """Return a text without its fence: ```json ... ```."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if len(text) < 2 * len(_FENCE) or not (text.startswith(_FENCE) and text.endswith(_FENCE)):
        return value
    inside = text[len(_FENCE) : -len(_FENCE)]
    language = _LANGUAGE.match(inside)
    return inside[language.end() if language else 0 :].strip()


def _parse(text: str) -> Any:
    """Return the value of a JSON or Python text, repaired if it is broken; if there is none, the text."""
    with suppress(ValueError):
        return json.loads(text, strict=False)
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(text)
    with suppress(TooBroken, RecursionError):
        repaired = repair_json(text)
        return text if repaired == "" else repaired
    return text


def _fold(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_QUOTES + " .")


# Ids of documents

_LABEL = re.compile(
    r"^(?:(?:the\s+)?(?:documents?|docs?|passages?|texts?|results?|candidates?|ids?|identifiers?|numbers?|no|nr)"
    r"(?:[\s_-]*(?:ids?|numbers?|no|nr))?[\s:=#._-]*)+",
    re.IGNORECASE,
)
_EDGES = " \t\r\n.,;:!?*#`\"'()[]{}<>\u2018\u2019\u201c\u201d"
_AFTER = re.compile(
    r"\s*(?:[:(\u2013\u2014]|\s-+\s|->|=)"
)  # what ends an id, before a title or a score
_WORD = re.compile(r"[^\s,;|]+")
_ENDS_IN_LABEL = re.compile(
    r"\b(?:documents?|docs?|passages?|ids?|numbers?|no|nr)[\s_:=#.-]*\Z", re.IGNORECASE
)
_LABEL_CHARS = 20  # characters before a number in which a word for a document is looked for
_LONG_NUMBER = 4  # digits from which a number in a text is an id
_BETWEEN = re.compile(r"\s*(?:[,;>|\n]|\band\b|\s&\s)\s*|(?<=\])\s*(?=\[)")  # two ids


class Ids:
    """The ids that a model was shown; finds the id that the model means by its words."""

    def __init__(self, among: Collection[str]) -> None:
        self.among = among
        # Ids by their plain forms; made when it is needed.
        self._alike: dict[str, set[str]] | None = None

    def find(self, written: Any) -> str | None:
        """Return the id that is meant; None if it is none of the ids, or may be several."""
        try:
            text = _to_text(str, getattr(written, "id", written))
        except ValueError:
            return None
        if text in self.among:
            return text
        for form in _forms(text):
            if form in self.among:
                return form
            alike = self._index().get(_key(form), set())
            if len(alike) == 1:
                return next(iter(alike))
        return None

    def read(self, values: Any) -> list[Any]:
        """Return a list with each value as the id that it means; other values stay, as texts."""
        read = []
        for value in values:
            doc_id = self.find(value)
            several = self._split(value) if doc_id is None else [doc_id]
            read += several or [value if isinstance(value, str) else _shown(value)]
        return read

    def find_in_text(self, text: str) -> list[str]:
        """Return the ids that stand as words in a text, in order.

        A short number, which may be any number, has to stand in brackets or behind a word for a document.
        """
        named = []
        for piece in _WORD.finditer(text):
            word = piece[0].strip(_EDGES)
            doc_id = self.find(word)
            if doc_id is None:
                continue
            is_short_number = word.isdecimal() and len(word) < _LONG_NUMBER
            before = text[max(0, piece.start() - _LABEL_CHARS) : piece.start()]
            if (
                not is_short_number
                or piece[0].strip(".,;:!?") != word
                or _ENDS_IN_LABEL.search(before)
            ):
                named.append(doc_id)
        return list(dict.fromkeys(named))

    def _split(self, value: Any) -> list[str]:
        """Return the ids in a text, if every part of it is an id."""
        if not isinstance(value, str):
            return []
        for pieces in (_BETWEEN.split(_shorten_blanks(value)), value.split()):
            named = [self.find(_ITEM.sub("", piece)) for piece in pieces if piece.strip(_EDGES)]
            if len(named) > 1 and None not in named:
                return [doc_id for doc_id in named if doc_id is not None]
        return []

    def _index(self) -> dict[str, set[str]]:
        if self._alike is None:
            self._alike = {}
            for doc_id in self.among:
                self._alike.setdefault(_key(doc_id), set()).add(doc_id)
        return self._alike


def _forms(text: str) -> Iterable[str]:
    """Yield the ids that a text may mean, the likeliest first."""
    bare = text.strip()
    yield bare
    yield (edged := bare.strip(_EDGES))
    unlabelled = _LABEL.sub("", edged).strip(_EDGES)
    yield unlabelled
    for form in (edged, unlabelled):
        form = _shorten_blanks(form)
        if (after := _AFTER.search(form)) and after.start():
            yield form[: after.start()].strip(_EDGES)


def _shorten_blanks(text: str) -> str:
    """Return a text with a single blank or line break for several, over which patterns would take quadratic time."""
    return re.sub(r"\s{2,}", lambda blanks: "\n" if "\n" in blanks[0] else " ", text)


def _key(text: str) -> str:
    """Return a form in which an id and a model's spelling of it are equal: case, blanks, zeros and ".0" apart."""
    plain = "".join(unicodedata.normalize("NFKC", text).casefold().split())
    digits, point, fraction = plain.partition(".")
    if not re.fullmatch(r"\d+", digits) or (point and (not fraction or fraction.strip("0"))):
        return plain
    return digits.lstrip("0") or "0"


def _shown(value: Any) -> str:
    with suppress(ValueError):
        return _to_text(str, value)
    return str(value)
