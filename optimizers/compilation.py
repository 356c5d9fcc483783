"""A compilation from its request to what was learnt: divide dev, let a teleprompter work, choose by validation.

It evaluates the program as it is, lets a teleprompter work, chooses by the validation queries, and writes compiled.json
with what was learnt beside it. Nothing here reads the test split while a teleprompter is at work; afterwards it is read
to look for its texts in the prompts, and with `held_out` to run the program on it, before and after.
"""

import json
import math
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evals import folder as run_folder
from evals.measuring import split_uses
from evals.measuring.comparison import compare
from evals.running import configuration
from evals.running.configuration import configuration as run_configuration
from evals.running.evaluation import run
from evals.running.request import Request
from evals.running.sitting import Result
from optimizers import result
from optimizers.books import Candidate
from optimizers.inputs import Inputs, plan
from optimizers.request import CompileRequest
from optimizers.running import Ended, compile_with
from optimizers.study import Study
from optimizers.training.leaks import Leak, collect_passages, collect_task_passages, find_leaks
from optimizers.training.objective import Objective, objective
from optimizers.training.splits import divide
from programs.compiled import Compiled, prompts_of, write
from tools import options, retrievers
from tools.errors import BudgetReached, RunIncomplete, SextantError, UsageError
from tools.models import spec as models
from tools.records import Usage, usage_from_json, usage_json


@dataclass(frozen=True, slots=True)
class Learnt:
    """What came of a compilation."""

    found: dict[str, Any]  # as learnt.json has it, and how often the test split was used
    problem: SextantError | None  # why it ended early, if it did

    @property
    def compiled(self) -> Path:
        """The file that a run takes up."""
        return Path(self.found["compiled"])


def compile_program(request: CompileRequest, tell: Callable[[str], None] = lambda line: None) -> Learnt:
    """Compile, or go on compiling; `tell` is given lines for whoever waits.

    SextantError for a request that cannot be met, or where not even the program before was evaluated.
    """
    models.read_keys()
    inputs, aim = _prepared(request, tell)
    config = _configuration(inputs, aim)
    path = _place(request, config)
    if not (path / "evaluations.jsonl").exists():
        for spec in filter(None, (request.lm, request.teacher, request.prompt_lm)):
            models.check_key(spec)
    with run_folder.claim(path, config):
        inputs.open(path)
        study = Study(
            path,
            inputs.training,
            aim,
            workers=inputs.workers,
            query_seconds=inputs.terms.query_seconds,
            say=tell,
        )
        inputs.resume(study)
        _check_parts(study)
        _announce(inputs, study)
        learnt = _concluded(inputs, study, compile_with(inputs, study))
        # Not in the file, which is the same however often the command is given.
        learnt.found["looks"] = split_uses.count(config["task"], split_uses.data_of(config), request.program)
        return learnt


def _prepared(request: CompileRequest, tell: Callable[[str], None]) -> tuple[Inputs, Objective]:
    """Make what it is compiled with, and by. All that cannot be is refused here."""
    unfitted = plan(request)
    training = divide(
        request.task,
        request.data,
        qrels=request.qrels,
        instruction=request.instruction,
        limit=request.limit,
        seed=request.split_seed,
        share=request.train_share,
    )
    aim = objective(training.environment, request.metric, request.price)
    return Inputs(unfitted.fit_to(training), training, tell), aim


def _check_parts(study: Study) -> None:
    for part, queries in study.parts.items():
        if not queries:
            raise UsageError(
                f"{study.objective.metric} is the same for all rankings of the {part} queries; "
                "choose another --metric, or another --split-seed"
            )


def _announce(inputs: Inputs, study: Study) -> None:
    training, optimizer = study.training, inputs.request.optimizer
    train, validation = (len(queries) for queries in study.parts.values())
    inputs.tell(f"{training.task}: {train} dev queries to train on, {validation} to validate; {optimizer}")
    if training.left_out:
        ids = ", ".join(one.query_id for one in training.left_out[:3])
        more = ", ..." if len(training.left_out) > 3 else ""
        inputs.tell(f"left out because they nearly repeat a test query: {len(training.left_out)} ({ids}{more})")
    if training.one_need:
        inputs.tell("all of these dev queries want the same documents, so a gain on validation says little; ask test")
    if study.candidates:
        inputs.tell(f"going on: {len(study.candidates)} candidates are known from before")


def _place(request: CompileRequest, config: run_folder.Config) -> Path:
    """RUNS/compiled/<suite>-<task>/<program>-<optimizer>-<lm>-<digest>."""
    named = {**config, "program": f"{request.program}-{request.optimizer}"}
    path = run_folder.place(request.runs / "compiled", named)
    return path.with_name(f"{path.name.rpartition('-')[0]}-{run_folder.digest(config)}")


