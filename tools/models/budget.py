"""What the model calls of a run may use together, its own and those that write annotations for an index.

Asked before each request is sent. What is in flight counts with what such a call is expected to use, so that calls
side by side do not go over a limit together: near it, they wait for each other.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Self

from tools.errors import BudgetReached, UsageError
from tools.records import Usage


class Expected(NamedTuple):
    """The tokens and dollars that a call in flight is assumed to use until its answer says."""

    tokens: int = 0
    usd: float = 0.0


NOTHING = Expected()
_LOOK = 0.25  # seconds after which who waits looks whether the time is up


class Budget:
    """Limits on requests, tokens, dollars and time. Threads share it."""

    def __init__(
        self,
        *,
        calls: int | None = None,
        usd: float | None = None,
        tokens: int | None = None,
        seconds: float | None = None,
    ) -> None:
        """None is no limit. `calls` are requests sent, whether they are answered or not; `seconds` from now on."""
        self._calls = calls
        self._usd = usd
        self._tokens = tokens
        self._seconds = seconds
        self._ends = math.inf if seconds is None else time.monotonic() + seconds
        self._taken = 0
        self._spent_usd = 0.0
        self._spent_tokens = 0
        self._unknown = False  # whether something was spent whose price nobody knows
        self._unmetered = False  # whether something was spent whose tokens nobody knows
        self._in_flight = 0
        self._expected_tokens = 0  # of what is in flight
        self._expected_usd = 0.0
        self._settled = threading.Condition()  # a call that was in flight is booked

    @property
    def limited(self) -> bool:
        """Whether what a call is expected to use matters at all."""
        return self._usd is not None or self._tokens is not None

    @property
    def ends(self) -> float:
        """The time.monotonic at which the time limit is reached; infinity without a limit."""
        return self._ends

    def resume(self, spent: Usage, requests: int | None = None) -> None:
        """Count what earlier sittings of the same run used: `requests` sent, where more than were answered."""
        with self._settled:
            self._taken += spent.calls if requests is None else requests
            self._book(spent)

    def take(
        self, expected: Expected = NOTHING, *, deadline: float = math.inf, check: Callable[[], None] | None = None
    ) -> None:
        """Take one request before it is sent. BudgetReached when none is left; waits where that may change.

        Each `take` is followed by one `spend`. TimeoutError at the `deadline`, by time.monotonic; `check` is called
        before it is taken, and may raise why nothing is to be sent any more.
        """
        if self._taken_now(expected, check):
            return
        with self._settled:
            while not self._taken_now(expected, check):
                if (left := deadline - time.monotonic()) <= 0:
                    raise TimeoutError("the budget of the run")
                self._settled.wait(timeout=min(left, _LOOK))

    def _taken_now(self, expected: Expected, check: Callable[[], None] | None) -> bool:
        """Take it, or say that those in flight are to be waited for. BudgetReached."""
        with self._settled:
            if check:
                check()
            self._check()
            if self._in_flight and self._would_pass(expected):
                return False
            self._taken += 1
            self._in_flight += 1
            self._expected_tokens += expected.tokens
            self._expected_usd += expected.usd
            return True

    def spend(self, usage: Usage, expected: Expected = NOTHING) -> None:
        """Book what a request turned out to use; `expected` as it was taken."""
        with self._settled:
            self._in_flight -= 1
            self._expected_tokens -= expected.tokens
            self._expected_usd -= expected.usd
            self._book(usage)
            if self.limited:
                self._settled.notify_all()

    def allow(self, calls: int, usd: float | None) -> None:
        """BudgetReached when work of so many calls and dollars is more than what is left; before any of it is sent.

        UsageError where there is a budget in dollars and the price is not known.
        """
        with self._settled:
            if self._calls is not None and calls > self._calls - self._taken:
                raise BudgetReached(
                    f"it takes {calls:,} calls, and {self._calls - self._taken:,} are left in the budget"
                )
            if self._usd is None:
                return
            if usd is None:
                raise UsageError("its price is not known, so --budget-usd cannot be kept; use --budget-calls")
            if usd > self._usd - self._spent_usd:
                left = max(0.0, self._usd - self._spent_usd)
                raise BudgetReached(f"it takes about ${usd:.4f}, and ${left:.4f} are left in the budget")

    @property
    def calls(self) -> int:
        """Requests sent so far, those in flight included."""
        with self._settled:
            return self._taken

    def _book(self, usage: Usage) -> None:
        self._spent_usd += usage.paid_usd or 0.0
        self._spent_tokens += usage.input_tokens + usage.output_tokens
        self._unknown |= usage.paid_usd is None
        self._unmetered |= usage.unmetered > 0

    def check(self) -> None:
        """BudgetReached where something is used up already."""
        with self._settled:
            self._check()

    def _check(self) -> None:
        if time.monotonic() >= self._ends:
            raise BudgetReached(f"the time limit of {self._seconds:g} s is reached", larger=False)
        if self._calls is not None and self._taken >= self._calls:
            raise BudgetReached(f"the budget of {self._calls} model calls is used up")
        if self._tokens is not None and self._spent_tokens >= self._tokens:
            raise BudgetReached(f"the budget of {self._tokens} tokens is used up ({self._spent_tokens} spent)")
        if self._tokens is not None and self._unmetered:
            unknown = "a call had no usage reported, so how many tokens it took is not known; use --budget-calls"
            raise BudgetReached(unknown, larger=False)
        if self._usd is not None and self._spent_usd >= self._usd:
            raise BudgetReached(f"the budget of ${self._usd:g} is used up (${self._spent_usd:.4f} spent)")
        if self._usd is not None and self._unknown:
            unknown = "what a call cost is not known, for it had no usage reported, or no price; use --budget-calls"
            raise BudgetReached(unknown, larger=False)

    def _would_pass(self, expected: Expected) -> bool:
        """Whether this call and those in flight may go over a limit together."""
        tokens = self._spent_tokens + self._expected_tokens + expected.tokens
        usd = self._spent_usd + self._expected_usd + expected.usd
        return (self._tokens is not None and tokens > self._tokens) or (self._usd is not None and usd > self._usd)

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers copy the language model with the program; the budget stays one.
        return self
