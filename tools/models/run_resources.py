"""What the models of a run share: one budget, gate, ledger, patience and cassette.

Whatever asks a model (a program, a lens, an index of embeddings) connects by these terms:
`tools.models.language_model.connect` for chat, `tools.models.embeddings.Embeddings` for vectors.
"""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tools import files, schemas
from tools.cli import print_stderr
from tools.errors import BudgetReached, DataError, ProviderRefused, UnknownPrice, UsageError
from tools.models.storage.request_store import CassetteLine
from tools.models.storage.response_cache import Ledger, ModelResponse, UsageTotals, open_ledger
from tools.models.transport.rate_limiter import ConcurrencyLimiter
from tools.records import Usage, total, usage_from_json, usage_json
from tools.session import SharedOnDeepcopy

QUERY_SECONDS = 3600.0  # until a query is given up in this sitting, by default
_LOOK = 0.25  # seconds after which a call that waits for the budget looks whether the time is up


class CallReservation(NamedTuple):
    """The most tokens and dollars that a call in flight can use; infinite if that is not known yet."""

    tokens: float = 0
    usd: float = 0.0


NOTHING = CallReservation()


def unknown_price(name: str) -> UnknownPrice:
    """Return the refusal of --budget-usd for a model."""
    why = f"the price of {name} is not known, so --budget-usd cannot be kept"
    return UnknownPrice(f"{why}; use --budget-calls, or write it into a file for --prices")