def _configuration(inputs: Inputs, aim: Objective) -> run_folder.Config:
    """Everything that determines what is found; budgets, concurrency and places do not."""
    request, plan, environment = inputs.request, inputs.plan, inputs.training.environment
    own_run = run_configuration(plan.resolved, environment, inputs.retriever, inputs.student)
    # With what scores: values are kept, not made again.
    own = configuration.uses(["optimizers.teleprompters"], libraries=("gepa", "optuna"))
    return {
        **own_run,
        "split_digest": inputs.training.digest,
        "optimizer": {"name": request.optimizer, "seed": request.seed, **plan.options},
        # Here judgements decide what is found; of a run they only decide how it is scored.
        "objective": {"is": str(aim), "judgements": environment.headline},
        "teacher": inputs.teacher and inputs.teacher.settings,
        "prompt_lm": inputs.prompter and inputs.prompter.settings,
        "members": [member.digest() for member in plan.members],
        "ranges": {name: list(values) for name, values in plan.ranges.items()},
        "tuned": plan.template if plan.ranges else None,
        "code": own_run["code"] + own["code"],
        "versions": own_run["versions"] | own["versions"],
    }


def _concluded(inputs: Inputs, study: Study, ended: Ended) -> Learnt:
    """Write what is kept, and hold it out if that is asked for."""
    best, problem = result.choose(study), ended.problem
    if best is None:
        raise _nothing(problem, study)
    compiled = _compiled(inputs, study, best, ended.forms)
    learnt = result.summarise(study, best, _leaks(inputs, compiled), inputs.usage(study), str(problem or ""))
    file = study.folder / "compiled.json"
    write(file, compiled)
    found = _about(inputs, study) | {"compiled": str(file), "take_up": _take_up(inputs.request, file)} | learnt
    _keep(study, found)
    if problem is None and inputs.request.held_out and found["kept"] == "compiled":
        try:
            found["held_out"] = _held_out(inputs, study, file)
            _keep(study, found)
        except SextantError as error:
            problem = error.saying(f"on the test split: {error}")
    if problem:
        problem = problem.saying(f"{problem}; the best so far is in {file}, and {_again(problem)} goes on")
    return Learnt(found, problem)


def _held_out(inputs: Inputs, study: Study, file: Path) -> dict[str, Any]:
    plan = inputs.plan
    before = {"parameters": plan.parameters(plan.start), "retriever": str(plan.resolved.retriever)}
    left = Left(inputs.request, inputs.spent(study), inputs.terms.budget.ends)
    metric = study.objective.metric  # the one that was chosen by, so that there is nothing to correct for
    return compare_on_test(inputs.request, before, file, left, metric, inputs.tell)


def _take_up(request: CompileRequest, file: Path) -> str:
    """Return the command that runs what was compiled on test."""
    words = options.words(request_on_test(request, compiled=file), leave_out=BUDGETS)
    return shlex.join(["python", "-m", "evals.run", *words])


def _keep(study: Study, found: Mapping[str, Any]) -> None:
    run_folder.write(study.folder / "learnt.json", json.dumps(found, indent=2) + "\n")


def _nothing(problem: SextantError | None, study: Study) -> SextantError:
    """Return why there is not even the program before to show."""
    done = len(study.of(study.before, "validation"))
    whole = len(study.parts["validation"])
    problem = problem or RunIncomplete("compiling broke off")
    return problem.saying(
        f"{problem}; the program as it is was evaluated on {done} of {whole} validation "
        f"queries, so there is nothing to choose from yet; {_again(problem)} goes on"
    )


def _again(problem: SextantError) -> str:
    larger = isinstance(problem, BudgetReached) and problem.larger
    return "the same command" + (" with a larger budget" if larger else "")


def _compiled(inputs: Inputs, study: Study, best: Candidate, forms: Mapping[str, Mapping[str, Any]]) -> Compiled:
    request, plan = inputs.request, inputs.plan
    chosen = best.parameters if plan.ranges else {}
    return result.make_compiled(
        best,
        prompts_of(inputs.program(chosen)),
        program=request.program,
        parameters=plan.parameters(chosen),
        retriever=str(retrievers.check(plan.retriever(chosen))),
        form=forms.get(best.digest, {}),
        origin=_origin(inputs, study, best),
    )


