"""Read files in another process, so that a file made to stall, or to fill the memory, costs itself
alone.

Code in C that a file keeps busy ends with its process only. The system ends the process at its limit
of processor time; this side ends the process if it takes too much memory.
"""

import math
import os
import resource
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Self

from sextant.environments.readers.raw_files import TooLarge
from sextant.tools.errors import DataError, RunIncomplete, SextantError
from sextant.tools.platform.forkserver import fork_server, serve_forks
from sextant.tools.platform.interrupts import check_interrupts
from sextant.tools.records import JsonObject
from sextant_construction.documents.markup import Unwritten, XmlPaths, read_wikitext, read_xml
from sextant_construction.documents.pages import NEEDED, need, read_docx, read_html, read_pdf

# takes the name of what is left out, the reason, and the evidence
Leave = Callable[[str, str, str], object]

OVER_LIMIT = "files over corpus.file_seconds, file_memory or file_text"
MIB = 1 << 20
PAGES = {"html": read_html, "pdf": read_pdf, "docx": read_docx, "wikitext": read_wikitext}
_LOOK = 50  # milliseconds between two looks at the memory of the process
_MOST_OVER = 10  # documents of a file that are over a limit, before the rest of it is left out


class Limits(NamedTuple):
    """The limits for reading a document; MiB of its file give it as many seconds more."""

    seconds: int  # of processor time
    memory: int  # MiB
    text: int  # MiB


class Request(NamedTuple):
    """A file to read."""

    path: Path
    form: str
    doc_id: str
    record: XmlPaths
    done: int  # documents of the file that are not wanted, because they were read or are left out
    seconds: float
    text: int


class Progress(NamedTuple):
    """How far the reading of a file is."""

    number: int  # of the document
    location: str = ""  # for messages; "" if the document is only begun
    row: JsonObject | None = None  # None if it has too much text


class _ReaderEnded(Exception):
    """The process that read a file has ended before the file's end; the message says why."""


class Readers:
    """Reads files in another process, which begins with the first one."""

    def __init__(self, limits: Limits, leave: Leave) -> None:
        self._limits = limits
        self._leave = leave
        self._ends = ExitStack()
        self._start: Callable[[], Any] | None = None
        self._connection: Any = None
        self._poll = select.poll()
        self._process = 0  # its id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._ends.close()

    def read(
        self, path: Path, form: str, doc_id: str, record: XmlPaths
    ) -> Iterator[tuple[str, JsonObject]]:
        """Yield (place, row) of each document of a file.

        A document of an XML file that is over a limit is left out alone. TooLarge for another file
        that is, DataError for a damaged file.
        """
        seconds = self._limits.seconds + path.stat().st_size / MIB
        done = 0  # the last document that came
        for _ in range(_MOST_OVER):
            begun = 0
            try:
                request = Request(path, form, doc_id, record, done, seconds, self._limits.text)
                for begun, location, row in self._read_on(request):
                    name = f"{doc_id}:{begun}" if form == "xml" else doc_id
                    if row is not None:
                        yield location, row
                    elif location:
                        self._leave(
                            name, OVER_LIMIT, f"more than {self._limits.text:,} MiB of text"
                        )
                    done = begun if location else done
                return
            except _ReaderEnded as ended:
                if form != "xml" or begun <= done:
                    raise TooLarge(f"{ended}, after {done:,} documents of it") from None
                self._leave(f"{doc_id}:{begun}", OVER_LIMIT, str(ended))
                done = begun
        raise TooLarge(
            f"{_MOST_OVER} of its documents are; those after number {done:,} are left out"
        )

    def _read_on(self, request: Request) -> Iterator[Progress]:
        """Yield what the process says of a file. _ReaderEnded if it ends, or is ended, before."""
        if self._connection is None:
            self._begin()
        try:
            self._connection.send(request)
            size = 0
            while message := self._receive(size):
                if isinstance(message, Exception):
                    raise message
                size = size or _resident(self._process)
                yield message
        except (EOFError, _ReaderEnded, ConnectionError) as ended:
            with suppress(OSError):
                os.kill(self._process, signal.SIGKILL)
            self._connection.close()
            self._connection = None
            why = f"more than {request.seconds:,.0f} s, or the end of the process that reads it"
            raise _ReaderEnded(str(ended) or why) from None

    def _receive(self, size: int) -> Progress | Exception | None:
        """Return the next message. _ReaderEnded if the process takes too much memory beyond `size`."""
        while not self._poll.poll(_LOOK):
            check_interrupts()
            if size and _resident(self._process) - size > self._limits.memory * MIB:
                raise _ReaderEnded(f"more than {self._limits.memory:,} MiB of memory")
        message: Progress | Exception | None = self._connection.recv()
        return message

    def _begin(self) -> None:
        try:
            if self._start is None:
                self._start = self._ends.enter_context(fork_server(__name__))
            self._connection = self._start()
            self._process = self._connection.recv()
        except (EOFError, OSError) as error:
            wrong = f"no process can be started that reads files ({error or 'it ended'})"
            raise RunIncomplete(f"{wrong}; see what ulimit -a allows") from None
        self._poll = select.poll()  # a connection's own way to wait makes a selector each time
        self._poll.register(self._connection, select.POLLIN)


def _resident(process: int) -> int:
    """Return the bytes that a process has in memory; 0 if the system does not say, or it has ended."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _serve(connection: Connection) -> None:
    """Answer requests, in the process that reads, until no more come."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(EOFError, OSError):
        connection.send(os.getpid())
        while True:
            for message in _read(connection.recv()):
                connection.send(message)


def _read(request: Request) -> Iterator[Progress | Exception | None]:
    """Yield the messages that answer a request; None is at the end of a whole file."""
    try:
        if request.form in NEEDED:
            need(*NEEDED[request.form])  # what its import takes is not the file's
        yield Progress(0)
        _allow(request.seconds)
        for number, (location, write) in enumerate(_documents(request), start=1):
            if number > request.done:
                yield Progress(number)
                row = write()
                is_large = sum(map(len, row.values())) > request.text * MIB
                yield Progress(number, location, None if is_large else row)
            _allow(request.seconds)
        yield None
    except SextantError as error:
        yield error
    except Exception as error:  # noqa: BLE001  # of damaged files, the libraries fail in many ways
        words = str(error) or type(error).__name__
        yield DataError(f"{request.path} cannot be read as {request.form} ({words:.100})")


def _documents(request: Request) -> Iterator[Unwritten]:
    if request.form == "xml":
        yield from read_xml(request.path, request.doc_id, request.record)
        return
    read = PAGES[request.form]
    yield Unwritten(str(request.path), lambda: {"id": request.doc_id, **read(request.path)})


def _allow(seconds: float) -> None:
    """Have the system end this process after some more `seconds` of processor time, or at its own limit."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    most = math.ceil(usage.ru_utime + usage.ru_stime + seconds)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


be_starter = partial(serve_forks, serve=_serve)
