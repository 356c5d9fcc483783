"""Files that survive a crash: lines that are safe once appended, and files that are replaced whole or not at all."""

import errno
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import orjson


class InputFile(str):
    """A file of the user's, as the type of a parameter: a run is another one when its content is; "" is none."""


def read_lines(path: Path, *, repair: bool = False) -> list[bytes]:
    """The whole lines of a file that is appended to, without line ends; none when it is absent.

    What follows the last line end was cut off while it was written, and is left out; with `repair`, it is
    also cut off the file, so that the next line does not join it.
    """
    return [line[:-1] for line in lines(path, repair=repair)]


def lines(path: Path, *, repair: bool = False) -> Iterator[bytes]:
    """The same one after the other, with their line ends: such a file may be larger than memory."""
    if not path.exists():
        return
    with path.open("rb", buffering=1 << 16) as file:  # lines have kilobytes: four times as fast as by default
        for line in file:
            if line.endswith(b"\n"):
                yield line
            elif repair:
                os.truncate(path, file.tell() - len(line))


def loads(line: bytes) -> Any:
    """JSON as Python reads it, at orjson's speed; ValueError for what is none."""
    try:
        return orjson.loads(line)
    except ValueError:  # lone surrogates and NaN: Python reads and writes them
        return json.loads(line)


def dumps(row: Any) -> str:
    """JSON in a line, letters as they are, at orjson's speed."""
    try:
        return orjson.dumps(row).decode()
    except TypeError:  # lone surrogates
        return json.dumps(row, ensure_ascii=False)


def append_line(path: Path, line: bytes) -> int:
    """Add one line; it is on disk when this returns, which is where it begins. On OSError the file is as before."""
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            if file.write(line + b"\n") <= len(line):
                raise OSError(0, "only a part of the line could be written; the disk is full")
            os.fsync(file.fileno())
            if size == 0:
                sync(path.parent)
        except OSError:
            with suppress(OSError):
                os.truncate(path, size)
            raise
    return size


@dataclass(slots=True)
class _Batch:
    """Lines that go to disk together."""

    lines: list[bytes] = field(default_factory=list)
    done: bool = False
    error: OSError | None = None


class Appender:
    """A file that many threads append lines to; what comes while one is being written is then synced together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._next = _Batch()  # what is written when its first line's thread gets its turn
        self._writing = False

    def append(self, line: bytes) -> None:
        """Add one line; it is on disk when this returns. On OSError, e.g. a full disk, none of its batch is."""
        with self._changed:
            batch = self._next
            batch.lines.append(line)
            while self._writing and not batch.done:
                self._changed.wait()
            if leads := not batch.done:
                self._writing, self._next = True, _Batch()
        if leads:
            self._write(batch)
        if batch.error:
            raise OSError(batch.error.errno, batch.error.strerror)

    def _write(self, batch: _Batch) -> None:
        batch.error = OSError(errno.EINTR, "interrupted")  # so the others learn of a Ctrl-C in this thread
        try:
            append_line(self._path, b"\n".join(batch.lines))
            batch.error = None
        except OSError as error:
            batch.error = error
        finally:
            with self._changed:
                batch.done, self._writing = True, False
                self._changed.notify_all()


def replace(path: Path, text: str) -> None:
    """Write a file in one step: a reader, or a crash, finds the old one or the new one. OSError on failure."""
    with replacing(path) as file:
        file.write(text)


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """The same for what is written piece by piece; the new file is there when the block ends without an exception."""
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync(path.parent)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Put a file's content, or a folder's list of names, on disk: a new file is safe only when its name is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
