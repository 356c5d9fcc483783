"""Progress of long work, logged every few seconds; short work logs nothing."""

import logging
import threading
import time

from tools.console import interrupts

_LOG = logging.getLogger("sextant")
_EVERY = 5.0  # seconds


class Progress:
    """Counts what is done of `total`, e.g. `Progress("dense", 28_315)`; threads may share it.

    At most every five seconds, and once at the end of work that took longer than that, it says

        dense: 12,288 of 28,315 documents, 31.2/s, 8 min 34 s to go

    `done` is how many were there before, from work that was interrupted: they count as done and not as speed.
    """

    def __init__(self, what: str, total: int, unit: str = "documents", done: int = 0) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._before = self._done = done
        self._started = self._said = time.monotonic()
        self._lock = threading.Lock()

    def add(self, n: int = 1) -> None:
        """Count `n` more as done. KeyboardInterrupt where the command is to stop."""
        interrupts.check()
        with self._lock:
            self._done += n
            now = time.monotonic()
            finished = n > 0 and self._done >= self._total
            if now - (self._started if finished else self._said) < _EVERY:
                return
            self._said = now
            speed = (self._done - self._before) / (now - self._started)
            line = (
                f"{self._what}: {self._done:,} of {self._total:,} {self._unit}, {speed:,.{1 if speed < 100 else 0}f}/s"
            )
            if not finished and speed > 0:
                line += f", {duration((self._total - self._done) / speed)} to go"
            _LOG.info(line)


def duration(seconds: float) -> str:
    """Write a duration in its two largest units, e.g. "8 min 34 s"; less than a minute is "34 s"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
