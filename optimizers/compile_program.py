"""A compilation: divide dev, let a teleprompter work, choose by validation, write compiled.json and
learnt.json.

Nothing here reads the test split while a teleprompter is at work; afterwards it is read to look for
its texts in the prompts, and with `held_out` to run the program on it, as it was and compiled: two
runs like any others, in run folders of their own, each of which counts as a use of the test split.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from environments import load
from evals import run_folder
from evals.running import identity
from evals.running.evaluate import LoadedRun, load_run, run_request
from evals.running.request import Request
from evals.scoring.comparison import compare
from evals.scoring.score_run import count_test_uses
from optimizers import result_report
from optimizers.candidate_evaluator import OBJECTIVE, CandidateEvaluator
from optimizers.evaluation_log import Candidate
from optimizers.request import SAME, UNTRAINED, CompileRequest
from optimizers.setup import CompilationInputs, compile_with, plan
from optimizers.trainset.objective import Objective, make_objective
from optimizers.trainset.prompt_leaks import LeakSource, Split, collect_passages, find_leaks
from optimizers.trainset.splits import make_folds, merge_trainsets, split_dev
from programs.compiled import Compiled, get_prompts, write
from tools import cli_options, retrievers, schemas
from tools.errors import BudgetReached, RunIncomplete, SextantError, UsageError
from tools.models import model_spec as models
from tools.models import secrets
from tools.records import Query, usage_json

Found = dict[str, Any]  # as learnt.json has it, and how often the test split was used
HINTS = {
    "lens",
    "attribute",
    "document",
}  # parameters that a task sets by itself (Environment.hints)
BUDGETS = ("budget_usd", "budget_tokens", "budget_calls", "time_limit")


def compile_program(
    request: CompileRequest, tell: Callable[[str], None]
) -> tuple[Found, SextantError | None]:
    """Compile, or go on compiling: (what was learnt, why it ended early); `tell` is given lines for whoever waits.

    SextantError for a request that cannot be met, or where not even the program before was evaluated.
    """
    secrets.read_keys()
    unfitted = plan(request)
    options: dict[str, Any] = {
        name: getattr(request, name) for name in ("limit", "qrels", "instruction", "columns")
    }
    options |= {"seed": request.split_seed, "share": request.train_share}
    training = merge_trainsets(
        [split_dev(task, request.data_of(task), **options) for task in request.tasks]
    )
    usual = request.limit is None and request.train_share == CompileRequest.train_share
    training = make_folds(
        training, request.folds or (None if usual and request.optimizer not in UNTRAINED else 1)
    )
    aim = make_objective(training.environment, request.metric, request.price)
    aims = [
        make_objective(environment, aim.metric, request.price)
        for environment in training.environments
    ]
    inputs = CompilationInputs(unfitted.fit_to(training), training, tell)
    config = _configuration(inputs, aim)
    # RUNS/compiled/<suite>-<task>/<program>-<optimizer>-<lm>-<digest>
    named = {
        **config,
        "program": f"{request.program_label}-{request.optimizer}",
        "task": training.task[:100],
    }
    path = run_folder.run_path(request.runs / "compiled", named)
    path = path.with_name(f"{path.name.rpartition('-')[0]}-{run_folder.digest(config)}")
    if not (path / "evaluations.jsonl").exists():
        for spec in filter(None, (request.lm, request.teacher, request.prompt_lm)):
            models.check_key(spec, request.headers)
    with run_folder.claim(path, config):
        options = {
            "workers": request.at_once,
            "query_seconds": inputs.terms.query_seconds,
            "say": tell,
        }
        study = CandidateEvaluator(path, inputs.training, *aims, **options)
        inputs.open(study)
        for part_name, queries in study.parts.items():
            if not queries:
                remedy = "choose another --metric, or another --split-seed"
                raise UsageError(
                    f"{aim.metric} is the same for all rankings of the {part_name} queries; {remedy}"
                )
        _announce(inputs, study)
        learnt, problem = _conclude(inputs, study, compile_with(inputs, study))
        # Not in the file, which is the same however often the command is given.
        learnt["looks"] = sum(
            count_test_uses({**config, "task": environment.task})
            for environment in training.environments
        )
        return learnt, problem


def _configuration(
    inputs: CompilationInputs, aim: Objective
) -> run_folder.Config:  # without budgets, concurrency, places
    request = inputs.request
    plan = inputs.plan
    environment = inputs.training.environment
    of_run = identity.run_config(plan.resolved, environment, inputs.retriever, inputs.student)
    # With what scores: values are kept, not made again.
    code = identity.code_and_versions(["optimizers.teleprompters"], libraries=("gepa", "optuna"))
    if pool := plan.resolved.pool:
        of_run["pool"] = pool.config(list(map(str, pool.parts)), environment)
    several = [
        [environment.task, environment.fingerprint] for environment in inputs.training.environments
    ]
    return {
        **of_run,
        **({"task": inputs.training.task, "tasks": several} if len(several) > 1 else {}),
        "split_digest": inputs.training.digest,
        "optimizer": {"name": request.optimizer, "seed": request.seed, **plan.options},
        # Here judgements decide what is found; of a run they only decide how it is scored.
        "objective": {"is": str(aim), "judgements": environment.headline},
        "teacher": inputs.teacher and inputs.teacher.settings,
        "prompt_lm": inputs.prompter and inputs.prompter.settings,
        "members": [member.digest() for member in plan.members.values()],
        "ranges": {name: list(values) for name, values in plan.ranges.items()},
        "tuned": plan.template if plan.ranges else None,
        "code": of_run["code"] + code["code"],
        "versions": of_run["versions"] | code["versions"],
    }


def _announce(inputs: CompilationInputs, study: CandidateEvaluator) -> None:
    training = study.training
    optimizer = inputs.request.optimizer
    train, validation, *folds = study.sizes.values()
    each = f", in each of {folds[0]} folds" if folds else ""
    inputs.tell(
        f"{training.task}: {train} dev queries to train on, {validation} to validate{each}; "
        f"{optimizer}"
    )
    given_count = len(inputs.request.of)
    if repeated := given_count - len(inputs.plan.members):
        verb = "is" if repeated == 1 else "are"
        inputs.tell(
            f"of the {given_count} compiled programs, {repeated} {verb} equal to an earlier one, and "
            f"left out"
        )
    if training.left_out:
        ids = ", ".join(query.query_id for query in training.left_out[:3])
        ellipsis = ", ..." if len(training.left_out) > 3 else ""
        inputs.tell(
            f"left out because they nearly repeat a test query: {len(training.left_out)} "
            f"({ids}{ellipsis})"
        )
    if training.one_need:
        inputs.tell(
            "all of these dev queries want the same documents, so a gain on validation says "
            "little; ask test"
        )
    if study.candidates:
        inputs.tell(f"going on: {len(study.candidates)} candidates are known from before")


def _conclude(
    inputs: CompilationInputs, study: CandidateEvaluator, problem: SextantError | None
) -> tuple[Found, SextantError | None]:
    best = result_report.choose_candidate(study)
    if best is None:
        problem = problem or RunIncomplete("compiling broke off")
        raise problem.saying(
            f"{problem}; the program as it is was evaluated on "
            f"{len(study.of(study.before, 'validation'))} of "
            f"{len(study.parts['validation'])} validation queries, so there is nothing to choose "
            f"from yet; "
            f"{_again(problem)} goes on"
        )
    compiled = _compiled(inputs, study, best)
    objective = str(best.parameters.get(OBJECTIVE, ""))
    file = study.folder / "compiled.json"
    # What was paid for is on disk before anything else is read or computed.
    write(file, compiled)
    learnt = _about(inputs, study, file, objective)
    if objective:
        run_folder.write(
            Path(learnt["instruction"]),
            f"{schemas.to_toml(study.training.task.partition(':')[0])} = {schemas.to_toml(objective)}\n",
        )
    learnt |= result_report.summarise(study, best, inputs.usage(study), str(problem or ""))
    _keep(study, learnt)
    try:
        learnt["leaks"] = _leaks(inputs, compiled, objective)
        _keep(study, learnt)
    except SextantError as error:
        problem = problem or error.saying(
            f"looking for texts of the test split in the prompts: {error}"
        )
    if problem is None and inputs.request.held_out and learnt["kept"] != "before":
        try:
            start = inputs.request.start if learnt["kept"] == "compiled" else None
            compared = _compare_on_test(inputs, study, file, start, objective)
            of_one = inputs.request.held_out == SAME and len(compared) == 1
            learnt["held_out"] = (
                compared[0] if of_one else {"tasks": result_report.list_held_out(compared, study)}
            )
            _keep(study, learnt)
        except SextantError as error:
            problem = error.saying(f"on the test split: {error}")
    if problem:
        problem = problem.saying(
            f"{problem}; the best so far is in {file}, and {_again(problem)} goes on"
        )
    return learnt, problem


def _again(problem: SextantError) -> str:
    larger = isinstance(problem, BudgetReached) and problem.larger
    return "the same command" + (" with a larger budget" if larger else "")


def _keep(study: CandidateEvaluator, learnt: Mapping[str, Any]) -> None:
    run_folder.write(study.folder / "learnt.json", json.dumps(learnt, indent=2) + "\n")


def _compiled(inputs: CompilationInputs, study: CandidateEvaluator, best: Candidate) -> Compiled:
    """Return a candidate as a compiled program; a form that keeps its prompts in itself has the program's own."""
    request = inputs.request
    plan = inputs.plan
    training = study.training
    chosen = best.parameters if plan.ranges else {}
    # What a prompt is compiled for is the signature that it has in the code, with the same
    # parameters.
    original = get_prompts(inputs.program(chosen))
    prompts = (
        best.prompts
        if best.prompts.keys() == original.keys()
        else get_prompts(inputs.program_to_start())
    )
    origin = {
        "task": training.task,
        "data": training.environment.data,
        "data_fingerprint": training.environment.fingerprint,
        "split_digest": training.digest,
        "instruction": request.instruction,
        "optimizer": request.optimizer,
        "options": plan.options,
        "seed": request.seed,
        "start": plan.resolved.compiled and plan.resolved.compiled.digest(),
        "lm": inputs.student.settings,
        "teacher": inputs.teacher and inputs.teacher.settings,
        "prompt_lm": inputs.prompter and inputs.prompter.settings,
        "metric": study.objective.metric,
        "price": study.objective.price,
        "code": run_folder.read_config(study.folder)["code"],
        "usage": usage_json(inputs.usage(study)),
        "before": result_report.measure_candidate(study, study.before, "validation", best.digest),
        "after": result_report.measure_candidate(study, best.digest, "validation"),
        "gain": result_report.measure_gain(study, best),
    }
    prompts = {
        name: replace(prompt, signature=original[name].signature, before=original[name].before)
        for name, prompt in prompts.items()
    }
    retriever = str(retrievers.canonicalize(plan.retriever(chosen)))
    form = study.returned.get(best.digest, {})
    return Compiled(
        request.program_label, plan.parameters(chosen), retriever, prompts, origin=origin, **form
    )


