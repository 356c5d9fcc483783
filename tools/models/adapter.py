"""DSPy's chat prompts and parser, with a single repair: an answer that cannot be used is requested
again.

Every predictor's call passes here. The adapter checks the answers (tools/models/answers/checks.py),
counts unusable answers by kind, and notes answers that repeat the prompt. Before an answer is lost,
its usable part is looked for (tools/models/answers/salvage.py): at once if it was cut off, else after the
repair. A model that takes JSON
schemas is sent the schema of the answer and DSPy's prompt for a JSON object; other models write each
field under its marker. Answers are read in either form.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import dspy

from sextant.tools import session
from sextant.tools.models import context_window
from sextant.tools.models.answers.checks import (
    JSON_FORM,
    SIGNATURES_CACHED,
    InvalidAnswer,
    PredictorCall,
    Repair,
    UnusableAnswer,
    answer_form,
    bound_schema,
    broken_off,
    changed_call,
    current_call,
    cut_off,
    ends_inside_list,
    fault_of,
    find_copied,
    find_ids,
    inline_schema,
    is_broken_off,
    is_whole,
    make_repair,
    make_schema,
    note_prompt_leak,
    run_checks,
    schema_constraints,
    write_request,
)
from sextant.tools.models.answers.fields import FieldValues, ToolCalls, read_answer
from sextant.tools.models.answers.salvage import Part, describe, salvage
from sextant.tools.models.dspy_internals import translate_field_type
from sextant.tools.records import Usage

# DSPy's words before the schema of a field.
_SCHEMA_NOTE = "must adhere to the JSON schema: "

_Rows = list[FieldValues]


class Adapter(dspy.ChatAdapter):
    """DSPy's chat adapter with checked answers.

    UnusableAnswer if no part of an answer and of its repair can be used.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"use_json_adapter_fallback": False, **kwargs})

    def __call__(
        self, lm: Any, lm_kwargs: FieldValues, signature: Any, demos: _Rows, inputs: FieldValues
    ) -> _Rows:
        """Return the answers to a predictor's call, parsed and checked."""
        call = _CheckedCall(lm, PredictorCall(self, signature, inputs))
        while not call.finished:
            with call.request(lm_kwargs) as settings:
                call.accept(super().__call__(lm, settings, signature, demos, inputs))
        return call.answers

    async def acall(
        self, lm: Any, lm_kwargs: FieldValues, signature: Any, demos: _Rows, inputs: FieldValues
    ) -> _Rows:
        """Make the same call as `__call__`, awaited."""
        call = _CheckedCall(lm, PredictorCall(self, signature, inputs))
        while not call.finished:
            with call.request(lm_kwargs) as settings:
                call.accept(await super().acall(lm, settings, signature, demos, inputs))
        return call.answers

    def format_system_message(self, signature: Any) -> str:
        """Return DSPy's message, cached by signature: pydantic needs as long for it as for the rest of a prompt."""
        return _system_message(answer_form(signature), signature, signature.__doc__)

    def user_message_output_requirements(self, signature: Any) -> Any:
        """Return DSPy's requirements, cached by signature, without its example of a call of a tool."""
        return _requirements(answer_form(signature), signature)

    def format_assistant_message_content(
        self, signature: Any, outputs: FieldValues, *args: Any, **kwargs: Any
    ) -> str:
        """Return DSPy's message, in the form in which the model has to answer."""
        form = answer_form(signature)
        return str(form.format_assistant_message_content(signature, outputs, *args, **kwargs))

    def format(
        self,
        signature: Any,
        demos: _Rows,
        inputs: FieldValues,
    ) -> _Rows:
        """Return DSPy's messages; for a repair, with the request for it, and the bad answer before that if it is shown.

        The request ends in DSPy's requirements, so that a small model does not take it for an answer.
        PromptTooLong if the model's window has no room for it.
        """
        messages: _Rows = super().format(signature, demos, inputs)
        context = current_call()
        repair = context.repair
        if repair is None:
            return messages
        requirements = self.user_message_output_requirements(signature) or ""
        with_answer = [
            *messages,
            {"role": "assistant", "content": repair.answer},
            {"role": "user", "content": f"{write_request(repair, context)}\n\n{requirements}"},
        ]
        if repair.answer and not context_window.token_overflow(with_answer, with_margin=True):
            return with_answer
        if repair.answer and (payer := session.current()):
            payer.shorten(
                "an answer that could not be used is left out where it is asked for again"
            )
            repair = repair._replace(answer="")
        content = f"{write_request(repair, context)}\n\n{requirements}"
        last = messages[-1]
        if isinstance(last["content"], str):
            content = f"{last['content']}\n\n{content}"
            messages = messages[:-1]
        # Content of another type has images.
        messages = [*messages, {"role": "user", "content": content}]
        context_window.check_room(messages, "prompt", with_margin=True)
        return messages

    def parse(self, signature: Any, completion: str) -> FieldValues:
        """Return the values of an answer in either form, of which DSPy reads what it can."""
        context = current_call()
        bounds = schema_constraints(context.checks)
        return read_answer(signature, completion, bounds, context.inputs)


