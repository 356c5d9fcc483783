"""A teleprompter at work: the request with every name looked up, its models and programs, and the
reason for its end.
"""

import io
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dspy

from sextant import environments
from sextant.environments.base import Environment
from sextant.evals.running.evaluate import connect, make_resources
from sextant.evals.running.request import find_program, query_limits
from sextant.evals.running.resolve import (
    ResolvedRequest,
    RunRetrievers,
    check_prices,
    fit_to_task,
    resolve,
    try_construct,
)
from sextant.evals.running.runner import GRACE
from sextant.optimizers import parameter_search
from sextant.optimizers.candidate_evaluator import CandidateEvaluator, TeleprompterContext
from sextant.optimizers.request import UNTRAINED, CompileRequest
from sextant.optimizers.teleprompters import Teleprompter, find_teleprompter, settings
from sextant.optimizers.trainset.demonstrations import label_example
from sextant.optimizers.trainset.objective import Objective
from sextant.optimizers.trainset.splits import Trainset
from sextant.programs.compiled import Compiled, read
from sextant.tools import retrievers
from sextant.tools.errors import AbortCompilation, RunIncomplete, SextantError, UsageError
from sextant.tools.models import language_model
from sextant.tools.models.answers.checks import Rules
from sextant.tools.models.model_spec import parse
from sextant.tools.models.prompting import Adapter
from sextant.tools.models.provider_errors import format_refusal, responsible_party
from sextant.tools.models.secrets import redact
from sextant.tools.platform import files
from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.interrupts import start_thread, wait_until
from sextant.tools.plugins import show
from sextant.tools.process_changes import while_running
from sextant.tools.records import JsonObject, Query, Usage
from sextant.tools.retrievers.base import PoolRetriever
from sextant.tools.session import Session, SharedOnDeepcopy, Toolbox


