"""The ordinary runs of a compilation, and their comparison: the program as it was, from its start
if there is one, and compiled, on the validation queries and with `held_out` on the test queries.

Each has a run folder of its own, and a run on the test split counts as a use of it. Calls that a model has
answered during the compilation are on disk, and are not made again.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sextant.evals.running.evaluate import LoadedRun, load_run, run_request
from sextant.evals.running.request import Request
from sextant.evals.scoring.comparison import compare
from sextant.optimizers.candidate_evaluator import OBJECTIVE, Candidate
from sextant.optimizers.request import CompileRequest
from sextant.optimizers.setup import CompilationInputs
from sextant.tools.models.call_limits import Budget
from sextant.tools.platform import cli_options
from sextant.tools.records import JsonMapping, JsonObject

# Parameters that a task sets by itself (Environment.hints).
HINTS = {"lens", "attribute", "document", "target"}
BUDGETS = ("budget_usd", "budget_tokens", "budget_calls", "time_limit")


def write_command(
    inputs: CompilationInputs, compiled_file: Path, instruction_file: Path | None
) -> str:
    """Return the command that runs the compiled program on the test split."""
    changes: JsonObject = {"compiled": compiled_file}
    if ".py:" in str(inputs.request.retriever) and not inputs.plan.ranges:
        # A compiled file does not have the folder of a user's own retriever.
        changes["retriever"] = inputs.request.retriever
    if instruction_file:
        changes["instruction"] = str(instruction_file)
    words = cli_options.to_command_line(
        make_run_request(inputs.request, **changes), leave_out=BUDGETS
    )
    return shlex.join(["python", "-m", "sextant.evals.run", *words])


def make_run_request(request: CompileRequest, **changes: Any) -> Request:
    """Return the request of a run on the test split with the program's own parameters, but for `changes`."""
    fields: JsonObject = {"split": "test", "limit": None, "retriever": None, "parameters": {}}
    return request.run(**fields | changes)


def compare_on_validation(
    inputs: CompilationInputs, kept: Candidate, compiled_file: Path, chosen_from: int
) -> list[JsonObject]:
    """Compare on the validation queries of the kept candidate, with the parameters that it was
    validated with; p is corrected for the number of candidates that it was chosen from.
    """
    environments = inputs.training.environments
    validation = inputs.study.queries("validation", kept.digest)
    asked = {}
    for task, environment in zip(inputs.request.tasks, environments, strict=True):
        # With several tasks an id begins with its task (trainset/splits.py).
        prefix = f"{environment.task} " if len(environments) > 1 else ""
        chosen = [query for query in validation if query in environment.queries]
        if chosen:
            query_ids = tuple(query.query_id.removeprefix(prefix) for query in chosen)
            asked[task] = {"split": "dev", "query_ids": query_ids}
    # The offline engine answers again, because no ledger has its answers; it costs nothing.
    budget = inputs.resources.budget if inputs.resources.usage_totals else Budget()
    parameters = inputs.plan.parameters(inputs.plan.start)
    return _compare(inputs, kept, compiled_file, asked, parameters, budget, chosen_from)


def compare_on_test(
    inputs: CompilationInputs, kept: Candidate, compiled_file: Path
) -> list[JsonObject]:
    """Compare on the test queries of the tasks that are held out.

    A parameter that a task sets by itself is left to each task, unless the request sets it.
    """
    left_to_tasks = HINTS - inputs.plan.resolved.fixed
    parameters = {
        name: value
        for name, value in inputs.plan.parameters(inputs.plan.start).items()
        if name not in left_to_tasks
    }
    asked = dict.fromkeys(inputs.request.held_out_tasks, JsonObject())
    return _compare(inputs, kept, compiled_file, asked, parameters, inputs.resources.budget)


def _compare(
    inputs: CompilationInputs,
    kept: Candidate,
    compiled_file: Path,
    asked: Mapping[str, JsonObject],
    parameters: JsonMapping,
    budget: Budget,
    chosen_from: int = 1,
) -> list[JsonObject]:
    """Run the systems on each task, with the fields that `asked` has for it, and the budget and the
    time that are left; return the comparison of each by the metric of the objective, in which p is
    corrected for the number of tasks, too.
    """

    def open_with_budget(run: Request) -> LoadedRun:
        loaded = load_run(run)
        loaded.resources.budget = budget
        return loaded

    before: JsonObject = {
        "retriever": str(inputs.plan.resolved.retriever),
        "parameters": parameters,
    }
    compiled: JsonObject = {"compiled": compiled_file}
    systems = [before, compiled]
    if inputs.request.start and kept.digest != inputs.study.start:
        systems.insert(1, before | {"compiled": inputs.request.start})
    if OBJECTIVE in kept.parameters:
        compiled["instruction"] = kept.parameters[OBJECTIVE]
    metrics = (inputs.study.objective.metric,)
    comparisons = []
    for task, fields in asked.items():
        folders: list[Path] = []
        for changes in systems:
            request = make_run_request(
                inputs.request, task=task, metrics=metrics, **fields, **changes
            )
            inputs.tell(f"{task}, {request.split} split, run {len(folders) + 1} of {len(systems)}")
            result = run_request(request, opening=open_with_budget)
            if result.problem:
                raise result.problem
            folders.append(result.folder)
        is_forced = "instruction" in compiled
        tests = len(asked) * chosen_from
        comparisons.append(compare(folders, metrics, force=is_forced, fewest=tests))
    return comparisons
