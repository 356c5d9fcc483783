"""The state of a run in its folder, for whoever looks at it meanwhile: `status.json` and
`sittings.jsonl`.

`status.json` is written once a second while the run goes, and removed when the sitting ends. A
process that is killed leaves it behind, so a status that is older than `STALE_SECONDS` is of a run
that broke off. `sittings.jsonl` has a line for each sitting that ended.
"""

import json
import os
import shlex
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from sextant.evals.run_folder import Outcome, RunFolder
from sextant.evals.run_sittings import OUT_OF_BUDGET, SITTINGS, STATUS, read_sittings, read_status
from sextant.evals.running.events import RunMonitor
from sextant.evals.scoring.score_run import query_weights, summarise_columns
from sextant.tools.errors import BudgetReached, ProviderRefused
from sextant.tools.platform import files
from sextant.tools.platform.cli_options import to_command_line
from sextant.tools.records import JsonMapping, JsonObject, requests_json

if TYPE_CHECKING:
    from sextant.evals.running.resolve import PreparedRun

WRITE_SECONDS = 1.0  # between two writes of the status
STALE_SECONDS = 15.0  # without a write, after which a run is taken for killed
LISTED = 50  # queries in flight that are named
MEASURE_SHARE = 0.02  # of the time that the interval of the running mean may take

# Keys of the status that a sitting keeps.
_KEPT = (
    "seconds",
    "command",
    "queries",
    "done",
    "failed",
    "pending",
    "metric",
    "mean",
    "low",
    "high",
    "usage",
)

RUNNING = "running"
WAITING = "waiting"
FINISHED = "finished"
REFUSED = "refused"
INTERRUPTED = "interrupted"
BROKE_OFF = "broke off"


class RunState(NamedTuple):
    """The state of a run.

    `name` is one of the words above, `reason` says why, "" if nothing is to be said. `since` is in
    seconds since 1970, of the last write. `status` has the keys of `status.json`, or of the last
    line of `sittings.jsonl`.
    """

    name: str
    reason: str
    since: float
    status: JsonMapping

    @property
    def is_live(self) -> bool:
        """Whether a process works on it."""
        return self.name in (RUNNING, WAITING)


