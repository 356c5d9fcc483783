"""The test split of a compilation, which is read once the teleprompter has ended: texts of it that
the prompts repeat, and ordinary runs of the program before and after.

Each of these runs has a run folder of its own, and counts as a use of the test split.
"""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from environments import load
from evals.running.evaluate import LoadedRun, load_run, run_request
from evals.running.request import Request
from evals.scoring.comparison import compare
from optimizers.candidate_evaluator import OBJECTIVE, CandidateEvaluator
from optimizers.request import CompileRequest
from optimizers.result_summary import list_texts
from optimizers.setup import CompilationInputs
from optimizers.trainset.prompt_leaks import LeakSource, collect_passages, find_leaks
from programs.compiled import Compiled
from tools import cli_options

# Parameters that a task sets by itself (Environment.hints).
HINTS = {"lens", "attribute", "document", "target"}
BUDGETS = ("budget_usd", "budget_tokens", "budget_calls", "time_limit")


def list_leaks(
    inputs: CompilationInputs, compiled: Compiled, objective: str
) -> list[dict[str, Any]]:
    """Return the texts of judged documents and queries that the prompts or the objective repeat."""
    texts = list_texts(compiled)
    if objective:
        texts[OBJECTIVE] = objective
    if not texts:
        return []
    training = inputs.training
    passages: list[LeakSource] = []
    for environment in training.environments:
        train = [query for query in training.train if query in environment.queries]
        validation = [query for query in training.validation if query in environment.queries]
        passages += collect_passages("train", train, environment)
        passages += collect_passages("validation", validation, environment)
        # By the path that this environment was read from: the name alone of a user's own data leads
        # nowhere.
        test = load(
            environment.task,
            environment.data,
            "test",
            qrels=inputs.request.qrels,
            columns=environment.columns,
        )
        passages += collect_passages("test", test.queries, test)
    return [asdict(leak) for leak in find_leaks(texts, passages)]


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


def compare_on_test(
    inputs: CompilationInputs,
    study: CandidateEvaluator,
    compiled_file: Path,
    start: Path | None,
    objective: str,
) -> list[dict[str, Any]]:
    """Run the program as it was, from its `start` if there is one, and compiled; compare them.

    Returns one comparison a task. The runs use the budget and the time that are left.
    """
    request = inputs.request

    def open_with_budget(run: Request) -> LoadedRun:
        loaded = load_run(run)
        loaded.terms.budget = inputs.terms.budget
        return loaded

    metric = study.objective.metric
    before = _fields_before(inputs)
    systems: dict[str, dict[str, Any]] = {"as it was": before}
    if start:
        systems["from the start"] = {**before, "compiled": start}
    systems["compiled"] = {"compiled": compiled_file}
    if objective:
        systems["compiled"]["instruction"] = objective
    comparisons = []
    folders: dict[str, list[Path]] = {}
    for task in request.held_out_tasks:
        for name, fields in systems.items():
            inputs.tell(f"{task}, test split, {name}")
            run = make_test_request(
                request,
                task=task,
                metrics=(metric,),
                **fields,
            )
            result = run_request(run, opening=open_with_budget)
            if result.problem:
                raise result.problem
            folders.setdefault(task, []).append(result.folder)
    for run_folders in folders.values():
        comparisons.append(compare(run_folders, [metric], force=bool(objective)))
    return comparisons


def _fields_before(inputs: CompilationInputs) -> dict[str, Any]:
    """Return parameters and retriever of the program before.

    A parameter that a task sets by itself is left to each task, unless the request sets it.
    """
    plan = inputs.plan
    parameters: Mapping[str, Any] = plan.parameters(plan.start)
    chosen = {}
    for name, value in parameters.items():
        if name in plan.resolved.fixed or name not in HINTS:
            chosen[name] = value
    return {"parameters": chosen, "retriever": str(plan.resolved.retriever)}
