"""Run the cells of a study in sequence, each as the run that `sextant run` makes; or estimate their
cost.

All cells share a budget, and cells of a model its limiter. Cells of a task follow each other, so that
its data are read and its retrievers opened once; data that the next cell does not need are dropped.
A finished run is taken as it is. A cell that another process is at is left for later. If a provider
refuses, or the provider of a model is out, all cells that need this model or this retriever stay
pending; once the budget is used up, all that would send something. The others go on.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from sextant import environments
from sextant.environments.base import Environment
from sextant.evals.run_folder import RunFolder
from sextant.evals.running import earlier_usage
from sextant.evals.running.cost_estimate import find_existing_run, forecast
from sextant.evals.running.evaluate import (
    LoadedRun,
    answer_queries,
    load_task,
    make_resources,
    run_request,
)
from sextant.evals.running.events import Event, Progress, RunMonitor
from sextant.evals.running.progress_display import STILL_SECONDS, plain_line
from sextant.evals.running.request import Request
from sextant.evals.running.resolve import PreparedRun, RunRetrievers, resolve
from sextant.evals.running.runner import OUTAGE
from sextant.evals.scoring.random_and_ideal import KINDS, bound
from sextant.evals.scoring.scored_run import ScoredRun, read_scored_run
from sextant.evals.studies.study_file import StudyCell
from sextant.tools import retrievers
from sextant.tools.errors import (
    FAULTS,
    BudgetReached,
    DataError,
    NotApplicable,
    ProviderRefused,
    RunBusy,
    RunConflict,
    RunIncomplete,
    SextantError,
    UsageError,
)
from sextant.tools.models.call_limits import ConcurrencyLimiter
from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.interrupts import check_interrupts
from sextant.tools.platform.number_format import number, plural, queries
from sextant.tools.platform.result_table import TextBlock, figure_cell, tabulate
from sextant.tools.platform.waiting import announced
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.retrievers.base import Retriever

# What a cell searches and is judged by, of the fields of its request.
_SELECTION = attrgetter("task", "data", "split", "qrels", "relevant_from", "limit", "query_ids")
# Seconds until cells that other processes are at are looked at again.
POLL = 1.0
# Errors that end a study, before all others.
GRAVEST_FIRST = (BudgetReached, RunIncomplete, ProviderRefused, DataError)
# The figures of what cells cost, with their heads and forms in a table.
FIGURES = {
    "calls": ("calls", "{:,.0f}"),
    "input_tokens": ("tokens in", "{:,.0f}"),
    "output_tokens": ("tokens out", "{:,.0f}"),
    "list_usd": ("list price", "${:,.4f}"),
}


# Floor and ceiling, by name, as far as they are known.
Bounds = Mapping[str, float]


class CellResult(NamedTuple):
    """The result of a cell."""

    cell: StudyCell
    # Its finished run.
    run: ScoredRun | None = None
    # The reason why it is not finished; NotApplicable if the row cannot be run on the task.
    problem: SextantError | None = None
    # Floor and ceiling of the data that it searches, by name.
    bounds: Mapping[str, float] = {}

    @property
    def state(self) -> str:
        """Whether it is finished, can be, or does not apply."""
        if self.run:
            return "finished"
        return "does not apply" if isinstance(self.problem, NotApplicable) else "unfinished"

    def json(self) -> JsonObject:
        """Return it as plain data."""
        return {
            "row": self.cell.row,
            "task": self.cell.task,
            "seed": self.cell.request.seed,
            "factors": self.cell.factors,
            "run": str(self.run.path) if self.run else None,
            "why": str(self.problem) if self.problem else None,
        }


def explain_cells(results: Sequence[CellResult]) -> SextantError | None:
    """Return the error on cells that are unfinished, and on rows that fit no task."""
    fitting = {result.cell.row for result in results if result.state != "does not apply"}
    problems = []
    for (row, task, *_), _, problem, _ in results:
        if problem and not (isinstance(problem, NotApplicable) and row in fitting):
            problems.append(problem.saying(f"{row} on {task}: {problem}"))
    return explain(problems, len(results))


def explain(problems: Sequence[SextantError], cells: int) -> SextantError | None:
    """Return the error that ends the command, for the problems of unfinished cells; None without
    any.

    Its exit code is that of a budget, else of a run that broke off, of a refusal, of missing data.
    """
    if not problems:
        return None
    gravest = max(
        problems, key=lambda problem: [isinstance(problem, error) for error in GRAVEST_FIRST]
    )
    count = f"{plural(len(problems), 'cell')} of {cells} unfinished"
    return gravest.saying(f"{count}; the same command tries them again: {gravest}")


class SharedRunState:
    """Opens the runs of cells; a cell may use the data and retrievers of the cell before."""

    def __init__(self, cells: Sequence[StudyCell], metric: str = "") -> None:
        # The metric of the bounds; "" for each task's own.
        self._metric = metric
        self._bounds = dict[str, Bounds]()
        self.budget = make_resources(cells[0].request).budget
        self._limiters = dict[str, ConcurrencyLimiter]()
        self._loaded = dict[str, Environment]()
        self._built: dict[str, Retriever] = {}
        # Models and retrievers that nothing more is sent to, with the reason.
        self._out = dict[str, SextantError]()
        # The reason why nothing at all is sent any more.
        self._unpaid: SextantError | None = None

    def open(self, request: Request) -> LoadedRun:
        """Open a run with the budget, data and retrievers that the study shares."""
        resources = make_resources(request)
        resources.budget = self.budget
        resources.limiter = self._limiters.setdefault(request.lm, resources.limiter)
        resolved, environment = load_task(request, self._load)
        built = {}
        for retriever in resolved.all_retrievers:
            sends = retrievers.find_lenses(retriever) or retrievers.find_api_parts(retriever)
            if not sends and str(retriever) in self._built:
                built[str(retriever)] = self._built[str(retriever)]
        run_retrievers = RunRetrievers(environment, resources, built)
        self._built = run_retrievers.built
        return LoadedRun(resolved, environment, run_retrievers, resources)

    def _load(self, *arguments: Any, **named: Any) -> Environment:
        key = json.dumps([arguments, named], sort_keys=True)
        if key not in self._loaded:
            # No two tasks are held at a time.
            self._loaded = {}
            self._built = {}
            self._loaded[key] = environments.load(*arguments, **named)
        return self._loaded[key]

    def find(self, opened: LoadedRun) -> ScoredRun | None:
        """Return the finished run of a request.

        A run over pools is found when its retrievers are open.
        """
        request = opened.resolved.request
        path = None if opened.resolved.pool or request.again else find_existing_run(opened)
        environment = opened.environment
        relevant_from = environment.judgements[environment.headline].relevant_from
        with suppress(SextantError):
            run = path and read_scored_run(path, load_data=False)
            if (
                run
                and set(request.metrics) <= run.columns.keys()
                and run.scores["judgements"] == environment.headline
                and run.scores["relevant_from"] == relevant_from
            ):
                return run
        return None

    def make(self, cell: StudyCell, report: Any = None) -> CellResult | None:
        """Run a cell; None while another process is at it."""
        try:
            return self._run(cell, report)
        except RunBusy:
            return None
        except RunConflict:
            raise
        except (*FAULTS, UsageError) as error:
            problem: SextantError = error
        except OSError as fault:
            # A folder that cannot be read: other cells may be elsewhere.
            problem = DataError(f"{fault.filename or cell.request.runs}: {fault.strerror or fault}")
        self._note(problem, cell.request)
        return CellResult(cell, problem=problem)

    def _run(self, cell: StudyCell, report: Any) -> CellResult:
        request = cell.request
        opened = self.open(request)
        bounds: dict[str, float] = {}
        if run := self.find(opened):
            earlier_usage.count(self.budget, run.path)
            return CellResult(cell, run, bounds=self._bound(request, opened.environment))
        # Another cell has met a refusal, or the budget's end.
        for source in sorted(
            {request.lm}.union(*map(retrievers.sources, opened.resolved.all_retrievers))
        ):
            if source in self._out:
                raise self._out[source]
        if self._unpaid and opened.resolved.sends:
            raise self._unpaid

        def answer(ready: PreparedRun, *arguments: Any) -> str | None:
            pool = ready.resolved.pool
            bounds.update(self._bound(request, ready.environment, f", pool {pool}" if pool else ""))
            return answer_queries(ready, *arguments)

        result = run_request(request, report, answer=answer, opening=lambda _: opened)
        if result.problem:
            raise result.problem
        return CellResult(cell, read_scored_run(result.folder, load_data=False), bounds=bounds)

    def _note(self, problem: SextantError, request: Request) -> None:
        """Keep a problem that the remaining cells would meet, too."""
        limiter = self._limiters.get(request.lm)
        # The cause has the message without the queries.
        cause = problem.__cause__
        reason = cause if isinstance(cause, SextantError) else problem
        if isinstance(problem, ProviderRefused):
            # A cassette that lacks an answer has no source: it says nothing about the model.
            if problem.source:
                self._out.setdefault(problem.source, reason)
        elif isinstance(problem, BudgetReached):
            self._unpaid = self._unpaid or reason
        elif limiter and limiter.lost >= OUTAGE:
            self._out.setdefault(request.lm, reason)

    def _bound(self, request: Request, environment: Environment, suffix: str = "") -> Bounds:
        key = str((_SELECTION(request), suffix))
        if key not in self._bounds:
            metric = self._metric or environment.metric
            values = {name: bound(kind, metric, environment) for kind, name in KINDS.items()}
            self._bounds[key] = {
                f"{name}{suffix}": value for name, value in values.items() if value is not None
            }
        return self._bounds[key]


def validate_rows(cells: Sequence[StudyCell]) -> None:
    """Look up every name of the rows before anything is run. UsageError, with the row, for a wrong
    name.

    Weights or data that are not there are no reason to refuse the other rows; their cells will say
    so.
    """
    for row, cell in {cell.row: cell for cell in reversed(cells)}.items():
        try:
            with suppress(*FAULTS):
                resolve(cell.request)
        except SextantError as error:
            raise error.saying(f"row {row!r}: {error}") from None


def run_cells(
    cells: Sequence[StudyCell], metric: str = "", *, quiet: bool = True
) -> list[CellResult]:
    """Run all cells that have no finished run; return their results in order, with bounds by a
    metric.

    Unless `quiet`, stderr has a line for each cell that ends, and for a long one how far it is.
    """
    shared = SharedRunState(cells, metric)
    results = dict[int, CellResult]()
    waiting = sorted(range(len(cells)), key=lambda place: _sort_key(cells[place]))
    with announced("counting what was spent before"):
        # The budget is for the calls of all cells in all sittings.
        earlier_usage.count_all(
            (cell.request for cell in cells),
            shared.budget,
            lambda request: find_existing_run(shared.open(request)),
        )
    while waiting:
        busy = []
        for place in waiting:
            check_interrupts()
            cell = cells[place]
            result = shared.make(cell, None if quiet else partial(_watch, cell))
            if not result:
                busy.append(place)
                continue
            results[place] = result
            if not quiet:
                print_stderr(f"{len(results)} of {len(cells)}: {_describe(result)}")
        if len(busy) == len(waiting):
            time.sleep(POLL)
        waiting = busy
    return [results[place] for place in range(len(cells))]


def _sort_key(cell: StudyCell) -> str:
    """Return a text by which cells follow each other that share data and retrievers."""
    request = cell.request
    return str((*_SELECTION(request), request.instruction, request.retriever))


def _watch(cell: StudyCell, ready: PreparedRun, folder: RunFolder) -> RunMonitor:
    """Return what prints now and then how far the run of a cell is."""
    last_line = 0.0

    def tell(event: Event, *, last: bool = False) -> None:
        nonlocal last_line
        if isinstance(event, Progress) and event.elapsed - last_line >= STILL_SECONDS and not last:
            last_line = event.elapsed
            print_stderr(f"{cell.row}, {cell.task}: {plain_line(event)}")

    return RunMonitor(ready, folder, tell)


def _describe(result: CellResult) -> str:
    """Say how a cell has ended."""
    run = result.run
    mean = number(run.mean(run.metric), unknown="undefined") if run else result.state
    return f"{result.cell.row}, {result.cell.task}: {mean}"


def estimate_cells(cells: Sequence[StudyCell]) -> tuple[JsonObject, list[CellResult]]:
    """Return the state of the cells with the cost of the rest, by cell, row and in all, and the
    results of cells, with the problem of those that cannot be made.

    Nothing is sent. A request that two cells would make is sent once, and counted twice.
    """
    shared = SharedRunState(cells)
    estimates: list[JsonObject] = [{} for _ in cells]
    results = []
    for place in sorted(range(len(cells)), key=lambda place: _sort_key(cells[place])):
        estimates[place], result = _estimate_cell(cells[place], shared)
        results.append(result)
    rows = {}
    for row in dict.fromkeys(cell.row for cell in cells):
        rows[row] = add_costs([estimate for estimate in estimates if estimate["row"] == row])
    whole = {"dry_run": True, "cells": estimates, "rows": rows, "all": add_costs(estimates)}
    return whole, results


def _estimate_cell(cell: StudyCell, shared: SharedRunState) -> tuple[JsonObject, CellResult]:
    about = {"row": cell.row, "task": cell.task, "seed": cell.request.seed}
    try:
        estimate = forecast(cell.request, shared.open)
    except SextantError as error:
        result = CellResult(cell, problem=error)
        nothing = {"queries": 0, **dict.fromkeys(FIGURES, 0)}
        return {**about, "state": result.state, "why": str(error), **nothing}, result
    to_ask = f"{estimate['queries']} to ask, {estimate['answered']} there"
    state = to_ask if estimate["queries"] else "there"
    return {**about, "state": state, **estimate}, CellResult(cell)


def add_costs(costs: Sequence[JsonMapping]) -> JsonObject:
    """Return the sums of the queries and figures of cells; None for one that is not known of all."""
    sums: JsonObject = {}
    for key in ("queries", *FIGURES):
        amounts = [cost.get(key) for cost in costs]
        sums[key] = None if None in amounts else sum(amounts)
    return sums


def cost_cells(costs: JsonMapping) -> JsonObject:
    """Return the figures of what cells cost for a table, by their heads."""
    return {head: figure_cell(costs[key], form, "unknown") for key, (head, form) in FIGURES.items()}


def lay_out_ahead(estimate: JsonObject) -> list[TextBlock]:
    """Return the result of `estimate_cells` as a person reads it: the state and cost of each cell, of
    each row over several tasks, and of all.
    """
    cells = estimate["cells"]
    ahead = [(cell["row"], cell["task"], cell) for cell in cells]
    if len({cell["task"] for cell in cells}) > 1:
        ahead += [(row, "all tasks", total) for row, total in estimate["rows"].items()]
    rows = []
    for row, task, costs in [*ahead, ("all", "", estimate["all"])]:
        state = costs.get("state") or f"{queries(costs['queries'])} to ask"
        rows.append({"row": row, "task": task, "state": state, **cost_cells(costs)})
    reasons = [f"{cell['row']} on {cell['task']}: {cell['why']}" for cell in cells if "why" in cell]
    table = tabulate("estimated, calls at most:", rows)
    return ["dry run: nothing was sent", table, *dict.fromkeys(reasons)]
