"""What a call asks of a model's answer, and what is wrong with an answer.

A check refuses unusable outputs, and states its condition in JSON Schema, for servers that bound
answers by one. Faults that no program has to check for: refused, cut off, empty, incomplete, or a
copy of the prompt. What can be used of a faulty answer is found in salvage.py.

An id may stand behind a word for a document, in brackets, before its title, in another case and
without zeros; two ids that it may be are none.

DSPy hands an engine a rendered prompt and an adapter a signature, and nothing else. A single context
variable has the rest: the checks of the answer and its length, the rules and the structured call for
the engine without a model, the answer that is being repaired, and the text of the last answer.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import dspy
import pydantic
from typing_extensions import TypedDict

from sextant.tools import session
from sextant.tools.models.answers.fields import FieldValues, Inputs, convert
from sextant.tools.models.provider_response import is_cut
from sextant.tools.platform.files import read_object
from sextant.tools.platform.number_format import abbreviate
from sextant.tools.text import TermStatistics

_EDGES = " \t\r\n.,;:!?*#`\"'()[]{}<>\u2018\u2019\u201c\u201d"
_LABELS = r"(?:documents?|docs?|passages?|ids?|identifiers?|numbers?|no)"
_LABEL = re.compile(rf"(?:{_LABELS}(?:[\s_-]*ids?)?[\s:=#._-]*)+", re.IGNORECASE)
_ENDS_IN_LABEL = re.compile(rf"\b{_LABELS}[\s_:=#.-]*\Z", re.IGNORECASE)
_AFTER = re.compile(r"[:(\u2013\u2014=]|\s-|->")  # ends an id, before a title or a score
_BETWEEN = re.compile(r"[,;>|\n]|\band\b|(?<=\])\s?(?=\[)")  # two ids
_WORD = re.compile(r"[^\s,;|]+")
_LABEL_CHARS = 20  # characters before a number in which a word for a document is looked for
_LONG_NUMBER = 4  # digits from which a number in a text is an id
_LONGEST = 500  # characters of a text in which an id is looked for at the beginning


class Ids:
    """The ids that a model was shown."""

    def __init__(self, among: Collection[str]) -> None:
        self.among = among
        # Ids by their plain forms; made when it is needed.
        self._alike: dict[str, list[str]] = {}

    def find(self, written: Any) -> str | None:
        """Return the id that is meant; None if it is none of the ids, or may be several."""
        try:
            text = convert(str, getattr(written, "id", written))
        except ValueError:
            return None
        if text in self.among:
            return str(text)
        if not self._alike:
            for doc_id in self.among:
                self._alike.setdefault(_key(doc_id), []).append(doc_id)
        for form in _forms(text[:_LONGEST]):
            if form in self.among:
                return form
            alike = self._alike.get(_key(form), [])
            if len(alike) == 1:
                return alike[0]
        return None

    def read(self, values: Any) -> list[Any]:
        """Return a list with each value as the ids that it means; other values stay, as texts."""
        read = []
        for value in values:
            parts = [value]
            if isinstance(value, str) and self.find(value) is None:
                parts = [part for part in _BETWEEN.split(value) if part.strip(_EDGES)]
            named = [doc_id for part in parts if (doc_id := self.find(part)) is not None]
            is_known = named and len(named) == len(parts)
            read += named if is_known else [value if isinstance(value, str) else str(value)]
        return read

    def find_in_text(self, text: str) -> list[str]:
        """Return the ids that stand as words in a text, in order.

        A short number, which may be any number, has to stand in brackets or behind a word for a document.
        """
        named = []
        for piece in _WORD.finditer(text):
            word = piece[0].strip(_EDGES)
            doc_id = self.find(word)
            is_long = not word.isdecimal() or len(word) >= _LONG_NUMBER
            is_marked = piece[0].strip(".,;:!?") != word or _ENDS_IN_LABEL.search(
                text[max(0, piece.start() - _LABEL_CHARS) : piece.start()]
            )
            if doc_id is not None and (is_long or is_marked):
                named.append(doc_id)
        return list(dict.fromkeys(named))


def _forms(text: str) -> Iterator[str]:
    """Yield the ids that a text may mean, the likeliest first."""
    yield text
    yield (edged := text.strip(_EDGES))
    label = _LABEL.match(edged)
    unlabelled = edged[label.end() :] if label else edged
    for form in (unlabelled, _AFTER.split(edged)[0], _AFTER.split(unlabelled)[0]):
        yield form.strip(_EDGES)


def _key(text: str) -> str:
    """Return a form in which an id and a model's spelling of it are equal: case, blanks, zeros and ".0" apart."""
    plain = "".join(unicodedata.normalize("NFKC", text).casefold().split())
    number = re.fullmatch(r"0*(\d+)(?:\.0+)?", plain)
    return number[1] if number else plain


