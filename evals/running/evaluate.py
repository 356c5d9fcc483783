"""Evaluate a search system on a task, from Python: `evaluate`, or `run_request` with a request and a
report.

    result = evaluate(program="multihop", task="congress", split="dev")
    print(result.metrics["nDCG@10"].mean, result.folder)

Here a task, a retriever, a program and a model meet. Nothing is printed; a report is informed of
events.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sextant import environments
from sextant.environments.base import Environment
from sextant.evals import run_folder
from sextant.evals.running import runner
from sextant.evals.running.earlier_usage import BUDGET_OF_AGENTS, brings_agents, count_agents
from sextant.evals.running.events import RunMonitor
from sextant.evals.running.identity import run_config
from sextant.evals.running.request import (
    LIMITS,
    WORKERS,
    Request,
    SharedRequest,
    read_object_version,
    registered_object,
)
from sextant.evals.running.resolve import (
    PreparedRun,
    ResolvedRequest,
    RunRetrievers,
    fit_to_task,
    resolve,
)
from sextant.evals.running.run_status import RunStatus
from sextant.evals.scoring.harness_card import make_card
from sextant.evals.scoring.metrics import add_metrics
from sextant.evals.scoring.reference_runs import read_reference_bounds
from sextant.evals.scoring.score_run import (
    count_test_uses,
    record_test_use,
    score,
    summarise_unfinished,
)
from sextant.evals.scoring.score_table import lay_out_scores
from sextant.tools.corpus import Corpus
from sextant.tools.errors import FAULTS, BudgetReached, RunIncomplete, SextantError, UsageError
from sextant.tools.models import language_model
from sextant.tools.models.answers.checks import Rules
from sextant.tools.models.call_limits import Budget, ConcurrencyLimiter
from sextant.tools.models.model_spec import ModelSettings, check_key
from sextant.tools.models.run_resources import QUERY_SECONDS, RunResources
from sextant.tools.models.secrets import read_keys
from sextant.tools.models.storage.cassette import Cassette
from sextant.tools.platform import cli_options
from sextant.tools.platform.files import sextant_home
from sextant.tools.platform.number_format import number, queries, some_queries
from sextant.tools.platform.result_table import Cell, ResultTable, html_of, render_terminal
from sextant.tools.platform.waiting import announced
from sextant.tools.process_changes import while_running
from sextant.tools.records import JsonMapping, JsonObject, Usage, usage_from_json
from sextant.tools.retrievers.base import NullRetriever, PoolRetriever, Retriever
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Limits, Toolbox
from sextant.tools.text import TermStatistics

# Makes what follows a run while its queries are answered.
Report = Callable[["PreparedRun", run_folder.RunFolder], RunMonitor]
# What answers the pending queries of a run, given the hooks of runner.run_queries; it returns the last
# fault of a provider.
Answer = Callable[["PreparedRun", run_folder.RunFolder, runner.QueryHooks], str | None]
_LOG = logging.getLogger("sextant")


class MetricMean(NamedTuple):
    """A metric's mean over the queries, with its 95 % interval; None if it is undefined."""

    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """The result of a run, which prints as `sextant run` does, and as HTML in a notebook."""

    folder: Path
    problem: SextantError | None  # why queries are pending, if any are
    _json: JsonMapping = field(repr=False)

    @property
    def metrics(self) -> dict[str, MetricMean]:
        """Every metric by its name; none while queries are pending."""
        return {
            name: MetricMean(*(measured.get(key) for key in MetricMean._fields))
            for name, measured in self._json["metrics"].items()
        }

    @property
    def failed(self) -> int:
        """Queries that the program failed; they score 0."""
        return int(self._json["failed"])

    @property
    def pending(self) -> int:
        """Queries without an answer; the same request goes on with them."""
        return int(self._json["owed"])

    @property
    def usage(self) -> Usage:
        """Calls, tokens and dollars of all answered queries."""
        return usage_from_json(self._json["usage"])

    @property
    def seconds(self) -> float:
        """How long this sitting took."""
        return float(self._json["seconds"])

    @property
    def table(self) -> ResultTable:
        """The metrics, each with its mean and its 95 % interval."""
        rows = [
            [name, *(Cell(number(value), value) for value in metric)]
            for name, metric in self.metrics.items()
        ]
        return ResultTable("", ["metric", *MetricMean._fields], rows)

    def __str__(self) -> str:
        return render_terminal(lay_out_scores(self._json)).rstrip("\n")

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_of(lay_out_scores(self._json))

    def to_pandas(self) -> Any:
        """A DataFrame of pandas, with a row for each metric. ImportError without pandas."""
        return self.table.to_pandas()

    def json(self) -> JsonObject:
        """All of it as plain data, as `--json` prints it."""
        return dict(self._json)