class Budget:
    """Limits on requests, tokens, dollars and time, checked before each request is sent. Threads share it.

    A call in flight counts with the most that it can use, so what is spent and what is in flight stay below the limit
    together. A call that does not fit waits for those in flight. If none is in flight, it is sent alone, since nearly
    all calls use less than their most: so a budget is exceeded by one call at most.
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
        self._resumed = set[object]()
        self._settled = threading.Condition()  # a call that was in flight is booked

    def resume(self, spent: Usage, requests: int | None = None, *, source: object = None) -> None:
        """Count what earlier sittings of the same run used: `requests` sent, where more than were answered.

        What has a `source`, such as the ledger of a run, is counted once.
        """
        with self._settled:
            if source in self._resumed:
                return
            if source is not None:
                self._resumed.add(source)
            self.calls += spent.calls if requests is None else requests
            self._book(spent)

    def take(
        self,
        expected: CallReservation = NOTHING,
        *,
        deadline: float = math.inf,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Take one request before it is sent, to be followed by one `spend`; wait while calls in flight may use it up.

        BudgetReached when none is left, TimeoutError at the `deadline` (time.monotonic); `check` may raise, too.
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

    def spend(self, usage: Usage, expected: CallReservation = NOTHING) -> None:
        """Book what a request turned out to use; `expected` as it was taken."""
        with self._settled:
            self._in_flight.remove(expected)
            self._book(usage)
            self._settled.notify_all()

    def allow(self, calls: int, usd: float | None) -> None:
        """Raise BudgetReached when planned work needs more than is left, UnknownPrice for dollars of unknown price."""
        with self._settled:
            if self._calls is not None and calls > (rest := self._calls - self.calls):
                raise BudgetReached(
                    f"it takes {calls:,} calls, and {rest:,} are left in the budget"
                )
            if self._usd is None:
                return
            if usd is None:
                raise UnknownPrice(
                    "its price is not known, so --budget-usd cannot be kept; use --budget-calls"
                )
            if usd > self._usd - self._spent_usd:
                left = max(0.0, self._usd - self._spent_usd)
                raise BudgetReached(
                    f"it takes about ${usd:.4f}, and ${left:.4f} are left in the budget"
                )

    def require_price(self, name: str, *, known: bool) -> None:
        """Raise UnknownPrice where there is a limit in dollars and the price of a model is not `known`."""
        if self._usd is not None and not known:
            raise unknown_price(name)

    def check(self) -> None:
        """Raise BudgetReached where a limit is reached, or where that cannot be known."""
        if time.monotonic() >= self.ends:
            raise BudgetReached(f"the time limit of {self._seconds:g} s is reached", larger=False)
        if self._calls is not None and self.calls >= self._calls:
            raise BudgetReached(f"the budget of {self._calls} model calls is used up")
        if self._tokens is not None and self._spent_tokens >= self._tokens:
            raise BudgetReached(
                f"the budget of {self._tokens} tokens is used up ({self._spent_tokens} spent)"
            )
        if self._tokens is not None and self._unmetered:
            unknown = (
                "a call had no usage reported, so how many tokens it took is not known; use "
                "--budget-calls"
            )
            raise BudgetReached(unknown, larger=False)
        if self._usd is not None and self._spent_usd >= self._usd:
            raise BudgetReached(
                f"the budget of ${self._usd:g} is used up (${self._spent_usd:.4f} spent)"
            )
        if self._usd is not None and self._unpriced:
            unknown = (
                "what a call cost is not known, for it had no usage reported, or no price; use "
                "--budget-calls"
            )
            raise BudgetReached(unknown, larger=False)

    def describe_end(self, problem: BudgetReached) -> BudgetReached:
        """Return why the budget ended a run, with what has been spent now that no call is in flight."""
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

    def _may_be_exceeded(self, expected: CallReservation) -> bool:
        if self._tokens is None and self._usd is None:
            return False
        calls = [*self._in_flight, expected]
        tokens = self._spent_tokens + sum(call.tokens for call in calls)
        usd = self._spent_usd + sum(one.usd for one in calls)
        return (self._tokens is not None and tokens > self._tokens) or (
            self._usd is not None and usd > self._usd
        )


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
    """The budget, gate, ledger and patience that all models of a run or a compilation share. Threads share it.

    An index may be built before there is a run folder; what it used is booked once there is a ledger.
    """

    budget: Budget = field(default_factory=Budget)
    gate: ConcurrencyLimiter = field(default_factory=lambda: ConcurrencyLimiter(1024))
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
        self._place: tuple[Path, Path | None] | None = (
            None  # the folder of the run and that of all runs
        )
        self._sends = False  # whether a model that sends something is connected
        self._unbooked = list[
            tuple[str, str, Usage, float]
        ]()  # (model, fault, usage, seconds) before the ledger
        self._lock = threading.Lock()

    @property
    def books(self) -> UsageTotals | None:
        """The books of the run in all its sittings; None where nothing is sent."""
        return self.ledger.books if self.ledger else None

    def open(self, folder: Path, runs: Path | None = None) -> None:
        """Work for the run in `folder`, RUNS/TASK/NAME, or for a compilation anywhere in `runs`; count what it used."""
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
        books = ledger.books
        self.budget.resume(books.usage, books.sent, source=ledger.run)
        self.answered_before = books.answered > 0
        ledger.cassette = self.cassette
        with self._lock:
            self.ledger = ledger
            unbooked = self._unbooked
            self._unbooked = []
        for model in dict.fromkeys(one[0] for one in unbooked):
            used = total(usage for name, fault, usage, _ in unbooked if name == model and not fault)
            if used.calls:
                ledger.book(model, used)
        for model, fault, usage, seconds in unbooked:
            if fault:
                ledger.book(model, usage, fault=fault, seconds=seconds)

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
        """Book a request without an answer, by its `fault`, or one whose answer an index keeps."""
        with self._lock:
            if self.ledger is None:
                self._unbooked.append((model, fault, usage, seconds))
                return
        self.ledger.book(model, usage, fault=fault, seconds=seconds, query_id=query_id, key=key)

    def resume(self, model: str, spent: Usage) -> None:
        """Count what an index has cost in an earlier process, unless the ledger, once there, has it already."""
        if self.ledger is None and spent.calls:
            self.budget.resume(spent)
            self.book(model, spent)

    def settle(self) -> None:
        """Wait until the books are on disk, with the rows that no call waited for."""
        if self.ledger:
            self.ledger.answers.settle()

    def status(self) -> CallStats:
        """Return a snapshot of the calls of the run."""
        books = self.books
        gate = self.gate
        if books is None:
            return CallStats(sent=self.budget.calls, usage=Usage(calls=self.budget.calls))
        failed = sum(books.faults.values())
        calls = books.usage.calls + books.cached
        usage = replace(books.usage, calls=calls, cached_calls=books.cached)
        return CallStats(
            gate.in_flight, gate.limit, gate.waiting, *gate.pause(), books.sent, failed, usage
        )


class Cassette:
    """All model calls of a run in one file, to be shown to somebody without a key: `--cassette FILE`.

    Where there is no such file, the run is recorded into it once it is complete; where there is one, every call of
    programs and lenses and every embedding of a query is answered from it, and nothing is sent. The file is JSON Lines,
    in the order of the keys, each of which stands for everything that shapes an answer. Left out: indexes that a model
    writes, which are kept under $SEXTANT_HOME/indexes.
    """

    def __init__(self, path: Path, terms: RunResources, *, sends: bool) -> None:
        """Replay the file at `path`, if any. UsageError where a run `sends` nothing or no file can be made."""
        if not sends:
            raise UsageError(
                "--cassette is for runs with a model; offline needs none, nor does the retriever"
            )
        self._path = path
        self._terms = terms
        if path.is_dir():
            raise UsageError(f"--cassette {path} is a folder; name a file")
        if path.exists():
            terms.cassette = dict(read_cassette(path)), str(path)
            terms.servers = json.loads(next(iter(files.iter_lines(path)))).get("servers", {})
        elif not path.parent.is_dir():
            raise UsageError(f"--cassette {path}: there is no folder {path.parent}")
        elif not os.access(path.parent, os.W_OK):
            raise UsageError(
                f"--cassette {path}: nothing can be written there; choose another place"
            )

    def record(self, *, complete: bool) -> None:
        """Write what the run has used, if it is complete and not replayed."""
        ledger = self._terms.ledger
        if ledger is None or self._terms.cassette:
            return
        if not complete:
            print_stderr(f"{self._path} is written when the run is complete")
            return
        answers = ledger.answers.of_run(ledger.run)
        print_stderr(
            f"{write_cassette(self._path, answers, self._terms.servers)} answers are in "
            f"{self._path}"
        )


_HEAD = {"cassette": 1}  # the first line; the number is the format's


def write_cassette(
    path: Path,
    answers: Iterable[tuple[str, ModelResponse]],
    servers: Mapping[str, Any] | None = None,
) -> int:
    """Write answers by key, and return how many there were. The file appears when all of it is written.

    What was found of the `servers` shapes prompts, so it is in the first line.
    """
    count = 0
    found = {model: server for model, server in (servers or {}).items() if any(server.values())}
    with files.replacing(path) as file:
        file.write(json.dumps(_HEAD | ({"servers": found} if found else {})) + "\n")
        for key, answer in answers:
            row: dict[str, Any] = {
                "key": key,
                "outputs": answer.outputs,
                "usage": usage_json(answer.usage),
            }
            row |= {"finish": answer.finish, "seconds": answer.seconds}
            file.write(
                json.dumps(row | ({"reasoning": answer.reasoning} if answer.reasoning else {}))
                + "\n"
            )
            count += 1
    return count


def read_cassette(path: Path) -> Iterator[tuple[str, ModelResponse]]:
    """Yield the keys and answers of a cassette. DataError when the file is something else."""

    def damaged(why: str) -> DataError:
        return DataError(
            f"{path}, line {number} is no line of a cassette ({why}); record it again, under "
            f"another name"
        )

    size = number = 0
    for number, text in enumerate(files.iter_lines(path), start=1):
        size += len(text)
        try:
            row = schemas.parse_json(dict[str, Any] if number == 1 else CassetteLine, text)
        except ValueError as error:
            raise damaged(str(error)) from None
        if number > 1:
            usage = usage_from_json(row["usage"])
            thought = row.get("reasoning", "")
            yield (
                row["key"],
                ModelResponse(row["outputs"], usage, row["finish"], row["seconds"], thought),
            )
        elif {**row, "servers": 0} != {**_HEAD, "servers": 0}:
            raise damaged(f"it begins with {json.dumps(_HEAD)}")
    if not number or size < path.stat().st_size:
        number += 1
        raise damaged("it has no end")