Kind = Literal[
    "unparsable",
    "wrong type",
    "unknown ids",
    "unknown tool",
    "empty",
    "cut off",
    "prompt copied",
    "refused",
]
Outputs = Mapping[str, Any]
Constraints = dict[str, dict[str, Any]]  # the name of a field -> keywords of JSON Schema
AnswerTest = Callable[[Outputs], None]
"""Raises InvalidAnswer for outputs that cannot be used."""


class InvalidAnswer(Exception):
    """The reason for which an answer cannot be used as it is."""

    def __init__(
        self, kind: Kind, reason: str, *, tolerable: bool = False, report: str = ""
    ) -> None:
        """Make a fault; the model is shown its `reason`.

        A `tolerable` answer is used if the second answer is no better. `report` is a text for
        people, if the reason is written for the model alone.
        """
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.tolerable = tolerable
        self.report = report or f"{kind}: {reason}"


class UnusableAnswer(Exception):
    """No answer of a model to a call could be used, nor that to the repair if there was one."""

    def __init__(self, fault: InvalidAnswer) -> None:
        super().__init__(fault.report)
        self.kind = fault.kind
        if fault.kind == "refused":
            self.user_line = ""  # no line of a program makes a model refuse (tools/plugins.py)


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """A test of an answer, with the same condition in words that a JSON schema can state."""

    test: AnswerTest
    # Keywords of JSON Schema by field, for servers that bound answers by a schema.
    schema: Constraints = dataclass_field(default_factory=dict)
    # Fields with ids of documents -> the ids that were shown.
    ids: Mapping[str, Ids] = dataclass_field(default_factory=dict)

    def __call__(self, outputs: Outputs) -> None:
        """Raise InvalidAnswer for outputs that cannot be used."""
        self.test(outputs)


def run_checks(outputs: Outputs, checks: Iterable[AnswerCheck]) -> None:
    """Raise the first InvalidAnswer that a check raises."""
    for check in checks:
        check(outputs)


def find_ids(outputs: dict[str, Any], checks: Iterable[AnswerCheck]) -> None:
    """Replace ids as the model wrote them by the ids that were shown, in the fields that `checks` name."""
    for check in checks:
        for name, shown in check.ids.items():
            value = outputs.get(name)
            if not isinstance(value, list) or all(_id_of(item) in shown.among for item in value):
                continue
            if hasattr(value[0], "id"):
                found = [shown.find(row.id) or row.id for row in value]
                outputs[name] = [
                    row.model_copy(update={"id": doc_id})
                    for row, doc_id in zip(value, found, strict=True)
                ]
            else:
                outputs[name] = shown.read(value)


def _id_of(item: Any) -> Any:
    return getattr(item, "id", item)


def schema_constraints(checks: Iterable[AnswerCheck]) -> Constraints:
    """Return the conditions of all checks by field, in keywords of JSON Schema."""
    constraints = Constraints()
    for check in checks:
        for name, keywords in check.schema.items():
            constraints.setdefault(name, {}).update(keywords)
    return constraints


