"""Run a system on every pending query, and record its submission. Scores nothing, prints nothing.

A fault of the system is an outcome: recorded, never repeated, scored 0, because dropping it would
let a system gain by crashing on hard queries. A fault of the provider says nothing about the
system: the query stays pending.
"""

import contextvars
import math
import queue
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from sextant.evals.run_folder import (
    Outcome,
    RunFolder,
    check_new_outcome,
    check_ranking,
    error_template,
    first_error_line,
)
from sextant.evals.scoring.anytime_ranking import submit_anytime
from sextant.tools import session
from sextant.tools.errors import (
    AbortCompilation,
    DataError,
    LimitReached,
    RunIncomplete,
    SextantError,
)
from sextant.tools.models.language_model import ConnectedModel
from sextant.tools.models.provider_errors import QueryTimeout, format_refusal, responsible_party
from sextant.tools.models.secrets import redact
from sextant.tools.platform.files import hide_folders
from sextant.tools.platform.interrupts import check_interrupts, may_interrupt, wait_until
from sextant.tools.platform.number_format import queries
from sextant.tools.plugins import describe_exception, list_causes, release_frames
from sextant.tools.process_changes import while_running, without_langsmith
from sextant.tools.records import (
    Document,
    Query,
    Submission,
    Trace,
    Usage,
    check_usage,
    trace_json,
    usage_json,
)
from sextant.tools.session import Session

# Provider faults in a row, each of them after many attempts, after which a run gives up until it is
# resumed
OUTAGE = 5
# Queries that failed alike, and are most of those that ended, after which a run stops once to say
# so
ALIKE = 5
# Seconds that calls in flight are waited for after a Ctrl-C, and a query after its time is up
GRACE = 3.0
# Seconds between two looks at what the threads do, where none of them has finished anything
TICK = 0.1
# Outcomes that share an fsync, at most, and the seconds for which the first of them waits for more
WRITTEN_TOGETHER = 256
TOGETHER_SECONDS = 0.05
# Of an exception: characters of a text, and parts of a traceback, of which each frame is one.
_LONGEST_TEXT = 10_000
_MOST_PARTS = 500

System = Callable[
    ..., Submission
]  # a program or an agent: system(query=...) searches in a session of its own


class _Result(NamedTuple):
    """The end of a query in a thread."""

    query_id: str
    result: Outcome | Exception


class QueryHooks(NamedTuple):
    """Functions that are called as queries begin and end; an exception of one ends the run."""

    begin: Callable[[str], None] = lambda query_id: None  # called in the thread of the query
    outcome: Callable[[Outcome], None] = lambda outcome: None  # called once it is written
    # With the id of a query that the provider left unanswered, and why.
    pending: Callable[[str, str], None] = lambda query_id, reason: None


NO_HOOKS = QueryHooks()


class RemoteSystem(ABC):
    """Interface of a system that runs in another process."""

    @abstractmethod
    def attempt(self, query: Query) -> "Outcome | Exception":
        """Return as `answer_with_model` does."""