class _CheckedCall:
    """The state of a predictor's call over its requests.

    A second request repairs an unusable answer. In addition, the first request is sent again
    without a schema if the server refuses schemas.
    """

    def __init__(self, lm: Any, predictor_call: PredictorCall) -> None:
        self.answers: _Rows = []  # usable or tolerable answers
        self.finished = False
        self._lm = lm
        self._predictor_call = predictor_call
        self._signature = predictor_call.signature
        self._latest: _Rows = []  # the answers of the latest request, if they could be parsed
        self._fault: InvalidAnswer | None = None  # of the first answer
        self._part: Part | None = None  # the usable part of the first answer
        self._repair: Repair | None = None
        self._schema: FieldValues | None = None  # None if the latest request had no schema

    @contextmanager
    def request(self, settings: FieldValues) -> Iterator[FieldValues]:
        """Yield `settings` with those of the next request, which is sent and read in the block.

        A fault of its answer leads to the next request, or ends the call. UnusableAnswer if no part
        of the answers can be used.
        """
        self._latest = []
        with changed_call(predictor_call=self._predictor_call, repair=self._repair):
            try:
                yield settings | self._schema_setting()
            except dspy.LMUnsupportedFeatureError as error:
                self._handle_unsupported_schema(error)
            except (dspy.AdapterParseError, InvalidAnswer) as error:
                self._handle_fault(error)
            except context_window.PromptTooLong as error:
                self._handle_no_room(error)

    def _schema_setting(self) -> FieldValues:
        """Return the setting that requests an answer by the signature's schema; empty for an answer in markers."""
        self._schema = None
        takes_schemas = getattr(self._lm, "structured", False)
        if answer_form(self._signature) is not JSON_FORM or not takes_schemas:
            return {}
        self._schema = make_schema(self._signature)
        if self._schema and self._lm.server.kind.bounds:
            context = current_call()
            constraints = schema_constraints(context.checks)
            was_cut_off = self._fault is not None and self._fault.kind == "cut off"
            max_tokens = context_window.max_output_tokens()
            self._schema = bound_schema(
                self._schema,
                max_tokens,
                constraints,
                brief=was_cut_off,
                good_tokens=context.answer_tokens,
            )
        json_schema = {"name": "answer", "strict": True, "schema": self._schema}
        return {"response_format": {"type": "json_schema", "json_schema": json_schema}}

    def accept(self, answers: _Rows) -> None:
        """Check the answers of a request, and finish the call. InvalidAnswer if they cannot be used."""
        self._latest = answers
        context = current_call()
        if is_broken_off(context.answer.finish) and not is_whole(context.answer.text):
            raise broken_off(context.answer)
        for answer in answers:
            find_copied(self._signature, answer)
            find_ids(answer, context.checks)
            run_checks(answer, context.checks)
        self.answers = answers
        self.finished = True
        if payer := session.current():
            self._count_repair(payer)
            payer.count_usable()
        note_prompt_leak(self._signature.__doc__, [context.answer.text])

    def _handle_unsupported_schema(self, error: dspy.LMUnsupportedFeatureError) -> None:
        """Send no schemas from now on, if the server has refused one; else raise `error`."""
        if self._repair or not self._schema:
            raise error
        self._lm.client.schemas = "off"

    def _handle_fault(self, error: dspy.AdapterParseError | InvalidAnswer) -> None:
        """Use a part of an unusable answer, prepare its repair, or end the call after the second answer.

        UnusableAnswer if no part of either answer can be used.
        """
        context = current_call()
        answer = context.answer
        # The answer may have no fields at all, but the prompt.
        note_prompt_leak(self._signature.__doc__, [answer.text])
        is_fault = isinstance(error, InvalidAnswer)
        fault = error if is_fault else fault_of(error, self._signature, answer)
        if fault.kind in ("unknown ids", "wrong type") and ends_inside_list(answer.text):
            fault = cut_off()
        if payer := session.current():
            self._count_repair(payer)
            payer.count_unusable(fault.kind)
        is_cut = fault.kind == "cut off"
        part = None
        if fault.kind != "refused":
            parsed = self._latest[0] if self._latest else None
            part = salvage(
                self._signature,
                context,
                parsed,
                is_cut=is_cut,
            )
        # A model that copies the prompt into one field does so again when it is asked again.
        is_copy_beside = fault.kind == "prompt copied" and part and part.has_checked_fields
        if part is not None and (is_cut or is_copy_beside or self._repair):
            self._use_part(part, fault)
        elif self._repair is None:
            self._fault = fault
            self._part = part
            self._repair = make_repair(fault, answer.text)
        elif self._part is not None and self._fault:
            self._use_part(self._part, self._fault)
        else:
            raise UnusableAnswer(fault) from error

    def _handle_no_room(self, error: context_window.PromptTooLong) -> None:
        """Use a part of the first answer, if the model's window has no room for its repair.

        Raises `error` if it is the first request that has no room, and UnusableAnswer if no part
        can be used.
        """
        if self._repair is None or self._fault is None:
            raise error
        if payer := session.current():
            payer.shorten("an unusable answer is not asked for again, because the prompt is full")
        if self._part is None:
            raise UnusableAnswer(self._fault) from error
        self._use_part(self._part, self._fault)

    def _count_repair(self, payer: session.Session) -> None:
        """Count the answer as that to a repair, if it is."""
        if self._repair:
            payer.charge(Usage(repairs=1))

    def _use_part(
        self,
        part: Part,
        fault: InvalidAnswer,
    ) -> None:
        """Finish the call with the usable part of an answer that had a fault."""
        self.answers = [part.values]
        self.finished = True
        if payer := session.current():
            payer.count_invented(part.unknown_ids)
            payer.use_in_part(fault.kind, describe(part.values))


@lru_cache(maxsize=SIGNATURES_CACHED)
def _requirements(form: Any, signature: Any) -> Any:
    requirements = form.user_message_output_requirements(signature)
    # DSPy has words for its own type of calls alone: an example.
    return requirements and requirements.replace(
        f"formatted as a valid Python {ToolCalls.__name__}", "a JSON object with `tool_calls`"
    )


@lru_cache(maxsize=SIGNATURES_CACHED)
def _system_message(
    form: Any,
    signature: Any,
    doc: str,
) -> str:
    """Return DSPy's message, with schemas of types that a small model can read.

    `doc` is a part of the key because instructions can be changed on the signature itself.
    """
    message = str(form.format_system_message(signature))
    for name, field in signature.output_fields.items():
        written = translate_field_type(name, field)
        before, note, schema_text = written.partition(_SCHEMA_NOTE)
        schema = inline_schema(field.annotation) if '"$ref"' in schema_text else None
        if schema is not None:
            plain = f"{before}{note}{json.dumps(schema, ensure_ascii=False)}"
            message = message.replace(written, plain)
            # In the form of a JSON object it stands inside a text.
            written_inside = json.dumps(written)[1:-1]
            plain_inside = json.dumps(plain)[1:-1]
            message = message.replace(written_inside, plain_inside)
    return message
