"""What the models of a run share: one budget, gate, ledger, patience and cassette.

Whoever asks a model (a program, a lens, an index of embeddings) is handed these terms and connects by them:
`tools.models.lm.connect` for chat, `tools.models.embeddings.Embeddings` for vectors.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

from tools.errors import BudgetReached, ProviderRefused, UsageError
from tools.models.answers import Answer, Books, Ledger, open_ledger
from tools.models.gate import Gate
from tools.records import Usage, total

QUERY_SECONDS = 3600.0  # until a query is given up for this time, where nobody says otherwise
_LOOK = 0.25  # seconds after which a call that waits for the budget looks whether the time is up


class Expected(NamedTuple):
    """The tokens and dollars that a call in flight is assumed to use until its answer says."""

    tokens: int = 0
    usd: float = 0.0


NOTHING = Expected()


class Budget:
    """Limits on requests, tokens, dollars and time, asked before each request is sent. Threads share it.

    A call in flight counts with what it is expected to use, so that calls side by side do not go over a limit together:
    near it, they wait for each other.
    """

    def __init__(
        self,
        *,
        calls: int | None = None,
        usd: float | None = None,
        tokens: int | None = None,
        seconds: float | None = None,
    ) -> None:
        """None is no limit. `calls` are requests sent, whether they are answered or not; `seconds` from now on."""
        self._calls, self._usd, self._tokens, self._seconds = calls, usd, tokens, seconds
        self.ends = math.inf if seconds is None else time.monotonic() + seconds  # by time.monotonic
        self.limited = usd is not None or tokens is not None  # whether what a call is expected to use matters at all
        self.calls = 0  # requests sent so far, those in flight included
        self._spent_usd = 0.0
        self._spent_tokens = 0
        self._unpriced = False  # whether something was spent whose price nobody knows
        self._unmetered = False  # whether something was spent whose tokens nobody knows
        self._in_flight = list[Expected]()
        self._settled = threading.Condition()  # a call that was in flight is booked

    def resume(self, spent: Usage, requests: int | None = None) -> None:
        """Count what earlier sittings of the same run used: `requests` sent, where more than were answered."""
        with self._settled:
            self.calls += spent.calls if requests is None else requests
            self._book(spent)

    def take(
        self,
        expected: Expected = NOTHING,
        *,
        deadline: float = math.inf,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Take one request before it is sent. BudgetReached when none is left; waits where that may change.

        Each `take` is followed by one `spend`. TimeoutError at the `deadline`, by time.monotonic; `check` is called
        before it is taken, and may raise why nothing is to be sent any more.
        """
        with self._settled:
            while True:
                check()
                self.check()
                if not self._in_flight or not self._may_be_exceeded(expected):
                    break
                if (left := deadline - time.monotonic()) <= 0:
                    raise TimeoutError("the budget of the run")
                self._settled.wait(timeout=min(left, _LOOK))
            self.calls += 1
            self._in_flight.append(expected)

    def spend(self, usage: Usage, expected: Expected = NOTHING) -> None:
        """Book what a request turned out to use; `expected` as it was taken."""
        with self._settled:
            self._in_flight.remove(expected)
            self._book(usage)
            if self.limited:
                self._settled.notify_all()

    def allow(self, calls: int, usd: float | None) -> None:
        """BudgetReached when work of so many calls and dollars is more than what is left; before any of it is sent.

        UsageError where there is a budget in dollars and the price is not known.
        """
        with self._settled:
            if self._calls is not None and calls > (rest := self._calls - self.calls):
                raise BudgetReached(f"it takes {calls:,} calls, and {rest:,} are left in the budget")
            if self._usd is None:
                return
            if usd is None:
                raise UsageError("its price is not known, so --budget-usd cannot be kept; use --budget-calls")
            if usd > self._usd - self._spent_usd:
                left = max(0.0, self._usd - self._spent_usd)
                raise BudgetReached(f"it takes about ${usd:.4f}, and ${left:.4f} are left in the budget")

    def check(self) -> None:
        """BudgetReached where something is used up already, or where nobody knows whether it is."""
        if time.monotonic() >= self.ends:
            raise BudgetReached(f"the time limit of {self._seconds:g} s is reached", larger=False)
        if self._calls is not None and self.calls >= self._calls:
            raise BudgetReached(f"the budget of {self._calls} model calls is used up")
        if self._tokens is not None and self._spent_tokens >= self._tokens:
            raise BudgetReached(f"the budget of {self._tokens} tokens is used up ({self._spent_tokens} spent)")
        if self._tokens is not None and self._unmetered:
            unknown = "a call had no usage reported, so how many tokens it took is not known; use --budget-calls"
            raise BudgetReached(unknown, larger=False)
        if self._usd is not None and self._spent_usd >= self._usd:
            raise BudgetReached(f"the budget of ${self._usd:g} is used up (${self._spent_usd:.4f} spent)")
        if self._usd is not None and self._unpriced:
            unknown = "what a call cost is not known, for it had no usage reported, or no price; use --budget-calls"
            raise BudgetReached(unknown, larger=False)

    def _book(self, usage: Usage) -> None:
        self._spent_usd += usage.paid_usd or 0.0
        self._spent_tokens += usage.input_tokens + usage.output_tokens
        self._unpriced |= usage.paid_usd is None
        self._unmetered |= usage.unmetered > 0

    def _may_be_exceeded(self, expected: Expected) -> bool:
        """Whether this call and those in flight may go over a limit together."""
        calls = [*self._in_flight, expected]
        tokens = self._spent_tokens + sum(one.tokens for one in calls)
        usd = self._spent_usd + sum(one.usd for one in calls)
        return (self._tokens is not None and tokens > self._tokens) or (self._usd is not None and usd > self._usd)


