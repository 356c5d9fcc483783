"""Run the cells of a study one after another, each as the run that `evals.run` makes; or say ahead
what they take.

All cells share a budget, and cells of one model its gate. Cells of a task follow each other, so
that its data are read and its retrievers opened once; what the next cell does not need is dropped.
A finished run is taken as it is. A cell that another process is at is left for later. Where a
provider refuses, or that of a model is out, all cells that need this model or this retriever stay
pending; once the budget is used up, all that would send something. The others go on.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import environments
from environments.base import Environment
from evals.running import earlier
from evals.running.cost_estimate import LEVELS, forecast
from evals.running.evaluate import LoadedRun, answer_queries, load_task, make_resources, run_request
from evals.running.events import Event, Progress, RunMonitor
from evals.running.progress_display import STILL_SECONDS, plain_line
from evals.running.ready import PreparedRun
from evals.running.request import Request
from evals.running.resolve import RunRetrievers, resolve
from evals.running.runner import OUTAGE
from evals.scoring.random_and_ideal import KINDS, bound
from evals.scoring.scored_run import ScoredRun, read_scored_run
from evals.studies.study_file import StudyCell
from evals.text_tables import TextBlock, TextTable
from tools import retrievers
from tools.cli import guard_prints, is_terminal, own_stream, print_stderr, strip_control_characters
from tools.errors import (
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
from tools.interrupts import check_interrupts
from tools.models.transport.rate_limiter import ConcurrencyLimiter
from tools.number_format import plural
from tools.retrievers.base import Retriever

POLL = 1.0  # seconds until cells that other processes are at are looked at again
FIGURES = {
    "calls": 0,
    "input_tokens": 0,
    "output_tokens": 0,
    "list_usd": 4,
    "hours": 3,
}  # ahead, with their decimals


class CellResult(NamedTuple):
    """What came of a cell."""

    cell: StudyCell
    folder: Path | None = None  # of its finished run
    problem: SextantError | None = None  # why it is not finished
    unfit: str = ""  # why the row cannot be run on the task
    bounds: Mapping[str, float | None] | None = (
        None  # floor and ceiling of what it searches, by what they are called
    )


class Unfinished(NamedTuple):
    """A cell that could be made and is not yet."""

    row: str
    task: str
    problem: SextantError


def explain(unfinished: Sequence[Unfinished], cells: int) -> tuple[list[str], SextantError | None]:
    """Return a line for each reason why some of so many cells are unfinished, and the error that
    ends the command.

    Its exit code is that of a budget, else of a run that broke off, of a refusal, of missing data.
    A single reason is in the error, without a line of its own.
    """
    if not unfinished:
        return [], None
    reasons = dict[str, list[Unfinished]]()
    for cell in unfinished:
        reasons.setdefault(str(cell.problem), []).append(cell)
    problem = _gravest([alike[0].problem for alike in reasons.values()])
    total = (
        f"{plural(len(unfinished), 'cell')} of {cells} unfinished, and the same command goes on "
        f"with them"
    )
    if len(reasons) == 1:
        first = unfinished[0]
        return [], problem.saying(f"{total}; {first.row} on {first.task}: {problem}")
    lines = list[str]()
    for reason, alike in reasons.items():
        first = alike[0]
        suffix = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        lines.append(f"unfinished: {first.row} on {first.task}{suffix}: {reason}")
    return lines, problem.saying(f"{total}; the reasons are above")


def _gravest(problems: Sequence[SextantError]) -> SextantError:
    for error_class in (BudgetReached, RunIncomplete, ProviderRefused, DataError):
        for problem in problems:
            if isinstance(problem, error_class):
                return problem
    return problems[0]


class StudyProgress:
    """Prints on stderr how far the cells are.

    On a terminal that is a table which fills, else a line for each cell.
    """

    def __init__(self, cells: Sequence[StudyCell]) -> None:
        self._texts = {(cell.row, cell.task): "" for cell in cells}
        self._ended = 0
        self._total = len(cells)
        self.draws = is_terminal(sys.stderr)
        # Where FORCE_COLOR is set, rich takes any file for a terminal.
        console = Console(
            file=own_stream(sys.stderr), stderr=True, force_terminal=self.draws, highlight=False
        )
        self.live = Live(console=console, auto_refresh=False)

    def report(self, cell: StudyCell) -> Callable[..., RunMonitor]:
        """Return what follows the run of a cell."""
        last_line = 0.0

        def tell(event: Event, *, last: bool = False) -> None:
            nonlocal last_line
            if isinstance(event, Progress) and self.draws:
                self._show(cell, f"{event.done}/{event.queries}")
            elif (
                isinstance(event, Progress)
                and event.elapsed - last_line >= STILL_SECONDS
                and not last
            ):
                last_line = event.elapsed
                print_stderr(f"{cell.row}, {cell.task}: {plain_line(event)}")

        return lambda ready, folder: RunMonitor(ready, folder, tell)

    def end(self, result: CellResult) -> None:
        """Show what came of a cell."""
        run = result.folder and read_scored_run(result.folder, load_data=False)
        text = (
            f"{run.mean(run.metric) or 0:.4f}"
            if run
            else "does not apply"
            if result.unfit
            else "unfinished"
        )
        self._ended += 1
        if self.draws:
            return self._show(result.cell, text)
        reason = result.unfit or str(result.problem or "")
        print_stderr(
            f"{self._ended} of {self._total}: {result.cell.row}, {result.cell.task}: "
            f"{text}{reason and f' ({reason})'}"
        )

    def _show(self, cell: StudyCell, text: str) -> None:
        self._texts[cell.row, cell.task] = text
        tasks = list(dict.fromkeys(task for _, task in self._texts))
        table = Table("", *map(strip_control_characters, tasks), box=None, pad_edge=False)
        rows = list(dict.fromkeys(row for row, _ in self._texts))
        room = self.live.console.height - 3
        first = max(
            0, min(rows.index(cell.row) - room // 2, len(rows) - room)
        )  # where the screen is lower than it
        for row in rows[first : first + room]:
            table.add_row(
                Text(strip_control_characters(row)),
                *(self._texts.get((row, task), "") for task in tasks),
            )
        self.live.update(table, refresh=True)


class SharedRunState:
    """Opens the runs of cells; what one of them leaves open, the next may use."""

    def __init__(self, cells: Sequence[StudyCell], metric: str = "") -> None:
        self._metric = metric  # of the bounds; each task's own without it
        self._bounds = dict[str, dict[str, float | None]]()
        self._budget = make_resources(cells[0].request).budget
        self._gates = dict[str, ConcurrencyLimiter]()
        self._loaded: tuple[str, Environment] | None = None
        self._built: dict[str, Retriever] = {}
        self._out = dict[
            str, SextantError
        ]()  # models and retrievers that nothing more is sent to, and why
        self._unpaid: SextantError | None = None  # why nothing is sent at all any more

    def open(self, request: Request) -> LoadedRun:
        """Open a run on what the study shares."""
        terms = make_resources(request)
        terms.budget, terms.gate = self._budget, self._gates.setdefault(request.lm, terms.gate)
        resolved, environment = load_task(request, self._load)
        quiet = [
            all_retriever
            for all_retriever in resolved.all_retrievers
            if not (
                retrievers.find_lenses(all_retriever) or retrievers.find_api_parts(all_retriever)
            )
        ]
        built = {
            str(retriever): self._built[str(retriever)]
            for retriever in quiet
            if str(retriever) in self._built
        }
        engines = RunRetrievers(environment, terms, built)
        self._built = engines.built
        return LoadedRun(resolved, environment, engines, terms)

    def _load(self, *arguments: Any, **named: Any) -> Environment:
        key = json.dumps([arguments, named], sort_keys=True)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None
            self._built = {}
            self._loaded = key, environments.load(*arguments, **named)
        return self._loaded[1]

    def find(self, opened: LoadedRun) -> ScoredRun | None:
        """Return the finished run of a request.

        One over pools is found when its retrievers are open.
        """
        request = opened.resolved.request
        path = earlier.find_folder(opened)
        with suppress(SextantError):
            run = (
                read_scored_run(path, load_data=False)
                if path and not opened.resolved.pool and not request.again
                else None
            )
            if run and run.scores["judgements"] == opened.environment.headline:
                return run if set(request.metrics) <= run.columns.keys() else None
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

        def open_once(request: Request) -> LoadedRun:
            nonlocal opened
            opened = opened or self.open(request)
            return opened

        try:
            opened = self.open(request)
            if run := self.find(opened):
                earlier.count(self._budget, run.path)
                return CellResult(cell, run.path, bounds=self._bound(request, opened.environment))
            if problem := self._find_obstacle(request, opened):
                return CellResult(cell, problem=problem)
            result = run_request(request, report, answer=answer, opening=open_once)
            problem = result.problem
        except RunBusy:
            return None
        except (*FAULTS, UnknownPrice) as fault:
            problem = fault
        except RunConflict:
            raise
        except UsageError as error:
            if opened is None and does_not_apply(error):
                return CellResult(cell, unfit=str(error))
            problem = error
        except OSError as fault:  # a folder that cannot be read: other cells may be elsewhere
            problem = DataError(f"{fault.filename or request.runs}: {fault.strerror or fault}")
        if problem:
            self._note(problem, request)
            return CellResult(cell, problem=problem)
        return CellResult(cell, result.folder, bounds=bounds)

    def _find_obstacle(self, request: Request, opened: LoadedRun | None) -> SextantError | None:
        """Return why a run cannot be finished in this sitting: another cell has met a
        refusal, or the budget's end.
        """
        sources = {request.lm}
        sends = request.lm != "offline"
        if opened:
            sources.update(*map(retrievers.sources, opened.resolved.all_retrievers))
            sends = opened.resolved.sends
        for source in sorted(sources):
            if source in self._out:
                return self._out[source]
        return self._unpaid if sends else None

    def _note(self, problem: SextantError, request: Request) -> None:
        """Keep what the cells that are left would meet, too."""
        gate = self._gates.get(request.lm)
        reason = (
            problem.__cause__ if isinstance(problem.__cause__, SextantError) else problem
        )  # without its queries
        if isinstance(problem, ProviderRefused):
            if problem.source:  # a cassette that lacks an answer says nothing about the model
                self._out[problem.source] = reason
        elif isinstance(problem, BudgetReached):
            self._unpaid = reason
        elif gate and gate.lost >= OUTAGE:
            self._out[request.lm] = reason

    def _bound(
        self, request: Request, environment: Environment, pool: str = ""
    ) -> Mapping[str, float | None]:
        metric = self._metric or environment.metric
        suffix = f", pool {pool}" if pool else ""
        selection = (
            request.task,
            request.data,
            request.split,
            request.qrels,
            request.limit,
            request.query_ids,
        )
        if (key := str((*selection, pool))) not in self._bounds:
            self._bounds[key] = {
                f"{name}{suffix}": bound(bound_kind, metric, environment)
                for bound_kind, name in KINDS.items()
            }
        return self._bounds[key]

    def count_earlier(self, cells: Sequence[StudyCell]) -> None:
        """Count what the runs of all cells have used in earlier sittings, as the budget is
        for all of them.
        """
        earlier.count_all((cell.request for cell in cells), self._budget, self.open)


def does_not_apply(error: SextantError) -> bool:
    """Return whether an error says that the row does not fit the task. Any other one is a fault."""
    return isinstance(error, NotApplicable)


def validate_rows(cells: Sequence[StudyCell]) -> None:
    """Look up every name of the rows before anything is run. UsageError, with the row, for what is
    asked wrongly.

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
    cells: Sequence[StudyCell], board: StudyProgress | None = None, metric: str = ""
) -> list[CellResult]:
    """Run all cells that have no finished run; return what came of each, in their order, with
    bounds by a metric.
    """
    shop = SharedRunState(cells, metric)
    results = dict[int, CellResult]()
    waiting = order_cells(cells)
    shop.count_earlier([cells[number] for number in waiting])
    with board.live if board and board.draws else nullcontext():
        if board and board.draws:
            guard_prints()
        while waiting:
            busy = []
            for number in waiting:
                check_interrupts()
                if result := shop.make(cells[number], board and board.report(cells[number])):
                    results[number] = result
                    if board:
                        board.end(result)
                else:
                    busy.append(number)
            if busy == waiting:
                time.sleep(POLL)
            waiting = busy
    return [results[number] for number in range(len(cells))]


