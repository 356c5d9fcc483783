"""What the graphs of the agents have in common: parallel lines in a fixed order, and an end when the steps run out.

Nodes that LangGraph runs side by side work in threads. Whichever is first, the outcome is to be the same: results are
sorted by what they are, and what the lines leave behind (steps of the trace, DSPy's own trace of calls, from which
teleprompters take demonstrations) is put together in the order of the lines.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dspy
from langgraph.errors import GraphRecursionError

from tools.session import Session


class Lines:
    """The lines of work of one query. A node that `Send` started works inside `line`; the next node calls `join`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls: dict[int, list[Any]] = {}

    @contextmanager
    def line(self, number: int, hop: int) -> Iterator[None]:
        """Work as line `number` of those that run side by side now."""
        calls: list[Any] | None = None
        if dspy.settings.trace is not None:
            calls = self._calls[number] = []
        with self._session.branch(hop, line=number), dspy.context(trace=calls):
            yield

    def join(self) -> None:
        """Put together what the lines left behind, in the order of their numbers."""
        self._session.join()
        for number in sorted(self._calls):
            dspy.settings.trace.extend(self._calls[number])
        self._calls.clear()


def walk(graph: Any, given: Any, last: dict[str, Any], config: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The state when `graph` has ended, and whether it did so because config's recursion_limit was reached.

    `given` is the first state, or None to go on from a checkpoint; `last` is what holds before the first step.
    """
    # An exit in the middle of a step loses nothing that is on disk: "sync" writes before the next step begins.
    durability = {"durability": "sync"} if "configurable" in config else {}
    try:
        for values in graph.stream(given, dict(config), stream_mode="values", **durability):
            last = values
    except GraphRecursionError:
        return last, True
    return last, False
