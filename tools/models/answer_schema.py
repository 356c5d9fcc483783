"""The JSON schema of a signature's answers, strict as OpenAI wants it, and bounded by the checks of the call."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

import dspy
import pydantic
from typing_extensions import TypedDict

from tools.models import answer_checks

FieldValues = dict[str, Any]  # by the name of a field

_CHARS = 3  # of texts in a schema, for each token of the limit: English has some four and a half


_ITEMS = 8  # of a list, where an answer is asked for again because it was cut off


SIGNATURES_CACHED = 1024  # kept at once; optimizers make them by the hundred


@lru_cache(maxsize=SIGNATURES_CACHED)
def make_schema(signature: Any) -> FieldValues | None:
    """Return the strict JSON schema of a signature's answers; None where there is none, as for types of DSPy's own."""
    fields: FieldValues = {}
    for name, field in signature.output_fields.items():
        if dspy.Type.extract_custom_type_from_annotation(field.annotation):
            return None
        told = field.json_schema_extra["desc"]
        told = pydantic.Field(description=None if told == f"${{{name}}}" else told)
        fields[name] = Annotated[field.annotation, told]
    try:
        return _strict(pydantic.TypeAdapter(TypedDict("Answer", fields)).json_schema())  # type: ignore[operator]
    except (ValueError, TypeError, pydantic.errors.PydanticUserError):
        return None


# The words by which a check is said before the answer is written, for each type.
_WORDS = {
    "array": ("minItems",),
    "string": ("minLength", "enum"),
    **dict.fromkeys(("integer", "number"), ("minimum", "maximum")),
}


def bound_schema(schema: FieldValues, limit: int, *, brief: bool) -> FieldValues:
    """Return a schema whose answers pass the checks of this context, and are complete within a limit of tokens.

    At first this bounds what would hardly be complete without it; `abbreviate` ones are, whatever the model writes.
    """
    texts = max(1, str(schema).count("'type': 'string'"))
    chars = limit * _CHARS // texts
    most = dict[str, FieldValues]()
    if brief:
        chars = limit // 2 // (texts * (_ITEMS if "'type': 'array'" in str(schema) else 1))
        most = {"array": {"maxItems": _ITEMS}}
    most |= {"string": {"maxLength": max(16, chars)}}
    checks = answer_checks.schema_constraints()

    def bound(part: Any, asked: Mapping[str, Any] = {}) -> Any:
        if not isinstance(part, dict):
            return [bound(one) for one in part] if isinstance(part, list) else part
        made = {name: bound(one) for name, one in part.items()}
        kind = str(part.get("type"))
        if "properties" in made:
            made["properties"] = {
                name: bound(one, checks.get(name, {})) for name, one in part["properties"].items()
            }
        made |= {word: asked[word] for word in _WORDS.get(kind, ()) if word in asked}
        if part.get("items") == {"type": "string"} and asked.get("enum"):
            made["items"] = {"type": "string", "enum": asked["enum"]} | most["string"]
        return made | most.get(kind, {})

    return dict(bound(schema))


# Of what a schema says, what is sent: not every server knows more, and answers are checked by the
# field's type anyway.
_SAYS = ("type", "enum", "const", "anyOf", "$ref")  # each part has one of them


_SENT = (
    *_SAYS,
    "properties",
    "items",
    "$defs",
    "description",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
)


def _strict(part: FieldValues) -> FieldValues:
    """Return a schema of pydantic's as OpenAI wants it (platform.openai.com/docs/guides/structured-outputs).

    ValueError where the types of all parts cannot be said: mappings with any keys, tuples, unions told apart by a tag.
    """
    made = {name: part[name] for name in _SENT if name in part}
    if not made.keys() & set(_SAYS):
        raise ValueError
    for name in made.keys() & {"properties", "$defs"}:
        made[name] = {key: _strict(value) for key, value in made[name].items()}
    if "anyOf" in made:
        made["anyOf"] = [_strict(one) for one in made["anyOf"]]
    if made.get("type") == "array":
        made["items"] = _strict(made.get("items", {}))
    if made.get("type") == "object":
        if part.get("additionalProperties") or not made.get("properties"):
            raise ValueError
        made |= {"required": [*made["properties"]], "additionalProperties": False}
    told = (
        made.pop("description", "") if "$ref" in made else ""
    )  # nothing may stand beside a reference
    return {"anyOf": [made], "description": told} if told else made