def _leaks(inputs: CompilationInputs, compiled: Compiled, objective: str) -> list[dict[str, Any]]:
    request = inputs.request
    training = inputs.training
    texts = result_report.list_texts(compiled) | ({OBJECTIVE: objective} if objective else {})
    if not texts:
        return []
    passages: list[LeakSource] = []
    for environment in training.environments:
        # By the place that this environment was read from: of one's own data the name alone leads
        # nowhere.
        test = load(
            environment.task,
            environment.data,
            "test",
            qrels=request.qrels,
            columns=environment.columns,
        )
        queries_by_part: dict[Split, tuple[Query, ...]] = {
            "train": training.train,
            "validation": training.validation,
        }
        for split, queries in queries_by_part.items():
            passages += collect_passages(
                split, [query for query in queries if query in environment.queries], environment
            )
        passages += collect_passages("test", test.queries, test)
    return [asdict(leak) for leak in find_leaks(texts, passages)]


def _about(
    inputs: CompilationInputs, study: CandidateEvaluator, file: Path, objective: str
) -> dict[str, Any]:
    request = inputs.request
    training = study.training
    is_user_retriever = (
        ".py:" in str(request.retriever) and not inputs.plan.ranges
    )  # whose folder no compiled file has
    taken_up = _on_test(
        request, compiled=file, retriever=request.retriever if is_user_retriever else None
    )
    instruction = {OBJECTIVE: str(file.with_name("instruction.toml"))} if objective else {}
    words = cli_options.to_command_line(
        taken_up, leave_out=(*BUDGETS, *(["instruction"] if objective else []))
    )
    return {
        "task": training.task,
        "data": training.environment.data,
        "program": request.program_label,
        "start": request.start and str(request.start),
        "optimizer": request.optimizer,
        "options": inputs.plan.options,
        "retriever": str(inputs.plan.resolved.retriever),
        "pool": str(inputs.plan.resolved.pool or "") or None,
        "lm": inputs.student.name,
        "teacher": inputs.teacher and inputs.teacher.name,
        "prompt_lm": inputs.prompter and inputs.prompter.name,
        "objective": str(study.objective),
        "queries": {**study.sizes, "left_out": [asdict(query) for query in training.left_out]},
        "compiled": str(file),
        "instruction": instruction.get(OBJECTIVE),
        "take_up": shlex.join(["python", "-m", "evals.run", *words, *sum(instruction.items(), ())]),
    }


