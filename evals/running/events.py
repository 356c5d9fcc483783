"""The events of a run, which other programs read while it goes, and how far it is.

`python -m evals.run ... --json-events` writes one JSON object a line on stdout, each as it happens:

    {"event": NAME, "time": ISO 8601 in UTC, ...}

The names and what stands beside them are the classes in EVENTS; docs/decisions/watching.md shows a run's. Add keys and
events, don't rename them. None means not known, in a price as well; it never means 0.

Left out: single model calls, which the ledger of answers has, and the steps of a query, which its trace has.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from tools.console import put_out, say
from tools.errors import INTERRUPTED, DataError, SextantError
from tools.models.terms import Status

# A wait is one when it is known to last longer than this many seconds, or has lasted longer.
SHORT_WAIT = 1.0
# Events that a slow reader may be behind; beyond, it is spared further progress, which is old news by then.
BACKLOG = 1000


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins, or goes on where an earlier sitting ended. Nothing was sent yet."""

    run: str  # the folder
    task: str
    split: str
    program: str
    retriever: str
    lm: str
    queries: int  # asked for, those answered before included
    done: int  # answered before
    budget: Mapping[str, float | None]  # the limits of the run: usd, tokens, calls, seconds; None is no limit


@dataclass(frozen=True, slots=True)
class QueryDone:
    """A query is answered, and safe on disk. With an error it was the system's fault, and scores 0."""

    query_id: str
    error: str | None
    seconds: float
    usage: Mapping[str, Any]  # as in outcomes.jsonl
    metric: str
    value: float | None  # of the headline metric; None where it is undefined for this query


@dataclass(frozen=True, slots=True)
class Pending:
    """A query was begun and has no outcome: the provider failed it, or a budget ended. It is asked again later."""

    query_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Calls have begun to wait for more than a second, or wait for another reason than before."""

    reason: str
    seconds: float | None  # until they go on, as far as that is known
    calls: int  # that wait


@dataclass(frozen=True, slots=True)
class Resumed:
    """Calls are sent again."""

    seconds: float  # that they waited


@dataclass(frozen=True, slots=True)
class Dollars:
    """An amount in both ledgers: what is paid now, and what the work costs at list price. None is not known."""

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
    # Mean dollars of the queries finished in this sitting, times those not done. Of the latter, some are under way,
    # and what they have spent is in the usage already: so this is rather too much than too little.
    to_come: Dollars
    status: Status  # of the calls, and what the run has used so far


@dataclass(frozen=True, slots=True)
class Ended:
    """The command is about to end with this exit code. Always the last event, also where nothing was started."""

    code: int
    error: str | None  # what stderr says, where it ends with an error
    result: Mapping[str, Any] | None  # what --json prints; None where there is nothing to print


Event = Started | QueryDone | Pending | Waiting | Resumed | Progress | Ended

EVENTS: dict[str, type[Event]] = {
    "started": Started,
    "query": QueryDone,
    "owed": Pending,
    "waiting": Waiting,
    "resumed": Resumed,
    "progress": Progress,
    "ended": Ended,
}
_NAMES = {kind: name for name, kind in EVENTS.items()}


class Watcher(Protocol):
    """What follows a run while its queries are answered."""

    def add(self, outcome: dict[str, Any], value: float | None) -> None:
        """One more query is answered, with this value of the headline metric."""

    def leave(self, query_id: str, reason: str) -> None:
        """One more query was begun and is left pending, for this reason."""


class Beginning(NamedTuple):
    """A run that is about to ask its queries."""

    started: Started
    earlier: list[float | None]  # values of the headline metric of queries answered before
    failed: int  # of those
    metric: str  # the headline metric
    status: Callable[[], Status]  # what the model's calls are doing


Report = Callable[[Beginning], AbstractContextManager[Watcher]]


def line(event: Event, at: float) -> str:
    """Return an event as it is written: in one line, ASCII alone. `at` is in seconds since 1970."""
    when = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return _ENCODE({"event": _NAMES[type(event)], "time": when, **_fields(event)}) + "\n"


def _fields(record: Any) -> dict[str, Any]:
    """A record's fields, those of records in it included. dataclasses.asdict copies, and takes nine times as long."""
    row = {name: getattr(record, name) for name in record.__slots__}
    for name in _RECORDS.get(type(record), ()):
        row[name] = _fields(row[name])
    return row


_RECORDS: dict[type, tuple[str, ...]] = {Progress: ("to_come", "status"), Status: ("usage",)}
_ENCODE = json.JSONEncoder().encode


