"""The held-out answer: the same program on the test split, as it was and compiled, compared query by query.

Two runs like any others, in run folders of their own: what was answered before is not paid for again. Each counts as a
look at the test split (evals/measuring/split_uses.py).
"""

import argparse
import io
import json
import math
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from evals import run
from evals.compare import compare
from tools.console.command import say
from tools.errors import BudgetReached
from tools.records import Usage, usage_from_json


def held_out(
    arguments: argparse.Namespace,
    parameters: Mapping[str, Any],
    compiled: Path,
    spent: Usage,
    ends: float,
    metric: str,
) -> dict[str, Any]:
    """What `evals.compare` says of the two runs in `metric`. BudgetReached or RunIncomplete when one owes queries.

    `parameters` are those that the program had before. The runs have what compiling, which `spent` so much, leaves of
    the budgets, and of the time, which `ends` at so much of the monotonic clock.
    """
    own = [word for name, value in parameters.items() for word in ("-P", f"{name}={value}")]
    before = _run(arguments, _left(arguments, spent, ends), ["--retriever", arguments.retriever, *own], "as it was")
    spent += _spent(before)
    after = _run(
        arguments, _left(arguments, spent, ends), ["--compiled", str(compiled)], "compiled"
    )  # brings parameters and retriever along
    return compare([Path(before["run"]), Path(after["run"])], [metric])


def _spent(result: Mapping[str, Any]) -> Usage:
    """What a run took off the budgets: requests sent, answered or not, and nothing for what was there already."""
    if ledger := result.get("ledger"):
        return replace(usage_from_json(ledger), calls=ledger["sent"])
    return usage_from_json(result["usage"])


def command_line(arguments: argparse.Namespace, own: list[str]) -> list[str]:
    """The arguments of `evals.run` for the program on the test split; its budgets left out."""
    words = ["--program", arguments.program, "--task", arguments.task, *own]
    for option, value in (
        ("--lm", None if arguments.lm == "offline" else arguments.lm),
        ("--runs", None if arguments.runs == Path("runs") else arguments.runs),
        ("--data", arguments.data),
        ("--qrels", arguments.qrels),
        ("--instruction", None if arguments.instruction == "task" else arguments.instruction),
        ("--k", arguments.k),
        ("--context", arguments.context),
        ("--temperature", arguments.temperature),
        ("--reasoning-effort", arguments.reasoning_effort),
        ("--api", None if arguments.api == "chat" else arguments.api),
        ("--prices", arguments.prices),
        ("--query-timeout", arguments.query_timeout),
        ("--call-timeout", arguments.call_timeout),
        ("--patience", arguments.patience),
        ("--max-concurrent", arguments.max_concurrent),
    ):
        words += [] if value in (None, "") else [option, str(value)]  # 0 is a temperature
    return words


def _left(arguments: argparse.Namespace, spent: Usage, ends: float) -> list[str]:
    """What budgets and time leave, as arguments. BudgetReached when that is nothing."""
    words: list[str] = []
    if ends < math.inf:
        if (seconds := ends - time.monotonic()) < 0.001:
            raise BudgetReached(f"the time limit of {arguments.time_limit:g} s is reached", larger=False)
        words = ["--time-limit", f"{seconds:.3f}"]
    for option, budget, used in (
        ("--budget-usd", arguments.budget_usd, spent.paid_usd),
        ("--budget-tokens", arguments.budget_tokens, spent.input_tokens + spent.output_tokens),
        ("--budget-calls", arguments.budget_calls, spent.calls),
    ):
        if budget is not None and (used is None or used >= budget):
            raise BudgetReached(f"{option} {budget:g} is used up by what was done before")
        words += [] if budget is None else [option, str(budget - (used or 0))]
    return words


def _run(arguments: argparse.Namespace, left: list[str], own: list[str], what: str) -> dict[str, Any]:
    if not arguments.json:
        say(f"test split, {what}")
    words = [*command_line(arguments, own), *left, "--json"]
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            run.command(run.parser().parse_args(words))
    except BudgetReached as reached:  # it names what was left, a number that nobody gave
        used = "budget" if reached.larger else "budget or the time"
        raise reached.saying(f"the {used} is used up in the run {what}") from None
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found
