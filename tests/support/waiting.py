"""Wait until something is so."""

import time
from collections.abc import Callable


def wait_for(true: Callable[[], object], seconds: float = 120.0) -> None:
    """Return once `true()` is; `seconds` are there to end a test that hangs, also on a machine that is slow."""
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not come to that in time"
        time.sleep(0.01)
