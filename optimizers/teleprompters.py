"""The table of teleprompters: how each is made, with what at which effort, and what it may be given.

All are DSPy's own, at work inside `Study.working`, but for two: `knn`, which makes its demonstrations once instead of
again for each query (programs/compiled.py says how it differs), and `tune`, which searches parameters and no
prompts (optimizers/tune.py). What one returns is only one more candidate: optimizers/compile.py chooses by validation.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import dspy
from dspy.teleprompt.gepa import InstructionProposer

from optimizers.study import Found, Job
from optimizers.training.objective import TIE
from optimizers.tune import search
from programs.compiled import Neighbour, Neighbours, fuse, plain
from tools.errors import UnknownName, UsageError
from tools.models.adapter import Adapter
from tools.models.prompting import instructed

LEVELS = ("light", "medium", "heavy")


@dataclass(frozen=True, slots=True)
class Teleprompter:
    """A row of the table."""

    what: str  # in a line
    options: Mapping[str, tuple[Any, Any, Any]]  # by name, at light, medium and heavy effort
    run: Callable[[Job], Found]
    make: Callable[[Job], Any] | None = None  # DSPy's object, where `better_together` may have it as a step
    arguments: Callable[[Job], dict[str, Any]] = lambda job: {}  # of its compile()
    teacher: bool = False  # whether it takes one
    proposes: bool = True  # whether it asks a model for instructions
    prompts: bool = True  # whether it needs a program that has any


def _compiles(
    make: Callable[[Job], Any],
    arguments: Callable[[Job], dict[str, Any]],
    what: str,
    options: Mapping[str, tuple[Any, Any, Any]],
    **about: bool,
) -> Teleprompter:
    """Make a row for one of DSPy's: `make(job).compile(student, **arguments(job))`."""

    def run(job: Job) -> Found:
        return Found(make(job).compile(job.student, **arguments(job)))

    return Teleprompter(what, options, run, make, arguments, **about)


def shuffle(examples: list[dspy.Example], seed: int) -> list[dspy.Example]:
    """The training examples in the order of a seed: most optimizers have no seed of their own, and go by the order."""
    order = list(examples)
    if seed:
        random.Random(seed).shuffle(order)
    return order


def _train(job: Job) -> dict[str, Any]:
    return {"trainset": shuffle(job.study.examples("train"), job.seed)}


def _both(job: Job) -> dict[str, Any]:
    return {**_train(job), "valset": job.study.examples("validation")}


def _labeled(job: Job) -> Any:
    return dspy.LabeledFewShot(k=job.options["k"])


def _threshold(job: Job) -> float:
    """Return the value from which a trajectory is worth showing: the option's, or the mean of the program before.

    DSPy's own default takes any value but 0, which with a tie-breaker is nearly all of them.
    """
    if job.options["threshold"]:
        return float(job.options["threshold"])
    before = [evaluation.value for evaluation in job.study.of(job.study.before, "validation")]
    return max(sum(before) / len(before), 2 * TIE)  # more than the tie-breaker alone can give


def _bootstrapping(job: Job) -> dict[str, Any]:
    """Return the arguments that all share that bootstrap. Labels are the business of `labeled` alone."""
    return {
        "metric": job.study.metric,
        "metric_threshold": _threshold(job),
        "max_bootstrapped_demos": job.options["demos"],
        "max_labeled_demos": 0,
        "teacher_settings": job.teacher_settings,
    }


def _bootstrap(job: Job) -> Any:
    return dspy.BootstrapFewShot(**_bootstrapping(job), max_rounds=job.options["rounds"])


def _bootstrap_rs(job: Job) -> Any:
    return dspy.BootstrapFewShotWithRandomSearch(
        **_bootstrapping(job), num_candidate_programs=job.options["candidates"], num_threads=job.workers
    )


def _mipro(job: Job) -> Any:
    return dspy.MIPROv2(
        **_bootstrapping(job),
        prompt_model=job.prompt_lm,
        task_model=job.lm,
        auto=None,
        num_candidates=job.options["candidates"],
        num_threads=job.workers,
        seed=job.seed,
    )


_MINIBATCH = 35  # queries, as in DSPy; used from 51 validation queries on, as there


def _mipro_arguments(job: Job) -> dict[str, Any]:
    sets = _both(job)
    return {
        **sets,
        "num_trials": job.options["trials"],
        "minibatch": len(sets["valset"]) > 50,
        "minibatch_size": min(_MINIBATCH, len(sets["valset"])),
    }


def _copro(job: Job) -> Any:
    return dspy.COPRO(
        prompt_model=job.prompt_lm,
        metric=job.study.metric,
        init_temperature=1.0,  # DSPy's 1.4 is more than most providers take
        breadth=job.options["breadth"],
        depth=job.options["depth"],
    )


def _copro_arguments(job: Job) -> dict[str, Any]:
    return {**_train(job), "eval_kwargs": {"num_threads": job.workers, "display_progress": False}}