def evaluate(*, program: Any, task: Any, **fields: Any) -> Result:
    """Run a program on a task and score it; `fields` are those of sextant.evals.running.request.Request.

    Both are named as on the command line, or are objects: a program is a function, a class, a
    dspy.Module or a graph (docs/guide/program.md), which runs in this process; a task is an
    Environment, or a function that returns one. Queries that were answered before, in the same run
    folder, are not asked again. A program that is an object is a new run at each call, unless it
    has a `name`, or a `fingerprint` (a text, or a method that returns one): that of before goes on.
    SextantError if the request is wrong or queries are left pending; `run_request` returns a result
    for the latter, too.
    """
    environment = None
    if not isinstance(task, str | Path | None):
        environment = _as_environment(task)
        task = environment.task
        fields["split"] = environment.split
    with ExitStack() as stack:
        if not isinstance(program, str | None):
            if fields.get("workers") not in (None, 1):
                raise UsageError(
                    "a program that is an object runs in this process; leave out workers"
                )
            fields["workers"] = 1
            fields["name"] = fields.get("name") or read_object_version(program)
            program = stack.enter_context(registered_object(program))
        result = run_request(
            cli_options.make_request(Request, {"program": program, "task": task, **fields}),
            opening=partial(load_run, environment=environment),
        )
    if result.problem:
        raise result.problem
    return result


def _as_environment(task: Any) -> Environment:
    """Return a task that is an object, under a name of the user's own if it has no suite's."""
    made = task() if callable(task) else task
    if not isinstance(made, Environment):
        raise UsageError(
            f"a task is a name, a folder or an Environment, and no {type(made).__name__}; "
            f"environments.load returns one"
        )
    if environments.split_name(made.task)[0] in environments.SUITES:
        return made
    return replace(made, task=f"own/{made.task}")


def answer_queries(
    ready: "PreparedRun", folder: run_folder.RunFolder, hooks: runner.QueryHooks
) -> str | None:
    """Have the run's own program answer."""
    request = ready.resolved.request
    system: runner.System | runner.RemoteSystem = ready.system
    with ExitStack() as stack:
        if ready.start:
            from sextant.evals.running.workers.coordinator import Coordinator  # few runs need it

            workers = Coordinator(ready, folder.path, request.processes)
            system = stack.enter_context(closing(workers))
        return runner.run_queries(
            system,
            ready.environment.queries,
            ready.environment.documents,
            folder,
            ready.model,
            workers=request.at_once,
            hooks=hooks,
        )


class LoadedRun(NamedTuple):
    """A resolved request with its task and the resources of its retrievers and models."""

    resolved: ResolvedRequest
    environment: Environment
    run_retrievers: RunRetrievers
    resources: RunResources


def load_run(
    request: Request,
    resources: RunResources | None = None,
    *,
    environment: Environment | None = None,
) -> LoadedRun:
    """Open the resources of a run, for itself alone except for `resources`, and for a task that is
    loaded already.
    """
    resources = resources or make_resources(request)
    resolved, environment = load_task(request, environment=environment)
    return LoadedRun(resolved, environment, RunRetrievers(environment, resources), resources)


def run_request(
    request: Request,
    report: Report | None = None,
    *,
    answer: Answer = answer_queries,
    opening: Callable[[Request], LoadedRun] = load_run,
) -> Result:
    """Have the pending queries of a request's run answered, and score it; `problem` says why some
    are still pending.
    """
    started = time.monotonic()
    start = None
    with ExitStack() as stack:
        if request.on_ray:
            from sextant.evals.running.workers import ray_workers  # Ray, an extra

            start = stack.enter_context(ray_workers.starting(str(request.workers)))
        elif request.forks:  # first of all, so that they get ready meanwhile
            from sextant.tools.platform.forkserver import fork_server  # few runs need it

            start = stack.enter_context(fork_server("sextant.evals.running.workers.worker"))
        opened = opening(request)
        stack.enter_context(while_running())
        return _run(opened, report, answer, started, start)


