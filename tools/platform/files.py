"""Files that survive a crash: lines are on disk once appended, and files are replaced whole or not
at all.

Files with answers or texts can be read by their owner alone (PRIVATE); in $SEXTANT_HOME, which
several people may share, the umask decides (SHARED). A draft is locked while its writer lives;
unlocked drafts are removed.
"""

import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO, TypeVar

import orjson

from sextant.tools.errors import DataError, UsageError

T = TypeVar("T")
# modes of files; who may read a folder may enter it as well
PRIVATE = 0o600
SHARED = 0o666
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # there is no room
TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)  # files, of this process or of the machine
_SQLITE_CANTOPEN = 14  # sqlite3.SQLITE_CANTOPEN, without its import
_DRAFT = ".sextant-draft"
LARGEST_INPUT = 64 << 20  # bytes of a file that is read whole, such as settings, prompts, prices


class InputFilePath(str):
    """Parameter type for a file whose content is part of a run's identity; "" is no file."""


def open_input(path: Path) -> io.BufferedReader:
    """Open a file that a user named, or that lies in a user's folder, for reading its bytes.

    /dev/null is an empty file, as everywhere. OSError for anything but a file: a pipe would be waited
    for without end, and a device may never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and path.samefile(os.devnull)):
        # Lines have kilobytes: four times as fast as by default.
        return io.BufferedReader(io.FileIO(descriptor, "rb"), 1 << 16)
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))


def read_input(path: Path, largest: int = LARGEST_INPUT) -> bytes:
    """Read a whole file, as `open_input` opens it; OSError for a file of more than `largest`
    bytes.
    """
    with open_input(path) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise OSError(
            errno.EINVAL,
            f"it has more than {largest >> 20} MiB, too much for such a file",
            str(path),
        )
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, as `read_input` does.

    ValueError for a text that is no TOML, or nested too deep.
    """
    try:
        return tomllib.loads(read_input(path).decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("brackets are nested too deep in it") from None


def load_toml(path: Path, remedy: str = "") -> dict[str, Any]:
    """Read a TOML file. DataError, for no TOML with a `remedy`, if it cannot be read."""
    try:
        return read_toml(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read as TOML: {error}{remedy}") from None


def walk(folder: Path, deepest: int = 100) -> Iterator[Path]:
    """Yield all that is in a folder and below, but for folders, in the order of names.

    Links to folders are not followed. OSError if folders are nested deeper than anyone intends.
    """
    todo = [(folder, 0)]
    while todo:
        subfolder, depth = todo.pop()
        if depth > deepest:
            raise OSError(
                errno.ELOOP, f"it has folders in folders, {deepest} deep and deeper", str(folder)
            )
        try:
            with os.scandir(subfolder) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # there is none, or it has been removed meanwhile, or is somebody else's
        yield from (Path(entry.path) for entry in inside if not entry.is_dir(follow_symlinks=False))
        todo += [
            (Path(entry.path), depth + 1)
            for entry in reversed(inside)
            if entry.is_dir(follow_symlinks=False)
        ]


def iter_lines(path: Path, *, repair: bool = False) -> Iterator[bytes]:
    """Yield the whole lines of a file, with their ends; with `repair`, also cut a torn last
    line off the file.
    """
    if not path.exists():
        return
    with open_input(path) as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line
            elif repair:
                os.truncate(path, file.tell() - len(line))


def read_lines(
    path: Path, make: Callable[[bytes], T], mend: str, *, repair: bool = False
) -> Iterator[tuple[bytes, T]]:
    """Yield each line with the value that `make` returns for it.

    DataError, with the line's number, if `make` raises ValueError.
    """
    for number, line in enumerate(iter_lines(path, repair=repair), start=1):
        try:
            value = make(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number} is damaged ({error}); {mend}") from None
        yield line, value


def loads(line: bytes | str) -> Any:
    """Parse JSON as Python does, at orjson's speed; ValueError for anything else."""
    try:
        return orjson.loads(line)
    except ValueError:  # lone surrogates and NaN: Python reads and writes them
        try:
            return json.loads(line)
        except RecursionError:
            raise ValueError("it is nested too deep") from None


def dumps(row: Any) -> str:
    """Write a value as a line of JSON; halves of surrogate pairs are escaped, and no other character."""
    return encode_row(row).decode()


def encode_row(row: Any) -> bytes:
    """Return the bytes of `dumps`, at orjson's speed."""
    try:
        return orjson.dumps(row)
    except TypeError:
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace")


def describe(error: OSError) -> str:
    """Return the text of an OSError, with its file if it has any; libraries raise errors with a
    text alone.
    """
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def read_object(text: str) -> dict[str, Any] | None:
    """Return the object that a text is as JSON; None for any other text."""
    with suppress(ValueError, RecursionError):
        if isinstance(value := json.loads(text), dict):
            return value
    return None


def append_line(
    path: Path,
    line: bytes,
    mode: int = PRIVATE,
) -> int:
    """Add one line, and return its position once it is on disk.

    On OSError the file is as before.
    """
    starts, error = append_lines(path, [line], mode)
    if error:
        raise error
    return starts[0]


class AppendedLines(NamedTuple):
    """The lines that `append_lines` has put on disk."""

    starts: list[int]  # their positions in the file
    error: OSError | None  # why the next line is not in the file


def append_lines(
    path: Path,
    lines: Iterable[bytes],
    mode: int = PRIVATE,
) -> AppendedLines:
    """Add lines, and return when they are on disk. If one cannot be written, those before it stay."""
    starts = list[int]()
    try:
        with open_file(
            path,
            "ab",
            mode,
            buffering=0,
        ) as file:
            size = file.seek(0, os.SEEK_END)
            error = _write_lines(file, size, lines, starts)
            try:
                os.fsync(file.fileno())
                if size == 0:
                    sync(path.parent)
            except OSError:
                starts.clear()
                with suppress(OSError):
                    os.ftruncate(file.fileno(), size)
                raise
    except OSError as problem:
        error = problem
    return AppendedLines(starts, error)


def _write_lines(
    file: IO[Any],
    end: int,
    lines: Iterable[bytes],
    starts: list[int],
) -> OSError | None:
    """Write lines at the `end` of a file, and add their positions to `starts`."""
    for line in lines:
        try:
            if file.write(line + b"\n") <= len(line):
                raise OSError(0, "only a part of the line could be written; the disk is full")
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(file.fileno(), end)
            return error
        starts.append(end)
        end += len(line) + 1
    return None


def replace(
    path: Path,
    content: str | bytes,
    mode: int = PRIVATE,
) -> None:
    """Write a file in a single step: a reader, or a crash, finds the old file or the new file."""
    with replacing(path, mode) as file:
        if isinstance(content, bytes):
            file.buffer.write(content)
        else:
            file.write(content)


@contextmanager
def replacing(path: Path, mode: int = PRIVATE) -> Iterator[TextIO]:
    """Replace a file, once the block that writes it ends without an exception.

    An OSError names it.
    """
    with with_filename(path), temporary_sibling(path, mode) as draft:
        with draft.open("w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync(path.parent)


@contextmanager
def with_filename(path: Path) -> Iterator[None]:
    """Make an OSError that names no file, or a draft, name `path` instead."""
    try:
        yield
    except OSError as error:
        if error.errno and (error.filename is None or str(error.filename).endswith(_DRAFT)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def remedy(error: Exception) -> str:
    """Return the remedy for a file that cannot be written, by its OSError or SQLite error."""
    sqlite_code = (
        getattr(error, "sqlite_errorcode", 0) & 0xFF
    )  # the upper bits name the system call
    if getattr(error, "errno", None) in TOO_MANY_OPEN:
        return "let it open more files (ulimit -n 4096)"
    if sqlite_code == _SQLITE_CANTOPEN:  # SQLite does not say why
        return "let it open more files (ulimit -n 4096), or check that the folder can be written"
    return "make room"


@contextmanager
def temporary_sibling(
    path: Path,
    mode: int = PRIVATE,
    *,
    folder: bool = False,
) -> Iterator[Path]:
    """Make a file, or folder, next to `path`. It is removed after the block if it still exists, as
    are files of killed writers.
    """
    for old in path.parent.glob(f".*{_DRAFT}"):
        with suppress(OSError), _opened(old, os.O_NOFOLLOW | os.O_NONBLOCK) as descriptor:
            if lock(descriptor):  # else somebody is writing it
                remove(old)
    draft, descriptor = _make_draft(path, mode, folder)
    try:
        yield draft
    finally:
        with suppress(OSError):
            remove(draft)
        os.close(descriptor)


def _make_draft(
    path: Path,
    mode: int,
    folder: bool,
) -> tuple[Path, int]:
    while True:
        draft = path.with_name(f".{path.name[:50]}-{secrets.token_hex(4)}{_DRAFT}")
        with with_filename(path):
            if folder:
                draft.mkdir(mode | (mode & 0o444) >> 2)
            else:
                draft.touch(mode, exist_ok=False)
        with suppress(FileNotFoundError):  # another writer removed it before it was locked
            descriptor = os.open(draft, os.O_RDONLY)
            with suppress(
                OSError
            ):  # a file system without locks, on which no other can lock it either
                lock(descriptor, wait=True)
            if _is_still(descriptor, draft):
                return draft, descriptor
            os.close(descriptor)


def temporary_folder() -> AbstractContextManager[Path]:
    """Make a temporary folder, removed after the block, or by a later call if the process was
    killed.
    """
    return temporary_sibling(Path(tempfile.gettempdir()) / "sextant", folder=True)


def mkdir_private(folder: Path) -> None:
    """Make a folder that only its owner may enter, and any missing folders above it."""
    if not folder.parent.exists():
        mkdir_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def open_file(
    path: Path,
    file_mode: str,
    mode: int = PRIVATE,
    buffering: int = -1,
) -> IO[Any]:
    """Open a file; `mode` is the mode of a new file."""
    return open(
        path,
        file_mode,
        buffering,
        opener=lambda name, flags: os.open(name, flags, mode),
    )


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def lock_file(
    path: Path,
    busy: Callable[[], None],
    mode: int = SHARED,
) -> IO[bytes]:
    """Lock the file `path` among processes until it is closed, or the process ends.

    If another process holds it, `busy` is called: it raises, or logs that this process waits.
    Permission to read is enough to lock.
    """
    while True:
        try:
            file: IO[bytes] = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, mode), "rb")
        except PermissionError:
            file = path.open("rb")
        try:
            if not lock(file.fileno()):
                busy()
                lock(file.fileno(), wait=True)
            if _is_still(file.fileno(), path):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # somebody has removed it meanwhile


def lock(descriptor: int, *, wait: bool = False) -> bool:
    """Lock an open file or folder; False if another process holds it, OSError on a file
    system without locks.
    """
    from filelock import (
        lock_descriptor,
    )  # brings asyncio, 0.1 s, and every command imports this module

    return lock_descriptor(descriptor, blocking=wait)


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_still(descriptor: int, path: Path) -> bool:
    """Tell whether an open file is still the file at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


# Bytes that are hashed without Python's lock: a thread that hashes asks for it once a block.
_HASHED_AT_ONCE = 1 << 23


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    with open_input(path) as file:
        return sha256_of(file)


def sha256_of(file: IO[bytes]) -> str:
    """Return the SHA-256 of what is left to read of a file, in hex."""
    digest = hashlib.sha256()
    while block := file.read(_HASHED_AT_ONCE):
        digest.update(block)
    return digest.hexdigest()


def fingerprint(path: Path) -> list[int]:
    """Return the size, the CRC-32 and the time of last change, in nanoseconds, of a file."""
    checksum = 0
    status = path.stat()
    with open_input(path) as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return [status.st_size, checksum, status.st_mtime_ns]


def check_fingerprints(folder: Path, seals: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the seals of files as they are now. ValueError if the bytes of a file differ from the
    sealed bytes.

    A file of the same size and time as when it was sealed is not read.
    """
    current = dict(seals)
    for name, sealed in seals.items():
        if not isinstance(sealed, list) or len(sealed) < 2:
            raise ValueError(f"the list of files of {folder} is damaged")
        size, checksum, *changed = sealed
        status = (folder / name).stat() if (folder / name).is_file() else None
        if status is None or [status.st_size, status.st_mtime_ns] != [size, *changed]:
            current[name] = fingerprint(folder / name) if status else []
            if current[name][:2] != [size, checksum]:
                raise ValueError(f"{folder / name} is damaged")
    return current


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to disk. A new file needs both."""
    with _opened(path) as descriptor:
        os.fsync(descriptor)


def hide_folders(value: Any) -> Any:
    """Return JSON as others may read it: in its texts, a path in the working folder begins there, and the home
    directory is ~. `find_place` leads back.
    """
    if isinstance(value, Mapping):
        return {key: hide_folders(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [hide_folders(element) for element in value]
    if not isinstance(value, str):
        return value
    here, home = str(Path.cwd()), str(Path.home())
    for beginning, shown in ((f"{here}/", ""), (here, "."), (home, "~")):
        if beginning.strip("/"):  # every path begins with the root
            ends = "" if beginning.endswith("/") else r"(?![\w.-])"
            value = re.sub(rf"(?<![\w.-]){re.escape(beginning)}{ends}", shown, value)
    return value


def find_place(text: str, below: Path) -> str:
    """Return the whole path of a file or folder that `hide_folders` has shortened, or FILE.py:NAME in such a file.

    A relative path is looked for from here, then from the folders above `below`. `text` itself if there is none.
    """
    path, colon, name = text.partition(".py:")
    ending = f"{colon}{name}"
    file = expand_user_path(f"{path}.py" if colon else path)
    for folder in (Path.cwd(), *below.resolve().parents):
        if (folder / file).exists():
            return f"{folder / file}{ending.removeprefix('.py')}"
    return text


def sextant_home() -> Path:
    """Return the folder for fetched data and built indexes: $SEXTANT_HOME, or ~/.cache/sextant."""
    return expand_user_path(os.environ.get("SEXTANT_HOME") or "~/.cache/sextant")


def expand_user_path(text: str) -> Path:
    """Expand the ~ of a path as a user typed it.

    UsageError when it is empty, or ~NAME is unknown.
    """
    if not text.strip():
        raise UsageError("the name of a folder is empty")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{text!r} starts with a home directory that is not known; write the whole path"
        ) from None