def _simba(job: Job) -> Any:
    return dspy.SIMBA(
        metric=job.study.metric_in_words,
        bsize=min(job.options["batch"], len(job.study.parts["train"])),
        num_candidates=job.options["candidates"],
        max_steps=job.options["steps"],
        max_demos=job.options["demos"],
        prompt_model=job.prompt_lm,
        # A copy, because SIMBA numbers its samples on the model itself.
        teacher_settings={name: lm.copy() for name, lm in job.teacher_settings.items()},
        num_threads=job.workers,
    )


def _simba_arguments(job: Job) -> dict[str, Any]:
    return {**_train(job), "seed": job.seed}


def _gepa(job: Job) -> Any:
    return dspy.GEPA(
        metric=job.study.metric,
        max_full_evals=job.options["evaluations"],
        reflection_minibatch_size=min(job.options["batch"], len(job.study.parts["train"])),
        reflection_lm=job.prompt_lm,
        # DSPy's own proposer asks for JSON by default; the form that the programs use is answered more reliably.
        instruction_proposer=InstructionProposer(adapter=Adapter()),
        num_threads=job.workers,
        warn_on_score_mismatch=False,
        seed=job.seed,
    )


_RULES_FROM = 10  # examples that rules are made from: all of them would make a prompt of a hundred pages


class _InferRules(dspy.InferRules):
    """DSPy's, with rules written on a signature of the candidate's own, not on the one that all copies share."""

    def update_program_instructions(self, predictor: Any, natural_language_rules: str) -> None:
        """Add the rules to a predictor's instructions."""
        told = f"{predictor.signature.instructions}\n\nFollow these rules:\n{natural_language_rules}"
        predictor.signature = instructed(predictor.signature, told)


def _infer_rules(job: Job) -> Any:
    made = _InferRules(
        **_bootstrapping(job),
        num_candidates=job.options["candidates"],
        num_rules=job.options["rules"],
        num_threads=job.workers,
    )
    made.rules_induction_program.teacher_settings = {"lm": job.prompt_lm}
    return made


def _infer_rules_arguments(job: Job) -> dict[str, Any]:
    return {"trainset": shuffle(job.labelled(), job.seed)[:_RULES_FROM], "valset": job.study.examples("validation")}


_SEPARATOR = " -> "


def _better_together(job: Job) -> Found:
    steps = _steps(job.options["strategy"])
    level = str(job.options["effort"])
    made, arguments = {}, {}
    for step in steps:
        row = TELEPROMPTERS[step]
        teacher = job.teacher_lm if row.teacher else None
        one = replace(job, options=settings(step, level, {}), teacher_lm=teacher)
        made[step] = _freed(row.make(one)) if row.make else None
        arguments[step] = {
            name: value for name, value in row.arguments(one).items() if name not in ("trainset", "valset")
        }
    job.student.set_lm(job.lm)  # it asks for one of each predictor, because others of its steps train weights
    best = dspy.BetterTogether(metric=job.study.metric, **made).compile(
        job.student,
        **_both(job),
        num_threads=job.workers,
        seed=job.seed,
        strategy=_SEPARATOR.join(steps),
        optimizer_compile_args=arguments,
    )
    best.set_lm(None)
    if best.flag_compilation_error_occurred:
        raise RuntimeError("a step of better_together failed; optimizer.log in the folder says why")
    return Found(best)


def _freed(teleprompter: Any) -> Any:
    """Have a teleprompter compile a student whose predictors have no model of their own.

    With one they would not listen to the teacher, nor to the model of a second round. BetterTogether gives it back.
    """
    theirs = teleprompter.compile

    @wraps(theirs)
    def compile_freed(student: Any, **arguments: Any) -> Any:
        student.set_lm(None)
        return theirs(student, **arguments)

    teleprompter.compile = compile_freed
    return teleprompter


def _steps(strategy: str) -> list[str]:
    steps = [step.strip() for step in strategy.split("->")]
    for step in steps:
        if step not in TELEPROMPTERS or TELEPROMPTERS[step].make is None:
            raise UnknownName(
                "step of better_together", step, [name for name, row in TELEPROMPTERS.items() if row.make]
            )
    return steps


def _knn(job: Job) -> Found:
    """Make every training query's own demonstrations, where it did well enough, to be chosen from by nearness."""
    queries = job.study.parts["train"]
    lm = job.teacher_lm or job.lm

    def traced(query: Any) -> tuple[float, list[Any]]:
        with dspy.context(lm=lm, trace=[]):
            value = job.study.metric(None, job.student(query_id=query.query_id))
            return value, list(dspy.settings.trace)

    threshold = _threshold(job)
    names = {id(predictor): name for name, predictor in job.student.named_predictors()}
    neighbours = []
    for query, (value, trace) in zip(queries, job.study.each(traced, queries), strict=True):
        if value < threshold:
            continue
        demos: dict[str, list[dict[str, Any]]] = {}
        for predictor, inputs, outputs in trace:
            if name := names.get(id(predictor)):
                demos[name] = [{**inputs, **plain(outputs)}]  # the last call of each: it has seen the most
        neighbours.append(Neighbour(query.query_id, query.text, demos))
    if not neighbours:
        return Found(job.student)
    program = Neighbours(job.plain(), neighbours, job.options["k"])
    form = {"neighbours": tuple(neighbours), "nearest": job.options["k"]}
    return Found(job.study.instrument(program, {"nearest": job.options["k"], "neighbours": len(neighbours)}), form)


