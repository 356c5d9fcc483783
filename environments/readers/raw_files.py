"""Files of data sets as lines of text: unpacked, decoded, and refused if they are no such file.

A file is unpacked by its first bytes (gzip, bzip2, xz, zstd), whatever its name ends in. Text is
UTF-8, or UTF-16 and UTF-32 that begin with a byte order mark. Every error is a DataError that names
the file and the line. Tables of them are in files.py.
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
from typing import Any, Self

from sextant.tools.errors import DataError
from sextant.tools.platform.files import open_input

LONGEST = 64 << 20  # bytes in a line; a file that has lost its line ends must not fill the memory
# Times its own size that a compressed file may hold, plus LONGEST; text comes to 3 to 10 times
UNPACKED = 100
LARGEST_RECODED = 1 << 30  # bytes of a file in UTF-16 or UTF-32, which is held in memory

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\0"
_ZSTD = b"\x28\xb5\x2f\xfd"
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")  # the second is of an empty file
_PACKED_ENDING = re.compile(r"\.(gz|bz2|xz|zst)$", re.I)
# First bytes of files that hold no data of ours -> what the file is, and what to do.
_STRANGERS: dict[bytes, str] = {
    b"version https://git-lfs.github.com/spec/": "a pointer: Git LFS has not fetched it; run `git "
    "lfs pull`",
    b"/annex/objects/": "a pointer: git-annex has not fetched it; run `git annex get`",
    b"PK\x03\x04": "a ZIP archive or a spreadsheet; unpack it, or save the sheet as CSV",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it",
    b"SQLite format 3\0": "an SQLite database; write its tables as CSV or JSON Lines",
}
_HTML = re.compile(rb"\s*(<!doctype html|<html[\s>])", re.I)
# The longer mark first: UTF-32's begins with UTF-16's.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class TooLarge(DataError):
    """A file, or a line of it, is larger than any of data is."""


def find_ending(path: Path) -> str:
    """Return how the name of a file ends, in small letters, without the ending of a packed file."""
    return Path(_PACKED_ENDING.sub("", path.name)).suffix.lower()


def is_packed(path: Path) -> bool:
    """Return whether the name of a file says that it is packed."""
    return bool(_PACKED_ENDING.search(path.name))


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
    data.

    Such are pointers of Git LFS, archives and, unless `html` files are wanted, pages that say why
    there is no file.
    """
    try:
        with open_input(path) as file:
            start = file.read(512)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    for first_bytes, description in _STRANGERS.items():
        if start.startswith(first_bytes):
            raise DataError(f"{path} is {description}")
    if start[257:262] == b"ustar" or find_ending(path) in (".tar", ".tgz"):
        raise DataError(f"{path} is a tar archive; unpack it")
    if not html and _HTML.match(start.removeprefix(codecs.BOM_UTF8)):
        raise DataError(
            f"{path} is a page in HTML, not data; a download may have ended at a login; get the "
            f"file again"
        )
    return start


def open_unpacked(path: Path, *, html: bool = False) -> io.BufferedIOBase:
    """Open a file for reading its bytes, unpacked if they are packed; `html` as
    `check_data` takes it.
    """
    start = check_data(path, html=html)
    if start.startswith((b"PAR1", b"ARROW1")):
        form = "Parquet" if start.startswith(b"PAR1") else "Arrow"
        name = f"files of a collection are called NAME.{form.lower()}"
        raise DataError(f"{path} is {form}, not text; write it as text, or, as {name}, rename it")
    # The file may begin with a frame that is skipped.
    if start.startswith(_ZSTD) or path.suffix.lower() == ".zst":
        # Unlike the package zstandard, this reads every frame of a file, and says when one is torn.
        return io.BufferedReader(_import_pyarrow().input_stream(str(path), compression="zstd"))
    if _BZIP2.match(start):
        return bz2.open(path, "rb")
    if start.startswith(_XZ):
        return lzma.open(path, "rb")
    return gzip.open(path, "rb") if start.startswith(_GZIP) else path.open("rb")


