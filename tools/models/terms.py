"""The terms on which the models of a run are asked: one budget, gate, ledger and patience for all of them.

Whoever asks a model (a program, a lens, an index of embeddings) is handed these and connects by them:
`tools.models.lm.connect` for chat, `tools.models.embeddings.Embeddings` for vectors.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from tools.errors import ProviderRefused
from tools.models.answers import Answer, Books, Ledger, open_ledger
from tools.models.budget import Budget
from tools.models.sending.gate import Gate
from tools.records import Usage, total

QUERY_SECONDS = 3600.0  # until a query is given up for this time, where nobody says otherwise


@dataclass(frozen=True, slots=True)
class Patience:
    """How often, and for how long, a request without an answer is sent again; then its query stays pending."""

    attempts: int = 6
    first: float = 0.5  # seconds before the second attempt, unless the provider says how many; doubled each time
    before: float = 5.0  # seconds from its first failure on, for a model that has not answered anything yet
    after: float = 30.0  # the same, once it has; and for one that says it is asked too much
    call: float = 600.0  # seconds until a request is cut off


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot; cheap to make, from any thread."""

    in_flight: int = 0  # requests sent and not answered yet
    limit: int = 0  # how many may be so at present, between 1 and --max-concurrent
    waiting: int = 0  # calls that wait to be sent
    reason: str = ""  # why they wait, in words
    seconds: float = 0.0  # until they go on, as far as that is known
    sent: int = 0  # requests sent so far, those of earlier sittings included
    failed: int = 0  # those of them that were left without an answer
    usage: Usage = field(default_factory=Usage)  # of the run so far


PATIENCE: Patience | None = None  # instead of the default: a test does not wait


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
        if self._place and self._sends and self.ledger is None:
            self.keep(open_ledger(self._place[0], runs=self._place[1]))

    def keep(self, ledger: Ledger) -> None:
        """From here on, take answers from `ledger` and book in it; first, what was used before there was one."""
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
                ledger.index(model, used)
        for model, fault, usage, seconds in unbooked:
            if fault:
                ledger.failed("", "", model, fault, usage, seconds)

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
        if fault:
            self.ledger.failed(query_id, key, model, fault, usage, seconds)
        else:
            self.ledger.index(model, usage, query_id)

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
        reason, seconds = gate.pause()
        if books is None:
            return Status(sent=self.budget.calls, usage=Usage(calls=self.budget.calls))
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
