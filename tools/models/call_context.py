"""The context of a model call: everything that code below a predictor needs to know about the call.

DSPy hands an engine a rendered prompt and an adapter a signature, and nothing else. A single context
variable has the rest: the checks of the answer and its length, the rules and the structured call for the
engine without a model, the answer that is being repaired, and the text of the last answer.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sextant.tools.models.answers.checks import AnswerCheck
from sextant.tools.models.answers.fields import Inputs
from sextant.tools.text import TermStatistics

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
    fallback: Mapping[str, Any] = field(default_factory=dict)
    rules: Rules = field(default_factory=dict)
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


def current() -> CallContext:
    """Return the context of the present call."""
    return _CONTEXT.get() or _EMPTY


def update(**changes: Any) -> None:
    """Change fields of the context until the innermost `changed` block ends."""
    _CONTEXT.set(replace(current(), **changes))


@contextmanager
def changed(**changes: Any) -> Iterator[None]:
    """Change fields of the context inside the block."""
    token = _CONTEXT.set(replace(current(), **changes))
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def expose_call(call: PredictorCall) -> AbstractContextManager[None]:
    """Let the engine without a model see the call of the block."""
    return changed(predictor_call=call)


def using_rules(rules: Rules) -> AbstractContextManager[None]:
    """Answer the calls of the block using these rules, if there is no model."""
    return changed(rules=rules)
