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
from typing import Any, NoReturn

ENDING = 10.0  # seconds that a starter has to end by itself


class Socket(Connection):
    """A connection that can be ended while another thread waits for a message; it is closed when nobody has it."""

    def close(self) -> None:
        """End it for both sides."""
        with suppress(OSError), socket.socket(fileno=os.dup(self.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)


@contextmanager
def starting(module: str = "local", *given: str) -> Iterator[Callable[[], Connection]]:
    """Start the starter, and yield what starts a worker and returns the connection with it; OSError where it cannot.

    The starter is `be_starter` of a `module` of this folder; it gets a socket that asks for workers, and the `given`.
    """
    ours, theirs = socket.socketpair()
    called = f"from evals.workers import {module}; {module}.be_starter(*{(theirs.fileno(), *given)})"
    script = f"import sys; sys.path[:] = {sys.path!r}; {called}"
    how: Any = {"stdin": subprocess.DEVNULL, "stdout": 2, "start_new_session": True}  # a Ctrl-C is for the keeper
    how["env"] = os.environ | {"RAY_ENABLE_AUTO_CONNECT": "0"}  # else Ray starts a cluster in place of one that is lost
    process = subprocess.Popen([sys.executable, "-c", script], pass_fds=[theirs.fileno()], **how)
    theirs.close()

    def start() -> Connection:
        mine, its = socket.socketpair()
        with its:
            socket.send_fds(ours, [b"+"], [its.fileno()])
        return Socket(mine.detach())

    try:
        yield start
    finally:
        ours.close()  # at which it ends
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING if given else 0)  # as one that asks a cluster has something to give back
        process.kill()
        process.wait()


def be_starter(descriptor: int) -> NoReturn:
    """Fork workers, until the keeper is gone; in each of the forks, be one."""
    worker = import_module("evals.workers.worker")  # which the keeper does not need
    worker.warm()
    assert threading.active_count() == 1, "a fork takes one thread along, and the locks of the others for ever"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for own in asked_for(descriptor):
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(descriptor)
            worker.serve(Socket(own))
        os.close(own)
    os._exit(0)  # an interpreter that has imported all this takes seconds to end


def asked_for(descriptor: int) -> Iterator[int]:
    """Yield the worker's end of a connection for each that is asked for, until nobody asks any more."""
    control = socket.socket(fileno=descriptor)
    while (given := socket.recv_fds(control, 1, 1))[1]:
        yield given[1][0]
