"""Files read in a process of their own, each within limits of time, memory and text, because
strangers make files.

A file, or a document of one, that is over a limit is left out, and said so. The process is used for
one file after another, and a new one is forked if it had to be ended (reading.py).
"""

import os
import resource
import select
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from sextant.tools.errors import RunIncomplete
from sextant.tools.platform.forkserver import fork_server
from sextant.tools.platform.interrupts import check_interrupts
from sextant.tools.records import JsonObject
from sextant_construction.documents.markup import XmlPaths
from sextant_construction.documents.reading import (
    MIB,
    TOO_MUCH_MEMORY,
    Message,
    OverLimit,
    Request,
    hard_limit,
)

Leave = Callable[
    [str, str, str], object
]  # takes the name of what is left out, the reason, and the evidence

TOO_LONG = "files that take too long to read"
TOO_MUCH_TEXT = "files with too much text"
CRASHED = "files that end the process that reads them"

_SHARE = 8  # of the addresses that the system allows, the part that a file may fill
_LOOK = 50  # milliseconds between two looks at the memory of the process
_MOST_OVER = (
    10  # documents of a small file that may each take too long, before the rest of it is left out
)
_PATIENCE = (
    10  # times the processor time that may pass before a process is given up that does not use it
)


class Limits(NamedTuple):
    """The limits for reading a file; MiB of a file give it as many seconds more."""

    seconds: int = 60  # of processor time, for a document
    memory: int = 2048  # MiB
    text: int = 64  # MiB of a document's text


USUAL = Limits()


class _Stop(NamedTuple):
    """Why the reading of a file ended before its end."""

    reason: str
    evidence: str
    done: int  # the last document that came
    at: int  # the document that was being written; 0: none, the file itself was being read


class Readers:
    """Reads files in another process, which begins with the first one."""

    def __init__(
        self,
        limits: Limits,
        leave: Leave,
        forms: Iterable[str],
    ) -> None:
        """`forms` are those that there will be."""
        self._limits = limits
        self._leave = leave
        self._forms = tuple(sorted(forms))
        self._ends = ExitStack()
        self._start: Callable[[], Any] | None = None
        self._connection: Any = None
        self._poll = select.poll()
        self._last = 0.0  # when something was sent or came, on time.monotonic()
        # its id, and the bytes of memory that it had at its start
        self._process = 0
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._ends.close()

    def read(
        self,
        path: Path,
        form: str,
        doc_id: str,
        record: XmlPaths,
    ) -> Iterator[tuple[str, JsonObject]]:
        """Yield (place, row) of each document of a file. DataError if it is damaged."""
        mib = path.stat().st_size / MIB
        limits = self._limits
        memory = min(limits.memory, hard_limit(resource.RLIMIT_AS) // (_SHARE * MIB))
        bounded = memory < limits.memory or hard_limit(resource.RLIMIT_CPU) < limits.seconds
        request = Request(
            path=path,
            form=form,
            doc_id=doc_id,
            record=record,
            done=0,
            seconds=limits.seconds + mib,
            seconds_in_all=limits.seconds * (_MOST_OVER + mib),
            memory=int(memory),
            text=limits.text,
        )
        while True:
            fresh = self._connection is None
            stop = yield from self._read_on(request)
            if stop is None:
                return
            self._discard()
            if bounded and stop.reason in (CRASHED, TOO_MUCH_MEMORY):
                if not fresh:  # the limit of processor time is one for all files of a process
                    request = request._replace(done=stop.done)
                    continue
                wrong = f"{path} cannot be read within the memory or the processor time that this"
                raise RunIncomplete(
                    f"{wrong} system gives a process; raise ulimit -v and ulimit -t"
                )
            if form != "xml":
                self._leave(doc_id, stop.reason, stop.evidence)
                return
            seconds_left = request.seconds_in_all - request.seconds
            if not stop.at or seconds_left <= 0:
                first = stop.at or stop.done + 1
                remainder = (
                    f"; its documents from number {first} on are left out" if first > 1 else ""
                )
                self._leave(
                    doc_id,
                    stop.reason,
                    f"{stop.evidence}{remainder}",
                )
                return
            self._leave(
                f"{doc_id}:{stop.at}",
                stop.reason,
                stop.evidence,
            )
            request = request._replace(done=stop.at, seconds_in_all=seconds_left)

    def _read_on(self, request: Request) -> Generator[tuple[str, JsonObject], None, _Stop | None]:
        """Yield the rows of a file, and return why there are no more; None at its end."""
        rows_done = request.done
        at = 0
        try:
            if self._connection is None:
                self._begin()
            self._connection.send(request)
            self._last = time.monotonic()
            while message := self._receive(request):
                if isinstance(message, Exception):
                    raise message
                at, location, row = message
                if not location:
                    continue
                if row is not None:
                    yield location, row
                else:
                    name = f"{request.doc_id}:{at}" if request.form == "xml" else request.doc_id
                    self._leave(
                        name,
                        TOO_MUCH_TEXT,
                        f"more than {request.text:,} MiB",
                    )
                rows_done = at
                at = 0
            return None
        except OverLimit as over:
            return _Stop(over.reason, over.evidence, rows_done, at)
        except (EOFError, OSError):
            return _Stop(CRASHED, "", rows_done, at)

    def _receive(self, request: Request) -> Message:
        """Return the next message, and see meanwhile to it that the process keeps to its limits.

        OverLimit if it does not.
        """
        waits_since = time.monotonic()
        too_long = OverLimit(TOO_LONG, f"more than {request.seconds:,.0f} s")
        try:
            while not self._poll.poll(_LOOK):
                check_interrupts()
                if _resident(self._process) - self._size > request.memory * MIB:
                    raise OverLimit(TOO_MUCH_MEMORY, f"more than {request.memory:,} MiB")
                if time.monotonic() - waits_since > _PATIENCE * request.seconds:
                    raise too_long
            message: Message = self._connection.recv()
        except (EOFError, OSError):
            # The system has ended it, at the limit of processor time or for another reason.
            if time.monotonic() - self._last >= min(request.seconds, request.seconds_in_all) - 1:
                raise too_long from None
            raise
        self._last = time.monotonic()
        return message

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

    def _discard(self) -> None:
        """End the process; another process will read the next file."""
        with suppress(OSError):
            os.kill(self._process, signal.SIGKILL)
        self._connection.close()
        self._connection = None


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
