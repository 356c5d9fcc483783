"""A run's account for what its retrievers ask of providers: embeddings count in the budget, and stand in the books.

An index is opened before there is a run folder. What was used until then is booked when the folder is there.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools import session
from tools.models.answers import Books, Ledger
from tools.models.budget import Budget, Expected
from tools.models.price_file import entry
from tools.records import Usage, total
from tools.retrievers.account import Receipt

FAULT = "embedding"  # what the books call a request that was left without an answer


class RunAccount:
    """The account of a run or a compilation. Threads share it."""

    def __init__(self, budget: Budget, prices: Path | None = None) -> None:
        """`prices` is the user's own file; without one, the default file."""
        self._budget = budget
        self._prices = prices
        self._ledger: Ledger | None = None
        self._before = dict[str, list[Usage | None]]()  # by model: requests before there was a ledger; None failed
        self._lock = threading.Lock()

    @property
    def books(self) -> Books | None:
        """What the run sent and used, in all its sittings; None where no retriever of it sends anything."""
        return self._ledger.books if self._ledger else None

    def price(self, model: str) -> float | None:
        """US dollars per million tokens, where the user's own prices say it."""
        found = entry(model.removeprefix("api:"), self._prices)  # where it is under MODEL
        return found.input if found else None

    @contextmanager
    def request(self, model: str, tokens: int, usd: float | None) -> Iterator[Receipt]:
        """Around one request. BudgetReached when there is none left."""
        expected, receipt = Expected(tokens, usd or 0.0), Receipt()
        self._budget.take(expected)
        started, answered = time.monotonic(), False
        try:
            yield receipt
            answered = True
        finally:
            self._budget.spend(receipt.usage, expected)
            self._book(model, receipt.usage if answered else None, time.monotonic() - started)

    def resume(self, model: str, spent: Usage) -> None:
        """Count what an index has cost in an earlier process. Once there are books, it is in them."""
        if self._ledger is None:
            self._budget.resume(spent)
            self._book(model, spent)

    def keep(self, ledger: Ledger) -> None:
        """From here on, book what is used in the `ledger` of the run, which has its earlier sittings."""
        books = ledger.books
        self._budget.resume(books.usage, books.sent, of=ledger.run)
        with self._lock:
            self._ledger, before = ledger, self._before
            self._before = {}
        for model, requests in before.items():
            answered = total(usage for usage in requests if usage is not None)
            if answered.calls:
                ledger.index(model, answered)
            for _ in range(requests.count(None)):
                ledger.failed("", "", model, FAULT, Usage(), 0.0)

    def _book(self, model: str, usage: Usage | None, seconds: float = 0.0) -> None:
        """Book what a request used, or that it was left without an answer."""
        with self._lock:
            if self._ledger is None:
                self._before.setdefault(model, []).append(usage)
                return
        payer = session.current()
        query_id = payer.query_id if payer else ""
        if usage is not None:
            self._ledger.index(model, usage, query_id)
        else:
            self._ledger.failed(query_id, "", model, FAULT, Usage(), seconds)
