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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
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
    UnknownPrice,
    UsageError,
)
from sextant.tools.models.call_limits import ConcurrencyLimiter
from sextant.tools.platform import files
from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.interrupts import check_interrupts
from sextant.tools.platform.number_format import number, plural, queries
from sextant.tools.platform.result_table import TextBlock, figure_cell, tabulate
from sextant.tools.platform.waiting import announced
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.retrievers.base import Retriever

# Seconds until cells that other processes are at are looked at again.
POLL = 1.0
# Errors that end a study, before all others.
GRAVEST_FIRST = (BudgetReached, RunIncomplete, ProviderRefused, DataError)
# The figures of an estimate, with their decimals.
FIGURES = {
    "calls": 0,
    "input_tokens": 0,
    "output_tokens": 0,
    "list_usd": 4,
}


class CellResult(NamedTuple):
    """The result of a cell."""

    cell: StudyCell
    # The folder of its finished run.
    folder: Path | None = None
    # The reason why it is not finished.
    problem: SextantError | None = None
    # The reason why the row cannot be run on the task.
    unfit: str = ""
    # Floor and ceiling of the data that it searches, by name.
    bounds: Mapping[str, float | None] | None = None


class Unfinished(NamedTuple):
    """A cell that could be made and is not yet."""

    row: str
    task: str
    problem: SextantError


def explain_cells(results: Sequence[CellResult]) -> tuple[list[str], SextantError | None]:
    """Return the lines and the error on cells that are unfinished, and on rows that fit no task."""
    unfinished = [
        Unfinished(result.cell.row, result.cell.task, result.problem)
        for result in results
        if result.problem
    ]
    if unfinished:
        return explain(unfinished, len(results))
    fitting_rows = {result.cell.row for result in results if not result.unfit}
    for result in results:
        if result.cell.row not in fitting_rows:
            return [], UsageError(f"no task fits row {result.cell.row!r}: {result.unfit}")
    return [], None


def explain(unfinished: Sequence[Unfinished], cells: int) -> tuple[list[str], SextantError | None]:
    """Return a line for each reason why cells are unfinished, and the error that ends the command.

    Its exit code is that of a budget, else of a run that broke off, of a refusal, of missing data.
    """
    if not unfinished:
        return [], None
    reasons = dict[str, list[Unfinished]]()
    for cell in unfinished:
        reasons.setdefault(str(cell.problem), []).append(cell)
    lines = []
    problems = []
    for reason, (first, *others) in reasons.items():
        suffix = f" and {len(others)} more" if others else ""
        lines.append(f"unfinished: {first.row} on {first.task}{suffix}: {reason}")
        problems.append(first.problem)
    gravest = max(
        problems, key=lambda problem: [isinstance(problem, error) for error in GRAVEST_FIRST]
    )
    total = (
        f"{plural(len(unfinished), 'cell')} of {cells} unfinished, and the same command goes on "
        f"with them"
    )
    return lines, gravest.saying(f"{total}; the reasons are above")


