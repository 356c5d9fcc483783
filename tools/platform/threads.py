"""Event loops for a user's coroutines, which are awaited from threads.

How threads get the context of a query: tools/process_changes.py.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Thread, current_thread, main_thread
from typing import Any, TypeVar

from sextant.tools.session import SharedOnDeepcopy

T = TypeVar("T")

# How a thread gets at a query that it does not belong to, for messages.
REMEDY = (
    "start threads while the query is answered, or hand a thread that was there before its work by "
    "contextvars.copy_context().run; another process cannot have it"
)


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
