"""Run the cells of a study one after another, each as the ordinary run that `evals.run` would make of its request.

All cells share a budget, cells of one model its gate. Cells of a task follow each other, so that its data are read
once, and its retrievers are opened once; of these, those that the next cell does not need are dropped. A finished run
is taken as it is. A cell that another process is at is left for later; one whose model's provider refuses or is out is
left pending, and the others go on.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import environments
from evals.measuring.scored import Run, read
from evals.running.configuration import Engines, configuration, resolve
from evals.running.evaluation import Opened, connect, make_terms, open_task, run
from evals.running.events import Event, Progress, Watch
from evals.running.forecast import find_run
from evals.running.watch import STILL_SECONDS, plain_line
from evals.studies.plan import Cell
from tools import retrievers
from tools.console import check_interrupts, clean, say
from tools.errors import FAULTS, BudgetReached, ProviderRefused, RunBusy, RunConflict, SextantError, UsageError
from tools.models.answers import open_ledger
from tools.models.sending.gate import Gate
from tools.records import Usage, usage_from_json
from tools.retriever import Retriever

if TYPE_CHECKING:
    from environments.base import Environment

POLL = 1.0  # seconds until cells that other processes are at are looked at again


class Made(NamedTuple):
    """What came of a cell."""

    cell: Cell
    folder: Path | None = None  # of its finished run
    problem: SextantError | None = None  # why it is not finished
    unfit: str = ""  # why the row cannot be run on the task


class _Finished(Exception):  # no error: the run of a request is there
    def __init__(self, found: Run) -> None:
        self.run = found


class Board:
    """Says on stderr how far the cells are: a table that fills, or a line for each cell where that is no terminal."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._texts = {(cell.row, cell.task): "" for cell in cells}
        self._ended, self._many, self._said = 0, len(cells), 0.0
        console = Console(stderr=True, highlight=False)
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def report(self, cell: Cell) -> Callable[..., Watch]:
        """Return what follows the run of a cell."""

        def tell(event: Event, *, last: bool = False) -> None:
            if isinstance(event, Progress) and self._live:
                self._show(cell, f"{event.done}/{event.queries}")
            elif isinstance(event, Progress) and event.elapsed - self._said >= STILL_SECONDS and not last:
                self._said = event.elapsed
                say(f"{cell.row}, {cell.task}: {plain_line(event)}")

        self._said = 0.0
        return lambda ready, folder: Watch.of(ready, folder, tell)

    def end(self, made: Made) -> None:
        """Show what came of a cell."""
        mean = read(made.folder, load_data=False).scores["metrics"].values() if made.folder else ()
        value = next((f"{one['mean']:.4f}" for one in mean if one["mean"] is not None), "undefined")
        text = value if made.folder else "does not apply" if made.unfit else "unfinished"
        self._ended += 1
        if self._live:
            self._show(made.cell, text)
        else:
            why = made.unfit or str(made.problem or "")
            at = f"{self._ended} of {self._many}: {made.cell.row}, {made.cell.task}"
            say(f"{at}: {text}{why and f' ({why})'}")

    def _show(self, cell: Cell, text: str) -> None:
        self._texts[cell.row, cell.task] = text
        assert self._live
        self._live.start()
        self._live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        tasks = list(dict.fromkeys(task for _, task in self._texts))
        table = Table("", *map(clean, tasks), box=None, pad_edge=False)
        for row in dict.fromkeys(row for row, _ in self._texts):
            table.add_row(Text(clean(row)), *(self._texts.get((row, task), "") for task in tasks))
        return table

    def close(self) -> None:
        """Leave the table where it is."""
        if self._live:
            self._live.stop()


