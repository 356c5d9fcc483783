"""The events of a run, which `RunMonitor` makes of it while it goes, and `EventWriter`, which writes them for
other programs.

`sextant run ... --json-events` writes a JSON object per line on stdout, each as it happens:

    {"event": NAME, "time": ISO 8601 in UTC, ...}

The names and their keys are the classes in EVENTS; docs/guide/see-and-export.md shows a run's. Add
keys and events, don't rename them. None means not known, in a price as well; it never means 0. Left
out: single model calls, which the ledger of answers has, and the steps of a query, which its trace
has.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import TYPE_CHECKING, Self, get_args

from sextant.evals.run_folder import Outcome, RunFolder
from sextant.tools.errors import INTERRUPTED, DataError
from sextant.tools.models.run_resources import CallStats
from sextant.tools.platform.cli import print_stderr, print_stdout
from sextant.tools.records import JsonMapping, Usage, usage_from_json

if TYPE_CHECKING:
    from sextant.evals.running.resolve import PreparedRun

SHORT_WAIT = 1.0  # seconds that a wait has lasted, or is known to last, before it is told
BACKLOG = 1000  # events that a slow reader may be behind before it gets no more progress
LOOK_SECONDS = 0.25  # between two looks at the run
PROGRESS_SECONDS = 1.0  # between two events of progress
_BUDGETS = {
    "usd": "budget_usd",
    "tokens": "budget_tokens",
    "calls": "budget_calls",
    "seconds": "time_limit",
}


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins, or goes on if an earlier sitting ended. Nothing was sent yet."""

    run: str  # the folder
    task: str
    split: str
    program: str
    retriever: str
    lm: str
    queries: int  # asked for, those answered before included
    done: int  # answered before
    budget: Mapping[
        str, float | None
    ]  # the limits of the run: usd, tokens, calls, seconds; None is no limit


@dataclass(frozen=True, slots=True)
class QueryFinished:
    """A query is answered, and safe on disk. With an error it was the system's fault, and scores 0."""

    query_id: str
    error: str | None
    seconds: float
    usage: JsonMapping  # as in outcomes.jsonl
    metric: str
    value: float | None  # of the headline metric; None where it is undefined for this query


@dataclass(frozen=True, slots=True)
class QueryPending:
    """A query was begun and has no outcome: the provider failed it, or a budget ended."""

    query_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class WaitStarted:
    """Calls have begun to wait for more than a second, or wait for another reason than before."""

    reason: str
    seconds: float | None  # until they go on, as far as that is known
    calls: int  # that wait


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """Calls are sent again."""

    seconds: float  # that they waited


@dataclass(frozen=True, slots=True)
class CostReport:
    """An amount in both ledgers: paid now, and at list price. None if it is not known."""

    paid_usd: float | None
    list_usd: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the run is: at most once a second, and once at its end."""

    queries: int
    done: int  # answered, by earlier sittings too; those with an error are among them
    failed: int  # those with an error
    owed: int  # begun in this sitting and left without an outcome
    metric: str
    mean: float | None  # of the metric over what is done, which need not be like the rest
    elapsed: float  # seconds of this sitting
    left: float | None  # seconds for the other queries, if they take as long
    # Mean of the queries finished in this sitting, times those not done, some of them under way
    to_come: CostReport
    status: CallStats  # of the calls, and what the run has used so far


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The command is about to end with this exit code. Always the last event, even if nothing was started."""

    code: int
    error: str | None  # what stderr says, where it ends with an error
    result: JsonMapping | None  # what --json prints; None where there is nothing to print


Event = Started | QueryFinished | QueryPending | WaitStarted | WaitEnded | Progress | RunEnded

_WORDS = (
    "started",
    "query",
    "owed",
    "waiting",
    "resumed",
    "progress",
    "ended",
)  # in the order of Event
EVENTS: dict[str, type[Event]] = dict(zip(_WORDS, get_args(Event), strict=True))
_NAMES = {event_type: name for name, event_type in EVENTS.items()}
Tell = Callable[..., None]  # tell(event), and tell(progress, last=True) at the end


def line(event: Event, at: float) -> str:
    """Write an event in a line of ASCII; `at` is in seconds since 1970."""
    when = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    values = asdict(event)
    if isinstance(event, Progress):
        del values["status"]["usage"]["repairs"]  # as in `requests_json`
    return json.dumps({"event": _NAMES[type(event)], "time": when, **values}) + "\n"


