"""Resources that the models of a run share: budget, rate limiter, ledger, retry policy and
cassette.

Whatever asks a model (a program, a lens, an index of embeddings) connects with these resources:
`sextant.tools.models.language_model.connect` for chat, `sextant.tools.models.embeddings.Embeddings` for vectors.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sextant.tools.errors import ProviderRefused
from sextant.tools.models.call_limits import Budget, ConcurrencyLimiter, RetryPolicy, SpeedMeter
from sextant.tools.models.storage.ledger import Ledger, ModelResponse, UsageTotals, open_ledger
from sextant.tools.records import Usage, total
from sextant.tools.session import SharedOnDeepcopy

QUERY_SECONDS = 3600.0  # until a query is given up in this sitting, by default


PATIENCE = RetryPolicy()  # the default; a test does not wait


@dataclass(frozen=True, slots=True)
class CallStats:
    """A snapshot of the calls of a run; cheap to make, from any thread."""

    in_flight: int = 0  # requests sent and not answered yet
    limit: int = 0  # how many may be so at present, between 1 and --max-concurrent
    waiting: int = 0  # calls that wait to be sent
    reason: str = ""  # why they wait, in words
    seconds: float = 0.0  # until they go on, as far as that is known
    sent: int = 0  # requests sent so far, those of earlier sittings included
    failed: int = 0  # those of them that were left without an answer
    usage: Usage = field(default_factory=Usage)  # of the run so far


@dataclass(eq=False, kw_only=True)
class RunResources(SharedOnDeepcopy):
    """The budget, limiter, ledger and patience that all models of a run or a compilation share. Threads share it.

    An index may be built before there is a run folder; its usage is recorded once there is a
    ledger.
    """

    budget: Budget = field(default_factory=Budget)
    limiter: ConcurrencyLimiter = field(default_factory=lambda: ConcurrencyLimiter(1024))
    patience: RetryPolicy = field(default_factory=lambda: PATIENCE)
    prices: Path | None = None  # the user's own file
    query_seconds: float = QUERY_SECONDS
    repeats: bool = False  # whether an equal call in one session gets the same answer
    prompts: bool = True  # whether requests are kept beside their answers

    def __post_init__(self) -> None:
        self.ledger: Ledger | None = None
        self.answered_before = (
            False  # whether a model of the run has answered in an earlier sitting
        )
        self.cassette: tuple[Mapping[str, ModelResponse], str] | None = (
            None  # all there are, and their file; nothing is sent
        )
        self.servers = dict[
            str, dict[str, Any]
        ]()  # by model: "kind", "window" as found, "learnt" by a refusal
        self.meters = dict[str, SpeedMeter]()  # by model, as --lm has it
        self._place: tuple[Path, Path | None] | None = (
            None  # the folder of the run and that of all runs
        )
        self._sends = False  # whether a model that sends something is connected
        self._unbooked = list[
            tuple[str, str, Usage, float]
        ]()  # (model, fault, usage, seconds) before the ledger
        self._lock = threading.Lock()

    @property
    def usage_totals(self) -> UsageTotals | None:
        """The usage of the run in all its sittings; None if nothing is sent."""
        return self.ledger.usage_totals if self.ledger else None

    def open(self, folder: Path, runs: Path | None = None) -> None:
        """Work for the run in `folder`, RUNS/TASK/NAME, or for a compilation anywhere in `runs`;
        count its usage.
        """
        self._place = folder, runs
        self._open_ledger()

    def join(self) -> None:
        """Note that a model is connected that sends something, so the run needs a ledger."""
        self._sends = True
        self._open_ledger()

    def _open_ledger(self) -> None:
        if not self._place or not self._sends or self.ledger:
            return
        ledger = open_ledger(self._place[0], runs=self._place[1])
        usage_totals = ledger.usage_totals
        self.budget.resume(usage_totals.usage, usage_totals.sent, source=ledger.run)
        self.answered_before = usage_totals.answered > 0
        ledger.cassette = self.cassette
        with self._lock:
            self.ledger = ledger
            unbooked = self._unbooked
            self._unbooked = []
        for model in dict.fromkeys(one[0] for one in unbooked):
            usages = [usage for name, fault, usage, _ in unbooked if name == model and not fault]
            used = total(usages)
            if used.calls:
                ledger.book(model, used)
        for model, fault, usage, seconds in unbooked:
            if fault:
                ledger.book(model, usage, fault=fault, seconds=seconds)

    def meter(self, spec: str) -> SpeedMeter:
        """Return the meter of a model, which begins with what was measured before."""
        with self._lock:
            return self.meters.setdefault(spec, SpeedMeter(spec))

    def check_sends(self, what: str) -> None:
        """Raise ProviderRefused for `what` when a cassette is replayed, because nothing may be sent."""
        if self.cassette:
            raise ProviderRefused(
                f"{self.cassette[1]} has no answer to {what}, and nothing is sent beside it"
            )

    def book(
        self,
        model: str,
        usage: Usage,
        *,
        fault: str = "",
        seconds: float = 0.0,
        query_id: str = "",
        key: str = "",
    ) -> None:
        """Book a request without an answer, by its `fault`, or a request whose answer an index
        keeps.
        """
        with self._lock:
            if self.ledger is None:
                self._unbooked.append((model, fault, usage, seconds))
                return
        self.ledger.book(model, usage, fault=fault, seconds=seconds, query_id=query_id, key=key)

    def resume(self, model: str, spent: Usage) -> None:
        """Count the cost of an index in an earlier process, unless the ledger, once there, has it
        already.
        """
        if self.ledger is None and spent.calls:
            self.budget.resume(spent)
            self.book(model, spent)

    def settle(self) -> None:
        """Wait until the usage is on disk, with the rows that no call waited for; keep what was measured."""
        for meter in self.meters.values():
            meter.keep()
        if self.ledger:
            self.ledger.answers.settle()

    def status(self) -> CallStats:
        """Return a snapshot of the calls of the run."""
        usage_totals = self.usage_totals
        limiter = self.limiter
        if usage_totals is None:
            return CallStats(sent=self.budget.calls, usage=Usage(calls=self.budget.calls))
        failed = sum(usage_totals.faults.values())
        calls = usage_totals.usage.calls + usage_totals.cached
        usage = replace(usage_totals.usage, calls=calls, cached_calls=usage_totals.cached)
        return CallStats(
            limiter.in_flight,
            limiter.limit,
            limiter.waiting,
            *limiter.pause(),
            usage_totals.sent,
            failed,
            usage,
        )
