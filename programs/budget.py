"""What the model calls of a run may use together, its own and those that write annotations for an index."""

import threading
from typing import Self

from tools.errors import BudgetReached, UsageError
from tools.records import Usage


class Budget:
    """What the model calls of one run may use together. Threads share it."""

    def __init__(self, *, calls: int | None = None, usd: float | None = None) -> None:
        """None is no limit."""
        self._calls = calls
        self._usd = usd
        self._taken = 0
        self._spent_usd = 0.0
        self._unknown = False  # whether something was spent whose price nobody knows
        self._lock = threading.Lock()

    def resume(self, spent: Usage) -> None:
        """Count what earlier sittings of the same run used."""
        with self._lock:
            self._taken += spent.calls
            self._spent_usd += spent.paid_usd or 0.0
            self._unknown |= spent.paid_usd is None

    def take(self) -> None:
        """Ask for one call, before it is sent. BudgetReached when there is none left."""
        with self._lock:
            if self._calls is not None and self._taken >= self._calls:
                raise BudgetReached(f"the budget of {self._calls} model calls is used up")
            if self._usd is not None and self._spent_usd >= self._usd:
                raise BudgetReached(f"the budget of ${self._usd:g} is used up (${self._spent_usd:.4f} spent)")
            if self._usd is not None and self._unknown:
                raise BudgetReached("a call had no usage reported, so what it cost is not known")
            self._taken += 1

    def allow(self, calls: int, usd: float | None) -> None:
        """BudgetReached when work of so many calls and dollars is more than what is left; before any of it is sent.

        UsageError where there is a budget in dollars and the price is not known.
        """
        with self._lock:
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
        """Calls made so far, those in flight included."""
        with self._lock:
            return self._taken

    def spend(self, usage: Usage) -> None:
        """Book what a call turned out to cost."""
        with self._lock:
            self._spent_usd += usage.paid_usd or 0.0
            self._unknown |= usage.paid_usd is None

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers copy the language model with the program; the budget stays one.
        return self
