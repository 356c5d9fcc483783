"""The limits of a run's calls: its budget, how many are in flight, how often and how long they are tried.

The budget is held before each request is sent. The limiter is for all workers of a run: additive
increase, multiplicative decrease, as TCP avoids congestion (Chiu and Jain 1989; RFC 5681). Its limit
starts at the most that is allowed, falls to 0.7 of itself when the provider is overloaded (429, 503,
529, a timeout), at most once for the requests that were in flight together, and grows by 1 for each
round of answers. A rest that a provider asks for, in Retry-After or in rate headers, holds for
everybody. After several failures in a row the circuit opens: all wait, longer each time, and
requests are sent singly; after an answer the limit grows from 1 again, doubling up to half of its
former value.

The measured speed of a model at its server is kept in $SEXTANT_HOME/speeds.json, for the forecast of
the next run and the time limit of its first calls. It never shapes a prompt: the same command has to
send the same prompts on every machine.

Prices are in prices.py; storage/ledger.py books the requests that were sent.
"""

import json
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from typing_extensions import TypedDict

from sextant.tools import schemas
from sextant.tools.errors import BudgetReached, Interrupted, UnknownPrice
from sextant.tools.platform import files
from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Usage

_LOOK = 0.25  # seconds after which a call that waits for the budget looks whether the time is up


class CallReservation(NamedTuple):
    """The most tokens and dollars that a call in flight can use; infinite if that is not known."""

    tokens: float = 0
    usd: float = 0.0
    model: str = ""


NOTHING = CallReservation()
Reserve = Callable[[Sequence[CallReservation]], CallReservation]  # beside the calls in flight


def unknown_price(name: str) -> UnknownPrice:
    """Return the refusal of --budget-usd for a model."""
    problem = f"the price of {name} is not known, so --budget-usd cannot be kept"
    return UnknownPrice(f"{problem}; use --budget-calls, or write it into a file for --prices")


def _unknown_use(what: str) -> BudgetReached:
    reason = f"{what} is not known, for it had no usage reported, or no price"
    return BudgetReached(f"{reason}; use --budget-calls", larger=False)