def require_known_ids(
    field: str,
    among: Collection[str],
    *,
    needed: bool = False,
) -> AnswerCheck:
    """Check that the ids in the list `field` are ids of documents in `among`, and with `needed`, that there are any.

    An answer with known and unknown ids is tolerable: its user drops the unknown ids, which
    Session.select counts.
    """

    def check_ids(outputs: Outputs) -> None:
        doc_ids = [str(_id_of(item)) for item in outputs[field]]
        unknown = [doc_id for doc_id in doc_ids if doc_id not in among]
        if unknown:
            if payer := session.current():
                for doc_id in unknown:
                    payer.blame(doc_id, "named an id that it gives")
            reason = (
                f"{field} names {unknown[0]!r}, the id of none of the passages shown; use ids as "
                f"they are given"
            )
            raise InvalidAnswer("unknown ids", reason, tolerable=len(unknown) < len(doc_ids))
        if needed and not doc_ids:
            raise InvalidAnswer("empty", f"{field} is empty; it has to name passages")

    counts = {"minItems": int(needed), "maxItems": len(among)}
    schema: Constraints = {field: {"enum": sorted(among), **counts}}
    return AnswerCheck(check_ids, schema, {field: Ids(among)})


def require_known_row_ids(
    field: str,
    among: Collection[str],
    *,
    needed: bool = False,
) -> AnswerCheck:
    """Check the ids of the rows in `field` in the way of `require_known_ids`."""
    check = require_known_ids(field, among, needed=needed)
    counts = {"minItems": int(needed), "maxItems": len(among)}
    schema: Constraints = {"id": {"enum": sorted(among)}, field: counts}
    return AnswerCheck(check.test, schema, check.ids)


def filled(*fields: str) -> AnswerCheck:
    """Check that no text or list in `fields` is empty. A list of blank texts counts as empty."""

    def check_not_empty(outputs: Outputs) -> None:
        for name in fields:
            value = outputs[name]
            items = [value] if isinstance(value, str) else value
            if not any(str(item).strip() for item in items):
                raise InvalidAnswer("empty", f"{name} is empty; it is needed")

    return AnswerCheck(check_not_empty, {name: {"minItems": 1, "minLength": 1} for name in fields})


def state_most_items(field: str, most: int) -> AnswerCheck:
    """State that the list `field` has at most `most` items, to servers that bound answers by a schema.

    A longer list is as usable: without the bound, a small model can repeat its items up to the limit of the answer.
    """
    return AnswerCheck(accept_any, {field: {"maxItems": most}})


def accept_any(outputs: Outputs) -> None:
    """Accept all outputs."""


def require_in_range(
    field: str,
    low: float,
    high: float,
) -> AnswerCheck:
    """Check that the number `field` is from `low` to `high`."""

    def check_range(outputs: Outputs) -> None:
        if not low <= outputs[field] <= high:
            raise InvalidAnswer(
                "wrong type",
                f"{field} is {outputs[field]}; it is a number from {low:g} to {high:g}",
            )

    return AnswerCheck(check_range, {field: {"minimum": low, "maximum": high}})


# The name of an output field -> the function that writes the field.
Rules = Mapping[str, Callable[[Inputs, TermStatistics], Any]]


class PredictorCall(NamedTuple):
    """A predictor's call as DSPy's adapter sees it."""

    adapter: Any
    signature: Any
    inputs: Inputs


class LastAnswer(NamedTuple):
    """The text of a model's answer, unchanged."""

    text: str = ""
    finish: str = "stop"  # the reason for its end: "stop", "length", "content_filter", ...


_NO_ANSWER = LastAnswer()


class Repair(NamedTuple):
    """An answer that could not be used, and the reason, which the model is shown."""

    answer: str  # empty if the model is not shown it again
    reason: str
    brief: bool = False  # whether a short answer is requested