def _on_test(request: CompileRequest, **fields: Any) -> Request:
    return request.run(
        **{"split": "test", "limit": None, "retriever": None, "parameters": {}} | fields
    )


def _compare_on_test(
    inputs: CompilationInputs,
    study: CandidateEvaluator,
    file: Path,
    start: Path | None,
    objective: str,
) -> list[dict[str, Any]]:
    request = inputs.request
    plan = inputs.plan

    def opening(request: Request) -> LoadedRun:  # on what is left of the budget and the time
        opened = load_run(request)
        opened.terms.budget = inputs.terms.budget
        return opened

    fixed = (
        plan.resolved.fixed
    )  # what a task chooses by itself, unless it was given, is left to each task
    values = {
        name: parameter
        for name, parameter in plan.parameters(plan.start).items()
        if name in fixed or name not in HINTS
    }
    before = {"parameters": values, "retriever": str(plan.resolved.retriever)}
    instruction = {"instruction": objective} if objective else {}
    started = {"from the start": before | {"compiled": start}} if start else {}
    systems: dict[str, dict[str, Any]] = {
        "as it was": before,
        **started,
        "compiled": {"compiled": file} | instruction,
    }
    folders: dict[str, list[Path]] = {}
    for task, (name, fields) in product(request.held_out_tasks, systems.items()):
        inputs.tell(f"{task}, test split, {name}")
        metrics = (study.objective.metric,)
        ran = run_request(_on_test(request, task=task, metrics=metrics, **fields), opening=opening)
        if ran.problem:
            raise ran.problem
        folders.setdefault(task, []).append(ran.folder)
    return [
        compare(ran, [study.objective.metric], force=bool(objective)) for ran in folders.values()
    ]