class EventWriter:
    """Writes events in a thread of its own, so that a slow reader holds nothing up; `RunEnded` by itself.

        with Events(put_out) as events:
            events.tell(Started(...))
            events.result, events.code = result, 0

    A reader that goes away ends nothing. The end waits until all is written, except after Ctrl-C.
    """

    def __init__(self, write: Callable[[str], None] = print_stdout) -> None:
        self.code = 0
        self.result: JsonMapping | None = None
        self._write: Callable[[str], None] | None = write
        self._queue: SimpleQueue[tuple[float, Event] | None] = SimpleQueue()
        self._order = threading.Lock()  # so that times rise
        self._progress = 0.0  # seconds of the sitting at the last progress
        self._writer = threading.Thread(target=self._work, name="events", daemon=True)

    def tell(self, event: Event, *, last: bool = False) -> None:
        """Write an event that happens now, from any thread; progress at most once a second,
        but the `last`.
        """
        if isinstance(event, Progress):
            early = event.elapsed - self._progress < PROGRESS_SECONDS and not last
            if early or self._queue.qsize() > BACKLOG:
                return
            self._progress = event.elapsed
        with self._order:
            self._queue.put((time.time(), event))

    def report(self, ready: "PreparedRun", folder: RunFolder) -> "RunMonitor":
        """Return the watch of a run that is about to ask its queries, for other programs."""
        request = ready.resolved.request
        environment = ready.environment
        self.tell(
            Started(
                run=str(folder.shown),
                task=environment.task,
                split=environment.split,
                program=request.program_label,
                retriever=str(ready.resolved.retriever),
                lm=ready.model.name,
                queries=len(environment.queries),
                done=len(folder.outcomes),
                budget={name: getattr(request, option) for name, option in _BUDGETS.items()},
            )
        )
        return RunMonitor(ready, folder, self.tell)

    def _work(self) -> None:
        while entry := self._queue.get():
            at, event = entry
            try:
                if self._write:
                    self._write(line(event, at))
            except (DataError, OSError) as error:  # a full disk
                self._write = None
                print_stderr(f"{error}: no more events, but the run goes on")

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(
        self,
        error_type: object,
        error: BaseException | None,
        traceback: object,
    ) -> None:
        code = self.code
        words = None
        interrupted = isinstance(error, KeyboardInterrupt)
        if error:  # as sextant.tools.platform.cli says it
            exit_code = (
                INTERRUPTED
                if interrupted
                else DataError.exit_code
                if isinstance(error, OSError)
                else 1
            )
            code = getattr(error, "exit_code", exit_code)
            words = "interrupted" if interrupted else " ".join(str(error).split())
        self.tell(RunEnded(code, words, self.result))
        self._queue.put(None)
        self._writer.join(1.0 if interrupted else None)


class WaitDetector:
    """Notices when calls begin to wait for a reason, other than their turn, and when they go on."""

    def __init__(self) -> None:
        self._since: float | None = None  # when they were first seen waiting
        self._reason = ""  # that was told last

    def look(self, calls: CallStats, clock: float) -> WaitStarted | WaitEnded | None:
        """Return the change since the last look; `now` in seconds by a monotonic clock."""
        if not (calls.waiting and calls.reason):
            resumed = (
                WaitEnded(round(clock - self._since, 3))
                if self._reason and self._since is not None
                else None
            )
            self._since = None
            self._reason = ""
            return resumed
        self._since = clock if self._since is None else self._since
        long = self._reason or calls.seconds > SHORT_WAIT or clock - self._since > SHORT_WAIT
        if not long or calls.reason == self._reason:
            return None
        self._reason = calls.reason
        return WaitStarted(calls.reason, round(calls.seconds, 3) or None, calls.waiting)


class RunMonitor:
    """Counts the queries of a run while the block runs; a thread tells changes and progress four times a second."""

    def __init__(
        self,
        ready: "PreparedRun",
        folder: RunFolder,
        tell: Tell = lambda event, last=False: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The run of `folder` is about to ask its queries."""
        self.queries = len(ready.environment.queries)
        self.earlier = len(folder.outcomes)
        self.values = dict[str, float | None]()  # query_id -> of the headline metric
        self._failed = 0
        for query_id, outcome in folder.outcomes.items():
            self.values[query_id] = ready.value(outcome)
            self._failed += outcome["error"] is not None
        self._metric = ready.environment.metric
        self._tell = tell
        self._status = ready.model.resources.status  # says what the model's calls are doing
        self._clock = clock
        self._finished = 0  # in this sitting
        self._used = Usage()  # by those
        self._pending = set[str]()
        self._waits = WaitDetector()
        self._started = clock()
        self._counting = threading.Lock()
        self._telling = threading.Lock()
        self._ended = False  # nothing is told after the last look
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)

    def add(self, outcome: Outcome, value: float | None) -> None:
        """Count an answered query, with its value of the headline metric, None if undefined."""
        query_id = outcome["query_id"]
        error = outcome["error"]
        usage = outcome["usage"]
        with self._counting:
            self._finished += 1
            self._failed += error is not None
            self._pending.discard(query_id)
            self._used += usage_from_json(usage)
            self.values[query_id] = value
        self._tell(QueryFinished(query_id, error, outcome["seconds"], usage, self._metric, value))

    def leave(self, query_id: str, reason: str) -> None:
        """Count a query that was begun and has no outcome, for this reason; it stays pending."""
        with self._counting:
            self._pending.add(query_id)
        self._tell(QueryPending(query_id, reason))

    def progress(self) -> Progress:
        """Return how far the run is."""
        status = self._status()
        elapsed = self._clock() - self._started
        with self._counting:
            usage = self._used
            values = [value for value in self.values.values() if value is not None]
            finished = self.earlier + self._finished
            remaining = self.queries - finished
            return Progress(
                queries=self.queries,
                done=finished,
                failed=self._failed,
                owed=len(self._pending),
                metric=self._metric,
                mean=sum(values) / len(values) if values else None,
                elapsed=round(elapsed, 3),
                left=self._extrapolate(elapsed, remaining) if self._finished else None,
                to_come=CostReport(
                    self._extrapolate(usage.paid_usd, remaining),
                    self._extrapolate(usage.list_usd, remaining),
                ),
                status=status,
            )

    def _extrapolate(self, amount: float | None, times: int) -> float | None:
        if amount is None or not times:
            return amount and 0.0
        return amount / self._finished * times if self._finished else None

    def look(self, *, last: bool = False) -> None:
        """Look at the run once."""
        progress = self.progress()
        with self._telling:
            if self._ended:
                return
            self._ended = last
            if change := self._waits.look(progress.status, self._clock()):
                self._tell(change)
            self._tell(progress, last=last)

    def _follow(self) -> None:
        self.look()
        while not self._leaving.wait(LOOK_SECONDS):
            self.look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._leaving.set()
        self._thread.join(1.0)
        # Ctrl-S may hold the terminal, and would hold the end of the run as well.
        if not self._telling.locked():
            self.look(last=True)