@dataclass(frozen=True, slots=True)
class CallContext:
    """The context of a call. All fields are optional, because programs may call a model directly."""

    checks: tuple[AnswerCheck, ...] = ()
    # Values of output fields that a program goes on with if no answer can be used.
    fallback: Mapping[str, Any] = dataclass_field(default_factory=dict)
    rules: Rules = dataclass_field(default_factory=dict)
    predictor_call: PredictorCall | None = None
    repair: Repair | None = None  # None for the first request
    answer: LastAnswer = _NO_ANSWER
    answer_tokens: int | None = None  # the most of a good answer; None if that is not known

    @property
    def inputs(self) -> Inputs:
        """The inputs of the predictor's call; none if there is no predictor."""
        return self.predictor_call.inputs if self.predictor_call else {}


_CONTEXT: ContextVar[CallContext | None] = ContextVar("call_context", default=None)
_EMPTY = CallContext()


def current_call() -> CallContext:
    """Return the context of the present call."""
    return _CONTEXT.get() or _EMPTY


def update_call(**changes: Any) -> None:
    """Change fields of the context until the innermost `changed_call` block ends."""
    _CONTEXT.set(replace(current_call(), **changes))


@contextmanager
def changed_call(**changes: Any) -> Iterator[None]:
    """Change fields of the context inside the block."""
    token = _CONTEXT.set(replace(current_call(), **changes))
    try:
        yield
    finally:
        _CONTEXT.reset(token)


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
    return max(
        constraints.get(name, {}).get("maxItems", 1) if "$ref" in field.get("items", {}) else 1
        for name, field in schema["properties"].items()
    )


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


COMPLETED = "[[ ## completed ## ]]"  # ends an answer in markers
# The requests for a repair: behind a bad answer that the model is shown, for a short answer, and
# for an answer after nothing that can be shown.
SHOWN_REPAIR = "This answer does not fit: {reason}. Write the answer again, with every field."
# The request for a short answer names no number: Qwen2.5-Coder-0.5B gave "80" as a score after "at most 80 words".
BRIEF_REPAIR = "Keep the answer short: a few sentences in a text and a few items in a list."
PLAIN_REPAIR = "Fill in every field, in words of your own: {reason}."

# The first words of refusals; looked for only if an answer has none of the fields.
_REFUSAL = re.compile(
    r"\b(?:I(?:['\u2019]m| am) sorry|I can(?:['\u2019]|no)t|I(?:['\u2019]m| am) (?:not "
    r"able|unable)|I won['\u2019]t)\b",
    re.IGNORECASE,
)
_REFUSAL_CHARS = 200  # characters of an answer in which a refusal begins
_REFUSED: tuple[Kind, str] = (
    "refused",
    "the task was not done; the material is only to be judged, and nothing harmful is asked",
)
# Finish reasons of answers that were refused or filtered: of OpenAI, of Anthropic, and of Gemini
# (https://ai.google.dev/api/generate-content#FinishReason), which gateways pass on.
_REFUSAL_REASONS = (
    "content_filter",
    "refusal",
    "safety",
    "recitation",
    "blocklist",
    "prohibited_content",
    "spii",
)
_MAX_QUOTED = 300  # characters of a refusal in a message
_MAX_ECHOED = 2000  # characters of a bad answer that are shown to the model again
# Faults whose answers the model is not shown again: they would be continued, or copied.
_NOT_SHOWN: tuple[Kind, ...] = ("cut off", "empty", "prompt copied")
_LISTED_IDS = 30  # the most ids that a request for a repair lists
# Words in a row of a value that are copied from the prompt, if they are half of the value.
_COPIED_WORDS = 6
_REFERENCE = re.compile(r"#/\$defs/\w+")  # inside the schema of a field, as DSPy's prompts have it
# Words in a row that an answer shares with a prompt if it repeats the prompt; fewer happen by chance.
_LEAKED_WORDS = 12


