"""A compilation: divide dev, let a teleprompter work, choose by validation, write compiled.json and
learnt.json.

Afterwards evals runs the program as it was and compiled (optimizers/comparison_runs.py). Nothing here
reads the test split while a teleprompter is at work; then it is read to look for its texts in the
prompts, and with `held_out` to run the program on it.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from sextant.environments import load
from sextant.evals import run_folder
from sextant.evals.running import identity
from sextant.evals.scoring.score_run import count_test_uses
from sextant.optimizers import result_summary
from sextant.optimizers.candidate_evaluator import OBJECTIVE, Candidate
from sextant.optimizers.comparison_runs import (
    compare_on_test,
    compare_on_validation,
    write_command,
)
from sextant.optimizers.request import UNTRAINED, CompileRequest
from sextant.optimizers.setup import CompilationInputs, compile_with, plan
from sextant.optimizers.trainset.objective import make_objective
from sextant.optimizers.trainset.prompt_leaks import (
    LeakSource,
    collect_passages,
    find_leaks,
    list_texts,
)
from sextant.optimizers.trainset.splits import Trainset, make_folds, merge_trainsets, split_dev
from sextant.programs.compiled import Compiled, get_prompts, write
from sextant.tools import retrievers, schemas
from sextant.tools.errors import RunIncomplete, SextantError, UsageError
from sextant.tools.models import model_spec as models
from sextant.tools.models import secrets
from sextant.tools.platform.files import hide_folders
from sextant.tools.platform.waiting import announced
from sextant.tools.records import JsonMapping, JsonObject, usage_json

# The parts of learnt.json and config.json that a compiled file has as well.
_OF_LEARNT = ("task", "data", "optimizer", "options", "candidates", "before", "after", "usage")
_OF_CONFIG = (
    *("data_fingerprint", "split_digest", "compiled", "instruction", "objective", "code"),
    *("lm", "teacher", "prompt_lm"),
)


def compile_program(
    request: CompileRequest, tell: Callable[[str], None]
) -> tuple[JsonObject, SextantError | None]:
    """Compile, or go on compiling; `tell` is given lines of progress.

    Return the content of learnt.json, with "looks", the uses of the test split so far, and the reason if it
    ended before its end. SextantError for a request that cannot be met, or if not even the program
    before was evaluated.
    """
    secrets.read_keys()
    resolved = plan(request)
    with announced(f"loading {request.task}"):
        training = _divide(request)
    # All with the metric of the first task.
    first = make_objective(training.environment, request.metric, request.price)
    objectives = [
        make_objective(environment, first.metric, request.price)
        for environment in training.environments
    ]
    inputs = CompilationInputs(resolved.fit_to(training), training, objectives, tell)
    place = partial(_folder, request)
    config = run_folder.separate_changed(place, _configuration(inputs))
    path = place(config)
    if not (path / "learnt.json").exists():
        for spec in filter(None, (request.lm, request.teacher, request.prompt_lm)):
            models.check_key(spec, request.headers)
    for part_name, count in inputs.study.sizes.items():
        if not count:
            raise UsageError(
                f"{first.metric} is the same for all rankings of the {part_name} queries; choose "
                f"another --metric, or another --split-seed"
            )
    with run_folder.claim(path, config) as folder:
        inputs.resources.open(path, request.runs)
        tell(f"{request.optimizer_label} on the dev queries of {training.task}")
        if training.one_need:
            tell(
                "all of these dev queries want the same documents, so a gain on validation says "
                "little; ask test"
            )
        problem = compile_with(inputs, path)
        folder.record_opened()
        learnt, problem = _conclude(inputs, path, problem)
    # Not in the file, which is the same however often the command is given.
    learnt["looks"] = sum(
        count_test_uses({**config, "task": environment.task})
        for environment in training.environments
    )
    return learnt, problem


def _divide(request: CompileRequest) -> Trainset:
    """Divide the dev queries of the tasks; into folds if the request says so, or if they are few."""
    loading = ("qrels", "relevant_from", "instruction", "columns")
    trainsets = [
        split_dev(
            task,
            request.data_of(task),
            limit=request.limit,
            seed=request.split_seed,
            share=request.train_share,
            **{name: getattr(request, name) for name in loading},
        )
        for task in request.tasks
    ]
    folds = request.folds
    is_usual = request.limit is None and request.train_share == CompileRequest.train_share
    if not folds and not (is_usual and request.optimizer not in UNTRAINED):
        folds = 1
    return make_folds(merge_trainsets(trainsets), folds)


def _folder(request: CompileRequest, config: run_folder.Config) -> Path:
    """Return RUNS/compiled/<suite>-<task>/<program>-<optimizer>-<lm>-<digest>."""
    program = f"{request.program_label}-{request.optimizer_label}"
    named = {**config, "program": program, "task": config["task"][:100]}
    path = run_folder.run_path(request.runs / "compiled", named)
    return path.with_name(f"{path.name.rpartition('-')[0]}-{run_folder.digest(config)}")


def _configuration(inputs: CompilationInputs) -> run_folder.Config:
    """Return all that the result depends on: not budgets, concurrency and paths."""
    request = inputs.request
    plan = inputs.plan
    environment = inputs.training.environment
    config = identity.run_config(plan.resolved, environment, inputs.retriever, inputs.student)
    # The sources that score belong to it: values are kept, not made again.
    modules = ["sextant.optimizers.teleprompters", *filter(None, [plan.optimizer.source])]
    code = identity.code_and_versions(modules, libraries=("gepa", "optuna"))
    pool = plan.resolved.pool
    judgements = environment.judgements[environment.headline]
    return {
        **config,
        "pool": pool and pool.config(list(map(str, pool.parts)), environment),
        "task": inputs.training.task,
        "tasks": [[each.task, each.fingerprint] for each in inputs.training.environments],
        "split_digest": inputs.training.digest,
        "optimizer": {"name": request.optimizer_label, "seed": request.seed, **plan.options},
        # Here judgements decide what is found; of a run they only decide how it is scored.
        "objective": {
            "is": str(inputs.study.objective),
            "judgements": environment.headline,
            "relevant_from": judgements.relevant_from,
        },
        **inputs.describe_models("settings"),
        # With the address and the seed, as of a run.
        "lm": config["lm"],
        "members": [member.digest() for member in plan.members.values()],
        "ranges": plan.ranges,
        "tuned": plan.template if plan.ranges else None,
        "code": config["code"] + code["code"],
        "versions": config["versions"] | code["versions"],
    }


def _conclude(
    inputs: CompilationInputs, folder: Path, problem: SextantError | None
) -> tuple[JsonObject, SextantError | None]:
    """Write the best candidate, then look at the test split, and have the program run."""
    study = inputs.study
    best = result_summary.choose_candidate(study)
    if best is None:
        raise _say_next(
            problem or RunIncomplete("compiling broke off"),
            "the program as it is was not evaluated on all validation queries, so there is nothing "
            "to choose from yet",
        )
    file = folder / "compiled.json"
    objective = str(best.parameters.get(OBJECTIVE, ""))
    instruction_file = folder / "instruction.toml" if objective else None
    # What was paid for is on disk before anything else is read or computed.
    if instruction_file:  # for `sextant run --instruction`
        task = schemas.to_toml(study.training.task.partition(":")[0])
        run_folder.write(instruction_file, f"{task} = {schemas.to_toml(objective)}\n")
    learnt = {
        **result_summary.summarise(study, best),
        **_describe(inputs),
        "compiled": str(file),
        "instruction": instruction_file and str(instruction_file),
        "take_up": write_command(inputs, file, instruction_file),
        "stopped": str(problem or ""),
        "leaks": [],
    }
    config = run_folder.read_config(folder)
    origin = {key: learnt[key] for key in _OF_LEARNT} | {key: config[key] for key in _OF_CONFIG}
    compiled = _compiled(inputs, best, origin)
    write(file, compiled)
    _write_learnt(folder, learnt)
    lines = [json.dumps(row) + "\n" for row in result_summary.list_candidates(study)]
    run_folder.write(folder / "candidates.jsonl", "".join(lines))
    try:
        doing = "looking for texts of the test split in the prompts"
        learnt["leaks"] = _list_leaks(inputs, compiled, objective)
        if problem is None and learnt["kept"] != "before":
            doing = "on the validation queries"
            learnt["on_validation"] = compare_on_validation(
                inputs, best, file, learnt["candidates"]
            )
            if inputs.request.held_out:
                doing = "on the test split"
                learnt["held_out"] = compare_on_test(inputs, best, file)
    except SextantError as error:
        problem = problem or error.saying(f"{doing}: {error}")
    _write_learnt(folder, learnt)
    if problem:
        problem = _say_next(problem, f"the best so far is in {file}")
    return learnt, problem


def _say_next(problem: SextantError, state: str) -> SextantError:
    larger = " with a larger budget" if getattr(problem, "larger", False) else ""
    return problem.saying(f"{problem}; {state}, and the same command{larger} goes on")


def _list_leaks(inputs: CompilationInputs, compiled: Compiled, objective: str) -> list[JsonObject]:
    """Return the texts of judged documents and queries that the prompts or the objective repeat."""
    texts = list_texts(compiled) | ({OBJECTIVE: objective} if objective else {})
    training = inputs.training
    passages: list[LeakSource] = []
    for dev in training.environments if texts else ():
        # By the path that this environment was read from: the name alone of a user's own data leads
        # nowhere.
        test = load(
            dev.task,
            dev.data,
            "test",
            qrels=inputs.request.qrels,
            relevant_from=inputs.request.relevant_from,
            columns=dev.columns,
        )
        passages += [
            *collect_passages("train", training.train, dev),
            *collect_passages("validation", training.validation, dev),
            *collect_passages("test", test.queries, test),
        ]
    return find_leaks(texts, passages)


def _write_learnt(folder: Path, learnt: JsonMapping) -> None:
    run_folder.write(folder / "learnt.json", json.dumps(hide_folders(learnt), indent=2) + "\n")


def _compiled(inputs: CompilationInputs, best: Candidate, origin: JsonMapping) -> Compiled:
    """Return a candidate as a compiled program.

    A candidate that keeps its prompts in members or neighbours has the prompts of the program.
    """
    plan = inputs.plan
    chosen = best.parameters if plan.ranges else {}
    # A prompt is compiled for its signature in the code, with the same parameters.
    original = get_prompts(inputs.program(chosen))
    candidate_prompts = best.prompts
    if candidate_prompts.keys() != original.keys():
        candidate_prompts = get_prompts(inputs.program_to_start())
    prompts = {
        name: replace(prompt, signature=original[name].signature, before=original[name].before)
        for name, prompt in candidate_prompts.items()
    }
    return Compiled(
        inputs.request.program_label,
        plan.parameters(chosen),
        str(retrievers.canonicalize(plan.retriever(chosen))),
        prompts,
        origin=origin,
        **inputs.study.returned.get(best.digest, {}),
    )


def _describe(inputs: CompilationInputs) -> JsonObject:
    """Return the part of learnt.json that is about the request."""
    request = inputs.request
    training = inputs.training
    return {
        "task": training.task,
        "data": hide_folders(training.environment.data),
        "program": request.program_label,
        "start": request.start and str(request.start),
        "optimizer": request.optimizer_label,
        "options": inputs.plan.options,
        "retriever": str(inputs.plan.resolved.retriever),
        "pool": str(inputs.plan.resolved.pool or "") or None,
        **inputs.describe_models("name"),
        "objective": str(inputs.study.objective),
        "queries": inputs.study.sizes,
        "left_out": training.left_out,
        "usage": usage_json(inputs.usage),
    }
