"""The JSON schema of a signature's answers: strict as OpenAI wants it, and bounded by the checks of a call."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any

import dspy
import pydantic
from typing_extensions import TypedDict

from sextant.tools.models.answers.fields import FieldValues

# DSPy's two forms of prompts and answers.
MARKER_FORM = dspy.ChatAdapter()
JSON_FORM = dspy.JSONAdapter()

# Signatures whose schema and prompts are held in memory; optimizers make signatures by the hundred.
SIGNATURES_CACHED = 1024
# Characters of texts in an answer for each token of its limit; English has some four and a half.
_CHARS_PER_TOKEN = 3
# Items of a list in an answer that is requested again because it was cut off.
_MAX_ITEMS = 8
_SHORTEST_TEXT = 16  # characters to which a text may be bounded
# Characters of a row beside its text: an id, the names of fields, and JSON's marks and blanks.
_ROW_CHARS = 60

# Keywords of JSON Schema that may state a check before the answer is written, by type.
_CHECK_KEYWORDS = {
    "array": ("minItems", "maxItems"),
    "string": ("minLength", "enum"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
}
# Each part of a schema has one of these keywords.
_TYPE_KEYWORDS = ("type", "enum", "const", "anyOf", "$ref")
# The keywords that are sent: not every server knows more, and answers are checked by the field's
# type anyway.
_SENT_KEYWORDS = (
    *_TYPE_KEYWORDS,
    "properties",
    "items",
    "$defs",
    "description",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
)


def answer_form(signature: Any) -> dspy.ChatAdapter:
    """Return DSPy's adapter for the form in which the active model has to answer."""
    structured = getattr(dspy.settings.lm, "structured", False) and make_schema(signature)
    return JSON_FORM if structured else MARKER_FORM


@lru_cache(maxsize=SIGNATURES_CACHED)
def make_schema(signature: Any) -> FieldValues | None:
    """Return the strict JSON schema of a signature's answers; None if there is none, as for DSPy's own types.

    The schema that DSPy's JSONAdapter makes lacks the descriptions of the fields, and has keywords
    that not every server takes.
    """
    fields = FieldValues()
    for name, field in signature.output_fields.items():
        if dspy.Type.extract_custom_type_from_annotation(field.annotation):
            return None
        description = field.json_schema_extra["desc"]
        if description == f"${{{name}}}":
            description = None
        fields[name] = Annotated[field.annotation, pydantic.Field(description=description)]
    try:
        answer_type = TypedDict("Answer", fields)  # type: ignore[misc]
        return _make_strict(pydantic.TypeAdapter(answer_type).json_schema())
    except (ValueError, TypeError, pydantic.errors.PydanticUserError):
        return None


