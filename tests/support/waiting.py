"""Wait until something is so."""

import time


def wait_for(true, seconds=30.0):
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not come to that in time"
        time.sleep(0.01)
