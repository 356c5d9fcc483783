"""The engine without a model: it answers the calls of programs with rules that count words."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, NamedTuple

from dspy.lm15 import Message, Request, Response, Usage, response_to_events

from tools.errors import UsageError
from tools.session import SharedOnDeepcopy, set_contextvar
from tools.text import TermStatistics

VERSION = "offline/2"  # goes into run configs: raise it with every change that changes an answer


Inputs = Mapping[str, Any]


Rules = Mapping[str, Callable[[Inputs, TermStatistics], Any]]  # output field -> what writes it


class PredictorCall(NamedTuple):
    """A predictor's call as DSPy's adapter sees it."""

    adapter: Any
    signature: Any
    inputs: Inputs


# The call that is being answered, or the answer to it that another process has written.
CALL: ContextVar[PredictorCall | str | None] = ContextVar("call", default=None)


_RULES: ContextVar[Rules] = ContextVar("rules", default={})  # noqa: B039  # it is never written to


expose_call = partial(
    set_contextvar, CALL
)  # lets the engine see the call of the block, or its answer


using_rules = partial(set_contextvar, _RULES)  # has the calls of the block answered by these rules


class OfflineEngine(SharedOnDeepcopy):
    """An engine for `dspy.LM(engine=...)`, by the rules of a program, or else by `rules`. Threads share it."""

    def __init__(
        self, statistics: Callable[[], TermStatistics], rules: Rules | None = None
    ) -> None:
        self._rules: Rules = rules or {}
        self._make_statistics = cache(
            statistics
        )  # at the first call: a program without any needs no index
        self._lock = threading.Lock()

    def statistics(self) -> TermStatistics:
        """Return the statistics of the corpus."""
        with self._lock:
            return self._make_statistics()

    def fill(self) -> dict[str, Any]:
        """Return the output fields of the present call, each filled by its rule."""
        call = CALL.get()
        if not isinstance(call, PredictorCall):
            raise UsageError(
                "offline is no language model and answers no free prompt; name a model with --lm"
            )
        rules = _RULES.get() or self._rules
        if unknown := [name for name in call.signature.output_fields if name not in rules]:
            raise UsageError(
                f"offline has no rule for the field {unknown[0]!r}; name a model with --lm, or "
                f"write one"
            )
        statistics = self.statistics()
        return {name: rules[name](call.inputs, statistics) for name in call.signature.output_fields}

    def write(self) -> str:
        """Return the answer to the present call, as DSPy's adapter writes it."""
        call = CALL.get()
        if isinstance(call, str):
            return call
        return (
            str(call.adapter.format_assistant_message_content(call.signature, self.fill()))
            if call
            else ""
        )

    def complete(self, request: Request) -> Response:
        """Return the answer in DSPy's form, without tokens: there is no model."""
        message = Message.assistant(self.write())
        nothing = Usage(input_tokens=0, output_tokens=0)
        return Response(
            id=None, model=request.model, message=message, finish_reason="stop", usage=nothing
        )

    def stream(self, request: Request) -> Iterator[Any]:
        """Yield the whole answer as one event."""
        yield from response_to_events(self.complete(request))
