"""The teleprompters: how each is made, which options it has, and their values by effort.

All are DSPy's own, except three: `knn`, which makes its
demonstrations once instead of again for each query (programs/compiled.py says how it differs),
`tune`, which searches parameters and no prompts (optimizers/parameter_search.py), and `objective`,
which words the task (optimizers/objective_search.py). A teleprompter returns one more candidate:
validation chooses the candidate that is kept. A user's own teleprompter is a function or a class in
a file, a module or an installed package (docs/guide/extend.md).
"""

import inspect
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import dspy

from sextant.evals.running.request import read_value
from sextant.optimizers import objective_search
from sextant.optimizers import parameter_search as tuning
from sextant.optimizers.candidate_evaluator import TeleprompterContext, TeleprompterResult
from sextant.optimizers.request import EFFORT
from sextant.optimizers.trainset.objective import TIE
from sextant.programs.compiled import (
    NearestDemonstrations,
    NeighbourExample,
    fuse_rankings,
    to_json_values,
)
from sextant.tools import plugins
from sextant.tools.errors import UnknownName, UsageError
from sextant.tools.models.dspy_internals import InstructionProposer
from sextant.tools.models.prompting import Adapter, with_instructions
from sextant.tools.platform.terminal import first_sentence

# An option that `-O name=value` may set -> its values at light, medium and heavy effort.
Options = Mapping[str, tuple[Any, Any, Any]]


# Takes the context and the options; makes a teleprompter of DSPy's, alone or with the arguments of its
# `compile()` next to the student, or does the work itself and returns a TeleprompterResult or a program.
Make = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Teleprompter:
    """A row of the table."""

    summary: str  # one line, for `--optimizer list`
    options: Options
    make: Make
    # Whether it can be a step of `better_together`, which takes DSPy's teleprompters alone.
    step: bool = True
    teacher: bool = False  # whether it takes --teacher
    proposes: bool = False  # whether it asks a model for instructions (--prompt-lm)
    prompts: bool = True  # whether it needs a program that has prompts
    source: str = ""  # the module or file of a user's own; "" for the rows of this table

    def run(self, job: TeleprompterContext) -> TeleprompterResult:
        """Let it work to its end. UsageError if it returns nothing that can be a candidate."""
        product = self.make(job, **job.inputs.plan.options)
        if isinstance(product, TeleprompterResult):
            return product
        if not isinstance(product, dspy.Module):
            teleprompter, arguments = _with_arguments(job, product)
            product = teleprompter.compile(job.student, **arguments)
        return TeleprompterResult(product)


def _with_arguments(job: TeleprompterContext, product: Any) -> tuple[Any, dict[str, Any]]:
    """Return a teleprompter with the arguments of its `compile()`: the sets and the seed, unless it has its own."""
    teleprompter, own = product if isinstance(product, tuple) else (product, {})
    if not hasattr(teleprompter, "compile"):
        raise UsageError(
            f"{job.request.optimizer} returned a {type(product).__name__}; it has to return a "
            f"teleprompter of DSPy's with the arguments of its compile(), or a program"
        )
    accepted = inspect.signature(teleprompter.compile).parameters
    usual = {name: value for name, value in _usual(job).items() if name in accepted}
    return teleprompter, usual | own


def _usual(job: TeleprompterContext) -> dict[str, Any]:
    return {
        "trainset": _shuffled(job.study.examples("train"), job.seed),
        "valset": job.study.examples("validation"),
        "seed": job.seed,
    }


TELEPROMPTERS: dict[str, Teleprompter] = {}  # in the order in which they are listed


def find_teleprompter(name: str) -> Teleprompter:
    """Return a row of the table, or a row made of a user's own function or class.

    UnknownName for no such name, UsageError for a file or an object that cannot be used.
    """
    if name in TELEPROMPTERS:
        return TELEPROMPTERS[name]
    known = dict.fromkeys(TELEPROMPTERS, "")
    reference = plugins.resolve("optimizer", name, known, plugins.TELEPROMPTERS)
    loaded = plugins.load_object("optimizer", name, {}, plugins.TELEPROMPTERS)
    if not callable(loaded):
        raise UsageError(f"{name} is a {type(loaded).__name__}; it has to be a function or a class")
    options = {
        option: (parameter.default,) * 3
        for option, parameter in inspect.signature(loaded).parameters.items()
        if isinstance(parameter.default, str | bool | int | float)
    }
    return Teleprompter(
        summary=first_sentence(inspect.getdoc(loaded)).removesuffix("."),
        options=options,
        make=partial(_make_by_class, loaded) if isinstance(loaded, type) else loaded,
        step=False,
        teacher=True,
        proposes=True,
        source=reference.rpartition(":")[0],
    )