class BoundedFile:
    """The bytes of a file, unpacked; TooLarge if it unpacks to more than `max_unpacked_bytes` has."""

    def __init__(self, path: Path, *, html: bool = False) -> None:
        """Open the file; `html` as `check_data` takes it."""
        self._path = path
        self._left = max_unpacked_bytes(path)
        self._file = open_unpacked(path, html=html)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, or all that are left."""
        data = self._file.read(self._left + 1 if size < 0 else size)
        self._left -= len(data)
        if self._left < 0:
            raise unpack_limit_error(str(self._path))
        return data


def _import_pyarrow() -> Any:
    import pyarrow  # here, because most data is not in zstd

    return pyarrow


def read_lines(path: Path, *, whole: bool = False, html: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its line end) of each line that is not blank;
    `whole`: all, with it.
    """
    number = 0
    try:
        budget = max_unpacked_bytes(path)
        with open_unpacked(path, html=html) as file:
            for raw in _split_lines(file, path):
                number += 1
                if (budget := budget - len(raw)) < 0:
                    raise unpack_limit_error(f"{path}, line {number}")
                if len(raw) > LONGEST:
                    raise TooLarge(
                        f"{path}, line {number}: longer than {LONGEST >> 20} MiB, so no line of "
                        f"this data"
                    )
                try:  # files that were put together have a mark at each joint
                    text = raw.removeprefix(codecs.BOM_UTF8).decode()
                except UnicodeDecodeError as error:
                    raise _refuse_encoding(f"{path}, line {number}", raw, error) from None
                if number == 1 and text[:8].count("\0") > 2:
                    raise DataError(
                        f"{path}, line 1: every second byte is 0, as in UTF-16; write the file in "
                        f"UTF-8"
                    )
                if whole or text.strip():
                    yield number, text if whole else text.strip("\r\n")
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        if str(error).startswith("Not a gzipped file"):  # bytes behind a packed part that is whole
            remedy = "`gunzip -c FILE > NEW` leaves them out"
            raise DataError(
                f"{path}: bytes that are no gzip follow its last line, {number}; {remedy}"
            ) from None
        raise DataError(
            f"{path}: the packed file breaks off after line {number} ({error})"
        ) from None
    except OSError as error:
        # Such as a frame of zstd with a window of 2 GiB, which its command line asks for by --long.
        remedy = "; unpack it, and give the file that comes out" if is_packed(path) else ""
        raise DataError(f"{path} cannot be read: {error.strerror or error}{remedy}") from None


def _find_encoding(start: bytes) -> str:
    """Return the encoding that a byte order mark names; "" for UTF-8."""
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), "")


def _recode(content: bytes, path: Path, encoding: str) -> bytes:
    """Return the content of a file in UTF-8."""
    try:
        return content.decode(encoding).encode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: it begins as {encoding.upper()} and is none ({error.reason})"
        ) from None


def _split_lines(file: io.BufferedIOBase, path: Path) -> Iterator[bytes]:
    """Yield each line in UTF-8, with its end.

    Carriage returns end lines if there is no line feed (old Macs).
    """
    first = file.readline(LONGEST + 1)
    if encoding := _find_encoding(first):
        content = first + file.read(min(LARGEST_RECODED, max_unpacked_bytes(path)))
        if file.read(1):
            raise DataError(
                f"{path} is too large to be read in {encoding.upper()}; write it in UTF-8"
            )
        first = _recode(content, path, encoding)
        yield from io.BytesIO(first) if b"\n" in first else first.splitlines(keepends=True)
        return
    if b"\r" in first and not first.endswith(b"\n") and len(first) <= LONGEST:
        yield from first.splitlines(keepends=True)
    elif first:
        yield first
    while raw := file.readline(LONGEST + 1):
        yield raw


def _refuse_encoding(location: str, raw: bytes, error: UnicodeDecodeError) -> DataError:
    """Return the error for a line that is not UTF-8."""
    remedy = "write the file in UTF-8, e.g. with `iconv -f WINDOWS-1252 -t UTF-8`"
    return DataError(f"{location}: byte {raw[error.start]:#04x} is not UTF-8; {remedy}")