class RunStatus:
    """Writes the status of a run while the block runs, and its sitting at the end.

    `fault` is the reason why queries were left pending, for a block that ends without an error.
    The mean in it is of the headline metric over the answered queries, with its 95 % interval.
    """

    def __init__(self, ready: "PreparedRun", folder: RunFolder, watch: RunMonitor) -> None:
        """`watch` counts the queries; it is told of them from here."""
        self.fault: str | None = None
        self._folder = folder
        words = files.hide_folders(to_command_line(ready.resolved.request))
        self._command = f"sextant run {shlex.join(words)}"
        self._watch = watch
        self._started = time.time()
        self._in_flight = dict[str, float]()  # query_id -> when it began
        self._environment = ready.environment
        self._value = ready.value
        self._mean = JsonObject()
        self._measure_next = 0.0  # when the interval is due, by the monotonic clock
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="status", daemon=True)

    def begin(self, query_id: str) -> None:
        """Note that a query is worked on."""
        with self._lock:
            self._in_flight[query_id] = time.time()

    def add(self, outcome: Outcome) -> None:
        """Count an answered query."""
        with self._lock:
            self._in_flight.pop(outcome["query_id"], None)
        self._watch.add(outcome, self._value(outcome))

    def leave(self, query_id: str, reason: str) -> None:
        """Count a query that was begun and stays pending."""
        with self._lock:
            self._in_flight.pop(query_id, None)
        self._watch.leave(query_id, reason)

    def status(self) -> JsonObject:
        """Return the contents of `status.json` at this moment."""
        progress = self._watch.progress()
        calls = progress.status
        now = time.time()
        with self._lock:
            oldest_first = sorted(self._in_flight.items(), key=lambda item: item[1])
            mean = dict(self._mean)
        in_flight = [
            {"query_id": query_id, "seconds": round(now - begun, 1)}
            for query_id, begun in oldest_first[:LISTED]
        ]
        waits = bool(calls.waiting and calls.reason)
        return {
            "state": WAITING if waits else RUNNING,
            "reason": calls.reason if waits else "",
            "time": round(now, 3),
            "started": round(self._started, 3),
            "seconds": round(progress.elapsed, 1),
            "left": progress.left and round(progress.left, 1),
            "command": self._command,
            "queries": progress.queries,
            "done": progress.done,
            "failed": progress.failed,
            "pending": progress.owed,
            "metric": progress.metric,
            **mean,
            "in_flight": in_flight,
            "calls_in_flight": calls.in_flight,
            "calls_limit": calls.limit,
            "calls_waiting": calls.waiting,
            "usage": requests_json(calls.usage),
            "pid": os.getpid(),
        }

    def _measure(self, *, last: bool = False) -> None:
        """Compute the running mean again, if that is due or this is the `last` time."""
        started = time.monotonic()
        if started < self._measure_next and not last:
            return
        metric = self._environment.metric
        columns = {metric: dict(self._watch.values)}
        weights = {metric: query_weights(metric, self._environment)}
        mean = summarise_columns(columns, weights, resampled=False)[metric]
        with self._lock:
            self._mean = {key: mean[key] for key in ("mean", "low", "high")}
        self._measure_next = started + (time.monotonic() - started) / MEASURE_SHARE

    def _write(self) -> None:
        # The run goes on where it cannot be watched, as on a full disk.
        with suppress(OSError):
            files.replace(self._folder.path / STATUS, json.dumps(self.status()) + "\n")

    def _follow(self) -> None:
        while not self._leaving.wait(WRITE_SECONDS):
            self._measure()
            self._write()

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        self._leaving.set()
        self._thread.join(1.0)
        if not isinstance(error, KeyboardInterrupt):
            self._measure(last=True)
        status = self.status()
        name, reason = _describe_end(
            error, self.fault, finished=status["done"] >= status["queries"]
        )
        line = {
            "state": name,
            "reason": reason,
            "started": _in_utc(self._started),
            "ended": _in_utc(time.time()),
            **{key: status[key] for key in _KEPT if key in status},
        }
        with suppress(OSError):
            if status["done"] > self._watch.earlier or name != FINISHED:
                files.append_line(self._folder.path / SITTINGS, json.dumps(line).encode())
            (self._folder.path / STATUS).unlink(missing_ok=True)


def _describe_end(
    error: BaseException | None, fault: str | None, *, finished: bool
) -> tuple[str, str]:
    """Return the state of a run whose sitting ends, and the reason."""
    if finished:
        return FINISHED, ""
    reason = " ".join(str(error or fault or "").split())
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, ""
    if isinstance(error, ProviderRefused):
        return REFUSED, reason
    if isinstance(error, BudgetReached):
        return OUT_OF_BUDGET, reason
    return BROKE_OFF, reason


def _in_utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def read_state(path: Path, now: float | None = None) -> RunState | None:
    """Return the state of the run in `path`, or None for a run of an earlier version.

    `now` is in seconds since 1970.
    """
    now = time.time() if now is None else now
    status = read_status(path)
    if status is not None and isinstance(status.get("time"), int | float):
        since = float(status["time"])
        name = str(status.get("state"))
        if now - since <= STALE_SECONDS:
            return RunState(name, str(status.get("reason", "")), since, status)
        return RunState(BROKE_OFF, "its process ended without saying why", since, status)
    sittings = read_sittings(path)
    if not sittings:
        return None
    last = sittings[-1]
    since = 0.0
    with suppress(ValueError, KeyError, TypeError):
        since = datetime.fromisoformat(last["ended"]).timestamp()
    return RunState(str(last.get("state")), str(last.get("reason", "")), since, last)
