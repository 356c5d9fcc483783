"""The ordinary runs of a compilation, which evals makes once the teleprompter has ended: the
program as it was, from its start if there is one, and compiled. They answer the validation queries,
and with `held_out` the test queries.

Each has a run folder of its own, and a run on the test split counts as a use of it. What a model has
answered during the compilation is on disk, and is not asked again.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evals.running.evaluate import LoadedRun, load_run, run_request
from evals.running.request import Request
from evals.scoring.comparison import compare
from optimizers.candidate_evaluator import CandidateEvaluator
from optimizers.evaluation_log import Candidate
from optimizers.request import CompileRequest
from optimizers.setup import CompilationInputs
from tools import cli_options
from tools.models.budget import Budget

# Parameters that a task sets by itself (Environment.hints).
HINTS = {"lens", "attribute", "document", "target"}
BUDGETS = ("budget_usd", "budget_tokens", "budget_calls", "time_limit")


class SystemRun(NamedTuple):
    """A finished run of one of the systems that a compilation compares."""

    task: str  # as the request names it
    split: str
    system: str  # "as it was", "from the start" or "compiled"
    folder: Path


def write_command(
    inputs: CompilationInputs, compiled_file: Path, instruction_file: Path | None
) -> str:
    """Return the command that runs the compiled program on the test split."""
    request = inputs.request
    # A compiled file does not have the folder of a user's own retriever.
    is_user_retriever = ".py:" in str(request.retriever) and not inputs.plan.ranges
    retriever = request.retriever if is_user_retriever else None
    run = make_test_request(
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
    return shlex.join(["python", "-m", "evals.run", *words, *instruction])


def make_test_request(request: CompileRequest, **changes: Any) -> Request:
    """Return the request of a run on the test split, with the program's own parameters."""
    fields: dict[str, Any] = {
        "split": "test",
        "limit": None,
        "retriever": None,
        "parameters": {},
    }
    return request.run(**fields | changes)


def describe_run(run: SystemRun) -> dict[str, str]:
    """Return a run as learnt.json has it."""
    return {**run._asdict(), "folder": str(run.folder)}


class ComparisonRuns:
    """Makes the runs of a compilation. They use the budget and the time that are left."""

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
        self._compiled: dict[str, Any] = {"compiled": compiled_file}
        if objective:
            self._compiled["instruction"] = objective

    def answer_validation(self, candidate: Candidate) -> list[SystemRun]:
        """Run the systems on the validation queries of a candidate, with the parameters that it was
        validated with.
        """
        inputs = self._inputs
        parameters = inputs.plan.parameters(inputs.plan.start)
        budget = inputs.terms.budget
        if not inputs.terms.books:
            # The offline engine answers again, because no ledger has its answers; it costs nothing.
            budget = Budget()
        runs = []
        for task, query_ids in self._validation_queries(candidate).items():
            fields = {"task": task, "split": "dev", "query_ids": query_ids}
            runs += self._run(parameters, budget, fields)
        return runs

    def answer_test(self) -> list[SystemRun]:
        """Run the systems on the test queries of the tasks that are held out.

        A parameter that a task sets by itself is left to each task, unless the request sets it.
        """
        plan = self._inputs.plan
        parameters = {}
        for name, value in plan.parameters(plan.start).items():
            if name in plan.resolved.fixed or name not in HINTS:
                parameters[name] = value
        runs = []
        for task in self._inputs.request.held_out_tasks:
            runs += self._run(parameters, self._inputs.terms.budget, {"task": task})
        return runs

    def compare(self, runs: list[SystemRun]) -> list[dict[str, Any]]:
        """Return a comparison for each task of the runs, by the metric of the objective."""
        folders: dict[str, list[Path]] = {}
        for run in runs:
            folders.setdefault(run.task, []).append(run.folder)
        metric = self._study.objective.metric
        is_forced = "instruction" in self._compiled
        return [compare(paths, [metric], force=is_forced) for paths in folders.values()]

    def _validation_queries(self, candidate: Candidate) -> dict[str, tuple[str, ...]]:
        """Return the ids of validation queries by the task as the request names it."""
        environments = self._study.training.environments
        query_ids = {}
        for task, environment in zip(self._inputs.request.tasks, environments, strict=True):
            ids = []
            for query in self._study.queries(candidate.digest, "validation"):
                if self._study.tasks[query.query_id] == environment.task:
                    # With several tasks an id begins with its task (trainset/splits.py).
                    is_prefixed = len(environments) > 1
                    prefix = f"{environment.task} " if is_prefixed else ""
                    ids.append(query.query_id.removeprefix(prefix))
                    if twin := environment.twins.get(query.query_id):
                        ids.append(twin.removeprefix(prefix))
            if ids:
                query_ids[task] = tuple(dict.fromkeys(ids))
        return query_ids

    def _list_systems(self, parameters: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Return the fields of each system's runs; `parameters` are of the program before."""
        retriever = str(self._inputs.plan.resolved.retriever)
        before = {"parameters": parameters, "retriever": retriever}
        systems: dict[str, Mapping[str, Any]] = {"as it was": before}
        if self._start:
            systems["from the start"] = {**before, "compiled": self._start}
        systems["compiled"] = self._compiled
        return systems

    def _run(
        self,
        parameters: Mapping[str, Any],
        budget: Budget,
        fields: Mapping[str, Any],
    ) -> list[SystemRun]:
        """Run each system on the queries that `fields` name; `parameters` are of the program before."""

        def open_with_budget(run: Request) -> LoadedRun:
            loaded = load_run(run)
            loaded.terms.budget = budget
            return loaded

        inputs = self._inputs
        runs = []
        for system, system_fields in self._list_systems(parameters).items():
            request = make_test_request(
                inputs.request,
                metrics=(self._study.objective.metric,),
                **fields,
                **system_fields,
            )
            inputs.tell(f"{request.task}, {request.split} split, {system}")
            result = run_request(request, opening=open_with_budget)
            if result.problem:
                raise result.problem
            runs.append(SystemRun(request.task, request.split, system, result.folder))
        return runs
