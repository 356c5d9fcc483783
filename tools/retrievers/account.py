"""Who pays for what retrievers ask of providers: asked before each request, told after it.

In a run that is the run's budget and its books (tools/models/account.py). Elsewhere, as in `python -m
tools.retrievers`, nobody keeps count of more than what the index says it has cost.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from tools.records import Usage

# No model takes or writes so much in one call (the largest windows have 2 million); a report of more is a mistake.
MOST_TOKENS = 10_000_000


def believable(count: Any) -> bool:
    """Whether a provider may really have counted so many tokens in one call."""
    return type(count) is int and 0 <= count <= MOST_TOKENS  # isinstance would let True through


@dataclass(slots=True)
class Receipt:
    """What a request used. Who sends it fills it in; a request that is left without an answer used nothing."""

    usage: Usage = field(default_factory=Usage)


class Account(Protocol):
    """Whoever pays. Threads share it."""

    def price(self, model: str) -> float | None:
        """US dollars per million tokens, where the user's own prices say it."""
        ...

    def request(self, model: str, tokens: int, usd: float | None) -> AbstractContextManager[Receipt]:
        """Around one request, which is expected to use so much. BudgetReached, before it is sent, when it is too much.

        `usd` is None where the price is not known.
        """
        ...

    def resume(self, model: str, spent: Usage) -> None:
        """Count what an index has cost in an earlier process that did not complete it."""
        ...
