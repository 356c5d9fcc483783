"""A process that reads files for another one (readers.py), within limits that the system sets it.

It is forked from a process that has imported the libraries. A file may be made to stall or to
fill the memory, in code in C that nothing but the end of its process ends.
"""

import math
import os
import resource
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from sextant.environments.readers import raw_files
from sextant.tools.errors import DataError, SextantError
from sextant.tools.platform.forkserver import serve_forks
from sextant_construction.documents.pages import NEEDED, read_docx, read_html, read_pdf

_READERS = {"html": read_html, "pdf": read_pdf, "docx": read_docx}
MIB = 1 << 20

# Why a file is left out.
TOO_MUCH_MEMORY = "files that take too much memory to read"
TOO_MUCH_TEXT = "files with too much text"
UNPACKED_TOO_FAR = "files that unpack to too much"
TOO_DEEP = "files that are nested too deeply"


class Request(NamedTuple):
    """A file to read."""

    path: Path
    form: str
    seconds: float  # of processor time that it may take
    memory: int  # MiB that reading may take beyond what the process has at its start
    text: int  # MiB of text that it may have


class Answer(NamedTuple):
    """The columns of a file, why it is left out, or the error for a damaged file."""

    row: Mapping[str, str] = {}
    reason: str = ""
    evidence: str = ""
    error: SextantError | None = None


def be_starter(descriptor: int, *forms: str) -> None:
    """Fork readers, with the libraries for these forms as far as they are installed."""
    for form in forms:
        package, _ = NEEDED[form]
        with suppress(ImportError):  # the reader of such a file says what to install
            import_module(package)
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
            usage = resource.getrusage(resource.RUSAGE_SELF)
            used = usage.ru_utime + usage.ru_stime
            _limit(resource.RLIMIT_CPU, math.ceil(used + request.seconds))
            connection.send(_read(request))


def _address_space() -> int:
    """Return the bytes of this process' address space; 0 if the system does not say."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0


def _read(request: Request) -> Answer:
    try:
        row = _READERS[request.form](request.path)
    except raw_files.TooLarge as error:
        return Answer(reason=UNPACKED_TOO_FAR, evidence=str(error))
    except MemoryError:
        addresses = f"more than {4 * request.memory:,} MiB of addresses"
        return Answer(reason=TOO_MUCH_MEMORY, evidence=addresses)
    except RecursionError:
        return Answer(reason=TOO_DEEP)
    except SextantError as error:
        return Answer(error=error)
    except Exception as error:  # noqa: BLE001  # of damaged files, the libraries fail in many ways
        words = str(error) or type(error).__name__
        wrong = f"{request.path} cannot be read as {request.form} ({words:.100})"
        return Answer(error=DataError(wrong))
    if sum(map(len, row.values())) > request.text * MIB:
        return Answer(reason=TOO_MUCH_TEXT, evidence=f"more than {request.text:,} MiB")
    return Answer(row)


def _limit(name: int, most: int) -> None:
    """Set a limit of this process, no higher than the system lets it."""
    hard = resource.getrlimit(name)[1]
    resource.setrlimit(name, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
