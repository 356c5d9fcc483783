"""Threads that a program starts while it answers a query work in the context of that query.

Its session, limits, deadline and model are context variables, which Python hands to tasks of
asyncio and not to threads. So `instrument_threads` gives a thread the context of its starter, and
the work of a pool the context of its submitter, as OpenTelemetry's instrumentation of threads does.
That holds for DSPy's `Parallel`, `batch` and `Evaluate`, a program's own threads, and other
libraries. If no query is answered, nothing changes.

A thread that was started before, and takes its work from a queue, cannot be told which query the
work is for.
"""

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from functools import cache, wraps
from multiprocessing.pool import ThreadPool
from threading import Thread, current_thread, main_thread
from typing import Any, NoReturn, TypeVar

from sextant.tools import session
from sextant.tools.session import SharedOnDeepcopy

T = TypeVar("T")

# How a thread gets at a query that it does not belong to, for messages.
REMEDY = (
    "start threads while the query is answered, or hand a thread that was there before its work by "
    "contextvars.copy_context().run; another process cannot have it"
)
_POOL_METHODS = (
    "apply_async",
    "map",
    "map_async",
    "starmap",
    "starmap_async",
    "imap",
    "imap_unordered",
)


@cache
def instrument_threads() -> None:
    """Have all threads of this process that are started for a query work in its context."""
    wrap: list[tuple[type, str, Callable[..., Any]]] = [
        (Thread, "start", _start_in_context),
        (ThreadPoolExecutor, "submit", _submit_in_context),
        *((ThreadPool, name, _hand_over_in_context) for name in _POOL_METHODS),
    ]
    for owner, name, make_wrapper in wrap:
        method = getattr(owner, name)
        setattr(owner, name, wraps(method)(make_wrapper(method)))
    os._exit = _exit_query(os._exit)  # type: ignore[assignment]  # its parameter has a name
    _share_progress_bars()


def _start_in_context(start: Callable[[Thread], None]) -> Callable[[Thread], None]:
    def start_in_context(thread: Thread) -> None:
        if session.current() is not None:
            context = copy_context()
            run = thread.run
            thread.run = lambda: context.run(run)  # type: ignore[method-assign]  # also a subclass' own
        start(thread)

    return start_in_context


def _submit_in_context(submit: Callable[..., Any]) -> Callable[..., Any]:
    def submit_in_context(
        pool: Any, function: Callable[..., Any], /, *arguments: Any, **named: Any
    ) -> Any:
        if session.current() is None:
            return submit(
                pool,
                function,
                *arguments,
                **named,
            )
        context = copy_context()
        # In an empty context, as a thread that is started now may later work for another query.
        return Context().run(
            submit,
            pool,
            context.run,
            function,
            *arguments,
            **named,
        )

    return submit_in_context


def _hand_over_in_context(method: Callable[..., Any]) -> Callable[..., Any]:
    def hand_over_in_context(
        pool: Any, function: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Any:
        if session.current() is None:
            return method(
                pool,
                function,
                *arguments,
                **named,
            )
        context = copy_context()

        def call_in_context(*given: Any, **by_name: Any) -> Any:
            return context.copy().run(
                function, *given, **by_name
            )  # a context can be entered once at a time

        return method(
            pool,
            call_in_context,
            *arguments,
            **named,
        )

    return hand_over_in_context


@contextmanager
def lend_event_loop() -> Iterator[None]:
    """Give a thread an event loop in the block, for `asyncio.get_event_loop()`, as the main
    thread of a script has.
    """
    if current_thread() is main_thread() or asyncio._get_running_loop():  # noqa: SLF001  # without an exception
        yield
        return
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, awaited in an event loop of its own.

    `asyncio.run` would take the thread's loop if a program has applied nest_asyncio, and leave the
    thread without a loop.
    """
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(coroutine)


class EventLoop(SharedOnDeepcopy):
    """An event loop in a thread of its own, for objects that belong to the loop in which they were
    made.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks = set[asyncio.Task[None]]()  # a loop by itself keeps no hold of them
        Thread(target=self._run, daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine, awaited in the loop and in the context of the
        caller.
        """
        context = copy_context()
        done = Future[T]()

        async def finish() -> None:
            try:
                done.set_result(await coroutine)
            except BaseException as error:  # noqa: BLE001  # raised again by who waits
                done.set_exception(error)

        def begin() -> None:
            task = self._loop.create_task(finish(), context=context)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._loop.call_soon_threadsafe(begin)
        return done.result()

    def _run(self) -> None:
        while True:
            with suppress(
                SystemExit, KeyboardInterrupt
            ):  # of one of its tasks, which has it as well
                self._loop.run_forever()


def _exit_query(leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
    """Have a program that leaves the process without a word end its query alone, as
    `sys.exit` does.
    """

    def exit_query(status: int) -> NoReturn:
        query = session.current()
        if query is not None and not query.is_elsewhere:
            raise SystemExit(status)
        leave(status)

    return exit_query


class _Bars(weakref.WeakSet[Any]):
    """The progress bars that tqdm shows, in which it expects the bars that it has added.

    Each `dspy.Parallel` empties the set as it begins, of the bars of all other threads as well.
    """

    def clear(self) -> None:
        """Keep them: bars that are gone drop out by themselves."""


def _share_progress_bars() -> None:
    from dspy.utils import (
        parallelizer,
    )  # takes long, and --help of commands reads what imports this file

    bars: Any = parallelizer.tqdm.tqdm
    bars._instances = _Bars(bars._instances)  # noqa: SLF001  # tqdm has no other way