def order_cells(cells: Sequence[StudyCell]) -> list[int]:
    """Return the places of the cells in the order in which neighbours share most."""
    tasks = list(dict.fromkeys(cell.task for cell in cells))

    def key(number: int) -> tuple[Any, ...]:
        request = cells[number].request
        shared = (
            request.data,
            request.split,
            request.qrels,
            request.instruction,
            request.retriever,
        )
        return tasks.index(cells[number].task), *map(str, shared)

    return sorted(range(len(cells)), key=key)


def estimate_cells(cells: Sequence[StudyCell]) -> tuple[dict[str, Any], list[CellResult]]:
    """Return what is there of the cells, what the rest takes by cell, row and in all, and what
    cannot be made.

    Nothing is sent. A request that two cells would make is sent once, and counted twice.
    """
    shop = SharedRunState(cells)
    by_number = dict[int, dict[str, Any]]()
    results = list[CellResult]()
    for number in order_cells(cells):
        row, task, request = cell = cells[number]
        estimate: dict[str, Any] = {
            "row": row,
            "task": task,
            "seed": request.seed,
            "state": "there",
        }
        try:
            estimate |= forecast(request, shop.open)
            if estimate["queries"]:
                estimate["state"] = f"{estimate['queries']} to ask, {estimate['answered']} there"
            results.append(CellResult(cell))
        except SextantError as error:
            unfit = does_not_apply(error)
            estimate |= {
                "state": "does not apply" if unfit else "cannot be made",
                "why": str(error),
                "queries": 0,
            }
            estimate |= dict.fromkeys(FIGURES, dict.fromkeys(LEVELS, 0))
            results.append(
                CellResult(cell, unfit=str(error)) if unfit else CellResult(cell, problem=error)
            )
        by_number[number] = estimate
    every = [by_number[number] for number in range(len(cells))]
    rows = {
        row: _add([estimate for estimate in every if estimate["row"] == row])
        for row in dict.fromkeys(cell.row for cell in cells)
    }
    return {"dry_run": True, "cells": every, "rows": rows, "all": _add(every)}, results


