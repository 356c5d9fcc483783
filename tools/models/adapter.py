"""DSPy's chat prompts and parser, with one repair: an unusable answer goes back to the model with
what was wrong.

Every predictor's call passes here, so answers are checked here (tools/models/prompting.py),
unusable ones counted by kind, and prompts noticed that come back as answers. A model that takes
JSON schemas is sent that of the answer, and DSPy's prompt for a JSON object; the others write each
field under its marker. Answers are read in either form.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import dspy

from tools import files, schemas, session
from tools.models import context_window, offline_engine
from tools.models.answer_checks import InvalidAnswer, UnusableAnswer, find_ids, run_checks
from tools.models.answer_faults import (
    ANSWERED,
    broken_off,
    fault_of,
    is_broken_off,
    is_whole,
    note_prompt_leak,
    shorten_bad_answer,
)
from tools.models.answer_parsing import JSON_FORM, answer_form, read_answer
from tools.models.answer_schema import SIGNATURES_CACHED, FieldValues, bound_schema, make_schema
from tools.models.fields import place_markers, read_loosely
from tools.models.values import TooBroken
from tools.records import Usage

_Rows = list[FieldValues]


_AGAIN: ContextVar[tuple[str, str] | None] = ContextVar(
    "again", default=None
)  # the bad answer, what was wrong with it


class Adapter(dspy.ChatAdapter):
    """DSPy's chat adapter. UnusableAnswer after the second answer that cannot be used, not even in part."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"use_json_adapter_fallback": False, **kwargs})

    def __call__(
        self, lm: Any, lm_kwargs: FieldValues, signature: Any, demos: _Rows, inputs: FieldValues
    ) -> _Rows:
        """Return the answers to one predictor's call, parsed and checked."""
        tries = _AnswerAttempts(
            lm, signature, offline_engine.PredictorCall(self, signature, inputs)
        )
        for attempt in tries:
            with attempt:
                tries.answers = super().__call__(
                    lm, lm_kwargs | tries.form(), signature, demos, inputs
                )
        return tries.best

    async def acall(
        self, lm: Any, lm_kwargs: FieldValues, signature: Any, demos: _Rows, inputs: FieldValues
    ) -> _Rows:
        """Make the call as `__call__` does, awaited."""
        tries = _AnswerAttempts(
            lm, signature, offline_engine.PredictorCall(self, signature, inputs)
        )
        for attempt in tries:
            with attempt:
                tries.answers = await super().acall(
                    lm, lm_kwargs | tries.form(), signature, demos, inputs
                )
        return tries.best

    def format_system_message(self, signature: Any) -> str:
        """Return DSPy's, made once for a signature: pydantic takes as long for it as for the rest of a prompt."""
        return _system_message(answer_form(signature), signature, signature.__doc__)

    def format_user_message_content(
        self,
        signature: Any,
        inputs: FieldValues,
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
        return _requirements(answer_form(signature), signature)

    def format_assistant_message_content(
        self, signature: Any, outputs: FieldValues, *missing: Any, **named: Any
    ) -> str:
        """Return DSPy's, in the form in which answers are asked for."""
        return str(
            answer_form(signature).format_assistant_message_content(
                signature, outputs, *missing, **named
            )
        )

    def format(self, signature: Any, demos: _Rows, inputs: FieldValues) -> _Rows:
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
            if context_window.token_overflow(messages):
                bad["content"] = "(an answer, left out because there is no room for it)"
                if payer := session.current():
                    payer.shorten(
                        "an answer that could not be used is left out where it is asked for again"
                    )
        return messages

    def parse(self, signature: Any, completion: str) -> FieldValues:
        """Return DSPy's values; if neither `read_answer` nor DSPy can read them, those of another form."""
        answer = place_markers(signature, completion)
        try:
            values = read_answer(signature, answer)
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

    def __init__(self, lm: Any, signature: Any, call: offline_engine.PredictorCall) -> None:
        self.answers: _Rows = []  # of this try
        self.best: _Rows = []  # usable ones, or tolerable ones
        self._lm = lm
        self._signature = signature
        self._call = call
        self._wrong: InvalidAnswer | None = None  # with the answers of the last try
        self._schema: FieldValues | None = None  # that was sent with the last try
        self._refused = False  # whether the server took none
        self._cut = False  # whether the answer before was cut off

    def __iter__(self) -> Iterator[AbstractContextManager[None]]:
        yield self._attempt()
        if self._refused:
            yield self._attempt()
        if self._wrong:
            yield self._attempt(self._wrong)

    def form(self) -> FieldValues:
        """Return the setting that asks for an answer by the signature's schema; none for an answer in markers."""
        both = answer_form(self._signature) is JSON_FORM and getattr(self._lm, "structured", False)
        self._schema = make_schema(self._signature) if both else None
        if (
            self._schema and self._lm.server.kind.name == "vllm"
        ):  # others may refuse bounds, or take long for each
            self._schema = bound_schema(
                self._schema, context_window.max_output_tokens(), brief=self._cut
            )
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
            with offline_engine.expose_call(self._call):
                yield
            if is_broken_off(ANSWERED.get().finish) and not is_whole(ANSWERED.get().text):
                raise broken_off(*ANSWERED.get())
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
                error if isinstance(error, InvalidAnswer) else fault_of(error, self._signature)
            )
            if payer:
                payer.count_unusable(fault.kind)
            if fault.tolerable:
                self.best = self.answers
            if before and not self.best:
                raise UnusableAnswer(fault) from error
        finally:
            _AGAIN.reset(token)


@lru_cache(maxsize=SIGNATURES_CACHED)
def _requirements(form: Any, signature: Any) -> Any:
    return form.user_message_output_requirements(signature)


@lru_cache(maxsize=SIGNATURES_CACHED)
def _system_message(form: Any, signature: Any, doc: str) -> str:
    """Return DSPy's. `doc` is a part of the key because instructions can be changed on the signature itself."""
    return str(form.format_system_message(signature))


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
