"""The usage of earlier sittings, which counts on a budget: that of a run, and of all runs of a command
before the first of them.

The usage of external agents (`command:`, `served:`) is in the outcomes and in no ledger.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path

from sextant import environments
from sextant.evals import run_folder
from sextant.evals.run_folder import LEFT, MEND, OUTCOMES_FILE
from sextant.evals.running.request import Request
from sextant.tools.errors import SextantError
from sextant.tools.models.call_limits import Budget
from sextant.tools.models.storage.ledger import Ledger, open_ledger
from sextant.tools.platform import files
from sextant.tools.records import Usage, usage_from_json

UNREPORTED = Usage(
    unmetered=1, paid_usd=None, list_usd=None
)  # by an agent that is served and has reported nothing
BUDGET_OF_AGENTS = (
    "agents outside say what they have spent when they end: the budget is exceeded by all that those "
    "running at once spend; --max-concurrent 1 starts one at a time"
)


def brings_agents(program: str) -> bool:
    """Return whether agents outside answer the queries of a program."""
    return program.startswith(("command:", "served:"))


def count_agents(
    program: str,
    budget: Budget,
    folder: Path,
    ledger: Ledger | None,
) -> None:
    """Count the usage of agents in earlier sittings of a program's run, except the usage that its `ledger`
    has already.

    Every outcome counts, also of queries that failed and were asked again, and so does the usage of
    pending queries.
    """
    booked = ledger.used_by_query() if ledger else {}
    used_by_all = Usage()
    requests = 0
    for _, outcome in chain.from_iterable(
        files.read_lines(folder / name, files.loads, MEND) for name in (OUTCOMES_FILE, LEFT)
    ):
        reported = usage_from_json(outcome["usage"])
        query_id = outcome["query_id"]
        by_retrievers = booked.get(query_id, Usage())  # that send something
        usage = _subtract(reported, by_retrievers)
        booked[query_id] = _subtract(by_retrievers, reported)
        if usage == Usage() and outcome["error"] is not None:
            continue  # no agent was started
        if usage == Usage() and program.startswith("served:"):
            usage = UNREPORTED
        elif not usage.calls:
            usage += Usage(unmetered=1)  # it did not say how many tokens it took
        used_by_all += usage
        requests += usage.calls or 1
    budget.resume(used_by_all, requests, source=("agents", folder.resolve()))


def _subtract(usage: Usage, less: Usage) -> Usage:
    """Return what budgets count of `usage`, without `less`; an unknown price stays unknown."""
    paid = usage.paid_usd
    return Usage(
        calls=max(0, usage.calls - less.calls),
        input_tokens=max(0, usage.input_tokens - less.input_tokens),
        output_tokens=max(0, usage.output_tokens - less.output_tokens),
        paid_usd=None if paid is None else max(0.0, paid - (less.paid_usd or 0.0)),
        unmetered=max(0, usage.unmetered - less.unmetered),
    )


def count_all(
    requests: Iterable[Request], budget: Budget, find: Callable[[Request], Path | None]
) -> None:
    """Count the earlier usage of the runs of these requests on a budget; `find` returns the folder
    of a request's run.

    A request whose run cannot be found counts when it is run, which says why.
    """
    for request in requests:
        limits = {request.budget_usd, request.budget_tokens, request.budget_calls}
        with suppress(SextantError):
            task, _ = environments.locate_task(request.task, request.data)
            # It may take long to find a run, so it is done only if there are runs and a limit.
            runs = run_folder.place_of_task(request.runs, task).glob("*/config.json")
            if limits != {None} and any(runs) and (folder := find(request)):
                count(budget, folder)


def count(budget: Budget, folder: Path) -> None:
    """Count the usage of all earlier sittings of the run in `folder` on a budget, once."""
    ledger = open_ledger(folder) if (folder / "run-id").exists() else None
    if ledger:
        budget.resume(ledger.usage_totals.usage, ledger.usage_totals.sent, source=ledger.run)
    if brings_agents(program := run_folder.read_config(folder)["program"]):
        count_agents(program, budget, folder, ledger)
    elif not ledger:  # it sent nothing
        usage = run_folder.total_usage(run_folder.read_outcomes(folder))
        budget.resume(Usage(calls=usage.calls), source=folder.resolve())