def _origin(inputs: Inputs, study: Study, best: Candidate) -> dict[str, Any]:
    """Return where a compiled program comes from, and what it was worth there."""
    request, training = inputs.request, study.training
    return {
        "task": training.task,
        "data": training.environment.data,
        "data_fingerprint": training.environment.fingerprint,
        "split_digest": training.digest,
        "instruction": request.instruction,
        "optimizer": request.optimizer,
        "options": inputs.plan.options,
        "seed": request.seed,
        "lm": inputs.student.settings,
        "teacher": inputs.teacher and inputs.teacher.settings,
        "prompt_lm": inputs.prompter and inputs.prompter.settings,
        "metric": study.objective.metric,
        "price": study.objective.price,
        "code": run_folder.read_config(study.folder)["code"],
        "usage": usage_json(inputs.usage(study)),
        "before": result.measure(study, study.before, "validation"),
        "after": result.measure(study, best.digest, "validation"),
        "gain": result.measure_gain(study, best),
    }


def _leaks(inputs: Inputs, compiled: Compiled) -> list[Leak]:
    """Find where the prompts repeat texts to train on, or of test, which is worse; looked for once all is chosen."""
    request, texts = inputs.request, result.list_texts(compiled)
    if not texts:
        return []
    test = collect_task_passages(request.task, request.data, qrels=request.qrels)
    return [*find_leaks(texts, collect_passages(inputs.training)), *find_leaks(texts, test)]


def _about(inputs: Inputs, study: Study) -> dict[str, Any]:
    """Return what was compiled, with what."""
    request, training = inputs.request, study.training
    return {
        "task": training.task,
        "data": training.environment.data,
        "program": request.program,
        "optimizer": request.optimizer,
        "options": inputs.plan.options,
        "retriever": str(inputs.plan.resolved.retriever),
        "lm": inputs.student.name,
        "teacher": inputs.teacher and inputs.teacher.name,
        "prompt_lm": inputs.prompter and inputs.prompter.name,
        "objective": str(study.objective),
        "queries": {
            **{part: len(queries) for part, queries in study.parts.items()},
            "left_out": [asdict(one) for one in training.left_out],
        },
    }


BUDGETS = ("budget_usd", "budget_tokens", "budget_calls", "time_limit")


class Left:
    """What a compilation leaves of its budgets and of its time."""

    def __init__(self, request: CompileRequest, spent: Usage, ends: float) -> None:
        """`spent` is what is used up already; the time `ends` at so many seconds of the monotonic clock."""
        self._request, self._spent, self._ends = request, spent, ends

    def take(self, result: Result) -> None:
        """Count a run: requests sent, answered or not, and nothing for what was there already."""
        used = result.usage
        if ledger := result.json().get("ledger"):
            used = replace(usage_from_json(ledger), calls=ledger["sent"])
        self._spent += used

    def budgets(self) -> dict[str, Any]:
        """Return the budgets of the next run, as fields of a request. BudgetReached when nothing is left."""
        request, spent = self._request, self._spent
        left: dict[str, Any] = {}
        if self._ends < math.inf:
            left["time_limit"] = self._ends - time.monotonic()
            if left["time_limit"] < 0.001:
                raise BudgetReached(f"the time limit of {request.time_limit:g} s is reached", larger=False)
        for name, budget, used in (
            ("budget_usd", request.budget_usd, spent.paid_usd),
            ("budget_tokens", request.budget_tokens, spent.input_tokens + spent.output_tokens),
            ("budget_calls", request.budget_calls, spent.calls),
        ):
            if budget is not None and (used is None or used >= budget):
                option = f"--{name.replace('_', '-')}"
                raise BudgetReached(f"{option} {budget:g} is used up by what was done before")
            left[name] = None if budget is None else budget - (used or 0)
        return left


def request_on_test(request: CompileRequest, **fields: Any) -> Request:
    """Return the request of a run of the program on all queries of the test split; `fields` are what is otherwise."""
    return request.run(**{"split": "test", "limit": None, "retriever": None, "parameters": {}} | fields)


def compare_on_test(
    request: CompileRequest,
    before: Mapping[str, Any],
    compiled: Path,
    left: Left,
    metric: str,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Run both programs on test and compare them in `metric`. BudgetReached or RunIncomplete with queries pending.

    `before` are the fields that make the program as it was; the compiled one brings them along.
    """
    folders = []
    for name, fields in (("as it was", before), ("compiled", {"compiled": compiled})):
        tell(f"test split, {name}")
        result = run(request_on_test(request, **fields, **left.budgets()))
        if isinstance(result.problem, BudgetReached):  # it names what was left, a number that nobody gave
            used = "budget" if result.problem.larger else "budget or the time"
            raise result.problem.saying(f"the {used} is used up in the run {name}")
        if result.problem:
            raise result.problem
        left.take(result)
        folders.append(result.folder)
    return compare(folders, [metric])
