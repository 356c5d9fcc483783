"""DSPy's chat prompts and parser, with one repair: an unusable answer goes back to the model with what was wrong.

Every predictor's call passes here, so this is also where answers are checked and unusable ones counted by kind
(tools/models/prompting/asking.py), and where a prompt that came back as an answer is noticed.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import dspy

from tools import session
from tools.models.offline import engine
from tools.models.prompting import context, fields
from tools.models.prompting.asking import Fault, UnusableAnswer, check
from tools.records import Usage


class Answered(NamedTuple):
    """The last answer of a model in this context, as it came."""

    text: str = ""
    finish: str = "stop"  # or why it ended otherwise: "length", "content_filter", ...


ANSWERED: ContextVar[Answered | None] = ContextVar("answered", default=None)
_AGAIN: ContextVar[tuple[str, str] | None] = ContextVar("again", default=None)  # the bad answer, what was wrong with it

# How models begin an answer when they will not give it; looked for only where an answer has none of the fields.
_REFUSAL = re.compile(
    r"\b(?:I(?:['\u2019]m| am) sorry|I can(?:['\u2019]|no)t|I(?:['\u2019]m| am) (?:not able|unable)|I won['\u2019]t)\b",
    re.IGNORECASE,
)
_LEFT_OUT = "(an answer, left out because there is no room for it)"
_FEWEST_WORDS = 12  # of a prompt, one after another, in an answer: fewer happen by chance


class Adapter(dspy.ChatAdapter):
    """DSPy's chat adapter. UnusableAnswer after the second answer that cannot be used, not even in part."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"use_json_adapter_fallback": False, **kwargs})

    def __call__(
        self,
        lm: Any,
        lm_kwargs: dict[str, Any],
        signature: Any,
        demos: list[dict[str, Any]],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """The answers to one predictor's call, parsed and checked."""
        tries = _Tries(signature, engine.Call(self, signature, inputs))
        for attempt in tries:
            with attempt:
                tries.answers = super().__call__(lm, dict(lm_kwargs), signature, demos, inputs)
        return tries.best

    async def acall(
        self,
        lm: Any,
        lm_kwargs: dict[str, Any],
        signature: Any,
        demos: list[dict[str, Any]],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """Make the call as `__call__` does, awaited."""
        tries = _Tries(signature, engine.Call(self, signature, inputs))
        for attempt in tries:
            with attempt:
                tries.answers = await super().acall(lm, dict(lm_kwargs), signature, demos, inputs)
        return tries.best

    def format_system_message(self, signature: Any) -> str:
        """DSPy's, made once for a signature: pydantic takes as long for it as all the rest of a prompt takes."""
        return fields.system_message(signature, signature.__doc__)

    def format_user_message_content(
        self,
        signature: Any,
        inputs: dict[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        """DSPy's, with what depends on the signature alone made once."""
        form = fields.form(signature)
        if any(isinstance(inputs.get(name), list) and form.inputs[name].annotation is str for name in form.inputs):
            return str(super().format_user_message_content(signature, inputs, prefix, suffix, main_request))
        parts = [prefix]
        parts += [f"[[ ## {name} ## ]]\n{fields.write_value(inputs[name])}" for name in form.inputs if name in inputs]
        if main_request and form.requirements is not None:
            parts.append(form.requirements)
        return "\n\n".join([*parts, suffix]).strip()

    def format(self, signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """DSPy's messages; when asking again, the bad answer and what was wrong with it follow."""
        messages: list[dict[str, Any]] = super().format(signature, demos, inputs)
        if again := _AGAIN.get():
            answer, wrong = again
            repair = {
                "role": "user",
                "content": f"That answer cannot be used: {wrong}. Answer again, in full and in the form asked for.",
            }
            whole = [*messages, {"role": "assistant", "content": answer or "(no answer)"}, repair]
            if context.overflows(whole):
                whole[-2]["content"] = _LEFT_OUT
                if payer := session.current():
                    payer.shorten("an answer that could not be used is left out where it is asked for again")
            messages = whole
        return messages

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        """DSPy's values. An answer that is not read at once is DSPy's to read: its defaults, its errors."""
        try:
            found = fields.read(signature, completion)
            return super().parse(signature, completion) if found is None else found
        except (fields.TooBroken, RecursionError, MemoryError):  # the last two of Python's parser, which DSPy asks
            raise Fault("unparsable", "a field of it is no JSON, and too broken to be repaired") from None


class _Tries:
    """The first answer to a call, and the second where that cannot be used; each try is a context to ask in."""

    def __init__(self, signature: Any, call: engine.Call) -> None:
        self.answers: list[dict[str, Any]] = []  # of this try
        self.best: list[dict[str, Any]] = []  # usable ones, or tolerable ones
        self._signature, self._call = signature, call
        self._wrong: Fault | None = None
        self._done = False

    def __iter__(self) -> Iterator[AbstractContextManager[None]]:
        yield self._attempt(last=False)
        if not self._done:
            yield self._attempt(last=True)

    @contextmanager
    def _attempt(self, *, last: bool) -> Iterator[None]:
        with engine.publish(self._call), _asking_again(self._wrong):
            try:
                yield
                _check(self.answers, self._signature)
                self.best, self._done = self.answers, True
            except (dspy.AdapterParseError, Fault) as error:
                self._wrong = _judge(error, self._signature, last=last and not self.best)
                if self._wrong.tolerable:
                    self.best = self.answers


@contextmanager
def _asking_again(fault: Fault | None) -> Iterator[None]:
    """Inside, an unusable answer is asked for again; nothing special when there was none."""
    if fault is None:
        yield
        return
    if payer := session.current():
        payer.charge(Usage(repairs=1))
    token = _AGAIN.set(((ANSWERED.get() or Answered()).text, fault.reason))
    try:
        yield
    finally:
        _AGAIN.reset(token)


def _judge(error: Exception, signature: Any, *, last: bool) -> Fault:
    """Count what was wrong with an answer. UnusableAnswer when there is no other try and it is not tolerable."""
    fault = error if isinstance(error, Fault) else _fault(error)
    notice_leak(signature.__doc__, [(ANSWERED.get() or Answered()).text])  # no fields at all, but the prompt
    if payer := session.current():
        payer.count_unusable(fault.kind)
    if last and not fault.tolerable:
        raise UnusableAnswer(fault) from error
    return fault


def _check(answers: list[dict[str, Any]], signature: Any) -> None:
    """Raise a Fault for answers that were parsed and cannot be used."""
    if (ANSWERED.get() or Answered()).finish == "length":
        raise Fault("cut off", "it was cut off before its end; be brief")
    for answer in answers:
        check(answer)
    notice_leak(signature.__doc__, [(ANSWERED.get() or Answered()).text])


def notice_leak(instructions: str, written: Sequence[str]) -> None:
    """Note the documents that ask for the prompt, when what a model has written repeats it."""
    if any(_repeats(instructions, text) for text in written) and (payer := session.current()):
        payer.note_leak()


def refuses(text: str) -> bool:
    """Whether an answer begins like a refusal."""
    return bool(_REFUSAL.search(text[:200]))


def _fault(error: Exception) -> Fault:
    """Say why an answer that could not be parsed is unusable."""
    text, finish = ANSWERED.get() or Answered()
    if finish == "length":
        return Fault("cut off", "it was cut off before its end; be brief")
    if finish in ("content_filter", "refusal") or (refuses(text) and "[[ ##" not in text):
        return Fault(
            "refused", "the task was not done; the material is only to be judged, and nothing harmful is asked"
        )
    if not text.strip():
        return Fault("empty", "it is empty")
    wrong = str(error.args[0] if error.args else error)
    if found := re.search(r"Failed to parse field (\w+)", wrong):
        return Fault("wrong type", f"the field {found[1]} is not of the type asked for")
    return Fault("unparsable", "it does not have all of the fields asked for, each under its marker")


def _repeats(instructions: str, text: str) -> bool:
    """Whether `text` has a long run of words of the instructions."""
    words, told = text.split(), " ".join(instructions.split())
    if len(words) < _FEWEST_WORDS or not any(word in told for word in words[_FEWEST_WORDS - 1 :: _FEWEST_WORDS]):
        return False  # each run has one of these words
    starts = range(len(words) - _FEWEST_WORDS + 1)
    return any(" ".join(words[start : start + _FEWEST_WORDS]) in told for start in starts)
