"""The ordinary runs of a compilation, and their comparison: the program as it was, from its start
if there is one, and compiled, on the validation queries and with `held_out` on the test queries.

Each has a run folder of its own, and a run on the test split counts as a use of it. What a model has
answered during the compilation is on disk, and is not asked again.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sextant.evals.running.evaluate import LoadedRun, load_run, run_request
from sextant.evals.running.request import Request
from sextant.evals.scoring.comparison import compare
from sextant.evals.scoring.statistics import holm
from sextant.optimizers.candidate_evaluator import OBJECTIVE, Candidate, CandidateEvaluator
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
    """Makes the runs of a compilation. They use the budget and the time that are left.

    The runs of a task on a split are a row: {"task", "split", "folders": system -> folder}. Systems
    are "as it was", "from the start" and "compiled".
    """

    def __init__(
        self,
        inputs: CompilationInputs,
        study: CandidateEvaluator,
        kept: Candidate,
        compiled_file: Path,
    ) -> None:
        self._inputs = inputs
        self._study = study
        self._kept = kept.digest
        self._parameters = inputs.plan.parameters(inputs.plan.start)
        before: JsonObject = {"retriever": str(inputs.plan.resolved.retriever)}
        self._systems = {"as it was": before}
        if inputs.request.start and kept.digest != study.start:
            self._systems["from the start"] = {**before, "compiled": inputs.request.start}
        compiled: JsonObject = {"compiled": compiled_file}
        if OBJECTIVE in kept.parameters:
            compiled["instruction"] = kept.parameters[OBJECTIVE]
        self._systems["compiled"] = compiled

    def answer_validation(self) -> list[JsonObject]:
        """Run the systems on the validation queries of the kept candidate, with the parameters that
        it was validated with.
        """
        resources = self._inputs.resources
        environments = self._study.training.environments
        validation = self._study.queries(self._kept, "validation")
        # The offline engine answers again, because no ledger has its answers; it costs nothing.
        budget = resources.budget if resources.usage_totals else Budget()
        rows = []
        for task, environment in zip(self._inputs.request.tasks, environments, strict=True):
            chosen = [query.query_id for query in validation if query in environment.queries]
            twins = [environment.twins.get(query_id, query_id) for query_id in chosen]
            # With several tasks an id begins with its task (trainset/splits.py).
            prefix = f"{environment.task} " if len(environments) > 1 else ""
            query_ids = dict.fromkeys(each.removeprefix(prefix) for each in chosen + twins)
            if query_ids:
                rows.append(
                    self._run(
                        task,
                        budget,
                        self._parameters,
                        **{"split": "dev", "query_ids": tuple(query_ids)},
                    )
                )
        return rows

    def answer_test(self) -> list[JsonObject]:
        """Run the systems on the test queries of the tasks that are held out.

        A parameter that a task sets by itself is left to each task, unless the request sets it.
        """
        left_to_tasks = HINTS - self._inputs.plan.resolved.fixed
        parameters = {
            name: value for name, value in self._parameters.items() if name not in left_to_tasks
        }
        budget = self._inputs.resources.budget
        return [self._run(task, budget, parameters) for task in self._inputs.request.held_out_tasks]

    def compare(self, rows: Sequence[JsonMapping], chosen_from: int = 1) -> JsonObject:
        """Compare the runs of each row by the metric of the objective.

        Return the comparison of one task that was compiled on; else {"tasks"}, a row for each task
        with the change from the program as it was to the compiled one, p corrected by Holm. Each p
        is corrected for the number of candidates that the compiled one was chosen from, too.
        """
        compared = [
            compare(
                list(map(Path, row["folders"].values())),
                [self._study.objective.metric],
                force="instruction" in self._systems["compiled"],
                fewest=len(rows) * chosen_from,
            )
            for row in rows
        ]
        compiled_on = {environment.task for environment in self._study.training.environments}
        if len(compared) == 1 and compared[0]["task"] in compiled_on:
            return compared[0]
        tasks = [
            comparison["comparisons"][-1]
            | {"task": comparison["task"], "compiled_on": comparison["task"] in compiled_on}
            for comparison in compared
        ]
        tested = [row for row in tasks if row["wins"] or row["losses"]]
        for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
            row["p_holm"] = min(1.0, p * chosen_from)
        return {"tasks": tasks}

    def _run(self, task: str, budget: Budget, parameters: JsonMapping, **fields: Any) -> JsonObject:
        """Run each system on the queries that `fields` name; `parameters` are of the program before."""

        def open_with_budget(run: Request) -> LoadedRun:
            loaded = load_run(run)
            loaded.resources.budget = budget
            return loaded

        fields |= {"task": task, "metrics": (self._study.objective.metric,)}
        split = fields.get("split", "test")
        folders = {}
        for system, changes in self._systems.items():
            self._inputs.tell(f"{task}, {split} split, {system}")
            own = {} if system == "compiled" else {"parameters": parameters}
            request = make_run_request(self._inputs.request, **fields, **own, **changes)
            result = run_request(request, opening=open_with_budget)
            if result.problem:
                raise result.problem
            folders[system] = str(result.folder)
        return {"task": task, "split": split, "folders": folders}
