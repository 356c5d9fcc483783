"""DSPy's chat prompts and parser, with one repair: an unusable answer goes back to the model with
what was wrong.

Every predictor's call passes here, so answers are checked here (tools/models/prompting.py),
unusable ones counted by kind, and prompts noticed that come back as answers. A model that takes
JSON schemas is sent that of the answer, and DSPy's prompt for a JSON object; the others write each
field under its marker. Answers are read in either form.
"""

import json
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from enum import Enum
from functools import lru_cache
from inspect import isclass
from typing import Annotated, Any, Literal, NamedTuple, Union, get_origin

import dspy
import pydantic
from typing_extensions import TypedDict

from tools import files, schemas, session
from tools.cli import abbreviate
from tools.files import read_object
from tools.models import offline, prompting
from tools.models.fields import place_markers, read_loosely
from tools.models.prompting import InvalidAnswer, Kind, UnusableAnswer, find_ids, run_checks
from tools.models.values import TooBroken, repair_json
from tools.records import Usage

_Values = dict[str, Any]  # by the name of a field
_Rows = list[_Values]


class LastAnswer(NamedTuple):
    """The last answer of a model in this context, as it came."""

    text: str = ""
    finish: str = "stop"  # or why it ended otherwise: "length", "content_filter", ...


ANSWERED: ContextVar[LastAnswer] = ContextVar("answered", default=LastAnswer())  # noqa: B039  # a tuple
_AGAIN: ContextVar[tuple[str, str] | None] = ContextVar(
    "again", default=None
)  # the bad answer, what was wrong with it
COMPLETED = "[[ ## completed ## ]]"  # ends an answer in markers

# DSPy's two forms of prompts and answers.
_MARKERS = dspy.ChatAdapter()
_JSON = dspy.JSONAdapter()

# How models begin an answer when they will not give it; looked for only where an answer has none of
# the fields.
_REFUSAL = re.compile(
    r"\b(?:I(?:['\u2019]m| am) sorry|I can(?:['\u2019]|no)t|I(?:['\u2019]m| am) (?:not "
    r"able|unable)|I won['\u2019]t)\b",
    re.IGNORECASE,
)
_CUT_OFF: tuple[Kind, str] = ("cut off", "it was cut off before its end; be brief")
_REFUSED: tuple[Kind, str] = (
    "refused",
    "the task was not done; the material is only to be judged, and nothing harmful is asked",
)
# Reasons for the end of an answer that was refused or held back: of OpenAI, of Anthropic, and of
# Gemini (https://ai.google.dev/api/generate-content#FinishReason), which gateways pass on.
_REFUSALS = (
    "content_filter",
    "refusal",
    "safety",
    "recitation",
    "blocklist",
    "prohibited_content",
    "spii",
)
_MOST_QUOTED = 300  # characters of a refusal in a message
_MOST_ECHOED = 2000  # characters of a bad answer that are shown to the model again
_CHARS = 3  # of texts in a schema, for each token of the limit: English has some four and a half
_ITEMS = 8  # of a list, where an answer is asked for again because it was cut off
_FEWEST_WORDS = 12  # of a prompt, one after another, in an answer: fewer happen by chance