def load_task(
    request: Request,
    load: Callable[..., Environment] = environments.load,
    *,
    environment: Environment | None = None,
) -> tuple[ResolvedRequest, Environment]:
    """Look up the names of a request, load its task unless it is given, and check that they fit."""
    read_keys()
    with announced("loading the program"):
        resolved = resolve(request, task_is_loaded=environment is not None)
    with announced(f"loading {request.task}"):
        loaded = environment or load(
            request.task,
            request.data,
            request.split,
            qrels=request.qrels,
            instruction=request.instruction,
            columns=request.columns,
            relevant_from=request.relevant_from,
        )
    environment = loaded.asking(limit=request.limit, query_ids=request.query_ids)
    return fit_to_task(resolved, environment), add_metrics(environment, request.metrics)


def _run(
    opened: LoadedRun,
    report: Report | None,
    answer: Answer,
    started: float,
    start: Any,
) -> Result:
    resolved, environment, run_retrievers, resources = opened
    request = resolved.request
    cassette = (
        Cassette(request.cassette, resources, sends=resolved.sends) if request.cassette else None
    )
    with announced("preparing the run"):
        ready = prepare_loaded(opened)
    ready.start = start
    run_path = run_folder.run_path(request.runs, ready.config)
    if not (run_path / run_folder.OUTCOMES_FILE).exists() and not resources.cassette:
        check_key(request.lm, request.headers)
    with run_folder.claim(run_path, ready.config) as folder:
        if request.again:
            ready.model.lm.anew = folder.ask_failed_again()
        if brings_agents(request.program):
            if request.budget_usd or request.budget_tokens:
                _LOG.warning(BUDGET_OF_AGENTS)
            ready.model.begin(folder.path, Usage())
            count_agents(request.program, resources.budget, folder.path, resources.ledger)
        else:
            ready.model.begin(folder.path, folder.usage)
        if resolved.pool:  # only now: what its searches cost is in the usage totals of the run
            ready.environment = resolved.pool.add_to(
                environment, list(map(run_retrievers.build, resolved.pool.parts))
            )
        if request.shard:  # only now: the identity of a run, and pools, are of all its queries
            ready.whole = len(environment.queries)
            ready.environment = ready.environment.asking(
                query_ids=[query.query_id for query in request.share(environment.queries)]
            )
        problem = _answer(ready, folder, report, answer)
        if cassette:
            cassette.record(
                complete=not ready.whole and len(folder.outcomes) == len(ready.environment.queries)
            )
        return _conclude(ready, folder, problem, started)


def make_resources(request: SharedRequest, *, repeats: bool = False) -> RunResources:
    """Return the budget, rate limiter, prices and retry policy of a command; `repeats` as in Terms."""
    patience = RunResources().patience
    if request.call_timeout:
        patience = replace(patience, call=request.call_timeout, follows_speed=False)
    if request.patience is not None:
        patience = replace(patience, before=request.patience, after=request.patience)
    return RunResources(
        budget=Budget(
            calls=request.budget_calls,
            usd=request.budget_usd,
            tokens=request.budget_tokens,
            seconds=request.time_limit,
        ),
        limiter=ConcurrencyLimiter(max(request.at_once, request.max_concurrent or WORKERS)),
        patience=patience,
        prices=request.prices,
        query_seconds=request.query_timeout or QUERY_SECONDS,
        repeats=repeats,
        prompts=not request.no_prompts,
    )


def connect(
    request: SharedRequest,
    resources: RunResources,
    documents: Corpus,
    retriever: Retriever | None = None,
    *,
    spec: str = "",
    seed: int | None = None,
    rules: Rules | None = None,
) -> language_model.ConnectedModel:
    """Return the model of the request, or `spec` with its settings; offline fills the fields
    that `rules` has.
    """

    def statistics() -> TermStatistics:
        # The program's own index where it has one, so that the corpus is not read twice.
        return (
            retriever if isinstance(retriever, BM25) else BM25(documents, sextant_home())
        ).statistics()

    spec = spec or request.lm
    named = {field.name: getattr(request, field.name) for field in fields(ModelSettings)}
    return language_model.connect(
        spec,
        resources,
        statistics=statistics,
        settings=ModelSettings(
            **named
            | {
                "seed": seed,
                "context": request.context if spec == request.lm else None,
            }
        ),
        rules=rules,
    )


