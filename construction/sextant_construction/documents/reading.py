"""A process that reads files for another one (readers.py), within limits that the system sets it.

It is forked from a process that has imported the libraries. A file may be made to stall or to
fill the memory, in code in C that nothing but the end of its process ends.
"""

import math
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from sextant.environments.readers import raw_files
from sextant.tools.errors import DataError, SextantError
from sextant.tools.platform.forkserver import serve_forks
from sextant.tools.records import JsonObject
from sextant_construction.documents.markup import (
    Unwritten,
    XmlPaths,
    read_wikitext,
    read_xml,
)
from sextant_construction.documents.pages import read_docx, read_html, read_pdf

PACKAGES = {
    "html": "trafilatura",
    "pdf": "pypdf",
    "docx": "docx",
    "wikitext": "mwparserfromhell",
    "xml": "mwparserfromhell",
}
_PAGES = {
    "html": read_html,
    "pdf": read_pdf,
    "docx": read_docx,
    "wikitext": read_wikitext,
}
MIB = 1 << 20


class OverLimit(Exception):
    """A file, or a document of one, is over a limit."""

    def __init__(self, reason: str, evidence: str) -> None:
        super().__init__(reason, evidence)
        self.reason = reason
        self.evidence = evidence


class Progress(NamedTuple):
    """How far the reading of a file is."""

    number: int  # of the document
    location: str = ""  # for messages; "" if the document is only begun
    row: JsonObject | None = None  # None if it has too much text


# None at the end of a file; what ended it before is OverLimit, or an error to be raised
Message = Progress | Exception | None
# Why a file is left out.
TOO_MUCH_MEMORY = "files that take too much memory to read"
UNPACKED_TOO_FAR = "files that unpack to too much"
TOO_DEEP = "files that are nested too deeply"


class Request(NamedTuple):
    """A file to read."""

    path: Path
    form: str
    doc_id: str
    record: XmlPaths
    # Documents of the file that are not wanted, because they were read before or are left out
    done: int
    seconds: float  # of processor time that a document may take
    seconds_in_all: float  # that the file may take
    memory: int  # MiB that reading may take beyond what the process has at its start
    text: int  # MiB of text that a document may have


def be_starter(descriptor: int, *forms: str) -> None:
    """Fork readers, with the libraries for these forms as far as they are installed."""
    for form in forms:
        with suppress(ImportError):  # who reads such a file says what to install
            import_module(PACKAGES[form])
    serve_forks(descriptor, _serve)


def _serve(connection: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    at_start = _address_space()
    with suppress(EOFError, OSError):
        connection.send(os.getpid())
        while True:
            request: Request = connection.recv()
            if at_start:
                # Far above what the other process ends this one for: libxml2 takes a text that it
                # has no memory for as ended, without a word. This is for what grows faster than the
                # other process looks.
                _limit(resource.RLIMIT_AS, at_start + 4 * request.memory * MIB)
            for message in _read(request):
                connection.send(message)


def _address_space() -> int:
    """Return the bytes of this process' address space; 0 if the system does not say."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0


def _read(request: Request) -> Iterator[Message]:
    """Yield the messages that answer a request."""
    used_before = _processor_time()
    _allow(request.seconds, used_before + request.seconds_in_all)
    try:
        for number, (location, write) in enumerate(_documents(request), start=1):
            if number > request.done:
                yield Progress(number)
                row = write()
                is_large = sum(map(len, row.values())) > request.text * MIB
                yield Progress(number, location, None if is_large else row)
            _allow(request.seconds, used_before + request.seconds_in_all)
        yield None
    except raw_files.TooLarge as error:
        yield OverLimit(UNPACKED_TOO_FAR, str(error))
    except MemoryError:
        yield OverLimit(TOO_MUCH_MEMORY, f"more than {4 * request.memory:,} MiB of addresses")
    except RecursionError:
        yield OverLimit(TOO_DEEP, "")
    except SextantError as error:
        yield error
    except Exception as error:  # noqa: BLE001  # of damaged files, the libraries fail in many ways
        words = str(error) or type(error).__name__
        yield DataError(f"{request.path} cannot be read as {request.form} ({words:.100})")


def _documents(request: Request) -> Iterator[Unwritten]:
    if request.form == "xml":
        yield from read_xml(request.path, request.doc_id, request.record)
        return
    read = _PAGES[request.form]
    yield Unwritten(str(request.path), lambda: {"id": request.doc_id, **read(request.path)})


def _processor_time() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _allow(seconds: float, latest: float) -> None:
    """Have the system end this process after some more `seconds` of processor time, and at
    `latest` then.
    """
    _limit(resource.RLIMIT_CPU, math.ceil(min(_processor_time() + seconds, latest)))


def _limit(name: int, most: int) -> None:
    """Set a limit of this process, no higher than the system lets it."""
    resource.setrlimit(name, (int(min(most, hard_limit(name))), resource.getrlimit(name)[1]))


def hard_limit(name: int) -> float:
    """Return the limit of a process that only the system can raise; infinite if there is none."""
    hard = resource.getrlimit(name)[1]
    return math.inf if hard == resource.RLIM_INFINITY else hard
