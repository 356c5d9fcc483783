"""A second process that makes cells of a study.

Searching and scoring keep a core busy where no model is waited for, and the threads of a process
share Python's lock. It opens the data and the retrievers for itself, so it gets only cells of
Sextant's own programs over retrievers with mapped files. What it makes are the same run folders.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any, Self

from evals.running.earlier import has_budget
from evals.running.request import SYSTEMS
from evals.running.resolve import resolve
from evals.studies.study_file import StudyCell
from tools import forkserver, retrievers
from tools.errors import FAULTS, SextantError
from tools.interrupts import wait_until
from tools.system_calls import available_cores

# Seconds that the cells to come take in one process, from which a second is worth its start.
WORTH_SECONDS = 10.0
# The module that it runs.
WORKER = "evals.studies.cell_worker"
# Cells that it has at a time, so that it need not wait for the next.
AHEAD = 2


class SecondProcess:
    """Makes cells from the end of the list while this process makes those from its beginning.

    It starts once the cells to come take long, on more than one core, and ends with the block.
    """

    def __init__(self, cells: Sequence[StudyCell], metric: str) -> None:
        self._cells = cells
        self._metric = metric
        self._connection: Connection | None = None
        self._stack = ExitStack()
        self._suited: set[int] | None = None  # the cells that it may have; None before they count
        self.numbers = list[int]()  # of the cells that it has

    def give(self, waiting: "deque[int]", cell_seconds: float) -> None:
        """Give it cells from the end of those `waiting`, each of which takes about `cell_seconds`."""
        if self._suited is None and cell_seconds * len(waiting) > WORTH_SECONDS:
            self._suited = set()
            if available_cores() > 1:
                self._suited.update(filter(self._suits, waiting))
        while self._suited and waiting and waiting[-1] in self._suited:
            if len(self.numbers) >= AHEAD:
                return
            try:
                self._connection = self._connection or self._start()
                self._connection.send(waiting[-1])
            except OSError:
                self._suited = set()
                return
            self.numbers.append(waiting.pop())

    def _suits(self, number: int) -> bool:
        request = self._cells[number].request
        sends = request.lm != "offline" or has_budget(request) or request.time_limit is not None
        is_plain = not (request.pool or request.cassette) and request.processes == 1
        if sends or not is_plain or request.program not in SYSTEMS:
            return False
        with suppress(SextantError, *FAULTS):
            specs = resolve(request).all_retrievers
            return all(part.mapped for spec in specs for _, part in retrievers.iter_classes(spec))
        return False

    def _start(self) -> Connection:
        start = self._stack.enter_context(forkserver.fork_server(WORKER))
        connection = start()
        connection.send((self._cells, self._metric))
        return connection

    def take(self, waiting: "deque[int]") -> list[tuple[int, Any]]:
        """Return the numbers and results of the cells that it has made; if none is `waiting`, once it
        has made one.

        If it has ended, its cells wait again, and it gets no more.
        """
        results = list[tuple[int, Any]]()
        connection = self._connection
        if connection is None:
            return results
        try:
            if self.numbers and not waiting:
                wait_until(connection.poll)
            while self.numbers and connection.poll():
                result, error = connection.recv()
                if error:
                    raise error
                results.append((self.numbers.pop(0), result))
        except (EOFError, ConnectionError):
            waiting.extend(self.numbers)
            self.numbers.clear()
            self._suited = set()
        return results

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