def prepare_loaded(opened: LoadedRun, folder: Path | None = None) -> PreparedRun:
    """Return the prepared run of an opened run; a run in a `folder` was configured by another process,
    and is not again.
    """
    resolved, environment, run_retrievers, resources = opened
    request = resolved.request
    needs_index = getattr(resolved.constructor, "needs_index", True)
    retriever = run_retrievers.build(resolved.retriever) if needs_index else NullRetriever()
    named_retrievers = {name: run_retrievers.build(spec) for name, spec in resolved.others.items()}
    model = connect(request, resources, environment.documents, retriever, seed=request.seed)
    with announced(f"connecting to {model.name}"):
        model.lm.meet()
    opened_by = [
        (resolved.retriever, retriever),
        *((resolved.others[name], retriever) for name, retriever in named_retrievers.items()),
    ]
    config = {}
    if not folder:
        config = run_config(resolved, environment, retriever, model)
        config["retriever"]["others"] = {
            name: retriever.name for name, retriever in named_retrievers.items()
        }
        if resolved.pool:
            config["pool"] = resolved.pool.config(
                [run_retrievers.build(spec).name for spec in resolved.pool.parts], environment
            )
        place = partial(run_folder.run_path, request.runs)
        config = run_folder.separate_changed(place, config)
        folder = place(config).absolute()
    if resolved.pool:
        retriever = PoolRetriever(retriever)
        named_retrievers = {
            name: PoolRetriever(retriever) for name, retriever in named_retrievers.items()
        }
    system = make_system(resolved, environment, retriever, named_retrievers, folder)
    if config:
        config[run_folder.PROVENANCE]["harness"] = make_card(system, environment.queries)
    return PreparedRun(resolved, environment, model, config, system, opened_by)


def make_system(
    resolved: ResolvedRequest,
    environment: Environment,
    retriever: Retriever,
    named_retrievers: Mapping[str, Retriever],
    checkpoints: Path | None = None,
) -> Any:
    """Return the program of a request over these retrievers, with its compiled prompts."""
    depth = resolved.request.k or environment.depth
    system = resolved.constructor(
        Toolbox(
            environment.documents,
            retriever,
            others=named_retrievers,
            limits=Limits(
                **{LIMITS[name]: most for name, most in resolved.limits.items()}, depth=depth
            ),
            checkpoints=checkpoints,
        ),
        depth=depth,
        **resolved.values,
    )
    return resolved.compiled.assemble(system) if resolved.compiled else system


def _answer(
    ready: PreparedRun,
    folder: run_folder.RunFolder,
    report: Report | None,
    answer: Answer,
) -> SextantError | None:
    environment = ready.environment
    working_folder = Path.cwd()
    try:
        with (
            (report or RunMonitor)(ready, folder) as watch,
            RunStatus(ready, folder, watch) as status,
        ):
            status.fault = fault = answer(
                ready, folder, runner.QueryHooks(status.begin, status.add, status.leave)
            )
    except FAULTS as problem:
        return problem
    except KeyboardInterrupt:
        progress = some_queries(len(folder.outcomes), len(environment.queries))
        words = "%s safe in %s; the same command answers the others"
        _LOG.warning(words, progress, folder.shown)
        raise
    finally:
        os.chdir(working_folder)  # which a program may have changed
        if folder.outcomes:  # their values have been shown, also where the others are never asked
            record_test_use(run_folder.read_config(folder.path), folder.path)
    return RunIncomplete(fault) if fault else None


def _conclude(
    ready: PreparedRun,
    folder: run_folder.RunFolder,
    problem: SextantError | None,
    started: float,
) -> Result:
    environment = ready.environment
    path = folder.shown
    config = run_folder.read_config(path)
    query_ids = [query.query_id for query in environment.queries]
    pending = sum(query_id not in folder.outcomes for query_id in query_ids)
    if pending or ready.whole:
        summary = summarise_unfinished(config, environment, folder.outcomes)
    else:
        with announced("scoring"):
            summary = score(path, environment, folder.outcomes)
        summary["bounds"] = read_reference_bounds(path)
    if pending:
        if isinstance(problem, BudgetReached):
            problem = ready.model.resources.budget.describe_end(problem)
        larger = " with a larger budget" if getattr(problem, "larger", False) else ""
        problem = problem or RunIncomplete("the run broke off")
        problem = problem.saying(
            f"{problem}; {some_queries(pending, len(query_ids))} pending; the same "
            f"command{larger} goes on"
        )
    elif ready.whole:
        summary["notes"].insert(
            0,
            f"shard {ready.resolved.request.shard} has all its {len(query_ids)} of the run's "
            f"{queries(ready.whole)}; sextant gather {path} joins the shards and scores the run",
        )
    if ledger := ready.model.resources.ledger:
        summary["ledger"] = ledger.usage_totals.json() | ledger.speed()
    summary |= {
        "looks": count_test_uses(config),
        "seconds": round(time.monotonic() - started, 2),
    }
    return Result(path, problem if pending else None, {"run": str(path), **summary})
