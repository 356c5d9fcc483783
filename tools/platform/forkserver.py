"""Processes that a starter forks on this machine: run workers and index parts.

The starter is a process that has imported everything: so a new process begins in a tenth of a
second, and a dead process is replaced as fast. It has no threads and has opened nothing, which a fork
would not survive.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

ENDING = 10.0  # seconds that a starter has to end by itself
_PR_SET_PDEATHSIG = 1  # of Linux' prctl: the signal that a process gets when its parent has ended
_LOOK = 1.0  # seconds between two looks for the parent, where a system has no such signal


class ClosableConnection(Connection):
    """A connection that can be ended while another thread waits for a message; it is closed when
    it is no longer referenced.
    """

    def close(self) -> None:
        """End it for both sides."""
        with suppress(OSError), socket.socket(fileno=os.dup(self.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


@contextmanager
def fork_server(module: str, *arguments: str) -> Iterator[Callable[[], Connection]]:
    """Start the starter, and yield a function that starts a process and returns the connection
    with it. The function raises OSError if it fails.

    The starter is `be_starter` of a `module`; it gets a socket that asks for processes, and the
    `given`.
    """
    ours, theirs = socket.socketpair()
    script = (
        f"import sys; sys.path[:] = {sys.path!r}; from {module} import be_starter; "
        f"be_starter(*{(theirs.fileno(), *arguments)})"
    )
    settings: Any = {
        "stdin": subprocess.DEVNULL,
        "stdout": 2,
        "start_new_session": True,
    }  # a Ctrl-C is for who asks
    settings["env"] = os.environ | {
        "RAY_ENABLE_AUTO_CONNECT": "0"
    }  # else Ray starts a cluster in place of one that is lost
    process = subprocess.Popen(
        [sys.executable, "-c", script], pass_fds=[theirs.fileno()], **settings
    )
    theirs.close()

    def start() -> Connection:
        mine, its = socket.socketpair()
        with its:
            socket.send_fds(ours, [b"+"], [its.fileno()])
        return ClosableConnection(mine.detach())

    try:
        yield start
    finally:
        ours.close()  # at which it ends, with what it has forked
        with suppress(subprocess.TimeoutExpired):
            process.wait(
                ENDING if arguments else 0
            )  # as one that asks a cluster has something to give back
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def receive_result(line: Connection, lost: Callable[[], Exception]) -> Any:
    """Return the result of the other side, or raise its error; raise `lost` if it has ended."""
    try:
        result, error = line.recv()
    except (EOFError, OSError):
        raise lost() from None
    if error:
        raise error
    return result


def serve_forks(descriptor: int, serve: Callable[[Connection], object]) -> None:
    """Fork a process for each connection that is asked for, and `serve` it there; end all when no
    more are requested.

    The forks end with this process, however it ends.
    """
    assert threading.active_count() == 1, (
        "a fork takes one thread along, and the locks of the others for ever"
    )
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    starter = os.getpid()
    for descriptor_of_child in iter_requests(descriptor):
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(descriptor)
            try:
                _end_with(starter)
                serve(ClosableConnection(descriptor_of_child))
            except Exception:  # noqa: BLE001  # who asked meets the end, and says the words
                traceback.print_exc()
            finally:
                os._exit(0)  # whatever its threads are at
        os.close(descriptor_of_child)
    os.killpg(0, signal.SIGKILL)  # the forks, too, also one in the middle of a build


def _end_with(starter: int) -> None:
    """Have this process killed when the `starter`, its parent, has ended.

    The end of its connection is not enough, as code in C that keeps Python's lock lets no thread
    see it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_look_for, args=(starter,), daemon=True).start()
    if os.getppid() != starter:  # it ended before the call
        os._exit(1)


def _look_for(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(_LOOK)
    os._exit(1)


def iter_requests(descriptor: int) -> Iterator[int]:
    """Yield the other end of each connection that is asked for, until no more are requested."""
    control = socket.socket(fileno=descriptor)
    while (message := socket.recv_fds(control, 1, 1))[1]:
        yield message[1][0]