@dataclass(frozen=True, slots=True)
class ResolvedCompilation:
    """The request of a compilation with every name looked up. Only `fit_to` reads data."""

    request: CompileRequest
    resolved: ResolvedRequest  # of the program as it is before
    optimizer: Teleprompter
    options: Mapping[str, Any]  # of the optimizer
    members: Mapping[Path, Compiled]  # of an ensemble, by their files; no two are equal
    ranges: parameter_search.Ranges  # of what is tuned
    drawn: Sequence[Mapping[str, Any]]  # the combinations that are tried
    template: str  # the retriever as it was given, with {names} to be tuned

    def parameters(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the program's parameters, with the `chosen` values; a retriever is no parameter."""
        return {name: chosen.get(name, value) for name, value in self.resolved.values.items()}

    @property
    def start(self) -> dict[str, Any]:
        """The start of tuning: the program's own parameters, and the first value of the other ranges."""
        own = {**self.resolved.values, parameter_search.RETRIEVER: self.template}
        return {name: own.get(name, values[0]) for name, values in self.ranges.items()}

    def retriever(self, chosen: Mapping[str, Any]) -> str:
        """Return the expression of the retriever of a combination."""
        template = self.template if chosen else str(self.resolved.retriever)
        return parameter_search.fill_template(template, chosen)

    def fit_to(self, training: Trainset) -> "ResolvedCompilation":
        """Return a copy with the task's own choices.

        UsageError, before an index is built, if something does not fit.
        """
        request = self.request
        resolved = self.resolved
        is_single = len(training.environments) == 1
        for environment in training.environments:
            # Several tasks get the same prompts, so none of them sets a parameter by itself.
            task = environment if is_single else replace(environment, hints={})
            resolved = fit_to_task(self.resolved, task)
        fitted = replace(self, resolved=resolved)
        for chosen in self.drawn:
            try_construct(resolved.constructor, fitted.parameters(chosen))
        program = try_construct(resolved.constructor, resolved.values)
        if self.optimizer.prompts and not program.predictors():
            raise UsageError(
                f"{request.program_label} has no prompts; --optimizer tune searches its parameters "
                f"and retriever"
            )
        for file, member in self.members.items():
            member.check(request.program_label, program, str(file))
            values = (dict(member.parameters), member.retriever)
            if values != (resolved.values, str(resolved.retriever)):
                raise UsageError(
                    f"{file} has other parameters, or another retriever, than the command; give it "
                    f"the same"
                )
        return fitted


def plan(request: CompileRequest) -> ResolvedCompilation:
    """Look up every name of a request. UsageError, UnknownName or DataError for unknown names."""
    row = find_teleprompter(request.optimizer)
    _check_options(request, row)
    _check_tasks(request)
    options = settings(row, request.optimizer, request.budget, request.options)
    template = request.retriever or "bm25"
    ranges: parameter_search.Ranges = {}
    drawn: list[dict[str, Any]] = []
    if request.optimizer == "tune":
        constructor = find_program(request.program, request.env)
        ranges = parameter_search.parse_ranges(
            request.program_label, constructor, template, request.ranges
        )
        drawn = parameter_search.combinations(ranges, options["trials"], request.seed)
    tried = [
        retrievers.canonicalize(parameter_search.fill_template(template, chosen))
        for chosen in drawn
    ]
    for retriever in tried:
        retrievers.validate(retriever)
    check_prices(request, list(filter(None, [request.teacher, request.prompt_lm])), tried)
    # A compiled program to start from has a retriever of its own.
    first = request.retriever
    if not request.start:
        values = {name: values[0] for name, values in ranges.items()}
        first = parameter_search.fill_template(template, values)
    resolved = resolve(request.run(split="dev", retriever=first, compiled=request.start))
    if resolved.compiled:
        resolved.compiled.prompts_alone(str(request.start))
    forced = getattr(resolved.constructor, "compiled_with", {})
    parameters = {
        name: value if name in resolved.fixed else forced.get(name, value)
        for name, value in resolved.values.items()
    }
    members = _read_members(request) if request.optimizer == "ensemble" else {}
    return ResolvedCompilation(
        request,
        replace(resolved, values=parameters),
        row,
        options,
        members,
        ranges,
        drawn,
        template,
    )


def _check_options(request: CompileRequest, row: Teleprompter) -> None:
    """UsageError for an option that the optimizer does not take, or a value that nothing can use."""
    limits = query_limits(request.parameters)
    writes_prompts = request.optimizer not in UNTRAINED
    for option, value, is_taken in (
        ("--of", request.of, request.optimizer == "ensemble"),
        ("--range", request.ranges, request.optimizer == "tune"),
        ("--start", request.start, writes_prompts),
        ("--folds", (request.folds or 1) > 1, writes_prompts),
        ("--teacher", request.teacher, row.teacher),
        ("--prompt-lm", request.prompt_lm, row.proposes),
        (f"-P {next(iter(limits), '')}", limits, False),
    ):
        if value and not is_taken:
            raise UsageError(f"{request.optimizer} takes no {option}; leave it out")
    if request.optimizer == "objective" and len({*request.tasks, *request.held_out_tasks}) > 1:
        raise UsageError(
            "objective writes what one task says of itself; give one --task, and no other to "
            "--held-out"
        )
    for option, spec in (("--teacher", request.teacher), ("--prompt-lm", request.prompt_lm)):
        if spec:
            parse(spec, option)


def _read_members(request: CompileRequest) -> dict[Path, Compiled]:
    """Read the programs of an ensemble. UsageError unless there are two, and all differ."""
    members = {file: read(file) for file in request.of}
    different = len({member.digest() for member in members.values()})
    if different < max(2, len(request.of)):
        raise UsageError(
            f"ensemble needs two compiled programs that differ, each by --of FILE; of "
            f"{len(request.of)} given, {different} differ"
        )
    return members


def _check_tasks(request: CompileRequest) -> None:
    """Check that the tasks exist, and that no two have the same name: queries are told apart by it."""
    tasks = (*request.tasks, *request.held_out_tasks)
    places = {environments.locate_task(task, request.data_of(task)) for task in tasks}
    if len(dict(places)) < len(places):
        raise UsageError(
            f"two of {', '.join(tasks)} have the same name; a line `name = ...` in the "
            f"benchmark.toml of one tells them apart"
        )


class ToolboxByTask(SharedOnDeepcopy):
    """Opens a session for each query in the corpus of its own task."""

    def __init__(self, by_query: Mapping[str, Toolbox]) -> None:
        self._by_query = by_query
        self.checkpoints = None

    def open(self, query: Query, snapshot: Mapping[str, Any] | None = None) -> Session:
        """Start the private side of `query`, as Toolbox.open."""
        return self._by_query[query.query_id].open(query, snapshot)


class CompilationInputs:
    """The models, retrievers and programs of a compilation. Each corpus is there once."""

    def __init__(
        self,
        plan: ResolvedCompilation,
        training: Trainset,
        objectives: Sequence[Objective],  # one a task
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        request = plan.request
        resolved = plan.resolved
        self.request = request
        self.plan = plan
        self.tell = tell
        # Shared by student, teacher, the writer of prompts, and retrievers.
        self.resources = make_resources(request, repeats=True)
        # The environment and the retrievers of each task.
        self._rooms: list[tuple[Environment, RunRetrievers]] = []
        for environment in training.environments:
            run_retrievers = RunRetrievers(environment, self.resources)
            if pool := resolved.pool:
                environment = pool.add_to(environment, list(map(run_retrievers.build, pool.parts)))
            self._rooms.append((environment, run_retrievers))
        self.training = training.replacing([environment for environment, _ in self._rooms])
        self.study = CandidateEvaluator(
            self.training,
            *objectives,
            workers=request.at_once,
            query_seconds=self.resources.query_seconds,
            say=tell,
        )
        self.retriever = self._rooms[0][1].build(resolved.retriever)
        self._toolbox = self._open_rooms(resolved.retriever)
        self.student = self._connect(request.lm)
        self.teacher = self._connect(request.teacher) if request.teacher else None
        self.prompter: Any = None
        if plan.optimizer.proposes:
            self.prompter = self._connect(request.prompt_lm or request.lm, _RULES)
            if self.prompter.lm.kwargs.get("temperature") is not None:
                # Its task is to write something new.
                self.prompter.lm.kwargs["temperature"] = 1.0
            self.prompter.lm.halts = True

    def _connect(self, spec: str, rules: Rules | None = None) -> language_model.ConnectedModel:
        model = connect(
            self.request,
            self.resources,
            self.training.environment.documents,
            self.retriever,
            spec=spec,
            rules=rules,
        )
        model.lm.meet()
        return model

    def _open_rooms(self, retriever: retrievers.RetrieverSpec) -> ToolboxByTask:
        boxes: dict[str, Toolbox] = {}
        specs = {"": retriever, **self.plan.resolved.others}
        for environment, run_retrievers in self._rooms:
            named_retrievers = {name: run_retrievers.build(spec) for name, spec in specs.items()}
            if self.plan.resolved.pool:
                named_retrievers = {
                    name: PoolRetriever(built) for name, built in named_retrievers.items()
                }
            box = Toolbox(environment.documents, named_retrievers.pop(""), others=named_retrievers)
            boxes |= {query.query_id: box for query in environment.queries}
        return ToolboxByTask(boxes)

    def label(self, queries: Sequence[Query]) -> list[dspy.Example]:
        """Return examples of the queries that have a relevant document, with labels (demonstrations.py)."""
        spec = self.plan.resolved.retriever
        return [
            label_example(query, environment, run_retrievers.build(spec))
            for query in queries
            for environment, run_retrievers in self._rooms
            if query in environment.queries
            and environment.judgements[environment.headline].relevant(query.query_id)
        ]

    def describe_models(self, attribute: str) -> JsonObject:
        """Return the "name" or the "settings" of each model, None for one that is not asked."""
        models = {"lm": self.student, "teacher": self.teacher, "prompt_lm": self.prompter}
        return {role: model and getattr(model, attribute) for role, model in models.items()}

    @property
    def usage(self) -> Usage:
        """The usage of all model calls so far; of the offline engine, which no ledger has, in this sitting."""
        usage_totals = self.resources.usage_totals
        return usage_totals.usage if usage_totals else Usage(calls=self.resources.budget.calls)

    def program(self, chosen: Mapping[str, Any] | None = None) -> Any:
        """Return the program before, or with the `chosen` parameters, over the shared retrievers."""
        toolbox = self._toolbox
        values = self.plan.parameters(chosen or {})
        if chosen and self.plan.ranges:
            toolbox = self._open_rooms(retrievers.canonicalize(self.plan.retriever(chosen)))
        # One thread inside a query, so that the order of its predictors' calls is always the same.
        if "parallel" in values:
            values["parallel"] = 1
        depths = [environment.depth for environment in self.training.environments]
        return self.plan.resolved.constructor(
            toolbox, depth=self.request.k or max(depths), **values
        )

    def program_to_start(self) -> Any:
        """Return the program with the prompts of --start."""
        start = self.plan.resolved.compiled
        return start.assemble(self.program()) if start else self.program()


def compile_with(inputs: CompilationInputs, folder: Path) -> SextantError | None:
    """Evaluate the program before and the result of the teleprompter; return the reason of an early end."""
    inputs.study.student = inputs.student.lm
    asked = {"lm": inputs.student.lm, "num_threads": inputs.request.at_once}
    try:
        with dspy.context(**asked, adapter=Adapter(), trace=None), while_running(), _quiet(folder):
            _work_interruptibly(inputs)
        return None
    except KeyboardInterrupt:
        print_stderr(f"what was answered is safe in {folder}; the same command goes on")
        raise
    except SextantError:
        raise
    except (AbortCompilation, Exception) as error:  # noqa: BLE001  # what was evaluated is kept
        return _reason(inputs.request, error)


def _reason(request: CompileRequest, error: BaseException) -> SextantError:
    if isinstance(error, AbortCompilation):
        error = error.reason
    if isinstance(error, SextantError):
        return error
    # An error of a provider that is not Sextant's comes from the model that writes instructions.
    party = responsible_party(error)
    if party == "refused":
        return format_refusal(error, request.prompt_lm or request.lm)
    what = f"{request.optimizer} broke off" if party == "system" else "the model's provider failed"
    first = redact(" ".join(f"{type(error).__name__}: {show(error)}".split()))
    return RunIncomplete(f"{what}: {first}; optimizer.log has more")


def _work(inputs: CompilationInputs) -> None:
    """Evaluate and compile. Its usage is on disk when it ends, also if it ends by an error."""
    study = inputs.study
    tuned = inputs.plan.start
    try:
        program = study.instrument(inputs.program(), tuned)
        start = study.instrument(inputs.program_to_start(), tuned)
        study.before = study.candidate(program, tuned).digest
        study.start = study.candidate(start, tuned).digest
        study.evaluate(program, "validation")
        study.evaluate(start, "validation")
        for fold in study.folds:
            study.fold = fold
            if all(study.parts.values()):
                student = study.instrument(inputs.program_to_start(), tuned)
                teacher_lm = inputs.teacher and inputs.teacher.lm
                context = TeleprompterContext(study, inputs, student, teacher_lm)
                result = inputs.plan.optimizer.run(context)
                study.returned[study.evaluate(result.program, "validation")] = result.form
    finally:
        study.wait()
        inputs.resources.settle()


def _work_interruptibly(inputs: CompilationInputs) -> None:
    # In another thread, so that Ctrl-C breaks off no model call half-way. After the first one
    # nothing begins, and what is in flight is waited for, GRACE seconds at most: it is paid for. At
    # the second one nothing is waited for.
    work = start_thread(lambda: _work(inputs))
    try:
        wait_until(work.done)
        work.result()
    except KeyboardInterrupt:
        inputs.study.stop()
        inputs.resources.limiter.halt()
        wait_until(work.done, GRACE)
        raise


class _Log(io.TextIOWrapper):
    def write(self, text: str) -> int:
        # A provider's message may repeat a key.
        return super().write(redact(text))


@contextmanager
def _quiet(folder: Path) -> Iterator[None]:
    """Send the prints and logs of DSPy, which go to stderr, to optimizer.log."""
    file = files.open_file(folder / "optimizer.log", "ab")
    with (
        _Log(file, encoding="utf-8", errors="backslashreplace") as log,
        redirect_stdout(log),
        redirect_stderr(log),
    ):
        try:
            yield
        except Exception:
            traceback.print_exc()
            raise


# The offline engine's answers to DSPy's optimizers: it has no text of its own, so it repeats the
# instruction that GEPA shows, and else writes nothing. With it every optimizer runs from end to end
# without key or network, and finds no better instruction, because there is none to find. Its answers to
# a program are the program's (programs/base.py).
_UNTOLD = (
    "proposed_instruction",
    "shortened_instruction",
    "proposed_prefix_for_output_field",
    "discussion",
    "reasoning",
    "natural_language_rules",
    # Of MIPROv2, about data and program.
    "observations",
    "summary",
    "program_description",
    "module_description",
)
_RULES: Rules = {
    **dict.fromkeys(_UNTOLD, lambda inputs, statistics: ""),
    "new_instruction": lambda inputs, statistics: inputs["current_instruction"],
    "objective": lambda inputs, statistics: (inputs["drafts"] or [environments.base.GENERIC])[-1],
    "module_advice": lambda inputs, statistics: {},
}
