"""Forms of JSON files that others may have written or edited, and a reader that checks a file
against its form.

Strictly: a text is no number, NaN and numbers beyond 2**53 are refused. Keys that a form does not
name are ignored.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from sextant.tools.errors import DataError
from sextant.tools.platform import files
from sextant.tools.records import JsonMapping, JsonObject

T = TypeVar("T")
_LARGEST = 1 << 30  # bytes of a file; scores of very many metrics have some megabytes
NESTED = 100  # levels of objects and lists
LARGEST = 2**53  # up to here a float is exact for whole numbers, and so is JSON in every language
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]  # seconds, dollars
Key = Annotated[
    str, Field(pattern="^[0-9a-f]{16}$")
]  # of a model call: tools/models/storage/ledger.py


class UsageSchema(TypedDict):
    """sextant.tools.records.Usage; an unknown price is null."""

    calls: Count
    repairs: NotRequired[Count]
    input_tokens: Count
    output_tokens: Count
    paid_usd: Amount | None
    list_usd: Amount | None
    cached_calls: NotRequired[Count]
    cached_tokens: NotRequired[Count]
    reasoning_tokens: NotRequired[Count]
    unmetered: NotRequired[Count]


class StepFields(TypedDict, total=False):
    """The optional fields of a serialized sextant.tools.records.Step."""

    hop: Count
    started: Amount
    seconds: Amount
    retriever: str
    k: Count
    instruction: str
    cut: Count
    among: bool
    shown: list[Count]
    lengths: list[Count]
    spans: list[list[list[Count]]]
    first: Count
    partial: str
    refused: str
    repeated: str


class StepSchema(StepFields):
    """A step as we write it."""

    tool: str
    argument: str
    doc_ids: list[str]
    usage: NotRequired[UsageSchema]
    calls: NotRequired[list[Key]]


class TraceSchema(TypedDict):
    """sextant.tools.records.Trace, without the query's id."""

    steps: list[StepSchema]
    notes: NotRequired[list[str]]
    invented_ids: Count
    unusable: NotRequired[dict[str, Count]]
    used_in_part: NotRequired[dict[str, Count]]
    fallbacks: NotRequired[Count]
    followed: NotRequired[dict[str, str]]
    calls: NotRequired[list[Key]]


# The validator and serializer of a form, or of any type.
type_adapter: Callable[[Any], TypeAdapter[Any]] = lru_cache(TypeAdapter)


def schema(form: Any) -> JsonObject:
    """Return a form as JSON Schema."""
    return type_adapter(form).json_schema()


def parse_json(
    form: Any, data: bytes | str, loads: Callable[[bytes | str], Any] = files.loads
) -> Any:
    """Parse JSON and check it against a form. ValueError tells the position and the difference."""
    try:
        value = loads(data)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except (ValueError, TypeError) as error:  # the caller names the line
        raise ValueError(f"no JSON: {str(error).replace('line 1 column', 'column')}") from None
    validate(form, value)
    return value


def to_toml(value: Any) -> str:
    """Write a value as TOML does behind a "=", on a line, so that a comment can follow it.

    None, which TOML lacks, is left out.
    """
    if isinstance(value, Mapping):
        return f"{{ {', '.join(toml_lines(value))} }}"
    if isinstance(value, list | tuple):
        items = [to_toml(item) for item in value if item is not None]
        return f"[{', '.join(items)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_lines(table: JsonMapping) -> list[str]:
    """Write a table as TOML, each key on a line; keys whose value is None are left out."""
    lines = []
    for name, value in table.items():
        if value is not None:
            key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else to_toml(name)
            lines.append(f"{key} = {to_toml(value)}")
    return lines


def build_dataclass(dataclass_type: type[T], value: Any) -> T:
    """Make a dataclass, with nested dataclasses, from its JSON value.

    ValueError tells the position and the difference.
    """
    instance: T = validate(dataclass_type, value, strict=False)
    return instance


def validate(
    form: Any,
    value: Any,
    *,
    strict: bool = True,
) -> Any:
    """Check a value against a form, and return the validated value.

    ValueError says where it differs and how.
    """
    try:
        return type_adapter(form).validate_python(value, strict=strict)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        location = "".join(
            f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]
        ).removeprefix(".")
        message = (
            first["msg"]
            .removeprefix("Input ")
            .removeprefix("Value error, ")
            .replace("Field required", "is missing")
        )
        raise ValueError(" ".join(f"{location} {message}".split())[:300]) from None


def parse_json_exact(form: Any, data: bytes | str) -> Any:
    """Parse as `parse_json` does, keeping every digit of numbers; ValueError for a value that is
    nested too deep to be written.
    """
    value = parse_json(form, data, json.loads)  # orjson makes floats of numbers beyond 64 bits
    if not is_shallow(value, NESTED):
        raise ValueError(f"it is nested deeper than {NESTED} levels")
    return value


def is_shallow(value: Any, levels: int) -> bool:
    """Return whether objects and lists are nested in at most this number of levels."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(is_shallow(item, levels - 1) for item in items)


def read_file(
    form: Any,
    path: Path,
    mend: str,
) -> Any:
    """Read a JSON file.

    DataError, with the position and how to `mend` it, if it does not fit the form.
    """
    try:
        return parse_json_exact(form, files.read_input(path, _LARGEST))
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); {mend}") from None