def _make_by_class(loaded: type, job: TeleprompterContext, **options: Any) -> Any:
    """Make a user's teleprompter of a class, which is like DSPy's."""
    if "metric" in inspect.signature(loaded).parameters:
        options["metric"] = job.study.metric
    return loaded(**options)


def _row(options: Options, **flags: Any) -> Callable[[Make], Make]:
    """Add a function to the table; `--optimizer list` shows its docstring."""

    def add(make: Make) -> Make:
        summary = str(make.__doc__).removesuffix(".")
        summary = summary[0].lower() + summary[1:]
        TELEPROMPTERS[make.__name__] = Teleprompter(summary, options, make, **flags)
        return make

    return add


def _shuffled(examples: list[dspy.Example], seed: int) -> list[dspy.Example]:
    """Shuffle the examples for teleprompters that have no seed of their own; 0 keeps the order."""
    if seed:
        random.Random(seed).shuffle(examples)
    return examples


def _label(job: TeleprompterContext) -> list[dspy.Example]:
    return _shuffled(job.inputs.label(job.study.parts["train"]), job.seed)


def _choose_threshold(job: TeleprompterContext, threshold: float) -> float:
    """Return the value from which a trajectory is worth showing; DSPy's own default is any but 0."""
    # The tie-breaker alone can give TIE.
    return threshold or max(job.study.mean(job.study.start, "validation"), 2 * TIE)


def _bootstrapping(job: TeleprompterContext, demos: int, threshold: float) -> dict[str, Any]:
    return {
        "metric": job.study.metric,
        "metric_threshold": _choose_threshold(job, threshold),
        "max_bootstrapped_demos": demos,
        "max_labeled_demos": 0,
        "teacher_settings": {"lm": job.teacher_lm} if job.teacher_lm else {},
    }


# 0 stands for the mean value of the program on validation.
_THRESHOLD: Options = {"threshold": (0.0, 0.0, 0.0)}
_DEMOS: Options = {"demos": (2, 4, 4), **_THRESHOLD}


@_row({"k": (2, 4, 8)})
def labeled(job: TeleprompterContext, k: int) -> Any:
    """Demonstrations made of judgements alone; no search (LabeledFewShot)."""
    return dspy.LabeledFewShot(k=k), {"trainset": _label(job)}


@_row({**_DEMOS, "rounds": (1, 1, 2)}, teacher=True)
def bootstrap(job: TeleprompterContext, rounds: int, **demonstrations: Any) -> Any:
    """Demonstrations out of trajectories that did well (BootstrapFewShot)."""
    return dspy.BootstrapFewShot(**_bootstrapping(job, **demonstrations), max_rounds=rounds)


@_row({**_DEMOS, "candidates": (4, 8, 16)}, teacher=True)
def bootstrap_rs(job: TeleprompterContext, candidates: int, **demonstrations: Any) -> Any:
    """The best of several random sets of such demonstrations (BootstrapFewShotWithRandomSearch)."""
    return dspy.BootstrapFewShotWithRandomSearch(
        **_bootstrapping(job, **demonstrations),
        num_candidate_programs=candidates,
        num_threads=job.request.at_once,
    )


@_row(
    {"k": (2, 3, 4), **_THRESHOLD},
    teacher=True,
    step=False,
)
def knn(job: TeleprompterContext, k: int, threshold: float) -> TeleprompterResult:
    """Demonstrations of the training queries nearest to each query (after KNNFewShot)."""

    def traced(query: Any) -> tuple[float, list[Any]]:
        with dspy.context(lm=job.teacher_lm or job.inputs.student.lm, trace=[]):
            value = job.study.metric(None, job.student(query_id=query.query_id))
            return value, list(dspy.settings.trace)

    least_value = _choose_threshold(job, threshold)
    names = {id(predictor): name for name, predictor in job.student.named_predictors()}
    queries = job.study.parts["train"]
    parallel = dspy.Parallel(num_threads=job.request.at_once, disable_progress_bar=True)
    neighbours = [
        NeighbourExample(query.query_id, query.text, _last_calls(trace, names))
        for query, (value, trace) in zip(
            queries, parallel([(traced, (query,)) for query in queries]), strict=True
        )
        if value >= least_value
    ]
    if not neighbours:
        return TeleprompterResult(job.student)
    program = NearestDemonstrations(job.inputs.program_to_start(), neighbours, k)
    # By the fold, too, because the programs of two folds would else be one candidate.
    parameters = {"nearest": k, "neighbours": len(neighbours), "fold": job.study.fold}
    return TeleprompterResult(
        job.study.instrument(program, parameters),
        {"neighbours": tuple(neighbours), "nearest": k},
    )


