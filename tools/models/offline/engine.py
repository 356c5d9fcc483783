"""The engine without a model: fills the signatures of the programs by counting words. No language model is in it.

It is a named baseline, pseudo-relevance feedback (Rocchio 1971; Lavrenko and Croft 2001), in the shape of a model:
it weighs the words of description and notes by how rare they are in the corpus, spends less on words that earlier
searches have used, keeps the passages that share the most weight, and takes their best sentences as notes. It
invents no word, understands none, and gives the same answer to the same input always. What it wins and loses
against the bare retriever is in docs/results.md.

DSPy hands an engine the rendered prompt only; `tools/models/prompting/adapter.py` publishes the structured call beside
it. What is counted for which field is in tools/models/offline/rules.py.
"""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple, Self

from dspy.lm15 import Message, Request, Response, Usage, response_to_events

from tools.errors import UsageError
from tools.models.offline.rules import RULES, Rules
from tools.text import TermStatistics

VERSION = "offline/2"  # goes into run configs: raise it with every change that changes an answer


class Call(NamedTuple):
    """A predictor's call as DSPy's adapter sees it."""

    adapter: Any
    signature: Any
    inputs: Mapping[str, Any]


_CALL: ContextVar[Call | str | None] = ContextVar("call", default=None)


@contextmanager
def published(call: Call | str) -> Iterator[None]:
    """Let the engine see the structured call that is being made inside; or its answer, written in another process."""
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)


class OfflineEngine:
    """What `dspy.LM(engine=...)` asks for: `complete`, `stream` and `close`. Stateless; threads share it.

    `rules` has a function for each output field that it fills.
    """

    def __init__(self, statistics: Callable[[], TermStatistics], rules: Rules = RULES) -> None:
        self._rules = rules
        # Asked for at the first call, because a program without any needs no index; once, whoever calls first.
        self._ask = cache(statistics)
        self._asking = threading.Lock()

    def statistics(self) -> TermStatistics:
        """Of the corpus."""
        with self._asking:
            return self._ask()

    def written(self) -> str:
        """The answer to the call that is being made: its output fields, each filled by its rule."""
        call = _CALL.get()
        if call is None:
            raise UsageError("offline is no language model and answers no free prompt; name a model with --lm")
        if isinstance(call, str):
            return call
        unknown: Sequence[str] = [name for name in call.signature.output_fields if name not in self._rules]
        if unknown:
            raise UsageError(
                f"offline cannot fill the field {unknown[0]!r}; name a model with --lm, or write a rule for it"
            )
        statistics = self.statistics()
        outputs = {name: self._rules[name](call.inputs, statistics) for name in call.signature.output_fields}
        return str(call.adapter.format_assistant_message_content(call.signature, outputs))

    def complete(self, request: Request) -> Response:
        """`written`, as DSPy takes it."""
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant(self.written()),
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


class AsyncOfflineEngine:
    """The same for awaited predictors. Nothing in it waits."""

    def __init__(self, engine: OfflineEngine) -> None:
        self._engine = engine

    async def complete(self, request: Request) -> Response:
        """As `OfflineEngine.complete`."""
        return self._engine.complete(request)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """As `OfflineEngine.stream`."""
        for event in self._engine.stream(request):
            yield event

    async def aclose(self) -> None:
        """Nothing is held open."""

    def __deepcopy__(self, memo: object) -> Self:
        return self