class Budget:
    """Limits on requests, tokens, dollars and time, checked before each request is sent. Threads share it.

    A call in flight counts with the most that it can use, so spent and reserved amounts together
    stay below the limit. A call that does not fit waits for those in flight, and calls go in the
    order in which they came. If none is in flight, a call is sent alone, since nearly all calls
    use less than their most: so a budget is exceeded by a call at most.
    """

    def __init__(
        self,
        *,
        calls: int | None = None,
        usd: float | None = None,
        tokens: int | None = None,
        seconds: float | None = None,
    ) -> None:
        """None is no limit. `calls` are requests sent, answered or not; `seconds` count from now on."""
        self._calls = calls
        self._usd = usd
        self._tokens = tokens
        self._seconds = seconds
        self.ends = math.inf if seconds is None else time.monotonic() + seconds  # by time.monotonic
        self.calls = 0  # requests sent so far, those in flight included
        self._spent_usd = 0.0
        self._spent_tokens = 0
        self._unpriced = self._unmetered = (
            False  # whether a price, or a number of tokens, is unknown
        )
        self._in_flight = list[CallReservation]()
        self._queue = deque[object]()  # of the calls that wait, in order
        self._told = False  # whether it was said that calls wait
        self._resumed = set[object]()
        self._settled = threading.Condition()  # a call that was in flight is booked

    def resume(self, spent: Usage, requests: int | None = None, *, source: object = None) -> None:
        """Count the usage of earlier sittings of the same run: `requests` sent, if more than were
        answered.

        Usage with a `source`, such as the ledger of a run, is counted once.
        """
        with self._settled:
            if source in self._resumed:
                return
            if source is not None:
                self._resumed.add(source)
            self.calls += spent.calls if requests is None else requests
            self._book(spent)

    def left_usd(self) -> float | None:
        """Return the dollars that are left; None without a limit in dollars."""
        return None if self._usd is None else max(0.0, self._usd - self._spent_usd)

    def goes_alone(self, expected: CallReservation) -> bool:
        """Return whether a call that can use so much leaves no room for another, whatever the limit."""
        unknown_tokens = self._tokens is not None and expected.tokens == math.inf
        return unknown_tokens or (self._usd is not None and expected.usd == math.inf)

    def take(
        self,
        reserve: Reserve = lambda in_flight: NOTHING,
        *,
        deadline: float = math.inf,
        check: Callable[[], None] = lambda: None,
    ) -> CallReservation:
        """Reserve a request before it is sent, to be followed by a call of `spend`; wait while
        calls in flight may use it up.

        `reserve` gives the most that it can use as it is known now, and is asked again after a wait.
        BudgetReached when none is left, TimeoutError at the `deadline` (time.monotonic); `check` may raise, too.
        """
        place = object()
        with self._settled:
            self._queue.append(place)
            try:
                while True:
                    check()
                    self.check()
                    if self._queue[0] is place:
                        expected = reserve(self._in_flight)
                        if self._has_room(expected):
                            break
                    if (seconds_left := deadline - time.monotonic()) <= 0:
                        raise TimeoutError("the budget of the run")
                    self._settled.wait(timeout=min(seconds_left, _LOOK))
                self.calls += 1
                self._in_flight.append(expected)
                return expected
            finally:
                self._queue.remove(place)
                self._settled.notify_all()

    def spend(self, usage: Usage, expected: CallReservation = NOTHING) -> None:
        """Record a finished request's usage; `expected` as it was taken."""
        with self._settled:
            self._in_flight.remove(expected)
            self._book(usage)
            self._settled.notify_all()

    def allow(self, calls: int, usd: float | None) -> None:
        """Raise BudgetReached when planned work needs more than is left, UnknownPrice for dollars of unknown price."""
        with self._settled:
            if self._calls is not None and calls > (calls_left := self._calls - self.calls):
                raise BudgetReached(
                    f"it takes {plural(calls, 'call')}, of which the budget has {calls_left:,} left"
                )
            if self._usd is None:
                return
            if usd is None:
                raise UnknownPrice(
                    "its price is not known, so --budget-usd cannot be kept; use --budget-calls"
                )
            if usd > self._usd - self._spent_usd:
                usd_left = max(0.0, self._usd - self._spent_usd)
                raise BudgetReached(
                    f"it takes about ${usd:.4f}, and ${usd_left:.4f} are left in the budget"
                )

    def require_price(self, name: str, *, known: bool) -> None:
        """Raise UnknownPrice if there is a limit in dollars and the price of a model is not
        `known`.
        """
        if self._usd is not None and not known:
            raise unknown_price(name)

    def check(self) -> None:
        """Raise BudgetReached if a limit is reached, or if that cannot be known."""
        if time.monotonic() >= self.ends:
            raise BudgetReached(f"the time limit of {self._seconds:g} s is reached", larger=False)
        if self._calls is not None and self.calls >= self._calls:
            raise BudgetReached(f"the budget of {plural(self._calls, 'model call')} is used up")
        if self._tokens is not None:
            if self._spent_tokens >= self._tokens:
                budget = plural(self._tokens, "token")
                raise BudgetReached(
                    f"the budget of {budget} is used up ({self._spent_tokens} spent)"
                )
            if self._unmetered:
                raise _unknown_use("how many tokens a call took")
        if self._usd is not None:
            if self._spent_usd >= self._usd:
                raise BudgetReached(
                    f"the budget of ${self._usd:g} is used up (${self._spent_usd:.4f} spent)"
                )
            if self._unpriced:
                raise _unknown_use("what a call cost")

    def describe_end(self, problem: BudgetReached) -> BudgetReached:
        """Return why the budget ended a run, with the amount spent now that no call is in flight."""
        try:
            self.check()
        except BudgetReached as reached:
            return reached
        return problem

    def _book(self, usage: Usage) -> None:
        self._spent_usd += usage.paid_usd or 0.0
        self._spent_tokens += usage.input_tokens + usage.output_tokens
        self._unpriced |= usage.paid_usd is None
        self._unmetered |= usage.unmetered > 0

    def _has_room(self, expected: CallReservation) -> bool:
        if not self._in_flight:
            return True
        calls = [*self._in_flight, expected]
        tokens = self._spent_tokens + sum(call.tokens for call in calls)
        usd = self._spent_usd + sum(call.usd for call in calls)
        if tokens <= (self._tokens or math.inf) and usd <= (self._usd or math.inf):
            return True
        if not self._told and tokens + usd < math.inf:
            self._told = True
            print_stderr(
                "calls wait for the budget, as each in flight counts with the most that it can use: "
                f"{expected.tokens:,} tokens, ${expected.usd:.4f}"
            )
        return False


