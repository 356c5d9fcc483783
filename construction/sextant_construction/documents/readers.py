"""Read files in another process, so that a file made to stall, or to fill the memory, costs itself
alone.

Code in C that a file keeps busy ends with its process only: the system ends that at its limit of
processor time, and the process ends itself if it has taken too much memory.
"""

import math
import os
import resource
import sys
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
from sextant_construction.documents.markup import Unwritten, read_wikitext, read_xml
from sextant_construction.documents.pages import NEEDED, need, read_docx, read_html, read_pdf

# takes the name of what is left out, the reason, and the evidence
Leave = Callable[[str, str, str], object]

OVER_LIMIT = "files over corpus.file_seconds, file_memory or file_text"
MIB = 1 << 20
PAGES = {"html": read_html, "pdf": read_pdf, "docx": read_docx, "wikitext": read_wikitext}
_LOOK = 0.25  # seconds between two looks for a signal
_MOST_OVER = 10  # documents of a file that are over a limit, before the rest of it is left out
# Times the memory of a document, or 512 MiB, that the system gives. libxml2 takes a text that it
# has no memory for as ended, without a word: so the process has to see before that that it has taken
# too much.
_ADDRESSES = 4


class Limits(NamedTuple):
    """The limits for reading a document; MiB of its file give it as many seconds more."""

    seconds: float  # of processor time
    memory: int  # MiB
    text: int  # MiB


class Request(NamedTuple):
    """A file to read."""

    path: Path
    form: str
    doc_id: str
    record: str  # element of XML that is a document; "" for the whole file
    limits: Limits
    done: int = (
        0  # documents of the file that are not wanted, because they were read or are left out
    )


class Progress(NamedTuple):
    """How far the reading of a file is."""

    number: int  # of the document
    location: str = ""  # for messages; "" if the document is only begun
    row: JsonObject | None = None  # None if it has too much text


class Readers:
    """Reads files in another process, which begins with the first one."""

    def __init__(self, limits: Limits, leave: Leave) -> None:
        self._limits = limits
        self._leave = leave
        self._ends = ExitStack()
        self._start: Callable[[], Any] | None = None
        self._connection: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._ends.close()

    def read(
        self, path: Path, form: str, doc_id: str, record: str
    ) -> Iterator[tuple[str, JsonObject]]:
        """Yield (place, row) of each document of a file.

        A document of an XML file that is over a limit is left out alone. TooLarge for another file
        that is, DataError for a damaged file.
        """
        seconds, memory, text = self._limits
        seconds += path.stat().st_size / MIB
        request = Request(path, form, doc_id, record, Limits(seconds, memory, text))
        for _ in range(_MOST_OVER):
            begun = 0
            for begun, location, row in self._read_on(request):
                if row is not None:
                    yield location, row
                elif location:
                    name = f"{doc_id}:{begun}" if form == "xml" else doc_id
                    self._leave(name, OVER_LIMIT, f"more than {text:,} MiB of text")
                if location:
                    request = request._replace(done=begun)
            if self._connection:
                return
            over = f"it takes over {seconds:,.0f} s or {memory:,} MiB, or ends its reader"
            if form != "xml" or begun <= request.done:
                raise TooLarge(f"{over}; documents before that: {request.done:,}")
            self._leave(f"{doc_id}:{begun}", OVER_LIMIT, over)
            request = request._replace(done=begun)
        raise TooLarge(
            f"{_MOST_OVER} documents of it; those after number {request.done:,} are left out"
        )

    def _read_on(self, request: Request) -> Iterator[Progress]:
        """Yield what the process says of a file; without a connection at the end, it has ended."""
        if self._connection is None:
            self._connection = self._begin()
        try:
            self._connection.send(request)
            while True:
                while not self._connection.poll(_LOOK):
                    check_interrupts()
                message = self._connection.recv()
                if isinstance(message, Exception):
                    raise message
                if message is None:
                    return
                yield message
        except (EOFError, ConnectionError):
            self._connection.close()
            self._connection = None

    def _begin(self) -> Any:
        """Return the connection with a new process."""
        try:
            if self._start is None:
                self._start = self._ends.enter_context(fork_server(__name__))
            connection = self._start()
            connection.recv()
        except (EOFError, OSError) as error:
            wrong = f"no process can be started that reads files ({error or 'it ended'})"
            raise RunIncomplete(f"{wrong}; see what ulimit -a allows") from None
        return connection


def _serve(connection: Connection) -> None:
    """Answer requests, in the process that reads, until no more come."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(EOFError, OSError):
        connection.send(None)
        while True:
            for message in _read(connection.recv()):
                connection.send(message)


def _read(request: Request) -> Iterator[Progress | Exception | None]:
    """Yield the messages that answer a request; None is at the end of a whole file."""
    seconds, memory, text = request.limits
    try:
        if request.form in NEEDED:
            need(*NEEDED[request.form])  # what its import takes is not the file's
        before = _peak()
        _limit(resource.RLIMIT_AS, before + _ADDRESSES * max(512, memory) * MIB)
        _limit(resource.RLIMIT_CPU, _used() + seconds)
        for number, (location, write) in enumerate(_documents(request), start=1):
            if number > request.done:
                yield Progress(number)
                row = write()
                if _peak() - before > memory * MIB:
                    os._exit(1)
                is_large = sum(map(len, row.values())) > text * MIB
                yield Progress(number, location, None if is_large else row)
            _limit(resource.RLIMIT_CPU, _used() + seconds)
        yield None
    except MemoryError:
        os._exit(1)
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


def _used() -> float:
    """Return the seconds of processor time that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _peak() -> int:
    """Return the most bytes that this process has had in memory."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _limit(name: int, most: float) -> None:
    """Have the system end this process at a limit, or at its own."""
    hard = resource.getrlimit(name)[1]
    wanted = math.ceil(most)
    resource.setrlimit(
        name, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
    )


be_starter = partial(serve_forks, serve=_serve)
