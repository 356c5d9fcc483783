"""The held-out answer: the same program on the test split, as it was and compiled, compared query by query.

Two runs like any others, in run folders of their own: what was answered before is not paid for again. Each counts as a
use of the test split (evals/measuring/split_uses.py).
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evals.measuring.comparison import compare
from evals.running.evaluation import run
from evals.running.request import Request
from evals.running.sitting import Result
from optimizers.request import CompileRequest
from tools.errors import BudgetReached
from tools.records import Usage, usage_from_json

BUDGETS = ("budget_usd", "budget_tokens", "budget_calls", "time_limit")


def request_on_test(request: CompileRequest, **fields: Any) -> Request:
    """Return the request of a run of the program on all queries of the test split; `fields` are what is otherwise."""
    return request.run(**{"split": "test", "limit": None, "retriever": None, "parameters": {}} | fields)


def compare_on_test(
    request: CompileRequest,
    before: Mapping[str, Any],
    compiled: Path,
    left: "Left",
    metric: str,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Run both programs on test and compare them in `metric`. BudgetReached or RunIncomplete with queries pending.

    `before` are the fields that make the program as it was; the compiled one brings them along.
    """
    folders = []
    for name, fields in (("as it was", before), ("compiled", {"compiled": compiled})):
        tell(f"test split, {name}")
        result = run(request_on_test(request, **fields, **left.budgets()))
        if isinstance(result.problem, BudgetReached):  # it names what was left, a number that nobody gave
            used = "budget" if result.problem.larger else "budget or the time"
            raise result.problem.saying(f"the {used} is used up in the run {name}")
        if result.problem:
            raise result.problem
        left.take(result)
        folders.append(result.folder)
    return compare(folders, [metric])


class Left:
    """What a compilation leaves of its budgets and of its time."""

    def __init__(self, request: CompileRequest, spent: Usage, ends: float) -> None:
        """`spent` is what is used up already; the time `ends` at so many seconds of the monotonic clock."""
        self._request, self._spent, self._ends = request, spent, ends

    def take(self, result: Result) -> None:
        """Count a run: requests sent, answered or not, and nothing for what was there already."""
        used = result.usage
        if ledger := result.json().get("ledger"):
            used = replace(usage_from_json(ledger), calls=ledger["sent"])
        self._spent += used

    def budgets(self) -> dict[str, Any]:
        """Return the budgets of the next run, as fields of a request. BudgetReached when nothing is left."""
        request, spent = self._request, self._spent
        left: dict[str, Any] = {}
        if self._ends < math.inf:
            left["time_limit"] = self._ends - time.monotonic()
            if left["time_limit"] < 0.001:
                raise BudgetReached(f"the time limit of {request.time_limit:g} s is reached", larger=False)
        for name, budget, used in (
            ("budget_usd", request.budget_usd, spent.paid_usd),
            ("budget_tokens", request.budget_tokens, spent.input_tokens + spent.output_tokens),
            ("budget_calls", request.budget_calls, spent.calls),
        ):
            if budget is not None and (used is None or used >= budget):
                option = f"--{name.replace('_', '-')}"
                raise BudgetReached(f"{option} {budget:g} is used up by what was done before")
            left[name] = None if budget is None else budget - (used or 0)
        return left
