"""The record of a session: its steps with their times and usage, its parallel lines of
work, its snapshots.

The records in it are in records.py; reading a finished trace, as for attribution, is in evals.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

from sextant.tools.records import (
    NO_USAGE,
    JsonMapping,
    JsonObject,
    Step,
    Tool,
    Trace,
    Usage,
    check_usage,
    trace_json,
    usage_from_json,
    usage_json,
)

_LINE: ContextVar["_Branch | None"] = ContextVar("line", default=None)


@dataclass(slots=True)
class _Branch:
    """The state of a line of work in a session. Each parallel line of a query has its own."""

    recorder: "TraceRecorder"
    hop: int
    last: float  # when its last step was done, by the session's clock
    steps: list[
        Step
    ]  # those of a numbered line are its own until the lines are joined, all others the trace's
    pending: Usage = field(default_factory=Usage)  # of model calls that no step has taken yet
    calls: list[str] = field(default_factory=list)  # their keys


class TraceRecorder:
    """Writes the trace of a query. Threads share it."""

    def __init__(self, query_id: str, clock: Callable[[], float], snapshot: JsonMapping) -> None:
        """Continue from the `snapshot` of an earlier trace of the same query; an empty snapshot
        starts a new trace.
        """
        self.query_id = query_id
        self.trace = Trace(query_id)
        if snapshot:
            from sextant.tools import (
                schemas,  # Pydantic is behind it, and --help of commands reads this file
            )

            self.trace = schemas.build_dataclass(Trace, {"query_id": query_id, **snapshot["trace"]})
        self.usage = (
            usage_from_json(snapshot["usage"]) if snapshot else Usage()
        )  # of all model calls so far
        self._lock = RLock()  # LangGraph runs parallel nodes of one query in threads
        self._clock = clock
        opened_at = clock()
        self._opened = opened_at - snapshot.get("seconds", 0.0)
        pending = usage_from_json(snapshot.get("pending", {}))
        self._root = _Branch(
            self, snapshot.get("hop", 0), opened_at, self.trace.steps, pending, self.trace.calls
        )
        # Steps of numbered lines that are not in the trace yet, and the calls that none of these
        # has taken.
        self._numbered: dict[int, tuple[list[Step], list[str]]] = {}

    @property
    def _line(self) -> _Branch:
        line = _LINE.get()
        return line if line and line.recorder is self else self._root

    @property
    def hop(self) -> int:
        """The hop that is being made, from 1; set by the program, and written into every step."""
        return self._line.hop

    @hop.setter
    def hop(self, hop: int) -> None:
        self._line.hop = hop

    @contextmanager
    def branch(self, hop: int | None = None, *, line: int | None = None) -> Iterator[None]:
        """Start a line of work in this context, such as a node of a graph: its own hop, start times
        and pending usage.

        Usage that no step took goes to the line that it branched off. Steps of a numbered `line`
        reach the trace when the lines are joined, so that their order does not depend on the
        threads.
        """
        parent = self._line
        with self._lock:
            steps, left = (
                (parent.steps, parent.calls)
                if line is None
                else self._numbered.setdefault(line, ([], []))
            )
        mine = _Branch(self, parent.hop if hop is None else hop, self._clock(), steps)
        token = _LINE.set(mine)
        try:
            yield
        finally:
            _LINE.reset(token)
            with self._lock:
                parent.pending += mine.pending
                left += mine.calls
                parent.last = max(parent.last, mine.last)

    def join(self) -> None:
        """Put the steps of all numbered lines into the trace, line by line, once all of them
        have ended.
        """
        with self._lock:
            for number in sorted(self._numbered):
                steps, left = self._numbered.pop(number)
                self.trace.steps += steps
                self._line.calls += left
                self.trace.notes += [step.argument for step in steps if step.tool == "note"]

    def charge(self, usage: Usage, key: str = "") -> None:
        """Book a model call on this query; the next step of the same line of work carries it, and
        the `key` it has.

        ValueError, and nothing is booked, if the usage has a number below 0.
        """
        check_usage(usage)
        with self._lock:
            self._line.pending += usage
            self._line.calls += [key] if key else []
            self.usage += usage

    def snapshot(self) -> JsonObject:
        """Return all that is needed to go on from here in another process, as plain data."""
        with self._lock:
            usage_totals = {
                "usage": usage_json(self.usage),
                "pending": usage_json(self._root.pending),
            }
            seconds = self._clock() - self._opened
            return {
                "trace": trace_json(self.trace),
                **usage_totals,
                "seconds": seconds,
                "hop": self._root.hop,
            }

    def _add(
        self, tool: Tool, argument: str = "", doc_ids: tuple[str, ...] = (), **details: Any
    ) -> None:
        time_now = self._clock()
        line = self._line
        started = line.last - self._opened
        seconds = time_now - line.last
        usage = line.pending
        calls = tuple(line.calls)
        hop = details.pop("hop", 0) or line.hop
        line.steps.append(
            Step(
                tool,
                argument,
                doc_ids,
                hop=hop,
                started=started,
                seconds=seconds,
                usage=usage,
                calls=calls,
                **details,
            )
        )
        if tool == "note" and line.steps is self.trace.steps:
            self.trace.notes.append(argument)
        line.pending = NO_USAGE
        line.last = time_now
        line.calls.clear()

    def _unshow(self) -> None:
        """Set `shown` to 0 on the steps since the last call that reached a model: a limit has
        refused their call.
        """
        line = self._line
        index = len(line.steps)
        called = line.pending.calls > 0
        while index and not called:
            index -= 1
            step = line.steps[index]
            called = step.usage.calls > 0  # the call was made before this step
            if step.shown:
                line.steps[index] = replace(step, shown=(0,) * len(step.shown))