class Workshop:
    """Opens the runs of cells; what one of them leaves open, the next may use."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._budget = make_terms(cells[0].request).budget
        self._gates = dict[tuple[str, int | None], Gate]()
        self._loaded: tuple[str, Environment] | None = None
        self._built: dict[str, Retriever] = {}
        self._out = dict[str, SextantError]()  # models that nothing more is sent to, and why

    def open(self, request: Any) -> Opened:
        """Open a run on what the study shares."""
        terms = make_terms(request)
        terms.budget = self._budget
        terms.gate = self._gates.setdefault((request.lm, request.max_concurrent), terms.gate)
        resolved, environment = open_task(request, self._load)
        specs = resolved.all_retrievers
        quiet = {str(one) for one in specs if not (retrievers.lenses(one) or retrievers.apis(one))}
        built = {name: made for name, made in self._built.items() if name in quiet}
        engines = Engines(environment, terms, built)
        self._built = engines.built
        return Opened(resolved, environment, engines, terms)

    def _load(self, *place: Any, **named: Any) -> "Environment":
        key = json.dumps([place, named], sort_keys=True)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded, self._built = None, {}
            self._loaded = key, environments.load(*place, **named)
        return self._loaded[1]

    def find(self, opened: Opened) -> Run | None:
        """Return the finished run of a request. One over pools is found when its retrievers are open."""
        resolved, environment = opened.resolved, opened.environment
        request = resolved.request
        if resolved.pool or request.again:
            return None
        model = connect(request, opened.terms, environment, seed=request.seed)
        path = find_run(opened, configuration(resolved, environment, None, model))
        with suppress(SextantError):
            found = path and read(path, load_data=False)
            if found and found.scores["judgements"] == environment.headline:
                return found if set(request.metrics) <= found.columns.keys() else None
        return None

    def _open_unfinished(self, request: Any) -> Opened:
        opened = self.open(request)
        if found := self.find(opened):
            raise _Finished(found)
        return opened

    def make(self, cell: Cell, report: Any = None) -> Made | None:
        """Run a cell; None while another process is at it."""
        lm = cell.request.lm
        if lm in self._out:
            return Made(cell, problem=self._out[lm])
        problem: SextantError | None
        try:
            result = run(cell.request, report, opening=self._open_unfinished)
            problem, folder = result.problem, result.folder
        except _Finished as finished:
            self._count(finished.run)
            return Made(cell, finished.run.path)
        except RunBusy:
            return None
        except FAULTS as fault:
            problem = fault
        except RunConflict:
            raise
        except UsageError as error:
            return Made(cell, unfit=str(error))
        if isinstance(problem, BudgetReached | ProviderRefused):
            self._out[lm] = problem
        return Made(cell, problem=problem) if problem else Made(cell, folder)

    def _count(self, found: Run) -> None:
        if (found.path / "run-id").exists():
            books = open_ledger(found.path).books
            self._budget.resume(books.usage, books.sent)
        else:  # it sent nothing
            self._budget.resume(Usage(calls=usage_from_json(found.scores["usage"]).calls))


def check(cells: Sequence[Cell]) -> None:
    """Look up every name of the rows before anything is run. UsageError or DataError, with the row."""
    for row, cell in {cell.row: cell for cell in reversed(cells)}.items():
        try:
            if not cell.request.isolated:  # whose program would be started
                resolve(cell.request)
        except SextantError as error:
            raise error.saying(f"row {row!r}: {error}") from None


def run_cells(cells: Sequence[Cell], board: Board | None = None) -> list[Made]:
    """Run all cells that have no finished run; return what came of each, in their order."""
    check(cells)
    shop, made = Workshop(cells), dict[int, Made]()
    waiting = sorted(range(len(cells)), key=lambda number: _order(cells, number))
    while waiting:
        busy = []
        for number in waiting:
            check_interrupts()
            if one := shop.make(cells[number], board and board.report(cells[number])):
                made[number] = one
                if board:
                    board.end(one)
            else:
                busy.append(number)
        if busy == waiting:
            time.sleep(POLL)
        waiting = busy
    if board:
        board.close()
    return [made[number] for number in sorted(made)]


def _order(cells: Sequence[Cell], number: int) -> tuple[Any, ...]:
    request = cells[number].request
    task = [cell.task for cell in cells].index(cells[number].task)
    shared = (request.data, request.split, request.qrels, request.instruction, request.retriever)
    return task, *map(str, shared), number
