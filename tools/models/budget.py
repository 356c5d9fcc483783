"""The budget of a run: limits on requests, tokens, dollars and time, held before each request is sent.

Prices are in prices.py; storage/ledger.py books the requests that were sent.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sextant.tools.errors import BudgetReached, UnknownPrice
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
