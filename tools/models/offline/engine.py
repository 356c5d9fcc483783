"""The engine without a model: fills the signatures of the programs by counting words. No language model is in it.

It is a named baseline, pseudo-relevance feedback (Rocchio 1971; Lavrenko and Croft 2001), in the shape of a model:
it weighs the words of description and notes by how rare they are in the corpus, spends less on words that earlier
searches have used, keeps the passages that share the most weight, and takes their best sentences as notes. It
invents no word, understands none, and gives the same answer to the same input always. What it wins and loses
against the bare retriever is in docs/results.md.

DSPy hands an engine the rendered prompt only; `tools/models/adapter.py` publishes the structured call beside
it. What is counted for which field, each program says (programs/base.py); tools/models/offline/rules.py has the rules.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple, Self

from dspy.lm15 import Message, Request, Response, Usage, response_to_events

from tools.errors import UsageError
from tools.text import TermStatistics

VERSION = "offline/2"  # goes into run configs: raise it with every change that changes an answer


# Output field -> what to write into it, from the inputs of the call and what the corpus knows about its words.
Rules = Mapping[str, Callable[[Mapping[str, Any], TermStatistics], Any]]


class Call(NamedTuple):
    """A predictor's call as DSPy's adapter sees it."""

    adapter: Any
    signature: Any
    inputs: Mapping[str, Any]


_CALL: ContextVar[Call | str | None] = ContextVar("call", default=None)
_RULES: ContextVar[Rules] = ContextVar("rules", default={})  # noqa: B039  # nobody writes into it


@contextmanager
def publish(call: Call | str) -> Iterator[None]:
    """Let the engine see the structured call that is being made inside; or its answer, written in another process."""
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)


@contextmanager
def follow(rules: Rules) -> Iterator[None]:
    """Calls that are made inside are answered by `rules`, a program's own."""
    token = _RULES.set(rules)
    try:
        yield
    finally:
        _RULES.reset(token)


class OfflineEngine:
    """What `dspy.LM(engine=...)` asks for: `complete`, `stream` and `close`. Stateless; threads share it.

    Calls are answered by the rules of the program that makes them, and outside of any program by `rules`.
    """

    def __init__(self, statistics: Callable[[], TermStatistics], rules: Rules | None = None) -> None:
        self._rules: Rules = rules or {}
        # Asked for at the first call, because a program without any needs no index; once, whoever calls first.
        self._ask = cache(statistics)
        self._asking = threading.Lock()

    def statistics(self) -> TermStatistics:
        """Of the corpus."""
        with self._asking:
            return self._ask()

    def fill(self) -> dict[str, Any]:
        """The output fields of the call that is being made, each filled by its rule."""
        call = _CALL.get()
        if not isinstance(call, Call):
            raise UsageError("offline is no language model and answers no free prompt; name a model with --lm")
        rules = _RULES.get() or self._rules
        if unknown := [name for name in call.signature.output_fields if name not in rules]:
            raise UsageError(f"offline has no rule for the field {unknown[0]!r}; name a model with --lm, or write one")
        statistics = self.statistics()
        return {name: rules[name](call.inputs, statistics) for name in call.signature.output_fields}

    def write(self) -> str:
        """The answer to the call that is being made, as DSPy's adapter writes it."""
        call = _CALL.get()
        if isinstance(call, str):
            return call
        outputs = self.fill()
        return str(call.adapter.format_assistant_message_content(call.signature, outputs)) if call else ""

    def complete(self, request: Request) -> Response:
        """`written`, as DSPy takes it."""
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant(self.write()),
            finish_reason="stop",
            usage=Usage(input_tokens=0, output_tokens=0),  # no model, no tokens
        )

    def stream(self, request: Request) -> Iterator[Any]:
        """The whole answer as one event; nothing here takes long enough to stream."""
        yield from response_to_events(self.complete(request))

    def close(self) -> None:
        """Nothing is held open."""

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers copy the language model with the program; the statistics are the corpus'.
        return self
