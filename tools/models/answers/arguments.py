"""The arguments of tools, in the forms in which clients and models send them.

Clients send null for an argument that is left out, 5.0 for 5, numbers and lists as texts, numbers
for ids, a single id in place of a list, found documents in place of their ids, names in camelCase,
and arguments of their own. Each of these is unambiguous. Whatever has none is refused in a line,
which the agent reads.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, create_model

from sextant.tools.models.answers.checks import InvalidAnswer
from sextant.tools.models.answers.fields import find_id, fold_name, read_text
from sextant.tools.platform import files
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.schemas import NESTED, is_shallow
from sextant.tools.text import replace_surrogates

Form = TypeVar("Form", bound=BaseModel)

_TOO_DEEP = f"JSON that is nested deeper than {NESTED} levels"
SHOWN = 60  # characters of a value or a name in a refusal


def read_json(sent: str | bytes) -> Any:
    """Return the message as JSON; nothing is null. ValueError describes the problem in words."""
    try:
        text = sent.decode("utf-8-sig") if isinstance(sent, bytes) else sent
        value = json.loads(text.strip() or "null")
    except UnicodeDecodeError as error:
        raise ValueError(f"no UTF-8: {describe_byte(error)}") from None
    except ValueError as error:  # Python's limit of digits, too
        raise ValueError(f"no JSON: {error}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if not is_shallow(value, NESTED):
        raise ValueError(_TOO_DEEP)
    return value


def describe_byte(error: UnicodeDecodeError) -> str:
    """Return the first byte that is no UTF-8, and its place, which counts from 0."""
    return f"byte {error.object[error.start]:#04x} at {error.start:,}"


def _refuse_boolean(value: Any) -> Any:
    if isinstance(value, bool):  # pydantic reads true as 1
        raise ValueError("a boolean is no number")
    return value


def _read_text(value: Any) -> str:
    """Read a text, without halves of surrogate pairs, which an index may not take."""
    return replace_surrogates(read_text(value))


def _read_any_text(value: Any) -> str:
    """Read words of the agent, which may be any JSON."""
    if isinstance(value, bool | list | dict):
        value = json.dumps(value, ensure_ascii=False)
    return _read_text(value)


def _read_id(value: Any) -> str:
    """Read the id of a document, or of an object that a search gave."""
    if isinstance(value, str):
        value = files.read_object(value) or value
    if isinstance(value, Mapping):
        value = find_id(value)
    return _read_text(value)


def read_object(value: Any) -> JsonMapping:
    """Read an object, or its JSON text; nothing, or null, counts as an empty object. ValueError
    else.

    Bytes are a body that is not declared as JSON.
    """
    if isinstance(value, str | bytes):
        value = read_json(value)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("no JSON object")
    return value


def _read_list(value: Any) -> list[Any]:
    """Read a list, or its JSON text, or a lone element of it."""
    if isinstance(value, str):
        with suppress(ValueError):
            parsed = read_json(value)
            if isinstance(parsed, list | dict):
                value = parsed
    return (
        [element for element in value if element is not None]
        if isinstance(value, list)
        else [value]
    )


NO_BOOLEAN = BeforeValidator(_refuse_boolean)
Whole = Annotated[int, NO_BOOLEAN]
Text = Annotated[str, BeforeValidator(_read_text)]
AnyText = Annotated[str, BeforeValidator(_read_any_text)]
DocId = Annotated[str, BeforeValidator(_read_id)]
Texts = Annotated[list[Text], BeforeValidator(_read_list)]
DocIds = Annotated[list[DocId], BeforeValidator(_read_list)]


class _Search(BaseModel):
    query: Text
    k: Annotated[Whole, Field(ge=1, description="a whole number of at least 1")] = 0


class _Read(BaseModel):
    doc_id: Annotated[DocId, Field(description="the doc_id of a document")]
    chars: Annotated[Whole, Field(description="a whole number")] = 0


class _Select(BaseModel):
    doc_ids: Annotated[DocIds, Field(description="a list of doc_ids")]


class _Note(BaseModel):
    text: AnyText


class _Submit(BaseModel):
    doc_ids: Annotated[DocIds, Field(description="a list of doc_ids")] = []
    answer: AnyText = ""


# Only what is sent is handed on: the defaults are those of Episode's methods.
_FORMS: dict[str, type[BaseModel]] = {
    "search": _Search,
    "read": _Read,
    "select": _Select,
    "note": _Note,
    "submit": _Submit,
}


# The type of a parameter -> how it is read, and what is said of it.
_TYPES: dict[Any, tuple[Any, str]] = {
    str: (Text, "a text"),
    int: (Whole, "a whole number"),
    list[str]: (Texts, "a list of texts"),
    inspect.Parameter.empty: (Any, "any JSON"),
}


def list_parameters(tool: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a tool but for the first, which is not sent."""
    return [*inspect.signature(tool, eval_str=True).parameters.values()][1:]


