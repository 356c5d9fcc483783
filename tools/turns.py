"""One thread computes at a time, and those that wait for a server or a disk step aside.

Python runs one thread at a time anyway. Left alone, hundreds of threads that have something to do wake each other
some thousand times a second to ask for their turn, and at 256 calls in flight that takes a third of the processor.
Here they queue for a lock instead, which costs nothing while they wait.

It is a courtesy, not a right: who has waited for a quarter of a second leaves the queue to whoever hangs in it, and
begins a new one.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE = 0.25  # seconds

_turn = threading.Lock()  # the queue of the moment
_MINE = threading.local()  # .held: the lock that this thread has; .takes_part: whether it queues at all


@contextmanager
def taking_part() -> Iterator[None]:
    """Inside, this thread queues for its turns; threads that it starts do not."""
    _MINE.takes_part = True
    _take()
    try:
        yield
    finally:
        _give()
        _MINE.takes_part = False


@contextmanager
def aside() -> Iterator[None]:
    """Inside, this thread only waits, or works outside of the queue; another one computes meanwhile."""
    if not getattr(_MINE, "takes_part", False):
        yield
        return
    _give()
    _MINE.takes_part = False
    try:
        yield
    finally:
        _MINE.takes_part = True
        _take()


def _take() -> None:
    global _turn
    turn = _turn
    if not turn.acquire(timeout=_PATIENCE):
        turn = _turn = threading.Lock()  # several may do so at once, and then compute at once for a moment
        turn.acquire()
    _MINE.held = turn


def _give() -> None:
    _MINE.held.release()
