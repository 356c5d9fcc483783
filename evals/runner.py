"""Ask one system every query that is owed, and record what it hands in. Scores nothing, prints nothing.

Two kinds of failure are kept apart. A fault of the system is an outcome: recorded, never repeated, scored 0,
because dropping it would let a system gain by crashing on hard queries. A fault of the provider says nothing about
the system: nothing is recorded and the query stays owed.
"""

import contextvars
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from evals.folder import Outcome, RunFolder
from programs.lm import Model, fault, refusal
from tools import session
from tools.errors import BudgetReached, ProviderRefused, RunIncomplete, SextantError
from tools.records import Query, Submission, Trace, Usage, trace_json, usage_json

# Provider faults in a row after which a run gives up until it is resumed. Each of them stands for a call that failed
# programs.lm.RETRIES times more, so this many mean an outage and not bad luck.
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
    last_fault: str | None = None
    ending: Exception | None = None
    in_a_row = 0
    try:
        while working:
            result = done.get()
            if result is None:
                working -= 1
            elif isinstance(result, dict):
                in_a_row = 0
                folder.append(result)
                on_outcome(result)
            elif isinstance(result, SextantError):
                ending = ending or result
                stopped.set()
            elif fault(result) == "refused":
                ending = ending or refusal(result, model.name)
                stopped.set()
            else:
                in_a_row += 1
                last_fault = str(result).strip().partition("\n")[0]
                if in_a_row >= OUTAGE:
                    stopped.set()
    except KeyboardInterrupt:
        stopped.set()
        while not done.empty():
            if isinstance(result := done.get(), dict):
                folder.append(result)
        raise
    finally:
        stopped.set()
    if ending:
        raise ending
    return last_fault


def attempt(system: System, query: Query, model: Model) -> Outcome | Exception:
    """One query's outcome, or the exception for which it stays owed."""
    started = time.perf_counter()
    outcome: Outcome = {"query_id": query.query_id, "ranking": [], "answer": ""}
    error = trace = None
    try:
        with model.active():
            submission = system(query=query)
        outcome |= {"ranking": list(submission.ranking), "answer": submission.answer}
        trace = submission.trace
    except (BudgetReached, ProviderRefused, RunIncomplete) as exception:
        return exception
    except (Exception, SystemExit) as exception:  # noqa: BLE001  # the system under test may raise anything
        if isinstance(exception, Exception) and fault(exception) != "system":
            return exception
        error = f"{type(exception).__name__}: {exception}"
        outcome["traceback"] = traceback.format_exc()
    opened = session.current()  # of this context, so of this query
    if error and opened:
        opened.abandon("error")
        trace = opened.trace
    return outcome | {
        "trace": trace_json(trace or Trace(query.query_id)),
        "usage": usage_json(opened.usage if opened else Usage()),
        "error": error,
        "seconds": round(time.perf_counter() - started, 4),
    }