def _add(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Any] = {"queries": sum(cell["queries"] for cell in cells)}
    for key in FIGURES:  # a price may not be known
        is_known = all(cell[key] for cell in cells)
        sums[key] = (
            {level: sum(cell[key][level] for cell in cells) for level in LEVELS}
            if is_known
            else None
        )
    return sums


def lay_out_ahead(estimate: dict[str, Any]) -> list[TextBlock]:
    """Return what `estimate_cells` found as a person reads it: the matrix, and what the cells
    take that are to be run.
    """
    causes = list(dict.fromkeys(cell["why"] for cell in estimate["cells"] if "why" in cell))
    matrix = dict[str, dict[str, dict[str, None]]]()
    tasks = list(dict.fromkeys(cell["task"] for cell in estimate["cells"]))
    for cell in estimate["cells"]:
        state = (
            f"{cell['state']} ({causes.index(cell['why']) + 1})" if "why" in cell else cell["state"]
        )
        matrix.setdefault(cell["row"], {}).setdefault(cell["task"], {})[state] = (
            None  # seeds are often alike
        )
    states = [
        [row, *("; ".join(by_task.get(task, ())) for task in tasks)]
        for row, by_task in matrix.items()
    ]
    rows = [
        [cell["row"], cell["task"], *_figures(cell)]
        for cell in estimate["cells"]
        if cell["queries"]
    ]
    rows += [
        [row, "all tasks", *_figures(total)]
        for row, total in estimate["rows"].items()
        if total["queries"] and tasks[1:]
    ]
    rows.append(["all", "", *_figures(estimate["all"])])
    heads = ["row", "task", "calls", "tokens in", "tokens out", "list price", "hours"]
    ahead = (
        TextTable("low, likely and high:", heads, rows, (0, 1))
        if estimate["all"]["queries"]
        else "nothing is left to ask"
    )
    reasons = [f"({number}) {cause}" for number, cause in enumerate(causes, start=1)]
    return [
        "dry run: nothing was sent",
        TextTable("", ["", *tasks], states, range(len(tasks) + 1)),
        *reasons,
        ahead,
    ]


def _figures(row: dict[str, Any]) -> list[str]:
    values = [
        row[key] and [f"{value:,.{digits}f}" for value in row[key].values()]
        for key, digits in FIGURES.items()
    ]
    return [
        "unknown" if not levels else " ".join(levels) if len({*levels}) > 1 else levels[0]
        for levels in values
    ]
