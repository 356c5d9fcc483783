"""What happened in a session: its steps with their times and usage, its parallel lines of work, its snapshots."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

from tools.records import Step, Trace, Usage, trace_from_json, trace_json, usage_from_json, usage_json

_LINE: ContextVar["_Line | None"] = ContextVar("line", default=None)


@dataclass(slots=True)
class _Line:
    """Where one line of work of a session stands. Parallel lines of one query have one each."""

    recorder: "Recorder"
    hop: int
    last: float  # when its last step was done, by the session's clock
    steps: list[Step]  # those of a numbered line are its own until the lines are joined, all others the trace's
    pending: Usage = field(default_factory=Usage)  # of model calls that no step has taken yet


class Recorder:
    """Writes the trace of one session. Threads share it."""

    def __init__(self, query_id: str, clock: Callable[[], float], snapshot: Mapping[str, Any]) -> None:
        """Goes on from the `snapshot` of an earlier recorder of the same query; an empty one starts afresh."""
        self.trace = trace_from_json(query_id, snapshot["trace"]) if snapshot else Trace(query_id)
        self.usage = usage_from_json(snapshot["usage"]) if snapshot else Usage()  # of all model calls so far
        self.lock = RLock()  # LangGraph runs parallel nodes of one query in threads
        self._clock = clock
        now = clock()
        self._opened = now - snapshot.get("seconds", 0.0)
        self._root = _Line(self, 0, now, self.trace.steps, usage_from_json(snapshot.get("pending", {})))
        self._numbered: dict[int, list[Step]] = {}  # steps of numbered lines that are not in the trace yet

    @property
    def line(self) -> _Line:
        """The line of work of this context."""
        line = _LINE.get()
        return line if line and line.recorder is self else self._root

    @contextmanager
    def branch(self, hop: int | None, number: int | None) -> Iterator[None]:
        """Start a line of work for the calling context. What it leaves pending goes to the line it branched off."""
        parent = self.line
        with self.lock:
            steps = parent.steps if number is None else self._numbered.setdefault(number, [])
        mine = _Line(self, parent.hop if hop is None else hop, self._clock(), steps)
        token = _LINE.set(mine)
        try:
            yield
        finally:
            _LINE.reset(token)
            with self.lock:
                parent.pending += mine.pending
                parent.last = max(parent.last, mine.last)

    def join(self) -> None:
        """Move the steps of all numbered lines into the trace, line by line."""
        with self.lock:
            for number in sorted(self._numbered):
                steps = self._numbered.pop(number)
                self.trace.steps += steps
                self.trace.notes += [step.argument for step in steps if step.tool == "note"]

    def charge(self, usage: Usage) -> None:
        """Book a model call; the next step of the same line of work carries it."""
        with self.lock:
            self.line.pending += usage
            self.usage += usage

    def add(self, step: Step) -> None:
        """Record `step` with its hop, times and usage."""
        with self.lock:
            now, line = self._clock(), self.line
            started, seconds = line.last - self._opened, now - line.last
            line.steps.append(replace(step, hop=line.hop, started=started, seconds=seconds, usage=line.pending))
            if step.tool == "note" and line.steps is self.trace.steps:
                self.trace.notes.append(step.argument)
            line.pending, line.last = Usage(), now

    def unshow(self) -> None:
        """Set `shown` to 0 on the steps recorded for a model call that a limit then refused.

        Those documents count as not shown. They are on the steps since the last call that reached a model.
        """
        with self.lock:
            line = self.line
            place, called = len(line.steps), line.pending.calls > 0
            while place and not called:
                place -= 1
                step = line.steps[place]
                called = step.usage.calls > 0  # the call was made before this step
                if step.shown:
                    line.steps[place] = replace(step, shown=(0,) * len(step.shown))

    def snapshot(self) -> dict[str, Any]:
        """Everything that another recorder needs to go on from here, as plain data."""
        with self.lock:
            return {
                "trace": trace_json(self.trace),
                "usage": usage_json(self.usage),
                "pending": usage_json(self._root.pending),
                "seconds": self._clock() - self._opened,
            }