def note_prompt_leak(instructions: str, texts: Sequence[str]) -> None:
    """Note the documents that ask for the prompt, if one of a model's texts repeats the prompt."""
    if any(_repeats(instructions, text) for text in texts) and (payer := session.current()):
        payer.note_leak()


def make_repair(fault: InvalidAnswer, answer: str) -> Repair:
    """Return the repair of an answer with a fault."""
    if fault.kind in _NOT_SHOWN:
        return Repair(
            "",
            fault.reason,
            brief=fault.kind == "cut off",
        )
    return Repair(shorten_bad_answer(answer, "stop"), fault.reason)


def shorten_bad_answer(answer: str, finish: str) -> str:
    """Return the part of a bad answer that its model is shown again: nothing of an answer without end."""
    if answer and is_cut(finish):
        return "(an answer that was cut off, left out here)"
    if len(answer) <= _MAX_ECHOED:
        return answer
    return f"{answer[:_MAX_ECHOED]} (and so on; the rest is left out here)"


def write_request(repair: Repair, context: CallContext) -> str:
    """Return the words of the request for a repair, with the ids that may be named if they are few."""
    request = _request_words(repair)
    for check in context.checks:
        for name, shown in check.ids.items():
            if len(shown.among) <= _LISTED_IDS:
                request += f"\nThe ids for {name}: {', '.join(sorted(shown.among))}"
    return request


def _request_words(repair: Repair) -> str:
    if repair.brief:
        return BRIEF_REPAIR
    return (SHOWN_REPAIR if repair.answer else PLAIN_REPAIR).format(reason=repair.reason)


def copies_prompt(signature: Any, value: Any) -> bool:
    """Return whether a value is a copy of words of the prompt, and no answer.

    The words are the signature's instructions and descriptions, and the request for a repair.
    """
    if isinstance(value, list):
        return bool(value) and all(copies_prompt(signature, item) for item in value)
    if isinstance(value, pydantic.BaseModel):
        return _is_copied_object(signature, value)
    if not isinstance(value, str):
        return False
    words = value.split()
    descriptions = _descriptions(signature)
    text = " ".join(words).casefold().strip(". ")
    if text in descriptions or _is_placeholder(signature, value):
        return True
    if len(words) < _COPIED_WORDS:
        return False
    width = max(_COPIED_WORDS, math.ceil(len(words) / 2))
    repair = current_call().repair
    request = _request_words(repair) if repair else ""
    prompt = " ".join([signature.instructions, *descriptions, request])
    return _repeats(prompt.casefold(), text, width)


def _is_copied_object(signature: Any, value: pydantic.BaseModel) -> bool:
    """Return whether a text of an object stands for a value, or all of its texts are copies.

    One copied text costs the object nothing: small models copy the description of a remark, and write a good search.
    """
    fields = type(value).model_fields
    texts = [getattr(value, name) for name in fields if fields[name].annotation is str]
    if any(_is_placeholder(signature, text) for text in texts):
        return True
    return bool(texts) and all(copies_prompt(signature, text) for text in texts)


def _is_placeholder(signature: Any, text: str) -> bool:
    """Return whether a text is a placeholder of DSPy's prompt, or a reference in a schema."""
    plain = text.strip(". \n").casefold()
    is_name = plain.startswith("{") and plain[1:-1] in signature.output_fields
    return is_name or bool(_REFERENCE.fullmatch(plain))


@lru_cache(maxsize=SIGNATURES_CACHED)
def _descriptions(signature: Any) -> list[str]:
    """Return the descriptions of a signature's output fields, and of the fields of its objects."""
    described = [field.json_schema_extra["desc"] for field in signature.output_fields.values()]
    schemas = [make_schema(signature)]
    while schemas:
        schema = schemas.pop()
        if isinstance(schema, dict):
            schemas += schema.values()
            description = schema.get("description")
            if isinstance(description, str):
                described.append(description)
    return [description.casefold() for description in described]


