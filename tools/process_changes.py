"""All that Sextant changes in its process outside of itself: what a command sets, and what a run
changes while it lasts.

An import of Sextant changes nothing. The first of several runs at once makes the changes, the last
takes them back, also when it fails: `while_running` is around every run, and every query.

    threads      those that a program starts for a query work in its context. Its session, limits,
                 deadline and model are context variables, which Python gives to asyncio's tasks and
                 not to threads. A thread that was started before cannot be told its query.
    os._exit     ends the query, as `sys.exit` does, and not the process
    requests     of httpx and http.client that a program sends by itself are counted
    DSPy         dspy.Parallel leaves the progress bars of other threads alone
    garbage      is collected seldom, and not among existing objects
    BLAS         multiplies with one thread, as threads that answer queries work side by side
    tokenizers   do so, too

Left out: what a user's own code changes, and what libraries change as they are imported.
"""

import functools
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import Context, copy_context
from http.client import HTTPConnection
from multiprocessing.pool import ThreadPool
from threading import Thread
from types import SimpleNamespace
from typing import Any

from threadpoolctl import threadpool_limits

from sextant.tools import session
from sextant.tools.models.dspy_internals import parallelizer
from sextant.tools.platform.temporary_changes import (
    AttributeChange,
    SharedContext,
    changed_attributes,
    changed_environment,
)

_THREAD_POOL_METHODS = (
    "apply_async",
    "map",
    "map_async",
    "starmap",
    "starmap_async",
    "imap",
    "imap_unordered",
)
_TRACING = (
    "LANGSMITH_TRACING",
    "LANGSMITH_TRACING_V2",
    "LANGCHAIN_TRACING",
    "LANGCHAIN_TRACING_V2",
)


@contextmanager
def without_langsmith() -> Iterator[None]:
    """Have LangGraph and LangChain send nothing of the block to LangSmith, where the environment
    asks for it.
    """
    if not any(os.environ.get(name) for name in _TRACING):
        yield
        return
    from langsmith import tracing_context  # it comes with LangGraph, which few runs need

    with tracing_context(enabled=False):
        yield


@contextmanager
def _change_process() -> Iterator[None]:
    with (
        changed_attributes(_list_changes()),
        changed_environment({"TOKENIZERS_PARALLELISM": "false"}),
        threadpool_limits(1, "blas"),
        _infrequent_gc(),
    ):
        yield


_process = SharedContext(_change_process)
_requests_of_httpx = SharedContext(lambda: changed_attributes(_list_changes_of_httpx()))


@contextmanager
def while_running() -> Iterator[None]:
    """Change what a run needs in the block; see the top of this file.

    httpx is left alone if nothing has imported it: a search for words does not need it.
    """
    with _process(), _requests_of_httpx() if "httpx" in sys.modules else nullcontext():
        yield


@contextmanager
def _infrequent_gc() -> Iterator[None]:
    # Else it takes a tenth of the time of 64 workers. Objects that a user has frozen could not be
    # told from ours when ours are unfrozen.
    before = gc.get_threshold()
    freezes = gc.get_freeze_count() == 0
    if freezes:
        gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if freezes:
            gc.unfreeze()


def _list_changes() -> Iterator[AttributeChange]:
    wrappers: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (Thread, "start", _start_in_context),
        (ThreadPoolExecutor, "submit", _submit_in_context),
        *((ThreadPool, name, _hand_over_in_context) for name in _THREAD_POOL_METHODS),
        (os, "_exit", _exit_query),
        (HTTPConnection, "putrequest", _count_request_of_python),
    ]
    for owner, name, wrap in wrappers:
        yield _wrapped(owner, name, wrap)
    yield AttributeChange(parallelizer, "tqdm", SimpleNamespace(tqdm=_make_bar_class()))


def _list_changes_of_httpx() -> Iterator[AttributeChange]:
    httpx: Any = sys.modules["httpx"]
    for client_class in (httpx.Client, httpx.AsyncClient):
        yield _wrapped(client_class, "send", _count_request_of_httpx)


def _wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> AttributeChange:
    original = getattr(owner, name)
    return AttributeChange(owner, name, functools.wraps(original)(wrap(original)))


def _start_in_context(start: Callable[[Thread], None]) -> Callable[[Thread], None]:
    def start_in_context(thread: Thread) -> None:
        if session.current() is not None:
            context = copy_context()
            run = thread.run  # also a subclass' own
            thread.run = lambda: context.run(run)  # type: ignore[method-assign]
        start(thread)

    return start_in_context


def _submit_in_context(submit: Callable[..., Any]) -> Callable[..., Any]:
    def submit_in_context(
        pool: Any, function: Callable[..., Any], /, *arguments: Any, **named: Any
    ) -> Any:
        if session.current() is None:
            return submit(pool, function, *arguments, **named)
        context = copy_context()
        # In an empty context, as a thread that is started now may later work for another query.
        return Context().run(submit, pool, context.run, function, *arguments, **named)

    return submit_in_context


def _hand_over_in_context(method: Callable[..., Any]) -> Callable[..., Any]:
    def hand_over_in_context(
        pool: Any, function: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Any:
        if session.current() is None:
            return method(pool, function, *arguments, **named)
        context = copy_context()

        def call_in_context(*given: Any, **by_name: Any) -> Any:
            # A context can be entered once at a time.
            return context.copy().run(function, *given, **by_name)

        return method(pool, call_in_context, *arguments, **named)

    return hand_over_in_context


def _exit_query(leave: Callable[[int], Any]) -> Callable[[int], Any]:
    def exit_query(status: int) -> Any:
        query = session.current()
        if query is not None and not query.is_elsewhere:
            raise SystemExit(status)
        return leave(status)

    return exit_query


def _count_request_of_httpx(send: Callable[..., Any]) -> Callable[..., Any]:
    def send_counted(client: Any, request: Any, **options: Any) -> Any:
        session.count_unmetered_request(request.url.host)
        return send(client, request, **options)

    return send_counted


def _count_request_of_python(send: Callable[..., Any]) -> Callable[..., Any]:
    def send_counted(connection: Any, *arguments: Any, **options: Any) -> Any:
        session.count_unmetered_request(connection.host)
        return send(connection, *arguments, **options)

    return send_counted


class _Bars(weakref.WeakSet[Any]):
    """Progress bars, in which tqdm expects those that it has added.

    Each `dspy.Parallel` empties the set as it begins, of the bars of all other threads as well.
    """

    def clear(self) -> None:
        """Keep them: bars that are gone drop out by themselves."""


def _make_bar_class() -> Any:
    return type("Bar", (parallelizer.tqdm.tqdm,), {"_instances": _Bars()})