class StudyProgress:
    """Keeps the states of cells in a file, and prints a line on stderr for each cell that ends, and for
    a long one how far it is.

    The page of runs draws the table that fills from the file (evals/viewer/study_tables.py).
    """

    def __init__(
        self,
        cells: Sequence[StudyCell],
        file: Path | None = None,
        about: JsonMapping | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        self._cells = cells
        self._file = file
        self._about = about or {}
        self._quiet = quiet
        self._ended = 0
        state = {"state": "to come", "run": "", "reason": ""}
        self._rows = [{"row": cell.row, "task": cell.task, **state} for cell in cells]
        self._write()

    def report(self, place: int) -> Callable[..., RunMonitor]:
        """Return what reports the run of the cell at a place."""
        cell = self._cells[place]
        last_line = 0.0

        def tell(event: Event, *, last: bool = False) -> None:
            nonlocal last_line
            if self._quiet or last or not isinstance(event, Progress):
                return
            if event.elapsed - last_line >= STILL_SECONDS:
                last_line = event.elapsed
                print_stderr(f"{cell.row}, {cell.task}: {plain_line(event)}")

        def begin(ready: PreparedRun, folder: RunFolder) -> RunMonitor:
            self._note(place, "under way", folder.shown)
            return RunMonitor(ready, folder, tell)

        return begin

    def end(self, place: int, result: CellResult) -> None:
        """Note and print the result of the cell at a place."""
        self._ended += 1
        state = text = "does not apply" if result.unfit else "unfinished"
        if result.folder:
            run = read_scored_run(result.folder, load_data=False)
            state = "finished"
            text = number(run.mean(run.metric), unknown="undefined")
        self._note(place, state, result.folder, result.unfit or str(result.problem or ""))
        if not self._quiet:
            cell = result.cell
            count = f"{self._ended} of {len(self._cells)}"
            print_stderr(f"{count}: {cell.row}, {cell.task}: {text}")

    def _note(self, place: int, state: str, folder: Path | None, reason: str = "") -> None:
        self._rows[place] |= {"state": state, "reason": reason}
        if folder:
            self._rows[place]["run"] = "/".join(folder.parts[-2:])
        self._write()

    def _write(self) -> None:
        # The cells are run where it cannot be written, too.
        with suppress(OSError):
            if self._file:
                files.mkdir_private(self._file.parent)
                files.replace(self._file, json.dumps({**self._about, "cells": self._rows}) + "\n")


class SharedRunState:
    """Opens the runs of cells; a cell may use the data and retrievers of the cell before."""

    def __init__(self, cells: Sequence[StudyCell], metric: str = "") -> None:
        # The metric of the bounds; "" for each task's own.
        self._metric = metric
        self._bounds = dict[str, dict[str, float | None]]()
        self._budget = make_resources(cells[0].request).budget
        self._limiters = dict[str, ConcurrencyLimiter]()
        self._loaded: tuple[str, Environment] | None = None
        self._built: dict[str, Retriever] = {}
        # Models and retrievers that nothing more is sent to, with the reason.
        self._out = dict[str, SextantError]()
        # The reason why nothing at all is sent any more.
        self._unpaid: SextantError | None = None

    def open(self, request: Request) -> LoadedRun:
        """Open a run with the budget, data and retrievers that the study shares."""
        resources = make_resources(request)
        resources.budget = self._budget
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
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None
            self._built = {}
            self._loaded = key, environments.load(*arguments, **named)
        return self._loaded[1]

    def find(self, opened: LoadedRun) -> ScoredRun | None:
        """Return the finished run of a request.

        A run over pools is found when its retrievers are open.
        """
        request = opened.resolved.request
        path = find_existing_run(opened)
        if path is None or opened.resolved.pool or request.again:
            return None
        headline = opened.environment.headline
        relevant_from = opened.environment.judgements[headline].relevant_from
        with suppress(SextantError):
            run = read_scored_run(path, load_data=False)
            judged = run.scores["judgements"], run.scores["relevant_from"]
            has_metrics = set(request.metrics) <= run.columns.keys()
            return run if has_metrics and judged == (headline, relevant_from) else None
        return None

    def make(self, cell: StudyCell, report: Any = None) -> CellResult | None:
        """Run a cell; None while another process is at it."""
        request = cell.request
        opened: LoadedRun | None = None
        bounds: Mapping[str, float | None] = {}

        def answer(ready: PreparedRun, *words: Any) -> str | None:
            nonlocal bounds
            bounds = self._bound(request, ready.environment, str(ready.resolved.pool or ""))
            return answer_queries(ready, *words)

        try:
            loaded = opened = self.open(request)
            if run := self.find(loaded):
                earlier_usage.count(self._budget, run.path)
                bounds = self._bound(request, loaded.environment)
                return CellResult(cell, run.path, bounds=bounds)
            # Another cell has met a refusal, or the budget's end.
            sources = {request.lm}.union(*map(retrievers.sources, loaded.resolved.all_retrievers))
            obstacles = [self._out[source] for source in sorted(sources) if source in self._out]
            if self._unpaid and loaded.resolved.sends:
                obstacles.append(self._unpaid)
            if obstacles:
                return CellResult(cell, problem=obstacles[0])
            result = run_request(request, report, answer=answer, opening=lambda _: loaded)
            problem = result.problem
        except RunBusy:
            return None
        except (*FAULTS, UnknownPrice) as fault:
            problem = fault
        except RunConflict:
            raise
        except UsageError as error:
            if opened is None and isinstance(error, NotApplicable):
                return CellResult(cell, unfit=str(error))
            problem = error
        except OSError as fault:
            # A folder that cannot be read: other cells may be elsewhere.
            problem = DataError(f"{fault.filename or request.runs}: {fault.strerror or fault}")
        if problem:
            self._note(problem, request)
            return CellResult(cell, problem=problem)
        return CellResult(cell, result.folder, bounds=bounds)

    def _note(self, problem: SextantError, request: Request) -> None:
        """Keep a problem that the remaining cells would meet, too."""
        limiter = self._limiters.get(request.lm)
        # The cause has the message without the queries.
        cause = problem.__cause__
        reason = cause if isinstance(cause, SextantError) else problem
        if isinstance(problem, ProviderRefused):
            # A cassette that lacks an answer has no source: it says nothing about the model.
            if problem.source:
                self._out[problem.source] = reason
        elif isinstance(problem, BudgetReached):
            self._unpaid = reason
        elif limiter and limiter.lost >= OUTAGE:
            self._out[request.lm] = reason

    def _bound(
        self, request: Request, environment: Environment, pool: str = ""
    ) -> Mapping[str, float | None]:
        metric = self._metric or environment.metric
        suffix = f", pool {pool}" if pool else ""
        selection = attrgetter(
            "task", "data", "split", "qrels", "relevant_from", "limit", "query_ids"
        )
        if (key := str((*selection(request), pool))) not in self._bounds:
            self._bounds[key] = {
                f"{name}{suffix}": bound(bound_kind, metric, environment)
                for bound_kind, name in KINDS.items()
            }
        return self._bounds[key]

    def count_earlier(self, cells: Sequence[StudyCell]) -> None:
        """Count the calls and dollars of all cells in earlier sittings, as the budget is for all
        of them.
        """
        earlier_usage.count_all(
            (cell.request for cell in cells),
            self._budget,
            lambda request: find_existing_run(self.open(request)),
        )


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
    cells: Sequence[StudyCell], progress: StudyProgress | None = None, metric: str = ""
) -> list[CellResult]:
    """Run all cells that have no finished run; return their results in order, with bounds by a
    metric.
    """
    progress = progress or StudyProgress(cells, quiet=True)
    shop = SharedRunState(cells, metric)
    results = dict[int, CellResult]()
    waiting = order_cells(cells)
    with announced("counting what was spent before"):
        shop.count_earlier([cells[place] for place in waiting])
    while waiting:
        busy = []
        for place in waiting:
            check_interrupts()
            result = shop.make(cells[place], progress.report(place))
            if result:
                results[place] = result
                progress.end(place, result)
            else:
                busy.append(place)
        if len(busy) == len(waiting):
            time.sleep(POLL)
        waiting = busy
    return [results[place] for place in range(len(cells))]