def _last_calls(trace: list[Any], names: Mapping[int, str]) -> dict[str, list[dict[str, Any]]]:
    """Return the last call of each predictor in a trace, which has seen the most, by its name."""
    return {
        names[id(predictor)]: [{**inputs, **to_json_values(outputs)}]
        for predictor, inputs, outputs in trace
        if id(predictor) in names
    }


@_row(
    {
        **_DEMOS,
        "candidates": (4, 8, 16),
        "trials": (12, 24, 48),
    },
    teacher=True,
    proposes=True,
)
def mipro(job: TeleprompterContext, candidates: int, trials: int, **demonstrations: Any) -> Any:
    """Instructions and demonstrations together, by Bayesian search (MIPROv2)."""
    teleprompter = dspy.MIPROv2(
        **_bootstrapping(job, **demonstrations),
        prompt_model=job.inputs.prompter.lm,
        task_model=job.inputs.student.lm,
        auto=None,
        num_candidates=candidates,
        num_threads=job.request.at_once,
        seed=job.seed,
    )
    queries = len(job.study.parts["validation"])
    arguments = {
        "num_trials": trials,
        # As in DSPy.
        "minibatch": queries > 50,
        "minibatch_size": min(35, queries),
    }
    return teleprompter, arguments


@_row({"breadth": (4, 7, 10), "depth": (2, 3, 3)}, proposes=True)
def copro(job: TeleprompterContext, breadth: int, depth: int) -> Any:
    """Instructions, improved from the scores of earlier instructions (COPRO)."""
    evaluation = {"num_threads": job.request.at_once, "display_progress": False}
    teleprompter = dspy.COPRO(
        prompt_model=job.inputs.prompter.lm,
        metric=job.study.metric,
        init_temperature=1.0,  # DSPy's 1.4 is more than most providers take
        breadth=breadth,
        depth=depth,
    )
    return teleprompter, {"eval_kwargs": evaluation}


@_row(
    {
        "batch": (16, 32, 32),
        "candidates": (3, 4, 6),
        "steps": (3, 6, 8),
        "demos": (2, 4, 4),
    },
    teacher=True,
    proposes=True,
)
def simba(job: TeleprompterContext, batch: int, candidates: int, steps: int, demos: int) -> Any:
    """Rules and demonstrations from where sampled trajectories differ (SIMBA)."""
    return dspy.SIMBA(
        metric=partial(job.study.metric, pred_name=""),  # with words about whole trajectories
        bsize=min(batch, len(job.study.parts["train"])),
        num_candidates=candidates,
        max_steps=steps,
        max_demos=demos,
        prompt_model=job.inputs.prompter.lm,
        # A copy, because SIMBA numbers its samples on the model itself.
        teacher_settings={"lm": job.teacher_lm.copy()} if job.teacher_lm else {},
        num_threads=job.request.at_once,
    )


@_row({"evaluations": (6, 12, 24), "batch": (3, 3, 5)}, proposes=True)
def gepa(job: TeleprompterContext, evaluations: int, batch: int) -> Any:
    """Instructions, evolved by reflecting on feedback in words (GEPA)."""
    return dspy.GEPA(
        metric=job.study.metric,
        max_full_evals=evaluations,
        reflection_minibatch_size=min(batch, len(job.study.parts["train"])),
        reflection_lm=job.inputs.prompter.lm,
        # DSPy's own proposer asks for JSON by default; the form that the programs use is answered
        # more reliably.
        instruction_proposer=InstructionProposer(adapter=Adapter()),
        num_threads=job.request.at_once,
        warn_on_score_mismatch=False,
        seed=job.seed,
    )


class _InferRules(dspy.InferRules):
    """InferRules with its rules on a signature of the candidate's own, which no copies share."""

    def update_program_instructions(self, predictor: Any, natural_language_rules: str) -> None:
        instructions = (
            f"{predictor.signature.instructions}\n\nFollow these rules:\n{natural_language_rules}"
        )
        predictor.signature = with_instructions(predictor.signature, instructions)


# Examples that rules are made from: all of them would make a prompt of a hundred pages.
_RULES_FROM = 10


