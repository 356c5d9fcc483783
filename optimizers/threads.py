"""Threads of a compilation: several evaluations at once, and all work apart from the one that hears Ctrl-C.

All are daemons, and none is in a pool: a pool would hold up the end until the slowest model call returns.
"""

import contextvars
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from evals.running.runner import GRACE, TICK
from tools.console import interrupts

T = TypeVar("T")


def run_interruptible(work: Callable[[], T], halt: Callable[[], None]) -> T:
    """Run `work` in a thread of its own, and return what it does: Ctrl-C breaks off no model call half-way.

    The first one calls `halt`. What is in flight is then waited for, GRACE seconds at most, so that it is not paid for
    in vain. At the second one nothing is waited for.
    """
    done = Future[T]()

    def begin() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  # raised again by who waits
            done.set_exception(error)

    _start(contextvars.copy_context().run, begin)
    try:
        _wait(done)
        return done.result()
    except KeyboardInterrupt:
        halt()
        _wait(done, until=time.monotonic() + GRACE)
        raise


def _wait(done: Future[T], until: float = math.inf) -> None:
    while not done.done() and time.monotonic() < until:
        interrupts.check()
        wait([done], TICK)


def run_at_once(function: Callable[[Any], Any], data: Sequence[Any], workers: int) -> list[Any]:
    """Call `function` on every item, `workers` at a time, each once. The first exception ends it and is raised here."""
    todo = queue.SimpleQueue[tuple[int, contextvars.Context]]()
    done = queue.SimpleQueue[tuple[int, Any, BaseException | None]]()
    stopped = threading.Event()
    for place in range(len(data)):
        todo.put((place, contextvars.copy_context()))

    def work() -> None:
        while not stopped.is_set():
            try:
                place, context = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((place, context.run(function, data[place]), None))
            except BaseException as error:  # noqa: BLE001  # raised again by who waits
                done.put((place, None, error))

    threads = [_start(work) for _ in range(min(workers, len(data)))]
    results: list[Any] = [None] * len(data)
    for _ in data:
        place, results[place], error = done.get()
        if error is not None:
            stopped.set()
            for thread in threads:  # what is on its way is paid for, and written down when it is there
                thread.join()
            raise error
    return results


def _start(function: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread
