"""The held-out answer: the same program on the test split, as it was and compiled, compared query by query.

Two runs like any others, in run folders of their own: what was answered before is not paid for again. Each counts as a
look at the test split (evals/looks.py).
"""

import argparse
import io
import json
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from evals import run
from evals.compare import compare
from tools.command import say
from tools.errors import BudgetReached, RunIncomplete
from tools.records import Usage, usage_from_json


def held_out(
    arguments: argparse.Namespace, parameters: Mapping[str, Any], compiled: Path, spent: Usage
) -> dict[str, Any]:
    """What `evals.compare` says of the two runs. RunIncomplete when one of them owes queries.

    `parameters` are those that the program had before. The runs have what compiling, which `spent` so much, leaves of
    the budgets.
    """
    own = [word for name, value in parameters.items() for word in ("-P", f"{name}={value}")]
    before = _run(arguments, spent, ["--retriever", arguments.retriever, *own], "as it was")
    spent += usage_from_json(before["usage"])
    after = _run(arguments, spent, ["--compiled", str(compiled)], "compiled")  # brings parameters and retriever along
    return compare([Path(before["run"]), Path(after["run"])])


def command_line(arguments: argparse.Namespace, own: list[str]) -> list[str]:
    """The arguments of `evals.run` for the program on the test split; its budgets left out."""
    words = ["--program", arguments.program, "--task", arguments.task, "--lm", arguments.lm, *own]
    words += ["--runs", str(arguments.runs)]
    for option, value in (
        ("--data", arguments.data),
        ("--qrels", arguments.qrels),
        ("--instruction", arguments.instruction),
        ("--k", arguments.k),
        ("--context", arguments.context),
        ("--max-concurrent", arguments.max_concurrent),
    ):
        words += [option, str(value)] if value else []
    return words


def _left(arguments: argparse.Namespace, spent: Usage) -> list[str]:
    """What the budgets leave, as arguments. BudgetReached when that is nothing."""
    words: list[str] = []
    for option, budget, used in (
        ("--budget-usd", arguments.budget_usd, spent.paid_usd or 0.0),
        ("--budget-calls", arguments.budget_calls, spent.calls),
    ):
        if budget is not None and used >= budget:
            raise BudgetReached(f"compiling has used up {option} {budget:g}, so nothing is left for the test split")
        words += [] if budget is None else [option, str(budget - used)]
    return words


def _run(arguments: argparse.Namespace, spent: Usage, own: list[str], what: str) -> dict[str, Any]:
    if not arguments.json:
        say(f"test split, {what}")
    words = [*command_line(arguments, own), *_left(arguments, spent), "--json"]
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = run.command(run.parser().parse_args(words))
    found: dict[str, Any] = json.loads(printed.getvalue())
    if found["owed"]:
        raise RunIncomplete(f"{found['run']} owes {found['owed']} queries (code {code}); the same command goes on")
    return found
