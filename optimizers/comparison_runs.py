"""The ordinary runs of a compilation, and their comparison: the program as it was, from its start
if there is one, and compiled, on the validation queries and with `held_out` on the test queries.

Each has a run folder of its own, and a run on the test split counts as a use of it. What a model has
answered during the compilation is on disk, and is not asked again.
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


class ComparisonRuns:
    """Makes the runs of a compilation and compares them by the metric of the objective.

    They use the budget and the time that are left. The first run of a comparison is of the program
    as it was, the last of the compiled one.
    """

    def __init__(
        self,
        inputs: CompilationInputs,
        kept: Candidate,
        compiled_file: Path,
    ) -> None:
        self._inputs = inputs
        self._study = inputs.study
        self._kept = kept.digest
        self._parameters = inputs.plan.parameters(inputs.plan.start)
        self._before: list[JsonObject] = [{}]
        if inputs.request.start and kept.digest != inputs.study.start:
            self._before.append({"compiled": inputs.request.start})
        self._compiled: JsonObject = {"compiled": compiled_file}
        if OBJECTIVE in kept.parameters:
            self._compiled["instruction"] = kept.parameters[OBJECTIVE]

    def on_validation(self, chosen_from: int) -> list[JsonObject]:
        """Compare on the validation queries of the kept candidate, with the parameters that it was
        validated with; p is corrected for the number of candidates that it was chosen from.
        """
        environments = self._study.training.environments
        validation = self._study.queries(self._kept, "validation")
        asked = {}
        for task, environment in zip(self._inputs.request.tasks, environments, strict=True):
            chosen = [query.query_id for query in validation if query in environment.queries]
            twins = [environment.twins.get(query_id, query_id) for query_id in chosen]
            # With several tasks an id begins with its task (trainset/splits.py).
            prefix = f"{environment.task} " if len(environments) > 1 else ""
            query_ids = dict.fromkeys(each.removeprefix(prefix) for each in chosen + twins)
            if query_ids:
                asked[task] = {"split": "dev", "query_ids": tuple(query_ids)}
        resources = self._inputs.resources
        # The offline engine answers again, because no ledger has its answers; it costs nothing.
        budget = resources.budget if resources.usage_totals else Budget()
        return self._compare(asked, self._parameters, budget, chosen_from)

    def on_test(self) -> list[JsonObject]:
        """Compare on the test queries of the tasks that are held out.

        A parameter that a task sets by itself is left to each task, unless the request sets it.
        """
        left_to_tasks = HINTS - self._inputs.plan.resolved.fixed
        parameters = {
            name: value for name, value in self._parameters.items() if name not in left_to_tasks
        }
        asked: dict[str, JsonObject] = {task: {} for task in self._inputs.request.held_out_tasks}
        return self._compare(asked, parameters, self._inputs.resources.budget)

    def _compare(
        self,
        asked: Mapping[str, JsonObject],
        parameters: JsonMapping,
        budget: Budget,
        chosen_from: int = 1,
    ) -> list[JsonObject]:
        """Run the systems on each task, with the fields that `asked` has for it; return the
        comparison of each, in which p is corrected for the number of tasks, too.
        """

        def open_with_budget(run: Request) -> LoadedRun:
            loaded = load_run(run)
            loaded.resources.budget = budget
            return loaded

        metrics = (self._study.objective.metric,)
        retriever = str(self._inputs.plan.resolved.retriever)
        original = {"retriever": retriever, "parameters": parameters}
        systems = [*(original | changes for changes in self._before), self._compiled]
        comparisons = []
        for task, fields in asked.items():
            folders: list[Path] = []
            for changes in systems:
                request = make_run_request(
                    self._inputs.request, task=task, metrics=metrics, **fields, **changes
                )
                number = f"{len(folders) + 1} of {len(systems)}"
                self._inputs.tell(f"{task}, {request.split} split, run {number}")
                result = run_request(request, opening=open_with_budget)
                if result.problem:
                    raise result.problem
                folders.append(result.folder)
            is_forced = "instruction" in self._compiled
            tests = len(asked) * chosen_from
            comparisons.append(compare(folders, metrics, force=is_forced, fewest=tests))
        return comparisons