def _ensemble(job: Job) -> Found:
    programs = [member.assemble(job.plain()) for member in job.members]
    program = dspy.Ensemble(reduce_fn=fuse).compile(programs)
    parameters = {"members": [member.digest() for member in job.members]}
    return Found(job.study.instrument(program, parameters), {"members": tuple(job.members)})


_DEMOS: dict[str, tuple[Any, Any, Any]] = {
    "demos": (2, 4, 4),
    "threshold": (0.0, 0.0, 0.0),  # 0: by what the program reaches on average
}

# To add one: a row. Its options are what `-O name=value` may set, with their values at each effort.
TELEPROMPTERS: dict[str, Teleprompter] = {
    "labeled": _compiles(
        _labeled,
        lambda job: {"trainset": shuffle(job.labelled(), job.seed)},
        "demonstrations made of judgements alone; no search (LabeledFewShot)",
        {"k": (2, 4, 8)},
        proposes=False,
    ),
    "bootstrap": _compiles(
        _bootstrap,
        _train,
        "demonstrations out of trajectories that did well (BootstrapFewShot)",
        {**_DEMOS, "rounds": (1, 1, 2)},
        teacher=True,
        proposes=False,
    ),
    "bootstrap_rs": _compiles(
        _bootstrap_rs,
        _both,
        "the best of several random sets of such demonstrations (BootstrapFewShotWithRandomSearch)",
        {**_DEMOS, "candidates": (4, 8, 16)},
        teacher=True,
        proposes=False,
    ),
    "knn": Teleprompter(
        "demonstrations of the training queries nearest to each query (after KNNFewShot)",
        {"k": (2, 3, 4), "threshold": (0.0, 0.0, 0.0)},
        _knn,
        teacher=True,
        proposes=False,
    ),
    "mipro": _compiles(
        _mipro,
        _mipro_arguments,
        "instructions and demonstrations together, by Bayesian search (MIPROv2)",
        {**_DEMOS, "candidates": (4, 8, 16), "trials": (12, 24, 48)},
        teacher=True,
    ),
    "copro": _compiles(
        _copro,
        _copro_arguments,
        "instructions, improved from the scores of earlier ones (COPRO)",
        {"breadth": (4, 7, 10), "depth": (2, 3, 3)},
    ),
    "simba": _compiles(
        _simba,
        _simba_arguments,
        "rules and demonstrations from where sampled trajectories differ (SIMBA)",
        {"batch": (16, 32, 32), "candidates": (3, 4, 6), "steps": (3, 6, 8), "demos": (2, 4, 4)},
        teacher=True,
    ),
    "gepa": _compiles(
        _gepa,
        _both,
        "instructions, evolved by reflecting on feedback in words (GEPA)",
        {"evaluations": (6, 12, 24), "batch": (3, 3, 5)},
    ),
    "infer_rules": _compiles(
        _infer_rules,
        _infer_rules_arguments,
        "rules that a model infers from labelled examples, and demonstrations (InferRules)",
        {**_DEMOS, "candidates": (3, 6, 10), "rules": (5, 10, 10)},
        teacher=True,
    ),
    "better_together": Teleprompter(
        "several of these after one another, each from where the last one ended (BetterTogether)",
        {"strategy": ("bootstrap_rs -> gepa",) * 3, "effort": LEVELS},
        _better_together,
        teacher=True,
    ),
    "ensemble": Teleprompter(
        "compiled programs side by side, their rankings fused (Ensemble); --of names them",
        {},
        _ensemble,
        proposes=False,
    ),
    "tune": Teleprompter(
        "parameters and retriever instead of prompts, by a seeded search over --range (ours)",
        {"trials": (8, 16, 32)},
        search,
        proposes=False,
        prompts=False,
    ),
}


def settings(name: str, level: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a teleprompter at a level of effort, with what `-O name=value` sets.

    UnknownName for another name, UsageError for a value of another kind or below what it may be.
    """
    row = TELEPROMPTERS[name]
    found = {option: values[LEVELS.index(level)] for option, values in row.options.items()}
    for option, value in given.items():
        if option not in found:
            raise UnknownName(f"option of {name}", option, found)
        found[option] = _option(option, str(value), found[option])
    return found


_LEAST = {"threshold": 0, "breadth": 2}  # what an option may be at least; any other 1. COPRO takes no breadth of 1


def _option(option: str, text: str, now: Any) -> Any:
    if option == "strategy":
        return _SEPARATOR.join(_steps(text))
    if option == "effort" and text not in LEVELS:
        raise UnknownName("effort", text, LEVELS)
    if isinstance(now, str):
        return text
    kind, least = type(now), _LEAST.get(option, 1)
    try:
        value = kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise UsageError(f"-O '{option}={text}': the value has to be {wanted}") from None
    if not (math.isfinite(value) and value >= least):
        raise UsageError(f"-O '{option}={text}': the value has to be at least {least}")
    return value
