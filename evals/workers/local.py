"""Workers as processes of this machine.

A starter, which is a process that has imported everything, forks them: so a worker begins in a tenth of a second, and
one that has ended is replaced in no more. It has no threads and has opened nothing, which a fork would not survive.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any


class _Socket(Connection):
    """A connection that can be ended while another thread waits for a message; it is closed when nobody has it."""

    def close(self) -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(self.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)


@contextmanager
def starting() -> Iterator[Callable[[], Connection]]:
    """Start the starter, and yield what starts a worker and returns the connection with it; OSError where it cannot."""
    ours, theirs = socket.socketpair()
    script = f"import sys; sys.path[:] = {sys.path!r}; from evals.workers import local; local.fork({theirs.fileno()})"
    how: Any = {"stdin": subprocess.DEVNULL, "stdout": 2, "start_new_session": True}  # a Ctrl-C is for the keeper
    process = subprocess.Popen([sys.executable, "-c", script], pass_fds=[theirs.fileno()], **how)
    theirs.close()

    def start() -> Connection:
        mine, its = socket.socketpair()
        with its:
            socket.send_fds(ours, [b"+"], [its.fileno()])
        return _Socket(mine.detach())

    try:
        yield start
    finally:
        ours.close()
        process.kill()
        process.wait()


def fork(descriptor: int) -> None:
    """Be the starter, until the keeper is gone; in each of its forks, be a worker."""
    worker = import_module("evals.workers.worker")  # which the keeper does not need
    worker.warm()
    assert threading.active_count() == 1, "a fork takes one thread along, and the locks of the others for ever"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    control = socket.socket(fileno=descriptor)
    while (given := socket.recv_fds(control, 1, 1))[1]:
        [own] = given[1]
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            worker.serve(_Socket(own))
        os.close(own)
