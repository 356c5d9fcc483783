"""Files of data sets as lines of text: unpacked, decoded, and refused if they are no such file.

A file is unpacked by its first bytes (gzip, bzip2, xz, zstd), whatever its name ends in. Text is
UTF-8; lines end with a line feed. Every error is a DataError that names the file and, where there
is one, the line. Tables of lines are in files.py. Left out: archives, and other encodings.
"""

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Self, cast

from sextant.tools.errors import DataError
from sextant.tools.platform.files import open_input

LONGEST = 64 << 20  # bytes in a line; a file that has lost its line ends must not fill the memory
# Times its own size that a compressed file may hold, plus LONGEST; text comes to 3 to 10 times
UNPACKED = 100

_PACKED_ENDING = re.compile(r"\.(gz|bz2|xz|zst)$", re.I)
_HTML = re.compile(rb"\s*(<!doctype html|<html[\s>])", re.I)
# First bytes of files that stand in for data.
_POINTERS = {
    b"version https://git-lfs.github.com/spec/": "Git LFS has not fetched it; run `git lfs pull`",
    b"/annex/objects/": "git-annex has not fetched it; run `git annex get`",
}
_DAMAGE = (EOFError, OSError, UnicodeError, zlib.error, lzma.LZMAError)


class TooLarge(DataError):
    """A file, or a line of it, is larger than any of data is."""


def find_ending(path: Path) -> str:
    """Return how the name of a file ends, in small letters, without the ending of a packed file."""
    return Path(_PACKED_ENDING.sub("", path.name)).suffix.lower()


def max_unpacked_bytes(*paths: Path) -> int:
    """Return how many bytes the files may have in all once unpacked; plain files never have
    more.
    """
    return LONGEST + UNPACKED * sum(path.stat().st_size for path in paths)


def unpack_limit_error(location: str) -> TooLarge:
    """Return the error for a file that unpacks to more, such as one made to fill a disk."""
    return TooLarge(
        f"{location}: it unpacks to more than {UNPACKED} times its size, so it is none of this data"
    )


def check_data(path: Path, *, html: bool = False) -> bytes:
    """Return the first bytes of a file. DataError if they are those of a file that stands in for
    data: a pointer or, unless `html` files are wanted, a page that says why there is no file.
    """
    try:
        with open_input(path) as file:
            start = file.read(512)
    except OSError as error:
        raise _refuse_damage(path, error) from None
    for first_bytes, reason in _POINTERS.items():
        if start.startswith(first_bytes):
            raise DataError(f"{path} is a pointer: {reason}")
    if not html and _HTML.match(start.removeprefix(codecs.BOM_UTF8)):
        raise DataError(f"{path} is a page in HTML, not data; get the file again")
    return start


def _open_zstd(path: Path, _mode: str) -> IO[bytes]:
    import pyarrow  # here, because most data is not in zstd

    # Unlike the package zstandard, this reads every frame of a file, and says when one is torn.
    return cast(IO[bytes], pyarrow.input_stream(str(path), compression="zstd"))


_OPENERS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\0": lzma.open,
    b"BZh": bz2.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
    b"": io.FileIO,
}


class BoundedFile:
    """The bytes of a file, unpacked. TooLarge if there are more than `max_unpacked_bytes` has."""

    def __init__(self, path: Path, *, html: bool = False) -> None:
        """Open the file; `html` as `check_data` takes it."""
        self._path = path
        self._left = max_unpacked_bytes(path)
        start = check_data(path, html=html)
        opener = next(open_ for magic, open_ in _OPENERS.items() if start.startswith(magic))
        try:
            self._file: IO[bytes] = io.BufferedReader(opener(path, "rb"))
        except OSError as error:
            raise _refuse_damage(path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yield each line, with its end, up to LONGEST bytes of it and one more."""
        while line := self._file.readline(LONGEST + 1):
            yield self._count(line)

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, or all that are left."""
        return self._count(self._file.read(self._left + 1 if size < 0 else size))

    def _count(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise unpack_limit_error(str(self._path))
        return data


def read_lines(path: Path, *, whole: bool = False, html: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its line end) of each line that is not blank;
    `whole`: all, with it.
    """
    number = 0
    try:
        with BoundedFile(path, html=html) as file:
            for number, raw in enumerate(file, start=1):
                if len(raw) > LONGEST:
                    raise TooLarge(
                        f"{path}, line {number}: longer than {LONGEST >> 20} MiB, so no line of "
                        f"this data"
                    )
                # Files that were put together have a mark at each joint.
                text = raw.removeprefix(codecs.BOM_UTF8).decode()
                if whole or text.strip():
                    yield number, text if whole else text.strip("\r\n")
    except UnicodeDecodeError as error:
        byte = f"byte {error.object[error.start]:#04x} is not UTF-8"
        remedy = "write the file in UTF-8, e.g. with `iconv -f WINDOWS-1252 -t UTF-8`"
        raise DataError(f"{path}, line {number}: {byte}; {remedy}") from None
    except _DAMAGE as error:
        raise _refuse_damage(path, error, number) from None


def _refuse_damage(path: Path, error: Exception, line: int = 0) -> DataError:
    place = f" after line {line}" if line else ""
    return DataError(f"{path} cannot be read{place}: {getattr(error, 'strerror', '') or error}")
