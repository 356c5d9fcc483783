"""Threads that compute in turn, on one core.

Where Python's lock is handed from thread to thread some thousand times a second, a thread on another core has to be
woken there, and takes half of what the core does anyway; on a virtual machine with busy neighbours, several times that.
On one core whoever steps aside is followed by the next. Linux only; elsewhere nothing is done.

Not for threads that compute outside of Python's lock, as encoders do: those want all cores, and so do the threads that
they start, which would stay where they are.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STAT = Path("/proc/stat")
_LOOK = 0.05  # seconds


@contextmanager
def one_core() -> Iterator[None]:
    """Inside, this thread and those that it starts stay on the core that has the least to do at present."""
    core = _idlest()
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _idlest() -> int | None:
    """Of the cores that this thread may use, the one that idles most; None where there is no choice."""
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None
    try:
        before = _idle()
        time.sleep(_LOOK)
        idled = {core: ticks - before.get(core, ticks) for core, ticks in _idle().items()}
    except (OSError, ValueError, IndexError):
        return None
    allowed = sorted(os.sched_getaffinity(0) & idled.keys())
    return max(allowed, key=lambda core: idled[core], default=None)


def _idle() -> dict[int, int]:
    """How long each core has idled since the machine was started, in ticks (proc(5))."""
    rows = [line.split() for line in _STAT.read_text(encoding="ascii").splitlines()]
    return {int(row[0][3:]): int(row[4]) for row in rows if row and row[0][:3] == "cpu" and row[0][3:].isdigit()}
