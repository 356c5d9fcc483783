"""The side of second_process.py that makes the cells."""

import signal
from contextlib import suppress
from multiprocessing.connection import Connection

from evals.running.runner import infrequent_gc
from evals.studies.run_cells import CellResult, SharedRunState
from tools import forkserver


def be_starter(descriptor: int) -> None:
    """Fork the process, as tools/forkserver.py asks for it."""
    forkserver.serve_forks(descriptor, _serve)


def _serve(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cells, metric = connection.recv()
    shop = SharedRunState(cells, metric)
    with infrequent_gc(), suppress(EOFError):  # who asks has ended
        while True:
            number = connection.recv()
            result: tuple[CellResult | None, Exception | None]
            try:
                result = shop.make(cells[number]), None
            except Exception as error:  # noqa: BLE001  # raised by the other side
                result = None, error
            connection.send(result)