def run_queries(
    system: System | RemoteSystem,
    queries: Sequence[Query],
    documents: Mapping[str, Document],
    folder: RunFolder,
    model: ConnectedModel,
    *,
    workers: int = 1,
    hooks: QueryHooks = NO_HOOKS,
) -> str | None:
    """Answer every query that is pending in `folder`, `workers` at a time; return the last provider
    fault, if any.

    Outcomes are written by the calling thread. BudgetReached and ProviderRefused end the run after
    the queries in flight.
    KeyboardInterrupt stops each query at its next call; answers in flight are waited for, GRACE
    seconds at most, or not at all at the second signal.
    """

    def take(results: Sequence[_Result]) -> None:
        outcomes = [result for _, result in results if isinstance(result, dict)]
        unwritten = None
        try:
            folder.append(*outcomes)
        except RunIncomplete as problem:  # which ends the run, after the queries in flight
            unwritten = problem
        for query_id, result in results:
            if unwritten and isinstance(result, dict) and query_id not in folder.outcomes:
                result = unwritten
            count(query_id, result)
        if faults.ending or faults.in_a_row >= OUTAGE:
            crew.stopped.set()

    def count(query_id: str, result: Outcome | Exception) -> None:
        if isinstance(result, dict):
            hooks.outcome(result)
            faults.add_outcome(result["error"])
        else:
            faults.add_fault(result)
            if (
                getattr(system, "starts_agents", False)
                and (usage := getattr(result, "used", Usage())) != Usage()
            ):
                folder.note_left(query_id, usage)
            hooks.pending(query_id, str(result).strip().partition("\n")[0])

    todo = [query for query in queries if query.query_id not in folder.outcomes]

    def ask(query: Query) -> Outcome | Exception:
        hooks.begin(query.query_id)
        return (
            system.attempt(query)
            if isinstance(system, RemoteSystem)
            else answer_with_model(system, query, documents, model)
        )

    crew = _WorkerThreads(ask, todo, workers, model.resources.query_seconds)
    faults = _FailurePolicy(model, [outcome["error"] for outcome in folder.outcomes.values()])
    hurried = False  # whether nothing is waited for any more
    with while_running():
        try:
            for _ in range(workers):
                crew.hire()
            _collect(crew, take)
        except KeyboardInterrupt:
            crew.stopped.set()
            hurried = True  # unless this is done before a second one
            model.resources.limiter.halt()
            _finish(crew, folder)
            hurried = False
            raise
        except Exception:  # of a hook
            crew.stopped.set()
            _finish(crew, folder)
            raise
        finally:
            crew.stopped.set()
            if not hurried:
                model.resources.settle()
    if faults.ending:
        raise faults.ending
    return faults.last


class _WorkerThreads:
    """The threads that answer queries, and the query of each."""

    def __init__(
        self,
        ask: Callable[[Query], Outcome | Exception],
        todo: list[Query],
        workers: int,
        query_seconds: float,
    ) -> None:
        self.done: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        # For what is done, and not on disk: a slow one must not fill memory
        self.room = threading.Semaphore(workers + WRITTEN_TOGETHER)
        self.stopped = threading.Event()
        self._ask = ask
        self._todo = iter(todo)
        self._query_seconds = query_seconds
        self._at = dict[
            threading.Thread, tuple[str, float]
        ]()  # the query of each, and when it is overdue
        self.working = set[threading.Thread]()
        self._left = threading.Event()  # set once no thread works any more
        self._giving_up = threading.Lock()  # a query ends, or is given up, and not both

    def hire(self) -> None:
        """Start another thread: a daemon, in no pool, which would hold up Ctrl-C until the slowest
        returns.
        """
        thread = threading.Thread(target=self._work, daemon=True)
        self.working.add(thread)
        self._left.clear()
        thread.start()

    def give_up_overdue(self) -> None:
        """Give up queries that hang outside of any call; calls have deadlines of their own."""
        clock = time.monotonic()
        with self._giving_up:
            late = {
                thread: query_id
                for thread, (query_id, due) in list(self._at.items())
                if clock > due
            }
            for thread in late:
                del self._at[thread]
        for thread, query_id in late.items():
            self.working.discard(thread)
            self.hire()
            self.done.put(
                _Result(
                    query_id, TimeoutError(f"the query took longer than {self._query_seconds:g} s")
                )
            )

    def take_ready(self) -> list["_Result"]:
        """Return what is done by TOGETHER_SECONDS after the first, which is waited for TICK at most."""
        ready = []
        with suppress(queue.Empty):
            ready.append(self.done.get(timeout=TICK))
            self._left.wait(TOGETHER_SECONDS)
            while len(ready) < WRITTEN_TOGETHER:
                ready.append(self.done.get_nowait())
        return ready

    def _work(self) -> None:
        me = threading.current_thread()
        try:
            while (
                me in self.working
                and not self.stopped.is_set()
                and (query := next(self._todo, None))
            ):
                self._at[me] = query.query_id, time.monotonic() + self._query_seconds + GRACE
                result = contextvars.copy_context().run(self._ask, query)
                with self._giving_up:
                    in_time = self._at.pop(me, None)
                if in_time:
                    self.done.put(_Result(query.query_id, result))
                while not (self.room.acquire(timeout=TICK) or self.stopped.is_set()):
                    pass
        finally:  # nobody must wait for this thread forever
            self.working.discard(me)
            if not self.working:
                self._left.set()