@dataclass(frozen=True, slots=True)
class Patience:
    """How often, and for how long, a request without an answer is sent again; then its query stays pending."""

    attempts: int = 6
    first: float = 0.5  # seconds before the second attempt, unless the provider says how many; doubled each time
    before: float = 5.0  # seconds from its first failure on, for a model that has not answered anything yet
    after: float = 30.0  # the same, once it has; and for one that says it is asked too much
    call: float = 600.0  # seconds until a request is cut off


PATIENCE: Patience | None = None  # instead of the default: a test does not wait


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot of the calls of a run; cheap to make, from any thread."""

    in_flight: int = 0  # requests sent and not answered yet
    limit: int = 0  # how many may be so at present, between 1 and --max-concurrent
    waiting: int = 0  # calls that wait to be sent
    reason: str = ""  # why they wait, in words
    seconds: float = 0.0  # until they go on, as far as that is known
    sent: int = 0  # requests sent so far, those of earlier sittings included
    failed: int = 0  # those of them that were left without an answer
    usage: Usage = field(default_factory=Usage)  # of the run so far


class Terms:
    """The budget, gate, ledger and patience that all models of a run or a compilation share. Threads share it.

    An index may be built before there is a run folder. What was used until then is booked when the ledger is there.
    """

    def __init__(
        self,
        *,
        budget: Budget | None = None,
        gate: Gate | None = None,
        patience: Patience | None = None,
        prices: Path | None = None,
        query_seconds: float = QUERY_SECONDS,
        repeats: bool = False,
    ) -> None:
        """`prices` is the user's own file; without one, the default file is read.

        With `repeats`, a call that is made again in one session is answered with the same answer.
        """
        self.budget = budget or Budget()
        self.gate = gate or Gate(1024)
        self.patience = patience or PATIENCE or Patience()
        self.prices = prices
        self.query_seconds = query_seconds
        self.repeats = repeats
        self.ledger: Ledger | None = None
        self.answered_before = False  # whether a model of the run has answered in an earlier sitting
        self._cassette: tuple[Mapping[str, Answer], str] | None = None
        self._place: tuple[Path, Path | None] | None = None  # the folder of the run and that of all runs
        self._sends = False  # whether a model that sends something is connected
        self._unbooked = list[tuple[str, str, Usage, float]]()  # (model, fault, usage, seconds) before the ledger
        self._lock = threading.Lock()

    @property
    def books(self) -> Books | None:
        """The books of the run in all its sittings; None where nothing is sent."""
        return self.ledger.books if self.ledger else None

    def open(self, folder: Path, runs: Path | None = None) -> None:
        """Work for the run in `folder` from here on, RUNS/TASK/NAME, or for a compilation anywhere in `runs`.

        Its ledger is opened as soon as a model is connected that sends something; what it has counts in the budget.
        """
        self._place = folder, runs
        self._open_ledger()

    def join(self) -> None:
        """Take note that a model is connected that sends something, so the run needs a ledger."""
        self._sends = True
        self._open_ledger()

    def _open_ledger(self) -> None:
        if not self._place or not self._sends or self.ledger:
            return
        ledger = open_ledger(self._place[0], runs=self._place[1])
        books = ledger.books
        self.budget.resume(books.usage, books.sent)
        self.answered_before = books.answered > 0
        if self._cassette:
            ledger.replay(*self._cassette)
        with self._lock:
            self.ledger, unbooked = ledger, self._unbooked
            self._unbooked = []
        for model in dict.fromkeys(one[0] for one in unbooked):
            used = total(usage for name, fault, usage, _ in unbooked if name == model and not fault)
            if used.calls:
                ledger.book(model, used)
        for model, fault, usage, seconds in unbooked:
            if fault:
                ledger.book(model, usage, fault=fault, seconds=seconds)

    def replay(self, answers: Mapping[str, Answer], source: str) -> None:
        """Answer every request from these, which are of the file `source`, and send none."""
        self._cassette = answers, source

    @property
    def replays(self) -> bool:
        """Whether every request is answered from a cassette."""
        return self._cassette is not None

    def check_sends(self, what: str) -> None:
        """ProviderRefused where nothing may be sent, because a cassette is replayed that has no answer to `what`."""
        if self._cassette:
            raise ProviderRefused(f"{self._cassette[1]} has no answer to {what}, and nothing is sent beside it")

    def book(
        self, model: str, usage: Usage, *, fault: str = "", seconds: float = 0.0, query_id: str = "", key: str = ""
    ) -> None:
        """Book a request that was left without an answer, by its `fault`, or whose answer an index keeps."""
        with self._lock:
            if self.ledger is None:
                self._unbooked.append((model, fault, usage, seconds))
                return
        self.ledger.book(model, usage, fault=fault, seconds=seconds, query_id=query_id, key=key if fault else "")

    def resume(self, model: str, spent: Usage) -> None:
        """Count what an index has cost in an earlier process. Once there is a ledger, it is in that."""
        if self.ledger is None and spent.calls:
            self.budget.resume(spent)
            self.book(model, spent)

    def settle(self) -> None:
        """Wait until the books of what was sent are on disk, those rows too that no call waited for."""
        if self.ledger:
            self.ledger.answers.settle()

    def status(self) -> Status:
        """Return a snapshot of the calls of the run."""
        books, gate = self.books, self.gate
        if books is None:
            return Status(sent=self.budget.calls, usage=Usage(calls=self.budget.calls))
        reason, seconds = gate.pause()
        return Status(
            in_flight=gate.in_flight,
            limit=gate.limit,
            waiting=gate.waiting,
            reason=reason,
            seconds=seconds,
            sent=books.sent,
            failed=sum(books.faults.values()),
            usage=replace(books.usage, calls=books.usage.calls + books.cached, cached_calls=books.cached),
        )

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers copy the language model with the program; the books stay one.
        return self