class Adapter(dspy.ChatAdapter):
    """DSPy's chat adapter. UnusableAnswer after the second answer that cannot be used, not even in part."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"use_json_adapter_fallback": False, **kwargs})

    def __call__(
        self, lm: Any, lm_kwargs: _Values, signature: Any, demos: _Rows, inputs: _Values
    ) -> _Rows:
        """Return the answers to one predictor's call, parsed and checked."""
        tries = _AnswerAttempts(lm, signature, offline.PredictorCall(self, signature, inputs))
        for attempt in tries:
            with attempt:
                tries.answers = super().__call__(
                    lm, lm_kwargs | tries.form(), signature, demos, inputs
                )
        return tries.best

    async def acall(
        self, lm: Any, lm_kwargs: _Values, signature: Any, demos: _Rows, inputs: _Values
    ) -> _Rows:
        """Make the call as `__call__` does, awaited."""
        tries = _AnswerAttempts(lm, signature, offline.PredictorCall(self, signature, inputs))
        for attempt in tries:
            with attempt:
                tries.answers = await super().acall(
                    lm, lm_kwargs | tries.form(), signature, demos, inputs
                )
        return tries.best

    def format_system_message(self, signature: Any) -> str:
        """Return DSPy's, made once for a signature: pydantic takes as long for it as for the rest of a prompt."""
        return _system_message(_form(signature), signature, signature.__doc__)

    def format_user_message_content(
        self,
        signature: Any,
        inputs: _Values,
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        """Return DSPy's, with what depends on the signature alone made once."""
        fields = signature.input_fields
        if any(
            isinstance(inputs.get(name), list) and field.annotation is str
            for name, field in fields.items()
        ):
            return str(
                super().format_user_message_content(signature, inputs, prefix, suffix, main_request)
            )
        parts = [
            prefix,
            *(
                f"[[ ## {name} ## ]]\n{_write_value(inputs[name])}"
                for name in fields
                if name in inputs
            ),
        ]
        if (
            main_request
            and (requirements := self.user_message_output_requirements(signature)) is not None
        ):
            parts.append(requirements)
        return "\n\n".join([*parts, suffix]).strip()

    def user_message_output_requirements(self, signature: Any) -> Any:
        """Return DSPy's, made once for a signature."""
        return _requirements(_form(signature), signature)

    def format_assistant_message_content(
        self, signature: Any, outputs: _Values, *missing: Any, **named: Any
    ) -> str:
        """Return DSPy's, in the form in which answers are asked for."""
        return str(
            _form(signature).format_assistant_message_content(signature, outputs, *missing, **named)
        )

    def format(self, signature: Any, demos: _Rows, inputs: _Values) -> _Rows:
        """Return DSPy's messages; when asking again, with the bad answer and what was wrong with it."""
        messages: _Rows = super().format(signature, demos, inputs)
        if again := _AGAIN.get():
            answer, wrong = again
            repair = (
                f"That answer cannot be used: {wrong}. Answer again, in full and in the form "
                f"asked for."
            )
            bad = {"role": "assistant", "content": answer}
            messages = [*messages, bad, {"role": "user", "content": repair}]
            if prompting.token_overflow(messages):
                bad["content"] = "(an answer, left out because there is no room for it)"
                if payer := session.current():
                    payer.shorten(
                        "an answer that could not be used is left out where it is asked for again"
                    )
        return messages

    def parse(self, signature: Any, completion: str) -> _Values:
        """Return DSPy's values, read by DSPy itself where `_read` cannot; those of another form where it cannot."""
        answer = place_markers(signature, completion)
        try:
            values = _read(signature, answer)
            return super().parse(signature, answer) if values is None else values
        except dspy.AdapterParseError:
            loose = read_loosely(signature, answer)
            if loose is None:
                raise
            return loose
        except (
            TooBroken,
            RecursionError,
            MemoryError,
        ):  # the last two of Python's parser, ours and DSPy's
            raise InvalidAnswer(
                "unparsable", "a field of it is no JSON, and too broken to be repaired"
            ) from None


class _AnswerAttempts:
    """The first answer to a call, and a second where that cannot be used; each try is a context for the call."""

    def __init__(self, lm: Any, signature: Any, call: offline.PredictorCall) -> None:
        self.answers: _Rows = []  # of this try
        self.best: _Rows = []  # usable ones, or tolerable ones
        self._lm = lm
        self._signature = signature
        self._call = call
        self._wrong: InvalidAnswer | None = None  # with the answers of the last try
        self._schema: _Values | None = None  # that was sent with the last try
        self._refused = False  # whether the server took none
        self._cut = False  # whether the answer before was cut off

    def __iter__(self) -> Iterator[AbstractContextManager[None]]:
        yield self._attempt()
        if self._refused:
            yield self._attempt()
        if self._wrong:
            yield self._attempt(self._wrong)

    def form(self) -> _Values:
        """Return the setting that asks for an answer by the signature's schema; none for an answer in markers."""
        both = _form(self._signature) is _JSON and getattr(self._lm, "structured", False)
        self._schema = make_schema(self._signature) if both else None
        if (
            self._schema and self._lm.server.kind.name == "vllm"
        ):  # others may refuse bounds, or take long for each
            self._schema = _bound(self._schema, prompting.max_output_tokens(), brief=self._cut)
        made = {"name": "answer", "strict": True, "schema": self._schema}
        return {"response_format": {"type": "json_schema", "json_schema": made}} if both else {}

    @contextmanager
    def _attempt(self, before: InvalidAnswer | None = None) -> Iterator[None]:
        """Check the answers of the block. UnusableAnswer for bad ones after a fault `before`."""
        payer = session.current()
        self._wrong = None
        self._refused = False
        self._cut = before is not None and before.kind == "cut off"
        if before and payer:
            payer.charge(Usage(repairs=1))
        token = _AGAIN.set(
            (shorten_bad_answer(*ANSWERED.get()) or "(no answer)", before.reason)
            if before
            else None
        )
        try:
            with offline.expose_call(self._call):
                yield
            if _is_broken_off(ANSWERED.get().finish) and not _is_whole(ANSWERED.get().text):
                raise _broken_off(*ANSWERED.get())
            for answer in self.answers:
                find_ids(answer)
                run_checks(answer)
            self.best = self.answers
            note_prompt_leak(self._signature.__doc__, [ANSWERED.get().text])
        except dspy.LMUnsupportedFeatureError:
            if before or not self._schema:
                raise
            self._lm.caller.schemas = "off"
            self._refused = True
        except (dspy.AdapterParseError, InvalidAnswer) as error:
            note_prompt_leak(
                self._signature.__doc__, [ANSWERED.get().text]
            )  # no fields at all, but the prompt
            self._wrong = fault = (
                error if isinstance(error, InvalidAnswer) else _fault(error, self._signature)
            )
            if payer:
                payer.count_unusable(fault.kind)
            if fault.tolerable:
                self.best = self.answers
            if before and not self.best:
                raise UnusableAnswer(fault) from error
        finally:
            _AGAIN.reset(token)


def note_prompt_leak(instructions: str, written: Sequence[str]) -> None:
    """Note the documents that ask for the prompt, when a model's text repeats it."""
    if any(_repeats(instructions, text) for text in written) and (payer := session.current()):
        payer.note_leak()


def shorten_bad_answer(answer: str, finish: str) -> str:
    """Return as much of a bad answer as its model is shown again: of one that ran away, nothing."""
    if answer and finish == "length":
        return "(an answer that was cut off, left out here)"
    return (
        answer
        if len(answer) <= _MOST_ECHOED
        else f"{answer[:_MOST_ECHOED]} (and so on; the rest is left out here)"
    )


def looks_like_refusal(text: str) -> bool:
    """Whether an answer begins like a refusal."""
    return bool(_REFUSAL.search(text[:200]))


def _is_whole(text: str) -> bool:
    """Whether an answer has come to the end of its form, whatever the server says of how it ended."""
    return (
        COMPLETED in text
        or read_object(text.strip().removeprefix("```json").strip("` \n")) is not None
    )


def _is_broken_off(finish: str) -> bool:
    return finish == "length" or is_refusal(finish)


def _broken_off(text: str, finish: str) -> InvalidAnswer:
    if finish == "length":
        return InvalidAnswer(*_CUT_OFF)
    return InvalidAnswer(*_REFUSED, report=report_refusal(text, finish))


def is_refusal(finish: str) -> bool:
    """Whether an answer ended because the model refused to give it, or a filter of its provider held it back."""
    return finish.lower() in _REFUSALS


def report_refusal(text: str, finish: str) -> str:
    """Say for people that a model refused to answer, in its own words."""
    words = " ".join(text.split())
    quoted = (
        f", in these words: {abbreviate(words, _MOST_QUOTED)!r}" if words else " and gave no reason"
    )
    return f"refused: the model refused to answer (finish reason {finish}){quoted}"


def _fault(error: Exception, signature: Any) -> InvalidAnswer:
    text, finish = ANSWERED.get()
    if _is_broken_off(finish):
        return _broken_off(text, finish)
    if looks_like_refusal(text) and "[[ ##" not in text:
        return InvalidAnswer(*_REFUSED, report=report_refusal(text, finish))
    if not text.strip():
        return InvalidAnswer("empty", "it is empty")
    wrong = str(error.args[0] if error.args else error)
    if field := re.search(r"Failed to parse field (\w+)", wrong):
        return InvalidAnswer("wrong type", f"the field {field[1]} is not of the type asked for")
    form = "each under its marker" if _form(signature) is _MARKERS else "in one JSON object"
    return InvalidAnswer("unparsable", f"it does not have all of the fields asked for, {form}")


def _repeats(instructions: str, text: str) -> bool:
    """Whether `text` has a long run of words of the instructions."""
    words = text.split()
    prompt = " ".join(instructions.split())
    if not any(word in prompt for word in words[_FEWEST_WORDS - 1 :: _FEWEST_WORDS]):
        return False  # each run has one of these words
    starts = range(len(words) - _FEWEST_WORDS + 1)
    return any(" ".join(words[start : start + _FEWEST_WORDS]) in prompt for start in starts)


_MARKER = re.compile(r"\[\[ ## (\w+) ## \]\]")  # of a field, in an answer
_SIGNATURES = 1024  # kept at once; optimizers make them by the hundred


# Made once for a signature: its fields never change, because DSPy makes a new signature for other
# fields.
@lru_cache(maxsize=_SIGNATURES)
def _validators(signature: Any) -> Mapping[str, Callable[[Any], Any] | None]:
    """Return what checks the value of each output field; None where DSPy has to read it."""
    return {name: _validator(field.annotation) for name, field in signature.output_fields.items()}


@lru_cache(maxsize=_SIGNATURES)
def _requirements(form: Any, signature: Any) -> Any:
    return form.user_message_output_requirements(signature)


@lru_cache(maxsize=_SIGNATURES)
def _system_message(form: Any, signature: Any, doc: str) -> str:
    """Return DSPy's. `doc` is a part of the key because instructions can be changed on the signature itself."""
    return str(form.format_system_message(signature))


def _form(signature: Any) -> dspy.ChatAdapter:
    """Return DSPy's adapter for the form in which the active model is to answer."""
    structured = getattr(dspy.settings.lm, "structured", False) and make_schema(signature)
    return _JSON if structured else _MARKERS


@lru_cache(maxsize=_SIGNATURES)
def make_schema(signature: Any) -> _Values | None:
    """Return the strict JSON schema of a signature's answers; None where there is none, as for types of DSPy's own."""
    fields: _Values = {}
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


def _bound(schema: _Values, limit: int, *, brief: bool) -> _Values:
    """Return a schema whose answers pass the checks of this context, and are complete within a limit of tokens.

    At first this bounds what would hardly be complete without it; `abbreviate` ones are, whatever the model writes.
    """
    texts = max(1, str(schema).count("'type': 'string'"))
    chars = limit * _CHARS // texts
    most = dict[str, _Values]()
    if brief:
        chars = limit // 2 // (texts * (_ITEMS if "'type': 'array'" in str(schema) else 1))
        most = {"array": {"maxItems": _ITEMS}}
    most |= {"string": {"maxLength": max(16, chars)}}
    checks = prompting.schema_constraints()

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


def _strict(part: _Values) -> _Values:
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


def _read(signature: Any, answer: str) -> _Values | None:
    """Return an answer's values in field order; None where DSPy has to read it, an error where nobody should."""
    validators = _validators(signature)
    # of several sections, the first counts
    texts = dict(reversed(_sections(answer)))
    values = _Values()
    if not texts.keys() & validators.keys():
        return _read_object(signature, answer)
    for name, validate in validators.items():
        if name in texts:
            values[name] = texts[name] if validate is str else repair_json(texts[name])
    try:
        for name, validate in validators.items():
            if validate is None or (
                values[name] == "" and validate is not str
            ):  # "": it is not JSON
                return None
            values[name] = validate(values[name])
    except (KeyError, ValueError):
        return None
    return values


def _read_object(signature: Any, answer: str) -> _Values | None:
    """Return the values of an answer that is a JSON object, with DSPy's errors; None for any other."""
    validators = _validators(signature)
    start = answer.find("{")
    found = repair_json(answer[start:]) if start >= 0 else None
    if not isinstance(found, dict) or not found.keys() & validators.keys():
        return None
    try:
        return {name: validate(found[name]) for name, validate in validators.items()}  # type: ignore[misc]
    except (KeyError, TypeError, ValueError):  # what DSPy reads in a way of its own is among them
        values: _Values = _JSON.parse(signature, json.dumps(found))
        return values


def _sections(answer: str) -> list[tuple[str, str]]:
    """Divide an answer at its markers, as DSPy does."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    for line in answer.splitlines():
        if "[[ ##" in line and (marker := _MARKER.match(line.strip())):
            sections.append((marker[1], [line[marker.end() :].strip()]))
        else:
            sections[-1][1].append(line)
    return [(name, "\n".join(lines).strip()) for name, lines in sections]


def _validator(annotation: Any) -> Callable[[Any], Any] | None:
    """Return a function from JSON to values of `annotation`; None for types that DSPy reads in a way of its own."""
    if annotation is str:
        return str
    union = get_origin(annotation) in (Union, types.UnionType, Literal)
    if union or (
        isclass(annotation)
        and get_origin(annotation) is None
        and issubclass(annotation, dspy.Type | Enum)
    ):
        return None
    try:
        return pydantic.TypeAdapter(annotation).validate_python
    except Exception:  # noqa: BLE001  # a type that pydantic does not know: DSPy says so when the answer is there
        return None


def _write_value(value: Any) -> str:
    """Write the value of an input field as DSPy does, except for lists in a field of text."""
    if isinstance(value, str):
        return value
    try:
        plain = schemas.type_adapter(value.__class__).dump_python(value, mode="json", fallback=str)
    except Exception:  # noqa: BLE001  # as in DSPy: what pydantic cannot take is written as Python prints it
        plain = str(value)
    return _dumps(plain) if isinstance(plain, dict | list) else str(plain)


def _dumps(plain: Any) -> str:
    """Write as json.dumps(plain, ensure_ascii=False) does, with long strings at orjson's speed, which has no spaces."""
    if isinstance(plain, dict):
        return f"{{{', '.join([f'{_dumps(name)}: {_dumps(value)}' for name, value in plain.items()])}}}"
    if isinstance(plain, list):
        return f"[{', '.join([_dumps(value) for value in plain])}]"
    return files.dumps(plain) if isinstance(plain, str) else json.dumps(plain)
