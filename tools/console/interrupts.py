"""Ctrl-C, SIGTERM and a closed terminal: a handler notes the signal, and the command stops where it can.

Python drops what is raised inside a finalizer or the callback of a weak reference, and a signal may land in one. So a
handler raises nothing: the command works in a thread of its own and calls `check` where it waits or is long at work,
which raises KeyboardInterrupt. The main thread only waits, and so it hears every signal. A command that has not looked
within UNHEARD, as inside a library, is left as by a kill, which everything on disk is made to survive.
"""

import signal
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

UNHEARD = 1.0  # seconds until a command that does not look is left, and one that was told a second time
ENDING = 20.0  # seconds that one has to end once it has been told; a run waits 3 s for what is in flight

_came = list[int]()  # the signals
_told = 0  # how many of them `check` has raised
_working: threading.Thread | None = None  # where the command runs
_woken: SimpleQueue[None] = SimpleQueue()  # its put() may be called in a handler, whatever that interrupted


def came() -> bool:
    """Tell whether a signal has come."""
    return bool(_came)


def check() -> None:
    """Raise KeyboardInterrupt, once a signal, in the command's own thread; in others do nothing."""
    global _told
    if _told < len(_came) and threading.current_thread() is _working:
        _told += 1
        raise KeyboardInterrupt


def note(number: int, frame: object) -> None:
    """Handle a signal; a scheduler's SIGTERM counts as Ctrl-C."""
    _came.append(number)
    _woken.put(None)


def _hang_up(number: int, frame: object) -> None:
    """Handle SIGHUP, which counts as one Ctrl-C however often it comes.

    A closed terminal and its shell both send it, and a second Ctrl-C would not wait for calls in flight.
    """
    if not _came:
        note(number, frame)


def _listen() -> None:
    """Install the handlers, except for signals that are ignored, such as SIGHUP under nohup."""
    signal.signal(signal.SIGTERM, note)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _hang_up)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)


def run(work: Callable[[], int]) -> int | None:
    """Run `work` in a thread of its own. Returns its result, or None where it did not end in time after a signal."""
    global _working
    ended = list[int | BaseException]()

    def begin() -> None:
        try:
            ended.append(work())
        except BaseException as error:  # noqa: BLE001  # raised again by who waits
            ended.append(error)
        _woken.put(None)

    _listen()
    _working = threading.Thread(target=begin, daemon=True)
    _working.start()
    while not ended:
        try:
            _woken.get(timeout=(ENDING if len(_came) == 1 else UNHEARD) if _came else None)
        except Empty:
            return None
        leave = time.monotonic() + UNHEARD
        while _told < len(_came) and not ended:
            if time.monotonic() > leave:
                return None
            time.sleep(0.02)
    [result] = ended
    if isinstance(result, BaseException):
        raise result
    return result
