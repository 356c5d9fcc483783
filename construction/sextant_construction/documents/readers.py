"""Files read in a process of their own, each within limits of time, memory and text, because
strangers make files.

A file that is over a limit is left out, and said so. The process is used for one file after
another, and a new one is forked if it had to be ended (reading.py).
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from sextant.tools.errors import RunIncomplete
from sextant.tools.platform.forkserver import fork_server
from sextant.tools.platform.interrupts import check_interrupts
from sextant_construction.documents.reading import MIB, TOO_MUCH_MEMORY, Answer, Request

# Takes the name of what is left out, the reason, and the evidence.
Leave = Callable[[str, str, str], object]

TOO_LONG = "files that take too long to read"
CRASHED = "files that end the process that reads them"

_LOOK = 50  # milliseconds between two looks at the memory of the process
# Times that the processor time may pass before a process is given up that does not use it
_PATIENCE = 10


class Limits(NamedTuple):
    """The limits for reading a file; a MiB of a file gives it a second more."""

    seconds: int = 60  # of processor time
    memory: int = 2048  # MiB
    text: int = 64  # MiB of a document's text


USUAL = Limits()


class Readers:
    """Reads files in another process, which begins with the first one."""

    def __init__(self, limits: Limits, forms: Iterable[str]) -> None:
        """`forms` are those that there will be."""
        self._limits = limits
        self._forms = tuple(sorted(forms))
        self._ends = ExitStack()
        self._start: Callable[[], Any] | None = None
        self._connection: Any = None
        self._poll = select.poll()
        # its id, and the bytes of memory that it had at its start
        self._process = 0
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.close()

    def read(self, path: Path, form: str) -> Answer:
        """Return the columns of a file, or why it is left out. DataError if it is damaged."""
        seconds = self._limits.seconds + path.stat().st_size / MIB
        request = Request(path, form, seconds, self._limits.memory, self._limits.text)
        if self._connection is None:
            self._begin()
        answer = self._ask(request)
        if answer.error:
            raise answer.error
        if answer.reason:
            # Another process will read the next file.
            with suppress(OSError):
                os.kill(self._process, signal.SIGKILL)
            self._connection.close()
            self._connection = None
        return answer

    def _ask(self, request: Request) -> Answer:
        """Return the answer, and see meanwhile to it that the process keeps to its limits."""
        began = time.monotonic()
        too_long = Answer(reason=TOO_LONG, evidence=f"more than {request.seconds:,.0f} s")
        try:
            self._connection.send(request)
            while not self._poll.poll(_LOOK):
                check_interrupts()
                if _resident(self._process) - self._size > request.memory * MIB:
                    too_much = f"more than {request.memory:,} MiB"
                    return Answer(reason=TOO_MUCH_MEMORY, evidence=too_much)
                if time.monotonic() - began > _PATIENCE * request.seconds:
                    return too_long
            answer: Answer = self._connection.recv()
        except (EOFError, OSError):
            # The system has ended it, at the limit of processor time or for another reason.
            is_late = time.monotonic() - began >= request.seconds - 1
            return too_long if is_late else Answer(reason=CRASHED)
        return answer

    def _begin(self) -> None:
        try:
            if self._start is None:
                self._start = self._ends.enter_context(
                    fork_server(Request.__module__, *self._forms)
                )
            self._connection = self._start()
            self._process = self._connection.recv()
        except (EOFError, OSError) as error:
            wrong = f"no process can be started that reads files ({error or 'it ended'})"
            raise RunIncomplete(f"{wrong}; see what ulimit -a allows") from None
        self._poll = select.poll()  # a connection's own way to wait makes a selector each time
        self._poll.register(self._connection, select.POLLIN)
        self._size = _resident(self._process)


def _resident(process: int) -> int:
    """Return the bytes that a process has in memory; 0 if the system does not say, or the
    process has ended.
    """
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    except (OSError, IndexError):
        return 0