def order_cells(cells: Sequence[StudyCell]) -> list[int]:
    """Return the places of the cells in the order in which neighbours share most."""
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    shared = attrgetter("data", "split", "qrels", "relevant_from", "instruction", "retriever")

    def key(number: int) -> tuple[Any, ...]:
        cell = cells[number]
        return tasks.index(cell.task), *map(str, shared(cell.request))

    return sorted(range(len(cells)), key=key)


def estimate_cells(cells: Sequence[StudyCell]) -> tuple[JsonObject, list[CellResult]]:
    """Return the state of the cells with the cost of the rest, by cell, row and in all, and the
    results of cells that cannot be made.

    Nothing is sent. A request that two cells would make is sent once, and counted twice.
    """
    shop = SharedRunState(cells)
    estimates = dict[int, JsonObject]()
    results = []
    for position in order_cells(cells):
        estimates[position], result = _estimate_cell(cells[position], shop)
        results.append(result)
    in_order = [estimates[position] for position in range(len(cells))]
    rows = {}
    for row in dict.fromkeys(cell.row for cell in cells):
        rows[row] = _add([estimate for estimate in in_order if estimate["row"] == row])
    whole = {"dry_run": True, "cells": in_order, "rows": rows, "all": _add(in_order)}
    return whole, results


def _estimate_cell(cell: StudyCell, shop: SharedRunState) -> tuple[JsonObject, CellResult]:
    estimate: JsonObject = {
        "row": cell.row,
        "task": cell.task,
        "seed": cell.request.seed,
        "state": "there",
    }
    try:
        estimate |= forecast(cell.request, shop.open)
    except SextantError as error:
        unfit = isinstance(error, NotApplicable)
        estimate["state"] = "does not apply" if unfit else "cannot be made"
        estimate |= {"why": str(error), "queries": 0, **dict.fromkeys(FIGURES, 0)}
        if unfit:
            return estimate, CellResult(cell, unfit=str(error))
        return estimate, CellResult(cell, problem=error)
    if estimate["queries"]:
        estimate["state"] = f"{estimate['queries']} to ask, {estimate['answered']} there"
    return estimate, CellResult(cell)


def _add(cells: Sequence[JsonObject]) -> JsonObject:
    sums: JsonObject = {"queries": sum(cell["queries"] for cell in cells)}
    for key in FIGURES:  # a price may not be known
        amounts = [cell[key] for cell in cells]
        sums[key] = None if None in amounts else sum(amounts)
    return sums


def lay_out_ahead(estimate: JsonObject) -> list[TextBlock]:
    """Return the result of `estimate_cells` as a person reads it: the state and cost of each cell, of
    each row over several tasks, and of all.
    """
    cells = estimate["cells"]
    ahead = [(cell["row"], cell["task"], cell) for cell in cells]
    if len({cell["task"] for cell in cells}) > 1:
        ahead += [(row, "all tasks", total) for row, total in estimate["rows"].items()]
    rows = []
    for row, task, figures in [*ahead, ("all", "", estimate["all"])]:
        rows.append(
            {
                "row": row,
                "task": task,
                "state": figures.get("state") or f"{queries(figures['queries'])} to ask",
                "calls at most": figure_cell(figures["calls"], "{:,.0f}", "unknown"),
                "tokens in": figure_cell(figures["input_tokens"], "{:,.0f}", "unknown"),
                "tokens out": figure_cell(figures["output_tokens"], "{:,.0f}", "unknown"),
                "list price": figure_cell(figures["list_usd"], "${:,.4f}", "unknown"),
            }
        )
    reasons = [f"{cell['row']} on {cell['task']}: {cell['why']}" for cell in cells if "why" in cell]
    return ["dry run: nothing was sent", tabulate("estimated:", rows), *dict.fromkeys(reasons)]