class Events:
    """Writes events in a thread of its own, so that a slow reader holds nothing up. The last one it tells itself.

        with Events(put_out) as events:
            events.tell(Started(...))
            events.result, events.code = result, 0

    A reader that goes away ends nothing. At the end the rest is written, however long the reader takes for it, except
    after Ctrl-C. Without `write` nobody listens, and telling costs nothing.
    """

    def __init__(self, write: Callable[[str], None] | None = put_out) -> None:
        self.code = 0
        self.result: Mapping[str, Any] | None = None
        self._write = write
        self._told: SimpleQueue[tuple[float, Event] | None] = SimpleQueue()
        self._order = threading.Lock()  # so that times rise
        self._writer = threading.Thread(target=self._work, name="events", daemon=True)

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return self._write is not None

    def tell(self, event: Event) -> None:
        """Tell of an event that happens now; from any thread."""
        if self._write is None or (isinstance(event, Progress) and self._told.qsize() > BACKLOG):
            return
        with self._order:
            self._told.put((time.time(), event))

    def _work(self) -> None:
        while told := self._told.get():
            at, event = told
            try:
                if self._write:
                    self._write(line(event, at))
            except (DataError, OSError) as error:  # a full disk
                self._write = None
                say(f"{error}: no more events, but the run goes on")

    def __enter__(self) -> Self:
        if self.heard:
            self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.tell(Ended(self.code if error is None else _exit_code(error), _words(error), self.result))
        if self._writer.is_alive():
            self._told.put(None)
            self._writer.join(1.0 if isinstance(error, KeyboardInterrupt) else None)


def _exit_code(error: BaseException) -> int:
    """Return the exit code that tools.console gives an error."""
    if isinstance(error, SextantError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return DataError.exit_code if isinstance(error, OSError) else 1


def _words(error: BaseException | None) -> str | None:
    if error is None:
        return None
    return "interrupted" if isinstance(error, KeyboardInterrupt) else " ".join(str(error).split())


@dataclass(slots=True)
class Tally:
    """Counts of the queries of a run so far. One thread adds, another reads."""

    queries: int
    earlier: int  # answered before this sitting
    metric: str
    failed: int = 0  # answered with an error, in earlier sittings too
    _sum: float = 0.0
    _values: int = 0
    _finished: int = 0  # in this sitting
    _paid: float | None = 0.0  # by those
    _list: float | None = 0.0
    _pending: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def after(cls, queries: int, earlier: Sequence[float | None], metric: str, failed: int = 0) -> Self:
        """Return the tally of a run some of whose queries have these values of the metric already."""
        known = [value for value in earlier if value is not None]
        return cls(queries, len(earlier), metric, failed, sum(known), len(known))

    @property
    def ended(self) -> int:
        """Queries that are through, one way or the other."""
        with self._lock:
            return self.earlier + self._finished + len(self._pending)

    def add(self, query_id: str, value: float | None, usage: Mapping[str, Any], *, failed: bool) -> None:
        """One more is answered."""
        with self._lock:
            self._finished += 1
            self.failed += failed
            self._pending.discard(query_id)
            self._paid = _sum(self._paid, usage.get("paid_usd"))
            self._list = _sum(self._list, usage.get("list_usd"))
            if value is not None:
                self._sum += value
                self._values += 1

    def leave(self, query_id: str) -> None:
        """One more is left pending."""
        with self._lock:
            self._pending.add(query_id)

    def progress(self, status: Status, elapsed: float) -> Progress:
        """How far it is, `elapsed` seconds after this sitting began."""
        with self._lock:
            done = self.earlier + self._finished
            left = self.queries - done
            return Progress(
                self.queries,
                done,
                self.failed,
                len(self._pending),
                self.metric,
                self._sum / self._values if self._values else None,
                round(elapsed, 3),
                self._each(elapsed, left),
                Dollars(self._each(self._paid, left), self._each(self._list, left)),
                status,
            )

    def _each(self, amount: float | None, times: int) -> float | None:
        """Extrapolate an `amount` for the finished queries to `times` more of them."""
        if amount is None or not times:
            return amount and 0.0
        return amount / self._finished * times if self._finished else None


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


class Waits:
    """Notices, from one look at the calls to the next, when they begin to wait and when they go on.

    Calls that only wait for their turn, with no reason given, do not count: others are under way.
    """

    def __init__(self) -> None:
        self._since: float | None = None  # when they were first seen waiting
        self._reason: str | None = None  # that was told

    @property
    def told(self) -> bool:
        """Whether they wait, by what was told last."""
        return self._reason is not None

    def look(self, calls: Status, now: float) -> Waiting | Resumed | None:
        """Return what has changed, `now` in seconds by any clock that does not jump."""
        if not (calls.waiting and calls.reason):
            waited = Resumed(round(now - self._since, 3)) if self._reason and self._since is not None else None
            self._since = self._reason = None
            return waited
        self._since = now if self._since is None else self._since
        long = self._reason or calls.seconds > SHORT_WAIT or now - self._since > SHORT_WAIT
        if not long or calls.reason == self._reason:
            return None
        self._reason = calls.reason
        return Waiting(calls.reason, round(calls.seconds, 3) or None, calls.waiting)