def _collect(crew: _WorkerThreads, take: Callable[[Sequence[_Result]], None]) -> None:
    looked = 0.0
    while crew.working or not crew.done.empty():
        check_interrupts()
        if (clock := time.monotonic()) >= looked + TICK:
            looked = clock
            crew.give_up_overdue()
        if ready := crew.take_ready():
            take(ready)
            crew.room.release(len(ready))


def _finish(crew: _WorkerThreads, folder: RunFolder) -> None:
    try:
        wait_until(lambda: not crew.working, GRACE)
    finally:  # also at the second Ctrl-C
        while not crew.done.empty():
            folder.append(*[result for _, result in crew.take_ready() if isinstance(result, dict)])


class _FailurePolicy:
    """Counts of failures, and the rule when they are reason to stop."""

    def __init__(self, model: ConnectedModel, earlier: Iterable[str | None]) -> None:
        """`earlier` are the errors of outcomes that are there already."""
        counts = Counter(error_template(error) for error in earlier if error is not None)
        # An earlier sitting has stopped at these, and the command was given again.
        self._known = {template for template, count in counts.items() if count >= ALIKE}
        self._model = model
        self._ended = 0
        self._kinds = Counter[str]()
        self.in_a_row = 0
        self.last: str | None = None
        self.ending: SextantError | None = None  # why the run ends

    def add_outcome(self, error: str | None) -> None:
        """Count a query that has an outcome."""
        self.in_a_row = self._model.resources.limiter.lost = 0
        self._count(error)

    def add_fault(self, error: Exception) -> None:
        """Count a query that is left pending."""
        if isinstance(error, SextantError):
            self.ending = self.ending or error
        elif responsible_party(error) == "refused":
            self.ending = self.ending or format_refusal(error, self._model.name)
        else:
            self.in_a_row += 1
            origin = (
                ""
                if isinstance(error, QueryTimeout | TimeoutError)
                else "the model's provider failed: "
            )
            self._model.resources.limiter.lost += bool(origin)
            self.last = origin + str(error).strip().partition("\n")[0]
            self._count(self.last)

    def _count(self, error: str | None) -> None:
        """End the run if most queries end alike, so that somebody looks."""
        self._ended += 1
        if error is None or (template := error_template(error)) in self._known:
            return
        self._kinds[template] += 1
        count = self._kinds[template]
        if count >= ALIKE and 2 * count > self._ended and not self.ending:
            self.ending = RunIncomplete(
                f"{count} of {queries(self._ended)} ended alike: {first_error_line(error)}"
            )


def answer_with_model(
    system: System,
    query: Query,
    documents: Mapping[str, Document],
    model: ConnectedModel,
) -> Outcome | Exception:
    """Run the system on a query with `model`; return the outcome, or the exception for which it
    stays pending.
    """
    with model.active():
        return answer_query(system, query, documents)


