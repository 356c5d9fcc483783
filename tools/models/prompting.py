"""Ask a model: run a predictor on its inputs, with checks that a usable answer must pass.

    read = ask(self.read_passages, require_known_ids("selected", unread), **about, passages=passages)

Corpus text enters a prompt inside a typed field, never as part of an instruction. Tokens are counted
before a call. If a prompt is too long, a reading is split, a batch that must be seen together is
cut, or the oldest notes are left out; each is a step of the trace. If a model's window is unknown (a
server of the user's own, without --context), everything fits, and the provider refuses prompts that
are too long.

Every predictor's call passes `Adapter`: DSPy's chat prompts and parser. It checks the answers, counts
unusable answers by kind, and notes answers that repeat the prompt. An answer that cannot be used is
requested once more, inside the call, so that DSPy's trace has the answer that was used. Before an answer
is lost, its usable part is looked for (tools/models/answers/salvage.py): at once if it was cut off,
else after the repair. If no part of either answer can be used, the call goes on with the `fallback` of
its program, or else raises UnusableAnswer, a fault of the system. A model that takes JSON schemas is
sent the schema of the answer and DSPy's prompt for a JSON object; other models write each field under
its marker. Answers are read in either form.

Checks are defined in tools/models/answers/checks.py, and lenses in tools/lenses.py. Programs may import
the names of those modules from here, too.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from functools import lru_cache, partial
from typing import Any, get_origin

import dspy
import pydantic

from sextant.tools import session
from sextant.tools.lenses import LENSES, Lens, get_lens
from sextant.tools.models.answers.checks import (
    JSON_FORM,
    SIGNATURES_CACHED,
    AnswerCheck,
    AnswerTest,
    InvalidAnswer,
    Outputs,
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
    filled,
    find_copied,
    find_ids,
    inline_schema,
    is_broken_off,
    is_whole,
    make_repair,
    make_schema,
    note_prompt_leak,
    require_in_range,
    require_known_ids,
    require_known_row_ids,
    run_checks,
    schema_constraints,
    write_request,
)
from sextant.tools.models.answers.fields import FieldValues, ToolCalls, read_answer
from sextant.tools.models.answers.salvage import Part, describe, salvage
from sextant.tools.models.dspy_internals import translate_field_type
from sextant.tools.models.tokens import Message, count_prompt_tokens, count_tokens
from sextant.tools.platform.number_format import choose_verb, plural
from sextant.tools.records import Usage
from sextant.tools.session import Session

# Tokens reserved for the answer, if neither the call nor the model has a limit.
_ANSWER_TOKENS = 4096
# At most this part of the room is reserved for the answer: a third.
_ANSWER_PART = 3
_MARGIN = 0.9  # share of the window that is used
_SHORTEST_ANSWER = 64  # tokens without which no answer is possible


class PromptTooLong(Exception):
    """A prompt that the model cannot take and that cannot be shortened; it is not sent."""


# Tokens that a program keeps its conversation to, below the model's window; 0 is no limit.
_NARROWED: ContextVar[int] = ContextVar("narrowed", default=0)


@contextmanager
def narrowed(window: int) -> Iterator[None]:
    """Have prompts fit `window` tokens in the block, if the model's window is not smaller; 0 changes nothing."""
    token = _NARROWED.set(window)
    try:
        yield
    finally:
        _NARROWED.reset(token)


def _window() -> int | None:
    window: int | None = getattr(dspy.settings.lm, "window", None)
    limit = _NARROWED.get()
    return min(window or limit, limit) if limit else window


def usable_context() -> int | None:
    """Return the number of tokens for the active model's prompt and answer together; None if it is unknown."""
    window = _window()
    return None if window is None else int(window * _MARGIN)


