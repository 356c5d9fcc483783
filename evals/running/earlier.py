"""The usage of earlier sittings, for a command over several runs with a single budget: all runs
count before the first.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from sextant import environments
from sextant.evals import run_folder
from sextant.evals.running.agent_limits import brings_agents, count_agents
from sextant.evals.running.cost_estimate import find_existing_run
from sextant.evals.running.evaluate import LoadedRun, connect
from sextant.evals.running.identity import run_conditions
from sextant.evals.running.request import Request
from sextant.tools.errors import SextantError
from sextant.tools.models.budget import Budget
from sextant.tools.models.storage.ledger import open_ledger
from sextant.tools.records import Usage, total, usage_from_json


def count_all(
    requests: Iterable[Request], budget: Budget, opening: Callable[[Request], LoadedRun]
) -> None:
    """Count the earlier usage of the runs of these requests on a budget.

    A request whose run cannot be found counts when it is run, which says why.
    """
    for request in requests:
        if not has_budget(request):
            continue
        with suppress(SextantError):
            # Opening may take long, so it is done only if there are runs.
            if has_runs(request) and (folder := find_folder(opening(request))):
                count(budget, folder)


def has_budget(request: Request) -> bool:
    """Return whether a request limits usage."""
    return any(
        limit is not None
        for limit in (request.budget_usd, request.budget_tokens, request.budget_calls)
    )


def has_runs(request: Request) -> bool:
    """Return whether there are runs on the task of a request."""
    task, _ = environments.locate_task(request.task, request.data)
    return any(run_folder.place_of_task(request.runs, task).glob("*/config.json"))


def find_folder(opened: LoadedRun) -> Path | None:
    """Return the folder of a request's run, if it exists. Retrievers are not opened."""
    resolved, environment, _, terms = opened
    model = connect(resolved.request, terms, environment.documents, seed=resolved.request.seed)
    return find_existing_run(opened, run_conditions(resolved, environment, None, model))


def count(budget: Budget, folder: Path) -> None:
    """Count the usage of all earlier sittings of the run in `folder` on a budget, once."""
    ledger = open_ledger(folder) if (folder / "run-id").exists() else None
    if ledger:
        budget.resume(ledger.books.usage, ledger.books.sent, source=ledger.run)
    if brings_agents(program := run_folder.read_config(folder)["program"]):
        count_agents(program, budget, folder, ledger)
    elif not ledger:  # it sent nothing
        usage = total(
            usage_from_json(outcome["usage"])
            for outcome in run_folder.read_outcomes(folder).values()
        )
        budget.resume(Usage(calls=usage.calls), source=folder.resolve())
