"""Signals: Ctrl-C, SIGTERM and a closed terminal end a command at a safe point.

A signal handler only records the signal, because Python drops an exception that is raised inside a
finalizer. The command runs in a thread of its own and calls `check_interrupts`, which raises
KeyboardInterrupt, if it waits or works for long. A command that does not call it within UNHEARD, for
example inside a library, is ended as by a kill, which everything on disk survives.
"""

import math
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

# Seconds after which a command is abandoned if it does not check for signals, or does not end after
# a second signal.
UNHEARD = 1.0
# Seconds that a command may take to end after an interrupt; a run waits 3 s for calls in flight.
ENDING = 20.0

_signals = list[int]()  # the numbers of all signals that were received
_raised = 0  # the number of signals for which `check_interrupts` has raised
_command_thread: threading.Thread | None = None
# Wakes the main thread. A signal handler may call put(), whatever it interrupted.
_wake_ups: SimpleQueue[None] = SimpleQueue()
# Seconds that the main thread blocks at most. A signal that another thread takes, or that comes just
# before the main thread blocks, does not wake it, and Python runs handlers in the main thread alone.
_LONGEST_BLOCK = 0.25


def check_interrupts() -> None:
    """Raise KeyboardInterrupt once for each signal in the command's thread; do nothing in others."""
    global _raised
    if _raised < len(_signals) and threading.current_thread() is _command_thread:
        _raised += 1
        raise KeyboardInterrupt


def is_interrupted() -> bool:
    """Return whether a signal was received, so that an error may be its consequence."""
    return bool(_signals)


def is_own_interrupt() -> bool:
    """Return whether a signal caused a KeyboardInterrupt that was raised in this thread.

    In a command, a signal is always recorded before the exception is raised.
    """
    return bool(_signals) or threading.current_thread() is threading.main_thread()


def may_interrupt() -> bool:
    """Return whether a KeyboardInterrupt in this thread may come from a signal."""
    return threading.current_thread() in (_command_thread, threading.main_thread())


def wait_until(ended: Callable[[], bool], seconds: float = math.inf) -> None:
    """Wait until `ended()` is true, for up to `seconds`. KeyboardInterrupt as in `check_interrupts`."""
    deadline = time.monotonic() + seconds
    while not ended() and time.monotonic() < deadline:
        check_interrupts()
        time.sleep(0.05)


def handle_signal(number: int, frame: object) -> None:
    """Record a signal. Each counts as a Ctrl-C.

    SIGHUP counts only if it is the first, because a closed terminal and its shell both send it.
    """
    if number != signal.SIGHUP or not _signals:
        _signals.append(number)
        _wake_ups.put(None)


def start_thread(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a daemon thread with a copy of this context.

    It is not run in a pool: a pool would block the end of the process.
    """
    future = Future[T]()
    context = copy_context()

    def begin() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001  # result() of the future raises it again
            future.set_exception(error)

    threading.Thread(target=begin, daemon=True).start()
    return future


def run_in_thread(work: Callable[[], int]) -> int | None:
    """Return the result of `work`, or None if it did not end in time after a signal."""
    signal.signal(signal.SIGTERM, handle_signal)
    # Under nohup, SIGHUP is ignored, and stays so.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, handle_signal)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, handle_signal)

    def run_as_command() -> int:
        global _command_thread
        _command_thread = threading.current_thread()
        return work()

    result = start_thread(run_as_command)
    result.add_done_callback(lambda _: _wake_ups.put(None))
    while not result.done():
        if not _wait_for_wake_up(_patience()):
            return None
        deadline = time.monotonic() + UNHEARD
        while _raised < len(_signals) and not result.done():
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)
    return result.result()


def _wait_for_wake_up(seconds: float) -> bool:
    """Return whether a signal was handled, or the command has ended, within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(Empty):
            _wake_ups.get(timeout=_LONGEST_BLOCK)
            return True
    return False


def _patience() -> float:
    """Return the seconds to wait for the command, which has no limit before the first signal."""
    if not _signals:
        return math.inf
    return ENDING if len(_signals) == 1 else UNHEARD