def prompt_fits(predictor: Any, **inputs: Any) -> bool:
    """Return whether the prompt of `predictor` for `inputs` leaves the model room for its answer."""
    room = usable_context()
    if room is None:
        return True
    predict = getattr(predictor, "predict", predictor)  # of a ChainOfThought
    reserved = min(max_output_tokens(), room // _ANSWER_PART)
    if limit := predict.config.get("max_tokens"):
        reserved = min(reserved, int(limit))
    prompt_room = room - reserved
    messages = dspy.settings.adapter.format(predict.signature, predict.demos, inputs)
    return count_prompt_tokens(messages, prompt_room) <= prompt_room


def max_output_tokens() -> int:
    """Return the number of tokens that an answer of the active model may have."""
    return getattr(dspy.settings.lm, "limit", None) or _ANSWER_TOKENS


def remaining_tokens(
    messages: Sequence[Message],
    max_tokens: int,
    window: int | None,
) -> int:
    """Return how many of `max_tokens` the prompt leaves for an answer in a `window`; at least 64."""
    if window is None:
        return max_tokens
    room = int(window * _MARGIN)
    remaining = room - count_prompt_tokens(messages, room - max_tokens)
    return min(max_tokens, max(_SHORTEST_ANSWER, remaining))


def token_overflow(messages: Sequence[Message], *, with_margin: bool = False) -> int:
    """Return the number of tokens by which a prompt exceeds the active model's window.

    0 if it fits, or if the window is unknown. `with_margin` for prompts that could be shorter: the
    model may count more tokens than we do.
    """
    window = usable_context() if with_margin else _window()
    if window is None:
        return 0
    room = window - _SHORTEST_ANSWER
    return max(0, count_prompt_tokens(messages, room) - room)


def check_room(messages: Sequence[Message], noun: str, *, with_margin: bool = False) -> None:
    """Raise PromptTooLong for messages that the active model cannot take; the error calls them `noun`."""
    if overflow := token_overflow(messages, with_margin=with_margin):
        raise PromptTooLong(
            f"the {noun} is {plural(overflow, 'token')} larger than what the model takes"
        )


def fit_length(
    chars: int,
    fit: Callable[[int], bool],
    fewest: int = 0,
) -> int:
    """Return how many of `chars` characters `fit`, to a sixteenth; at least `fewest`, whether they fit or not."""
    low = chars
    high = chars
    while low > fewest and not fit(low):
        high = low
        low = max(low // 2, fewest)
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        if fit(middle):
            low = middle
        else:
            high = middle
    return low


def cut_to_share(text: str, share: float) -> str:
    """Return the beginning of `text` that takes at most `share` of the model's window.

    The whole text, if the window is unknown.
    """
    room = usable_context()
    if room is None:
        return text
    most = room * share
    return text[: fit_length(len(text), lambda chars: count_tokens(text[:chars]) <= most)]


# The description of the input `description`: in some tasks the query is itself a text of the kind
# that is wanted.
DESCRIPTION = (
    "the query: words about what is wanted, or a text to find the like of; the objective says which"
)
_FEWEST_CHARS = 50  # characters of a passage; a shorter passage is of no use
# A text of so many characters that has more tokens than most: digits are tokens of three at most.
SHORTEST_TEXT = ("0123456789" * _FEWEST_CHARS)[:_FEWEST_CHARS]


class Passage(pydantic.BaseModel):
    """One document as a model sees it."""

    id: str
    text: str


Fits = Callable[[list[Passage]], bool]
"""Tells whether a prompt has room for these passages."""


def show_passages(
    session: Session, doc_ids: Sequence[str], chars: int, fit: Fits = lambda passages: True
) -> list[Passage]:
    """Show documents together as passages of `chars` characters (0: whole).

    If they do not fit, they are cut to the length that fits, but to no less than 50 characters.
    """
    texts = session.judge(doc_ids, chars or None, fit=partial(_cut, session, doc_ids, fit))
    return _make_passages(doc_ids, texts)


def passage_batches(
    session: Session, doc_ids: Sequence[str], chars: int, fit: Fits
) -> Iterator[list[Passage]]:
    """Yield the documents as passages, in as few batches as `fit`; each is recorded as shown when it is yielded."""
    remaining = list(doc_ids)
    while remaining:
        batch = _Batch(session, remaining, fit)
        texts = session.judge(remaining, chars or None, fit=batch.select)
        passages = batch.passages or _make_passages(remaining, texts)
        yield passages
        remaining = remaining[len(passages) :]


def _cut(
    session: Session,
    doc_ids: Sequence[str],
    fit: Fits,
    texts: list[str],
) -> list[str]:
    """Return the texts, all cut to the length in which they fit together."""

    def fits(chars: int) -> bool:
        return fit(_make_passages(doc_ids, [text[:chars] for text in texts]))

    longest = max(map(len, texts), default=0)
    length = fit_length(longest, fits, _FEWEST_CHARS)
    if length < longest:
        session.shorten(
            f"passages: {len(texts)} {choose_verb(len(texts))} cut to {length} characters each, "
            f"instead of {longest}"
        )
    return [text[:length] for text in texts]


class _Batch:
    """Selects the documents of a reading: the longest beginning of `doc_ids` that fits."""

    def __init__(
        self,
        session: Session,
        doc_ids: list[str],
        fit: Fits,
    ) -> None:
        self.passages: list[Passage] = []  # empty if the only passage was cut
        self._session = session
        self._doc_ids = doc_ids
        self._fit = fit

    def select(self, texts: list[str]) -> list[str]:
        """Return as many of the texts as fit; the first one, cut, if it does not fit alone."""
        passages = _make_passages(self._doc_ids, texts)
        count = self._count_fitting(passages)
        if count < len(texts):
            self._session.shorten(
                f"passages: {count} of {len(texts)} in one reading, the others in the next"
            )
        if count > 1:
            self.passages = passages[:count]
            return texts[:count]
        return _cut(self._session, self._doc_ids, self._fit, texts[:1])

    def _count_fitting(self, passages: list[Passage]) -> int:
        """Return the length of the longest beginning that fits, by bisection; at least 1 if there are passages."""
        high = len(passages)
        low = high if self._fit(passages) else min(1, high)
        while high - low > 1:
            middle = (low + high) // 2
            if self._fit(passages[:middle]):
                low = middle
            else:
                high = middle
        return low


def _make_passages(doc_ids: Sequence[str], texts: Sequence[str]) -> list[Passage]:
    return [
        Passage(id=escape_markers(doc_id), text=escape_markers(text))
        for doc_id, text in zip(doc_ids, texts, strict=False)
    ]


def fit_notes(
    session: Session, notes: Sequence[str], fit: Callable[[list[str]], bool], *, what: str = "notes"
) -> list[str]:
    """Return the latest of `notes` that `fit` together, oldest first; `what` is their name in the
    trace.
    """
    latest = list(notes)
    while latest and not fit(latest):
        del latest[0]
    omitted = len(notes) - len(latest)
    if omitted:
        session.shorten(f"{what}: the {omitted} oldest of {len(notes)} are left out")
    return latest


def escape_markers(text: str) -> str:
    """Return `text` with blanks inside DSPy's field markers, [[ ## name ## ]], and its marks of images and files."""
    text = text.replace("<<CUSTOM-TYPE-", "< <CUSTOM-TYPE-")
    if "##" not in text:
        return text
    text = re.sub(r"\[(?=\[)", "[ ", text)
    return re.sub(r"\](?=\])", "] ", text)


_FIELD_TOKENS = 16  # of a field's marker with its name, or of its name in a JSON object


def predict(signature: Any, tokens: int, each: int = 0) -> dspy.Predict:
    """Return DSPy's predictor with the most tokens of a good answer.

    `each` is the number of tokens that a passage adds to those of its id.
    """
    predictor = dspy.Predict(signature)
    predictor.answer_tokens = tokens
    predictor.answer_tokens_each = each
    return predictor


def max_answer_tokens(predictor: Any, inputs: Mapping[str, Any]) -> int | None:
    """Return the most tokens of a good answer to these inputs; None for a predictor without limit."""
    tokens: int | None = getattr(predictor, "answer_tokens", None)
    if tokens is None:
        return None
    tokens += _FIELD_TOKENS * (len(predictor.signature.output_fields) + 1)
    each: int = predictor.answer_tokens_each
    if each:
        for passage in inputs.get("passages") or ():
            # A character has a token at most; tokenizers of many models split digits.
            tokens += len(passage.id) + each
    return tokens


__all__ = [
    "DESCRIPTION",
    "LENSES",
    "AnswerCheck",
    "FallbackPrediction",
    "InvalidAnswer",
    "Lens",
    "Outputs",
    "Passage",
    "UnusableAnswer",
    "ask",
    "empty_outputs",
    "escape_markers",
    "filled",
    "fit_notes",
    "get_lens",
    "passage_batches",
    "predict",
    "prompt_fits",
    "require_in_range",
    "require_known_ids",
    "require_known_row_ids",
    "show_passages",
    "with_advice",
    "with_instructions",
]


def empty_outputs(predictor: Any, **values: Any) -> dict[str, Any]:
    """Return a fallback for `ask`: `values`, and an empty value for each other output field of a predictor.

    It is None for types other than texts and lists.
    """
    outputs = dict[str, Any]()
    for name, field in predictor.signature.output_fields.items():
        is_list = get_origin(field.annotation) is list
        outputs[name] = [] if is_list else "" if field.annotation is str else None
    return outputs | values


class FallbackPrediction(dspy.Prediction):
    """The values that a program goes on with, for want of an answer."""


def ask(
    predictor: dspy.Module,
    *checks: AnswerTest,
    fallback: Any = None,  # a mapping; any type, so that inputs may follow as a dict of objects
    **inputs: Any,
) -> Any:
    """Return the prediction for `inputs`, which passes all `checks`.

    A check is an AnswerCheck, or a function that raises InvalidAnswer for unusable outputs.

    `fallback` has a value for each output field: of the FallbackPrediction if no part of two answers
    can be used, which the trace notes. A field whose fallback is an empty text or list may be missing in an
    answer of which a part is used. Without a fallback, and outside of a session, such a call raises
    UnusableAnswer. A query of which every call went on without an answer fails all the same
    (`Session.submit`).
    """
    answer_checks = tuple(
        check if isinstance(check, AnswerCheck) else AnswerCheck(check) for check in checks
    )
    answer_tokens = max_answer_tokens(predictor, inputs) or current_call().answer_tokens
    context = {"checks": answer_checks, "answer_tokens": answer_tokens, "fallback": fallback or {}}
    with changed_call(**context):
        try:
            return predictor(**inputs)
        except UnusableAnswer as error:
            payer = session.current()
            if fallback is None or payer is None:
                raise
            payer.go_on_without(error, describe(fallback))
            return FallbackPrediction(**deepcopy(dict(fallback)))


def with_advice(signature: Any, advice: str) -> Any:
    """Return `signature` with `advice` at the end of its instructions."""
    if not advice:
        return signature
    return with_instructions(signature, f"{signature.instructions}\n\n{advice}")


def with_instructions(
    signature: Any, instructions: str, descriptions: Mapping[str, str] | None = None
) -> Any:
    """Return `signature` with other instructions and other descriptions of fields.

    Fields with another description are marked as `described`. The signature keeps its name: DSPy's
    copies are called StringSignature.
    """
    changed = signature.with_instructions(instructions)
    for name, text in (descriptions or {}).items():
        description = text or f"${{{name}}}"
        if description != signature.fields[name].json_schema_extra["desc"]:
            changed = changed.with_updated_fields(name, desc=description, described=True)
    changed.__name__ = signature.__name__
    return changed


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
        content = f"{write_request(repair, context)}\n\n{requirements}"
        if repair.answer:
            with_answer = [
                *messages,
                {"role": "assistant", "content": repair.answer},
                {"role": "user", "content": content},
            ]
            if not token_overflow(with_answer, with_margin=True):
                return with_answer
            if payer := session.current():
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
        check_room(messages, "prompt", with_margin=True)
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
            except dspy.LMUnsupportedFeatureError:
                if self._repair or not self._schema:
                    raise
                self._lm.client.schemas = "off"  # from now on
            except (dspy.AdapterParseError, InvalidAnswer) as error:
                self._handle_fault(error)
            except PromptTooLong as error:
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
            max_tokens = max_output_tokens()
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
            part = salvage(self._signature, context, parsed, is_cut=is_cut)
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

    def _handle_no_room(self, error: PromptTooLong) -> None:
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
            message = message.replace(json.dumps(written)[1:-1], json.dumps(plain)[1:-1])
    return message