# As CUBIC has it (RFC 9438): against a provider that has no queue, half would idle a quarter of it
DECREASE = 0.7
CIRCUIT = 8  # failures in a row, without an answer in between, after which all wait
LONGEST_PROBE = 15.0  # seconds between two tries while the circuit is open
LONGEST_WAIT = 60.0  # seconds; a provider that asks for more is not waited for
_LONGEST_LOOK = (
    5.0  # seconds after which a waiting request looks again, whether it was notified or not
)


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
                    self._free.wait(
                        min(seconds_left, pause if pause > 0 else seconds_left, _LONGEST_LOOK)
                    )
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


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and for how long, a request without an answer is sent again; then its query stays pending."""

    attempts: int = 6
    # Seconds before the second attempt, unless the provider says how many; doubled each time
    first: float = 0.5
    before: float = (
        5.0  # seconds from the first failure on, for a model that has not answered anything yet
    )
    after: float = 30.0  # the same, once it has, and for one that is overloaded
    call: float = 600.0  # seconds until a request is cut off
    # Whether that grows for a server that was measured to need longer
    follows_speed: bool = False


NAME = "speeds.json"
# Tokens of a prompt or an answer below which the delay of a request hides the speed.
_LEAST_READ = 128
_LEAST_WRITTEN = 8
_FASTEST = 1e9  # more is a mistake
_SAMPLES = 32  # latest answers whose median counts
_SECONDS = 60.0  # between two times that a measure is kept on disk


class Speed(NamedTuple):
    """Tokens a second; None if that was not measured."""

    read: float | None = None  # of prompts, without what the server had cached
    write: float | None = None  # of answers, from their first token on

    def seconds(self, tokens_in: float, tokens_out: float) -> float | None:
        """Return how long a call of these tokens takes; None for an unknown speed."""
        if not (self.read and self.write):
            return None
        return tokens_in / self.read + tokens_out / self.write

    def __str__(self) -> str:
        read = _write_figure(self.read)
        written = _write_figure(self.write)
        return f"reads {read} and writes {written} tokens a second"


UNKNOWN = Speed()


class SpeedMeter:
    """The speed of a model: medians over its latest answers. Threads share it."""

    def __init__(self, spec: str = "") -> None:
        """Begin with the kept measure of the model `spec`; "" keeps none."""
        self._spec = spec
        self._read = deque[float](maxlen=_SAMPLES)
        self._written = deque[float](maxlen=_SAMPLES)
        if spec:
            known = read_speeds().get(spec, UNKNOWN)
            self._read += filter(None, [known.read])
            self._written += filter(None, [known.write])
        self._kept = float("-inf")  # when, by time.monotonic
        self._lock = threading.Lock()

    @property
    def speed(self) -> Speed:
        """The speed so far."""
        with self._lock:
            read = median(self._read) if self._read else None
            written = median(self._written) if self._written else None
            return Speed(read, written)

    def add(
        self,
        usage: Usage,
        seconds: float,
        first: float | None,
        timings: Any = None,
    ) -> None:
        """Count an answer that took `seconds`, `first` of them to its first token.

        `timings` are llama.cpp's own; they leave out the time that a request waited for a slot.
        """
        read, written = _own_speeds(timings)
        if first is not None and 0 < first < seconds:
            tokens_in = usage.input_tokens - usage.cached_tokens
            if read is None and tokens_in >= _LEAST_READ:
                read = tokens_in / first
            if written is None and usage.output_tokens > _LEAST_WRITTEN:
                written = (usage.output_tokens - 1) / (seconds - first)
        with self._lock:
            self._read += filter(None, [read])
            self._written += filter(None, [written])
            due = bool(read or written) and time.monotonic() - self._kept > _SECONDS
        if due:
            self.keep()

    def forget(self) -> None:
        """Begin again, as nothing had been measured."""
        with self._lock:
            self._read.clear()
            self._written.clear()

    def keep(self) -> None:
        """Write the measure to disk; a disk that takes nothing loses it, and nothing else."""
        self._kept = time.monotonic()
        speed = self.speed
        if not self._spec or speed == UNKNOWN:
            return
        speeds = read_speeds() | {self._spec: speed}
        rows = {spec: kept._asdict() for spec, kept in speeds.items()}
        path = _path()
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.replace(path, json.dumps(rows, indent=2) + "\n")


_Rate = Annotated[float, Field(gt=0, lt=_FASTEST)]


class _Row(TypedDict):
    """A measure in the file."""

    read: _Rate | None
    write: _Rate | None


def _write_figure(speed: float | None) -> str:
    if speed is None:
        return "?"
    if speed < 100:
        return f"{speed:.3g}"
    return f"{speed:,.0f}"


def read_speeds() -> dict[str, Speed]:
    """Return the kept measures by model; none if the file is missing or damaged."""
    with suppress(OSError, ValueError):
        rows = schemas.parse_json(dict[str, _Row], _path().read_text(encoding="utf-8"))
        return {spec: Speed(**row) for spec, row in rows.items()}
    return {}


def _path() -> Path:
    return files.sextant_home() / NAME


def _own_speeds(timings: Any) -> tuple[float | None, float | None]:
    """Return the speeds in llama.cpp's timings, each None if too few tokens were measured."""
    if not isinstance(timings, Mapping):
        return None, None
    read = None
    written = None
    if (_rate(timings, "prompt_n") or 0) >= _LEAST_READ:
        read = _rate(timings, "prompt_per_second")
    if (_rate(timings, "predicted_n") or 0) > _LEAST_WRITTEN:
        written = _rate(timings, "predicted_per_second")
    return read, written


def _rate(row: Mapping[str, Any], name: str) -> float | None:
    value: Any = row.get(name)
    if type(value) not in (int, float):  # isinstance would let True through
        return None
    return float(value) if 0 < value < _FASTEST else None
