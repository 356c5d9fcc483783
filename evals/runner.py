"""Ask one system every query that is owed, and record what it hands in. Scores nothing, prints nothing.

Two kinds of failure are kept apart. A fault of the system is an outcome: recorded, never repeated, scored 0,
because dropping it would let a system gain by crashing on hard queries. A fault of the provider says nothing about
the system: nothing is recorded and the query stays owed.
"""

import contextvars
import json
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evals.folder import Outcome, RunFolder
from programs.lm import Model, fault, refusal
from tools import session
from tools.errors import DataError, SextantError
from tools.records import Query, Submission, Trace, Usage, trace_json, usage_json
from tools.session import Session

# Provider faults in a row after which a run gives up until it is resumed. Each of them stands for a call that was tried
# again as often as programs.lm.WAITS says, so this many mean an outage and not bad luck.
OUTAGE = 5


class System(Protocol):
    """What is run: a program, an agent, or anything else that turns a query into a submission."""

    def __call__(self, *, query: Query) -> Submission:
        """Search for one query, in a session of its own."""
        ...


def run(
    system: System,
    queries: Sequence[Query],
    folder: RunFolder,
    model: Model,
    *,
    workers: int = 1,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> str | None:
    """Answer every query that `folder` owes, `workers` at a time; return the last provider fault, if any.

    Outcomes are written by the calling thread, in the order in which they finish. BudgetReached and
    ProviderRefused end the run after the queries in flight. KeyboardInterrupt does not wait for those:
    what has finished is written, and their threads die with the process.
    """
    model.begin(folder.path, folder.usage)
    todo = deque(query for query in queries if query.query_id not in folder.outcomes)
    done: queue.SimpleQueue[Outcome | Exception | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def work() -> None:
        try:
            while not stopped.is_set() and (query := _next(todo)):
                done.put(contextvars.copy_context().run(attempt, system, query, model))
        finally:  # whatever happens: who waits for this worker must not wait forever
            done.put(None)

    # Daemon threads and no pool: a pool would hold up Ctrl-C until the slowest model call returns.
    for _ in range(workers):
        threading.Thread(target=work, daemon=True).start()
    return _collect(done, workers, folder, model, stopped, on_outcome)


def _next(todo: deque[Query]) -> Query | None:
    try:
        return todo.popleft()
    except IndexError:  # looking first would not do: another worker may take the last one in between
        return None


def _collect(
    done: "queue.SimpleQueue[Outcome | Exception | None]",
    working: int,
    folder: RunFolder,
    model: Model,
    stopped: threading.Event,
    on_outcome: Callable[[Outcome], None],
) -> str | None:
    faults = _Faults(model.name)
    try:
        while working:
            result = done.get()
            if result is None:
                working -= 1
            elif isinstance(result, dict):
                faults.in_a_row = 0
                folder.append(result)
                on_outcome(result)
            elif faults.end_the_run(result):
                stopped.set()
    except KeyboardInterrupt:
        while not done.empty():
            if isinstance(result := done.get(), dict):
                folder.append(result)
        raise
    finally:
        stopped.set()
    if faults.ending:
        raise faults.ending
    return faults.last


@dataclass(slots=True)
class _Faults:
    """What kept queries from being answered, and when that is reason to stop."""

    model: str
    in_a_row: int = 0
    last: str | None = None
    ending: SextantError | None = None

    def end_the_run(self, error: Exception) -> bool:
        if isinstance(error, SextantError):
            self.ending = self.ending or error
        elif fault(error) == "refused":
            self.ending = self.ending or refusal(error, self.model)
        else:
            self.in_a_row += 1
            self.last = str(error).strip().partition("\n")[0]
        return bool(self.ending) or self.in_a_row >= OUTAGE


def attempt(system: System, query: Query, model: Model) -> Outcome | Exception:
    """One query's outcome with `model`, or the exception for which it stays owed."""
    with model.active():
        return answered(system, query)


def answered(system: System, query: Query) -> Outcome | Exception:
    """The same with the model that is active already; in a context of its own, because a session is opened in it."""
    started = time.perf_counter()
    error = fields = None
    try:
        fields = _fields(system(query=query))
    except (Exception, SystemExit) as exception:  # noqa: BLE001  # the system under test may raise anything
        if isinstance(exception, DataError):  # nothing that a system does; every query would meet it
            return exception
        if isinstance(exception, Exception) and fault(exception) != "system":
            return exception
        error = exception
    opened = session.current()  # of this context, so of this query; there is none after a submission
    if opened and opened.fault:
        return opened.fault  # the error followed from an answer that the provider owed
    if error:
        fields = _fields_of_failure(query, opened, error)
    seconds = round(time.perf_counter() - started, 4)
    return {"query_id": query.query_id, **(fields or {}), "seconds": seconds}


def _fields(submission: Submission) -> Outcome:
    """What is recorded of a submission. An exception when it is none, or cannot be scored or written."""
    if not isinstance(submission, Submission):
        raise TypeError(f"the system handed in {type(submission).__name__!r}, not a Submission")
    ranking = list(submission.ranking)
    if len(set(ranking)) < len(ranking):
        raise ValueError("the ranking names a document twice")
    fields: Outcome = {
        "ranking": ranking,
        "answer": submission.answer,
        "trace": trace_json(submission.trace),
        "usage": usage_json(submission.usage),
        "error": None,
    }
    if submission.scores:
        fields["scores"] = [float(score) for score in submission.scores]
    json.dumps(fields)
    return fields


def _fields_of_failure(query: Query, opened: Session | None, error: BaseException) -> Outcome:
    if opened:
        opened.abandon("error")
    return {
        "ranking": [],
        "answer": "",
        "trace": trace_json(opened.trace if opened else Trace(query.query_id)),
        "usage": usage_json(opened.usage if opened else Usage()),
        "error": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
    }
