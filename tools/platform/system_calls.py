"""Cores and space on disk, where macOS lacks the calls that Linux has for them.

Nothing else in Sextant uses functions that macOS lacks. Left out: Windows.
"""

import os
from typing import IO

_BLOCK = 1 << 20  # bytes of zeros that are written at a time


def available_cores() -> int:
    """Return how many cores this process may use; macOS says only how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def list_cores() -> list[int]:
    """Return the numbers of the cores that this process may use; none where a process cannot choose its core."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def stay_on_core(core: int) -> None:
    """Run on one of `list_cores` only; a thread that wakes lets the thread at work go on."""
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def reserve_space(file: IO[bytes], start: int, end: int) -> None:
    """Set space aside for the bytes from `start` to `end` of a file, which are all zeros.

    OSError if there is too little space.
    """
    if start < end and hasattr(os, "posix_fallocate"):  # it refuses a length of 0
        os.posix_fallocate(file.fileno(), start, end - start)
        return
    file.seek(start)
    while file.tell() < end:
        file.write(bytes(min(_BLOCK, end - file.tell())))