def answer_query(
    system: System,
    query: Query,
    documents: Mapping[str, Document],
    tries: int = 3,
) -> Outcome | Exception:
    """Run the system with the active model, in a context of its own; return as `answer_with_model` does.

    If a refusal tells that the model takes less than was known, the query is begun again, up to
    `tries` times.
    """
    started = time.perf_counter()
    error = None
    fields = {}
    try:
        with session.for_query(query), without_langsmith():
            submission = _ask(system, query)
        fields = submission_record(submission, query, documents)
    except BaseException as exception:  # the system under test may raise anything
        if isinstance(exception, AbortCompilation) or (
            isinstance(exception, KeyboardInterrupt) and may_interrupt()
        ):
            raise
        # A DataError is nothing that a system does; every query would meet it.
        if isinstance(exception, Exception) and (
            isinstance(exception, DataError) or responsible_party(exception) != "system"
        ):
            return _noting_usage(exception)
        error = exception
    opened = (
        session.current()
    )  # of this context, so of this query; there is none after a submission
    if opened and opened.fault:
        if not getattr(opened.fault, "learnt", False):
            return _noting_usage(opened.fault)  # the error followed from an answer that never came
        if tries:
            return answer_query(system, query, documents, tries - 1)
        error = opened.fault
    if error:
        fields = _fields_of_failure(query, opened, error)
        release_frames(error)
        error = None  # its frames lead here, and so would hold it
    return {
        "query_id": query.query_id,
        **fields,
        "seconds": round(time.perf_counter() - started, 4),
    }


def _noting_usage(problem: Exception) -> Exception:
    """Have the exception that leaves this context's query pending have, as `used`, the query's
    usage.
    """
    if opened := session.current():
        problem.used = opened.usage  # type: ignore[attr-defined]
    release_frames(problem)
    return problem


def _ask(system: System, query: Query) -> Submission:
    """Return the system's ranking, or the ranking of its trace so far if a limit of its
    session has ended it.
    """
    try:
        return system(query=query)
    except Exception as error:
        opened = session.current()
        causes = list_causes(error)
        if isinstance(error, ExceptionGroup):  # of a TaskGroup of asyncio's
            group = error.subgroup(
                lambda each: (
                    responsible_party(each) != "system" and not isinstance(each, ExceptionGroup)
                )
            )
            if group is not None:
                raise next(
                    each for each in list_causes(group) if responsible_party(each) != "system"
                ) from error
        # DSPy's Parallel, BestOfN and others swallow what their parts raise, and a program then
        # misses an answer.
        limited = opened and (
            opened.ended_by_limit or any(isinstance(cause, LimitReached) for cause in causes)
        )
        if opened is None or not limited or responsible_party(error) != "system":
            raise
        return submit_anytime(opened)


def submission_record(
    submission: Submission, query: Query, documents: Mapping[str, Document]
) -> Outcome:
    """Return the record of a submission.

    Raise when it does not fit the query, or cannot be scored or written.
    """
    if not isinstance(submission, Submission):
        raise TypeError(f"the system handed in {type(submission).__name__!r}, not a Submission")
    ranking = list(islice(submission.ranking, len(documents) + 1))  # one too many is there twice
    check_ranking(ranking, query, documents)
    if submission.trace.query_id != query.query_id:
        raise ValueError(
            f"the trace is of query {submission.trace.query_id!r}, and {query.query_id!r} was asked"
        )
    check_usage(submission.usage)
    fields: Outcome = {
        "ranking": ranking,
        "answer": submission.answer,
        "trace": trace_json(submission.trace),
        "usage": usage_json(submission.usage),
        "error": None,
    }
    if submission.scores:
        fields["scores"] = scores = list(map(float, submission.scores))
        if not all(map(math.isfinite, scores)):
            raise ValueError("a score is not a finite number")
    check_new_outcome({"query_id": query.query_id, **fields})
    return fields


def _fields_of_failure(query: Query, opened: Session | None, error: BaseException) -> Outcome:
    if opened:
        opened.abandon("error")
    return {
        "ranking": [],
        "answer": "",
        "trace": trace_json(opened.trace if opened else Trace(query.query_id)),
        "usage": usage_json(opened.usage if opened else Usage()),
        "error": _shorten(describe_exception(error)),
        "traceback": "".join(map(_shorten, traceback.format_exception(error)[-_MOST_PARTS:])),
    }


def _shorten(text: str) -> str:
    """Return the beginning of a text of somebody's exception, without secrets and the user's folders."""
    return str(hide_folders(redact(text[: 2 * _LONGEST_TEXT])))[:_LONGEST_TEXT]