def find_copied(signature: Any, values: Mapping[str, Any]) -> None:
    """Raise InvalidAnswer for values of which one is a copy of words of the prompt."""
    for name, value in values.items():
        if copies_prompt(signature, value):
            reason = f"{name} repeats the words of the request; answer in words of your own"
            raise InvalidAnswer("prompt copied", reason)


def ends_inside_list(text: str) -> bool:
    """Return whether an answer ends inside a list or an object, whatever its finish reason is."""
    last = re.split(r"\[\[ ## \w+ ## \]\]", text)[-1].strip().removeprefix("```json").strip("` \n")
    return last.startswith(("[", "{")) and not last.endswith(("]", "}"))


def looks_like_refusal(text: str) -> bool:
    """Return whether an answer begins like a refusal."""
    return bool(_REFUSAL.search(text[:_REFUSAL_CHARS]))


def is_whole(text: str) -> bool:
    """Return whether an answer has come to the end of its form, whatever its finish reason is."""
    if COMPLETED in text:
        return True
    return read_object(text.strip().removeprefix("```json").strip("` \n")) is not None


def is_broken_off(finish: str) -> bool:
    """Return whether an answer was cut off at its limit of tokens, or refused."""
    return is_cut(finish) or is_refusal(finish)


def cut_off() -> InvalidAnswer:
    """Return the fault of an answer that was cut off."""
    return InvalidAnswer("cut off", "it was cut off before its end")


def broken_off(answer: LastAnswer) -> InvalidAnswer:
    """Return the fault of an answer that was cut off or refused."""
    if is_cut(answer.finish):
        return cut_off()
    return InvalidAnswer(*_REFUSED, report=report_refusal(*answer))


def is_refusal(finish: str) -> bool:
    """Return whether an answer ended because the model refused, or a filter of its provider stopped it."""
    return finish.lower() in _REFUSAL_REASONS


def report_refusal(text: str, finish: str) -> str:
    """Report to people that a model refused to answer, in its own words."""
    words = " ".join(text.split())
    quotation = f", in these words: {abbreviate(words, _MAX_QUOTED)!r}"
    explanation = quotation if words else " and gave no reason"
    return f"refused: the model refused to answer (finish reason {finish}){explanation}"


def fault_of(
    error: Exception,
    signature: Any,
    answer: LastAnswer,
) -> InvalidAnswer:
    """Return the fault of an answer that raised `error` when it was read."""
    if is_broken_off(answer.finish):
        return broken_off(answer)
    if ends_inside_list(answer.text):
        return cut_off()
    if looks_like_refusal(answer.text) and "[[ ##" not in answer.text:
        return InvalidAnswer(*_REFUSED, report=report_refusal(*answer))
    if not answer.text.strip():
        return InvalidAnswer("empty", "it is empty")
    message = str(error.args[0] if error.args else error)
    if field := re.search(r"Failed to parse field (\w+)", message):
        return InvalidAnswer("wrong type", f"the field {field[1]} is not of the type asked for")
    in_markers = answer_form(signature) is MARKER_FORM
    form = "each under its marker" if in_markers else "in one JSON object"
    return InvalidAnswer("unparsable", f"it does not have all of the fields asked for, {form}")


def _repeats(
    instructions: str,
    text: str,
    width: int = _LEAKED_WORDS,
) -> bool:
    """Return whether `text` has a run of `width` words of the instructions."""
    words = text.split()
    prompt = _join_words(instructions)
    # Each run of that length has one of these words.
    if not any(word in prompt for word in words[width - 1 :: width]):
        return False
    starts = range(len(words) - width + 1)
    runs = (" ".join(words[start : start + width]) for start in starts)
    return any(run in prompt for run in runs)


@lru_cache(maxsize=SIGNATURES_CACHED)
def _join_words(text: str) -> str:
    """Return a text with a blank between its words, cached because each answer is compared with instructions."""
    return " ".join(text.split())
