"""Files that survive a crash: lines that are safe once appended, and files that are replaced whole or not at all."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path


class InputFile(str):
    """A file of the user's, as the type of a parameter: a run is another one when its content is; "" is none."""


def read_lines(path: Path, *, repair: bool = False) -> list[bytes]:
    """The whole lines of a file that is appended to, without line ends; none when it is absent.

    What follows the last line end was cut off while it was written, and is left out; with `repair`, it is
    also cut off the file, so that the next line does not join it.
    """
    data = path.read_bytes() if path.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if repair and whole != data:
        os.truncate(path, len(whole))
    return whole.splitlines()


def append_line(path: Path, line: bytes) -> None:
    """Add one line; it is on disk when this returns. On OSError, e.g. a full disk, the file is as before."""
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


def replace(path: Path, text: str) -> None:
    """Write a file in one step: a reader, or a crash, finds the old one or the new one. OSError on failure."""
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync(path.parent)
    except OSError:
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
