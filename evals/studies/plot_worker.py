"""The side of paper_plots.py that draws most of the plots."""

import signal
from multiprocessing.connection import Connection

from evals.studies.paper_plots import draw_plots
from tools import forkserver


def be_starter(descriptor: int) -> None:
    """Fork the process, as tools/forkserver.py asks for it."""
    forkserver.serve_forks(descriptor, _serve)


def _serve(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection.send(draw_plots(connection.recv()))
