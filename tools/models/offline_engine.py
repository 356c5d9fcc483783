"""The engine without a model: it answers the calls of programs with rules that count words.

The rules are in offline_rules.py.
"""

import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from dspy.lm15 import Message, Request, Response, Usage, response_to_events

from sextant.tools.errors import UsageError
from sextant.tools.models.answers.checks import Rules, current_call
from sextant.tools.session import SharedOnDeepcopy
from sextant.tools.text import TermStatistics

# A part of run configs. Raise it with every change that changes an answer.
VERSION = "offline/2"


class OfflineEngine(SharedOnDeepcopy):
    """An engine for `dspy.LM(engine=...)` that uses the rules of a program, or else `rules`. Threads share it."""

    def __init__(
        self, statistics: Callable[[], TermStatistics], rules: Rules | None = None
    ) -> None:
        self._rules: Rules = rules or {}
        # Called at the first call of a predictor: a program without predictors needs no index.
        self._make_statistics = cache(statistics)
        self._lock = threading.Lock()

    def statistics(self) -> TermStatistics:
        """Return the statistics of the corpus."""
        with self._lock:
            return self._make_statistics()

    def fill(self) -> dict[str, Any]:
        """Return the output fields of the present call, each written by its rule."""
        context = current_call()
        call = context.predictor_call
        if call is None:
            raise UsageError(
                "offline is no language model and answers no free prompt; name a model with --lm"
            )
        rules = context.rules or self._rules
        fields = list(call.signature.output_fields)
        for name in fields:
            if name not in rules:
                raise UsageError(
                    f"offline has no rule for the field {name!r}; name a model with --lm, or "
                    f"write one"
                )
        statistics = self.statistics()
        return {name: rules[name](call.inputs, statistics) for name in fields}

    def write(self) -> str:
        """Return the answer to the present call, in the form of DSPy's adapter."""
        call = current_call().predictor_call
        if call is None:
            return ""
        return str(call.adapter.format_assistant_message_content(call.signature, self.fill()))

    def complete(self, request: Request) -> Response:
        """Return the answer in DSPy's form, without tokens: there is no model."""
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant(self.write()),
            finish_reason="stop",
            usage=Usage(input_tokens=0, output_tokens=0),
        )

    def stream(self, request: Request) -> Iterator[Any]:
        """Yield the whole answer as a single event."""
        yield from response_to_events(self.complete(request))
