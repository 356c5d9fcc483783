"""How many requests may be in flight, and when: a limiter for all workers of a run.

Additive increase, multiplicative decrease, as TCP avoids congestion (Chiu and Jain 1989; RFC 5681):
the limit starts at the most that is allowed, falls to 0.7 of itself when the provider is overloaded
(429, 503, 529, a timeout), at most once for the requests that were in flight together, and grows by
1 for each round of answers. A rest that a provider asks for, in Retry-After or in rate headers,
holds for everybody. After several failures in a row the circuit opens: all wait, longer each time,
and requests are sent singly; after an answer the limit grows from 1 again, doubling up to half of
its former value.
"""

import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from sextant.tools.errors import Interrupted

# As CUBIC has it (RFC 9438): against a provider that has no queue, half would idle a quarter of it
DECREASE = 0.7
CIRCUIT = 8  # failures in a row, without an answer in between, after which all wait
LONGEST_PROBE = 15.0  # seconds between two tries while the circuit is open
LONGEST_WAIT = 60.0  # seconds; a provider that asks for more is not waited for
_LOOK = 5.0  # seconds after which a waiting request looks again, whether it was notified or not


class ConcurrencyLimiter:
    """Lets requests through. Threads share it."""

    def __init__(
        self, most: int, *, clock: Callable[[], float] = time.monotonic, unit: float = 1.0
    ) -> None:
        """At most `most` at once; `unit` is the first wait of an open circuit, in seconds."""
        self.most = most
        self._clock = clock
        self._unit = unit
        self.in_flight = self.waiting = 0
        self._limit = self._threshold = float(
            most
        )  # on its way back, the limit doubles up to the threshold
        self._free = threading.Condition()
        self._paused_until = 0.0
        self._reason = ""
        self._failures = 0  # in a row
        self._openings = 0  # of the circuit, since the last answer
        self._opened = 0.0  # when the circuit last was opened
        self._decreased = 0.0  # when the limit last fell
        self._answered = -math.inf  # when a request was last answered
        self._rest_ends = -math.inf  # when the rest that the provider asked for ends
        self._shut_until = -math.inf  # when a rest ends that is too long to wait for
        self._halted = threading.Event()
        self.lost = (
            0  # queries in a row that the provider left unanswered, counted by who asks them
        )

    @property
    def limit(self) -> int:
        """The number of requests that may be in flight at present."""
        return max(1, int(self._limit))

    def pause(self) -> tuple[str, float]:
        """Return why nothing is sent at present, and for how many seconds; ("", 0) if something may
        be.
        """
        seconds_left = self._paused_until - self._clock()
        return (self._reason, seconds_left) if seconds_left > 0 else ("", 0.0)

    def enter(self, until: float, *, patience: float = 0.0, deadline: float = math.inf) -> float:
        """Wait for a place, and return the time at which it was given. TimeoutError; Interrupted after `halt`.

        The wait ends at `until`, or `patience` seconds after any answer or after a rest that the provider asked for,
        whichever is last; while requests are in flight and the circuit is closed, only at the `deadline`.
        """
        with self._free:
            self.waiting += 1
            try:
                while not self._passes():
                    end = max(until, self._answered + patience, self._rest_ends + patience)
                    if self.in_flight and not self._openings:
                        end = math.inf
                    seconds_left = min(deadline, end) - self._clock()
                    if seconds_left <= 0:
                        raise TimeoutError(self._reason)
                    pause = self._paused_until - self._clock()
                    self._free.wait(min(seconds_left, pause if pause > 0 else seconds_left, _LOOK))
                self.in_flight += 1
                return self._clock()
            finally:
                self.waiting -= 1

    def answered(self, headers: Mapping[str, str]) -> None:
        """Take note that a request of those in flight was answered."""
        with self._free:
            self.in_flight -= 1
            self._failures = self._openings = 0
            self._answered = self._clock()
            if self._limit < self.most:
                step = 1.0 if self._limit < self._threshold else 1.0 / self._limit
                self._limit = min(float(self.most), self._limit + step)
            if headers and (wait := read_rate(headers)):
                self._rest(wait, "the provider's rate is used up")
                self._free.notify_all()  # the waiting ones have to wait longer
            if self.waiting:
                self._free.notify(2)

    def failed(self, entered: float, *, overload: bool, rest: float | None, reason: str) -> None:
        """Take note of a request without an answer; the provider asks for a `rest` of some seconds,
        or none.
        """
        with self._free:
            self.in_flight -= 1
            self._failures += 1
            if overload and entered >= self._decreased:
                self._threshold = self._limit = max(1.0, self._limit * DECREASE)
                self._decreased = self._clock()
            if rest is not None and rest > LONGEST_WAIT:
                self._shut_until = self._clock() + rest
            elif rest is not None:
                self._rest(rest, f"the provider asks to wait ({reason})")
            if self._failures >= CIRCUIT and entered >= self._opened:
                self._open(reason)
            self._free.notify_all()

    def refused(self) -> None:
        """Take note that a request was refused, which waiting would not mend."""
        with self._free:
            self.in_flight -= 1
            self._failures = self._openings = 0
            self._free.notify_all()

    def leave(self) -> None:
        """Give back a place that was not used."""
        with self._free:
            self.in_flight -= 1
            self._free.notify()

    def rest(self, seconds: float = 0.0) -> None:
        """Wait outside the limiter, or only look, with 0 seconds. Interrupted after `halt`."""
        # Not on `_free`, where each wake-up is for a request that waits for a place
        if self._halted.wait(seconds) if seconds else self._halted.is_set():
            raise Interrupted

    def halt(self) -> None:
        """Let nothing more through; requests in flight go on."""
        with self._free:
            self._halted.set()
            self._free.notify_all()

    def _passes(self) -> bool:
        self.rest()
        if self._clock() < self._shut_until:
            raise TimeoutError("the provider asks for a longer rest than is waited for")
        return self.in_flight < self.limit and self._clock() >= self._paused_until

    def _open(self, reason: str) -> None:
        if not self._openings:
            self._threshold = max(1.0, self._limit / 2)
        self._limit, self._opened = 1.0, self._clock()
        self._pause(
            min(LONGEST_PROBE, self._unit * 2.0**self._openings),
            f"the provider does not answer ({reason})",
        )
        self._openings += 1

    def _rest(self, seconds: float, reason: str) -> None:
        self._rest_ends = max(self._rest_ends, self._clock() + seconds)
        self._pause(seconds, reason)

    def _pause(self, seconds: float, reason: str) -> None:
        until = self._clock() + seconds
        if until > self._paused_until:
            self._paused_until = until
            self._reason = reason


_PARTS = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(ms|h|m|s)")  # bounded, so that it takes linear time
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a provider asks to wait: retry-after-ms, or Retry-After in seconds or as a date."""
    for name, read in (
        ("retry-after-ms", lambda text: float(text) / 1000),
        ("retry-after", float),
        (
            "retry-after",
            lambda date: (parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds(),
        ),
    ):
        with suppress(KeyError, ValueError, TypeError, OverflowError):
            if (seconds := read(headers[name])) == seconds:  # no NaN
                return max(0.0, seconds)
    return None


def read_rate(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until a used-up rate is renewed, as OpenAI's headers say; None if some of
    it is left.
    """
    for resource in ("requests", "tokens"):
        used_up = headers.get(f"x-ratelimit-remaining-{resource}") == "0"
        if used_up and (
            durations := _PARTS.findall(headers.get(f"x-ratelimit-reset-{resource}", ""))
        ):
            seconds = sum(float(amount) * _UNITS[unit] for amount, unit in durations)
            return (
                seconds if seconds <= LONGEST_WAIT else None
            )  # for more, a 429 will tell whether it is meant
    return None