def bound_schema(
    schema: FieldValues,
    limit: int,
    constraints: Mapping[str, Mapping[str, Any]],
    *,
    brief: bool,
    good_tokens: int | None = None,
) -> FieldValues:
    """Return a schema whose answers meet `constraints` and are complete within `limit` tokens.

    The first answer is bounded loosely: only texts that would hardly be complete without a bound, and those of lists
    by their share of the `good_tokens` of a good answer. A `brief` answer is complete, whatever the model writes.
    """
    has_lists = "'type': 'array'" in str(schema)
    texts = max(1, str(schema).count("'type': 'string'"))
    good_chars = (good_tokens or limit) * _CHARS_PER_TOKEN
    bounds = {}
    if brief:
        max_chars = limit // 2 // (texts * (_MAX_ITEMS if has_lists else 1))
        bounds["array"] = {"maxItems": _MAX_ITEMS}
    else:
        max_chars = limit * _CHARS_PER_TOKEN // texts
        rows = _count_rows(schema, constraints)
        if rows > 1:
            max_chars = min(max_chars, good_chars // rows - _ROW_CHARS)
    bounds["string"] = {"maxLength": max(_SHORTEST_TEXT, max_chars)}
    bounded = _bound_part(schema, {}, constraints, bounds)
    for field in bounded["properties"].values():
        if "maxItems" in field and field["items"].get("type") == "string":
            share = max(_SHORTEST_TEXT, good_chars // max(1, field["maxItems"]))
            field["items"]["maxLength"] = min(field["items"]["maxLength"], share)
    return bounded


def _count_rows(schema: FieldValues, constraints: Mapping[str, Mapping[str, Any]]) -> int:
    """Return how many objects the longest list of objects may have, if its length is constrained; at least 1."""
    rows = 1
    for name, field in schema["properties"].items():
        if "$ref" in field.get("items", {}):
            rows = max(rows, constraints.get(name, {}).get("maxItems", 1))
    return rows


def _bound_part(
    part: FieldValues,
    asked: Mapping[str, Any],
    constraints: Mapping[str, Mapping[str, Any]],
    bounds: Mapping[str, FieldValues],
) -> FieldValues:
    """Return a part of a schema with the constraints `asked` of it, and the bounds of its type."""
    bounded = _change_parts(part, lambda inner: _bound_part(inner, {}, constraints, bounds))
    if "properties" in part:
        bounded["properties"] = {
            name: _bound_part(value, constraints.get(name, {}), constraints, bounds)
            for name, value in part["properties"].items()
        }
    json_type = str(part.get("type"))
    for keyword in _CHECK_KEYWORDS.get(json_type, ()):
        if keyword in asked:
            bounded[keyword] = asked[keyword]
    if part.get("items") == {"type": "string"} and asked.get("enum"):
        bounded["items"] = {"type": "string", "enum": asked["enum"]} | bounds["string"]
    bounded |= bounds.get(json_type, {})
    if "maxItems" in bounded and "maxItems" in asked:
        bounded["maxItems"] = min(bounded["maxItems"], asked["maxItems"])
    return bounded


def _change_parts(schema: FieldValues, change: Callable[[FieldValues], FieldValues]) -> FieldValues:
    """Return a schema with each schema directly inside it changed."""
    changed = dict(schema)
    for name, content in schema.items():
        if name in ("properties", "$defs"):
            changed[name] = {key: change(part) for key, part in content.items()}
        elif name in ("anyOf", "oneOf", "prefixItems"):
            changed[name] = [change(part) for part in content]
        elif name in ("items", "additionalProperties") and isinstance(content, dict):
            changed[name] = change(content)
    return changed


def _make_strict(part: FieldValues) -> FieldValues:
    """Return a schema of pydantic's in the form that OpenAI accepts.

    The form: platform.openai.com/docs/guides/structured-outputs.
    ValueError if it has a type that cannot be expressed: a mapping with any keys, a tuple, a union
    with a tag.
    """
    sent = {name: part[name] for name in _SENT_KEYWORDS if name in part}
    strict = _change_parts(sent, _make_strict)
    if not strict.keys() & set(_TYPE_KEYWORDS):
        raise ValueError
    if strict.get("type") == "array" and "items" not in strict:
        raise ValueError
    if strict.get("type") == "object":
        if part.get("additionalProperties") or not strict.get("properties"):
            raise ValueError
        strict["required"] = [*strict["properties"]]
        strict["additionalProperties"] = False
    if "$ref" not in strict:
        return strict
    # Nothing may stand next to a reference.
    description = strict.pop("description", "")
    return {"anyOf": [strict], "description": description} if description else strict


def inline_schema(annotation: Any) -> FieldValues | None:
    """Return the JSON schema of a type as a prompt shows it: without references and generated titles.

    A small model copies a reference ("#/$defs/SubQuery") in place of a value. None for types without a
    schema, and for types that contain themselves.
    """
    try:
        schema = pydantic.TypeAdapter(annotation).json_schema()
        return _inline_part(schema, schema.get("$defs", {}), ())
    except (RecursionError, TypeError, pydantic.errors.PydanticUserError):
        return None


def _inline_part(
    part: FieldValues, definitions: FieldValues, within: tuple[str, ...]
) -> FieldValues:
    """Return a part of a schema that lies `within` the definitions with these names."""
    plain = {key: value for key, value in part.items() if key not in ("$defs", "title")}
    if "$ref" not in part:
        return _change_parts(plain, lambda inner: _inline_part(inner, definitions, within))
    name = plain.pop("$ref").rpartition("/")[2]
    if name in within:
        raise RecursionError(f"{name} contains itself")
    return _inline_part(definitions[name], definitions, (*within, name)) | plain