def form_of(tool: Callable[..., Any]) -> type[BaseModel]:
    """Return the form of the arguments of a tool, whose first parameter is not sent."""
    if tool.__qualname__.startswith("Episode."):
        return _FORMS[tool.__name__]
    fields: dict[str, Any] = {}
    for parameter in list_parameters(tool):
        annotation = parameter.annotation
        other = (annotation, f"a {getattr(annotation, '__name__', annotation)}")
        kind, description = _TYPES.get(annotation, other)
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (kind, Field(default, description=description))
    return create_model(tool.__name__, **fields)


def read(tool: str, form: type[BaseModel], arguments: Any) -> JsonObject:
    """Return the arguments of a tool by its own names for them. InvalidAnswer for an argument that
    is missing or has no meaning here.

    Arguments that the tool does not have are left out: `list_strange` names them.
    """
    try:
        return read_form(form, arguments).model_dump(exclude_unset=True)
    except ValueError as error:
        raise InvalidAnswer("wrong type", f"{tool} {error}") from None


def read_form(form: type[Form], value: Any) -> Form:
    """Return an object that is sent, in any of the forms above, as a model. ValueError describes
    the problem in words.
    """
    takes = ", ".join(form.model_fields)
    try:
        sent = _by_own_names(form, value)
    except ValueError as error:
        raise ValueError(f"takes a JSON object with {takes}, and this is {error}") from None
    try:
        return form.model_validate(
            {name: content for name, content in sent.items() if name in form.model_fields}
        )
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(wrong["loc"][0])
        if wrong["type"] == "missing":
            raise ValueError(_describe_missing(form, name, value)) from None
        meant = form.model_fields[name].description or "a text"
        raise ValueError(f"takes {meant} as {name}, not {_shorten(sent[name])}") from None


def _describe_missing(form: type[Form], name: str, value: Any) -> str:
    strange = list_strange(form, value)
    others = f", and has no {', '.join(map(repr, strange))}" if strange else ""
    return f"needs {name}{others}"


def list_strange(form: type[BaseModel], value: Any) -> list[str]:
    """Return the names in an object that is sent which a model does not have."""
    with suppress(ValueError):
        return [
            replace_surrogates(name[:SHOWN])
            for name in _by_own_names(form, value)
            if name not in form.model_fields
        ]
    return []


def _by_own_names(form: type[BaseModel], value: Any) -> JsonObject:
    """Return the message by the names of the schema, without placeholders of omitted values."""
    object_sent = read_object(value)
    fields = form.model_fields
    own_names = {fold_name(name): name for name in fields}
    sent = {}
    for name, content in object_sent.items():
        own_name = own_names.get(fold_name(name), name)
        optional = own_name in fields and not fields[own_name].is_required()
        left_out = content is None or (
            optional and isinstance(content, str) and not content.strip()
        )
        if not left_out and (own_name == name or object_sent.get(own_name) is None):
            sent[own_name] = content
    return sent


def _shorten(value: Any) -> str:
    text = replace_surrogates(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."