@_row(
    {
        **_DEMOS,
        "candidates": (3, 6, 10),
        "rules": (5, 10, 10),
    },
    teacher=True,
    proposes=True,
)
def infer_rules(
    job: TeleprompterContext, candidates: int, rules: int, **demonstrations: Any
) -> Any:
    """Rules that a model infers from labelled examples, and demonstrations (InferRules)."""
    teleprompter = _InferRules(
        **_bootstrapping(job, **demonstrations),
        num_candidates=candidates,
        num_rules=rules,
        num_threads=job.request.at_once,
    )
    teleprompter.rules_induction_program.teacher_settings = {"lm": job.inputs.prompter.lm}
    return teleprompter, {"trainset": _label(job)[:_RULES_FROM]}


@_row(
    {"strategy": ("bootstrap_rs -> gepa",) * 3},
    teacher=True,
    proposes=True,
    step=False,
)
def better_together(job: TeleprompterContext, strategy: str) -> TeleprompterResult:
    """Several of these in sequence, each from the result of the last (BetterTogether)."""
    teleprompters = {}
    arguments = {}
    for step in _steps(strategy):
        row = TELEPROMPTERS[step]
        # Only those that take a teacher ask for it.
        product = row.make(job, **settings(row, step, job.request.budget, {}))
        teleprompter, made_arguments = _with_arguments(job, product)
        teleprompters[step] = _freed(teleprompter)
        # The sets of queries are BetterTogether's own.
        arguments[step] = {
            name: value
            for name, value in made_arguments.items()
            if name not in ("trainset", "valset")
        }
    # It asks each predictor for its model, because others of its steps train weights.
    job.student.set_lm(job.inputs.student.lm)
    best = dspy.BetterTogether(metric=job.study.metric, **teleprompters).compile(
        job.student,
        **_usual(job),
        num_threads=job.request.at_once,
        strategy=strategy,
        optimizer_compile_args=arguments,
    )
    best.set_lm(None)
    if best.flag_compilation_error_occurred:
        raise RuntimeError("a step of better_together failed; optimizer.log in the folder says why")
    return TeleprompterResult(best)


def _freed(teleprompter: Any) -> Any:
    # With models of their own, a student's predictors would not listen to the teacher, nor to the
    # model of a second round. BetterTogether gives them back.
    theirs = teleprompter.compile

    @wraps(theirs)
    def compile_freed(student: Any, **arguments: Any) -> Any:
        student.set_lm(None)
        return theirs(student, **arguments)

    teleprompter.compile = compile_freed
    return teleprompter


def _steps(strategy: str) -> list[str]:
    steps = [step.strip() for step in strategy.split("->")]
    step_names = [name for name, row in TELEPROMPTERS.items() if row.step]
    for step in steps:
        if step not in step_names:
            raise UnknownName("step of better_together", step, step_names)
    return steps


@_row({}, step=False)
def ensemble(job: TeleprompterContext) -> TeleprompterResult:
    """Compiled programs side by side, their rankings fused (Ensemble); --of names them."""
    members = tuple(job.inputs.plan.members.values())
    program = dspy.Ensemble(reduce_fn=fuse_rankings).compile(
        [member.assemble(job.inputs.program_to_start()) for member in members]
    )
    return TeleprompterResult(
        job.study.instrument(program, {"members": [member.digest() for member in members]}),
        {"members": members},
    )


@_row(
    {"trials": (8, 16, 32)},
    prompts=False,
    step=False,
)
def tune(job: TeleprompterContext, trials: int) -> TeleprompterResult:
    """Parameters and retriever instead of prompts, by a seeded search over --range (ours)."""
    return tuning.search(job)  # of as many combinations as trials


@_row(
    {"drafts": (2, 4, 8), "cases": (5, 5, 5)},
    proposes=True,
    prompts=False,
    step=False,
)
def objective(job: TeleprompterContext, drafts: int, cases: int) -> TeleprompterResult:
    """The task description in the queries, not the prompts: the best of several drafts (our method)."""
    return objective_search.search(job, drafts, cases)


# The least value of an option; 1 for the others. COPRO takes no breadth of 1.
_LEAST = {"threshold": 0, "breadth": 2}


def settings(
    row: Teleprompter,
    name: str,
    level: str,
    overrides: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a teleprompter's options at a budget level, overridden by `-O name=value`."""
    options = {option: values[EFFORT.index(level)] for option, values in row.options.items()}
    for option, value in overrides.items():
        if option not in options:
            raise UnknownName(f"option of {name}", option, options)
        kind = type(options[option])
        options[option] = text = str(value)
        if kind is not str:
            options[option] = read = read_value(option, text, kind, "-O")
            least = -math.inf if row.source else _LEAST.get(option, 1)
            if not least <= read < math.inf:
                raise UsageError(f"-O '{option}={text}': the value has to be at least {least}")
    if name == "better_together":
        options["strategy"] = " -> ".join(_steps(options["strategy"]))
    return options
