"""Wait until something is so."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil


def wait_for(true: Callable[[], object], seconds: float = 120.0) -> None:
    """Return once `true()` is; `seconds` are there to end a test that hangs, also on a machine that is slow."""
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not come to that in time"
        time.sleep(0.01)


def still_running(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that have not ended within `seconds`; the machine's first process may take longer to note that one has."""
    return [one for one in psutil.wait_procs(processes, timeout=seconds)[1] if not _is_zombie(one)]


def _is_zombie(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True
