"""The ordinary runs of a compilation, which evals makes once the teleprompter has ended: the
program as it was, from its start if there is one, and compiled. They answer the validation queries,
and with `held_out` the test queries.

Each has a run folder of its own, and a run on the test split counts as a use of it. What a model has
answered during the compilation is on disk, and is not asked again.
"""

import shlex
from pathlib import Path
from typing import Any

from sextant.evals.running.evaluate import LoadedRun, load_run, run_request
from sextant.evals.running.request import Request
from sextant.evals.scoring.comparison import compare
from sextant.optimizers.candidate_evaluator import CandidateEvaluator
from sextant.optimizers.evaluation_log import Candidate
from sextant.optimizers.request import CompileRequest
from sextant.optimizers.setup import CompilationInputs
from sextant.tools.models.budget import Budget
from sextant.tools.platform import cli_options
from sextant.tools.records import JsonMapping, JsonObject

# Parameters that a task sets by itself (Environment.hints).
HINTS = {"lens", "attribute", "document", "target"}
BUDGETS = ("budget_usd", "budget_tokens", "budget_calls", "time_limit")


def write_command(
    inputs: CompilationInputs, compiled_file: Path, instruction_file: Path | None
) -> str:
    """Return the command that runs the compiled program on the test split."""
    request = inputs.request
    # A compiled file does not have the folder of a user's own retriever.
    is_user_retriever = ".py:" in str(request.retriever) and not inputs.plan.ranges
    retriever = request.retriever if is_user_retriever else None
    run = make_run_request(
        request,
        compiled=compiled_file,
        retriever=retriever,
    )
    left_out = [*BUDGETS]
    instruction = []
    if instruction_file:
        left_out.append("instruction")
        instruction = ["--instruction", str(instruction_file)]
    words = cli_options.to_command_line(run, leave_out=left_out)
    return shlex.join(["python", "-m", "sextant.evals.run", *words, *instruction])


def make_run_request(request: CompileRequest, **changes: Any) -> Request:
    """Return the request of a run on the test split with the program's own parameters, but for `changes`."""
    fields: JsonObject = {
        "split": "test",
        "limit": None,
        "retriever": None,
        "parameters": {},
    }
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
        compiled_file: Path,
        start: Path | None,
        objective: str,
    ) -> None:
        """`start` has prompts to run the program from, too; an `objective` is the compiled one."""
        self._inputs = inputs
        self._study = study
        self._start = start
        self._compiled: JsonObject = {"compiled": compiled_file}
        if objective:
            self._compiled["instruction"] = objective

    def answer_validation(self, candidate: Candidate) -> list[JsonObject]:
        """Run the systems on the validation queries of a candidate, with the parameters that it was
        validated with.
        """
        inputs = self._inputs
        environments = self._study.training.environments
        validation = self._study.queries(candidate.digest, "validation")
        parameters = inputs.plan.parameters(inputs.plan.start)
        # The offline engine answers again, because no ledger has its answers; it costs nothing.
        budget = inputs.terms.budget if inputs.terms.books else Budget()
        rows = []
        for task, environment in zip(inputs.request.tasks, environments, strict=True):
            chosen = [query.query_id for query in validation if query in environment.queries]
            if not chosen:
                continue
            twins = [environment.twins.get(query_id, query_id) for query_id in chosen]
            # With several tasks an id begins with its task (trainset/splits.py).
            prefix = f"{environment.task} " if len(environments) > 1 else ""
            query_ids = [query_id.removeprefix(prefix) for query_id in chosen + twins]
            fields = {"split": "dev", "query_ids": tuple(dict.fromkeys(query_ids))}
            rows.append(self._run(task, parameters, budget, **fields))
        return rows

    def answer_test(self) -> list[JsonObject]:
        """Run the systems on the test queries of the tasks that are held out.

        A parameter that a task sets by itself is left to each task, unless the request sets it.
        """
        plan = self._inputs.plan
        parameters = {}
        for name, value in plan.parameters(plan.start).items():
            if name in plan.resolved.fixed or name not in HINTS:
                parameters[name] = value
        budget = self._inputs.terms.budget
        return [self._run(task, parameters, budget) for task in self._inputs.request.held_out_tasks]

    def compare(self, row: JsonMapping) -> JsonObject:
        """Return the comparison of the runs of a row, by the metric of the objective."""
        folders = [Path(folder) for folder in row["folders"].values()]
        is_forced = "instruction" in self._compiled
        tasks = len(self._inputs.request.held_out_tasks)
        return compare(
            folders, [self._study.objective.metric], force=is_forced, fewest=max(1, tasks)
        )

    def _list_systems(self, parameters: JsonMapping) -> dict[str, JsonMapping]:
        """Return the fields of each system's runs; `parameters` are of the program before."""
        retriever = str(self._inputs.plan.resolved.retriever)
        before = {"parameters": parameters, "retriever": retriever}
        systems: dict[str, JsonMapping] = {"as it was": before}
        if self._start:
            systems["from the start"] = {**before, "compiled": self._start}
        systems["compiled"] = self._compiled
        return systems

    def _run(self, task: str, parameters: JsonMapping, budget: Budget, **fields: Any) -> JsonObject:
        """Run each system on the queries that `fields` name; `parameters` are of the program before."""

        def open_with_budget(run: Request) -> LoadedRun:
            loaded = load_run(run)
            loaded.terms.budget = budget
            return loaded

        inputs = self._inputs
        fields |= {"task": task, "metrics": (self._study.objective.metric,)}
        split = fields.get("split", "test")
        folders = {}
        for system, system_fields in self._list_systems(parameters).items():
            inputs.tell(f"{task}, {split} split, {system}")
            request = make_run_request(inputs.request, **fields, **system_fields)
            result = run_request(request, opening=open_with_budget)
            if result.problem:
                raise result.problem
            folders[system] = str(result.folder)
        return {"task": task, "split": split, "folders": folders}
