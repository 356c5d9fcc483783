"""The files that a user's program, retriever or metric opens while it runs.

Python calls an audit hook at each `open`, so data that is read by a library on behalf of a user's
code is seen as well. The hook is there from the first name of a user's own that is loaded
(tools/plugins.py). What it does not see is in docs/decisions/run-identity.md.
"""

import hashlib
import os
import sys
import sysconfig
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any, NamedTuple

from sextant.tools.platform.files import sha256_of

_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_INSTALLED = (
    _OURS,
    f"{Path(__file__).parents[2]}/construction/",  # in a checkout
    sysconfig.get_path("stdlib") + os.sep,
    "<",
)
_LISTINGS = ("os.listdir", "os.scandir")
_EVENTS = ("open", "sqlite3.connect", *_LISTINGS)
# Bytes from which on a file is told by its size and time of change: to hash it would take long.
_LARGE = 1 << 28


class OpenedFile(NamedTuple):
    """A file, or the names in a folder, when a user's code opened it last."""

    digest: str
    # Size and time of change in ns; a file that has the same is not hashed again
    state: tuple[int, int]
    # The user's file whose code was called by Sextant, and opened it
    opener: str


# Folders with code of users; places whose files are noted, which are these folders and the working
# folder; places of runs, whose files are not.
_code_folders = set[str]()
_places = set[str]()
_run_places = set[str]()
_opened = dict[str, OpenedFile]()
# What users' code has written while a run went, and the folders of it.
_written = set[str]()
_thread = threading.local()


def is_own(file: str) -> bool:
    """Return whether a source is a user's own: not Sextant's, Python's or an installed package's."""
    return not file.startswith(_INSTALLED) and f"-packages{os.sep}" not in file


def watch(folder: Path) -> None:
    """Note from now on what code of a user's `folder` opens."""
    if not is_own(f"{folder}{os.sep}"):
        return
    if not _code_folders:
        sys.addaudithook(_hear)
    _code_folders.add(f"{folder}{os.sep}")
    _places.update((f"{folder}{os.sep}", f"{Path.cwd()}{os.sep}"))


def leave_out(runs: Path) -> None:
    """Note nothing below a folder of runs."""
    _run_places.add(f"{runs.absolute()}{os.sep}")


def is_watched(source: str) -> bool:
    """Return whether a source is in a folder with code of users."""
    return is_own(source) and source.startswith(tuple(_code_folders))


def note_sources(files: Iterable[str]) -> None:
    """Note sources that were imported without being seen; they are not among opened files."""
    for file in files:
        if file not in _opened:
            _opened[file] = OpenedFile(digest(file), _read_state(file), "")


def list_opened(folders: Collection[str]) -> dict[str, str]:
    """Return the digests of what the code of files or `folders` has opened, by absolute path."""
    openers = tuple(folders)
    return {
        path: opened.digest
        for path, opened in dict(_opened).items()
        if opened.opener.startswith(openers)
    }


def forget_changed() -> bool:
    """Forget files that have changed since they were opened; return whether there are any."""
    changed = [path for path, opened in dict(_opened).items() if _has_changed(path, opened)]
    for path in changed:
        _opened.pop(path, None)
    return bool(changed)


def _has_changed(path: str, opened: OpenedFile) -> bool:
    try:
        return _read_state(path) != opened.state and digest(path) != opened.digest
    except OSError:
        return True


def _read_state(path: str) -> tuple[int, int]:
    state = os.stat(path)  # noqa: PTH116  # it is in the audit hook, for each file
    return state.st_size, state.st_mtime_ns


def export_opened() -> dict[str, OpenedFile]:
    """Return all that this process has noted, for `import_opened` in another."""
    return dict(_opened)


def import_opened(opened: Mapping[str, OpenedFile]) -> None:
    """Add what another process has noted."""
    _opened.update(opened)


def digest(path: str) -> str:
    """Return the digest of a file, or of the names of files in a folder; "" for what is not there."""
    try:
        if os.path.isdir(path):  # noqa: PTH112  # as in _read_state
            names = [entry.name for entry in os.scandir(path) if entry.is_file()]
            return hashlib.sha256(
                "\0".join(sorted(name for name in names if not name.startswith("."))).encode(
                    "utf-8", "surrogateescape"
                )
            ).hexdigest()
        size, changed = _read_state(path)
        if size >= _LARGE:
            return f"{size} bytes, {changed}"
        with Path(path).open("rb") as file:
            return sha256_of(file)
    except OSError:
        return ""


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _EVENTS or getattr(_thread, "is_noting", False):
        return
    _thread.is_noting = True
    try:
        # Names that no file has, and a file that is gone, are the affair of who opens it.
        with suppress(OSError, ValueError, TypeError):
            _note(event, *arguments[:1], *arguments[2:3])
    finally:
        _thread.is_noting = False


def _note(event: str, name: Any, flags: Any = 0) -> None:
    if isinstance(name, int):  # a file that is open already
        return
    path = os.path.abspath(os.fsdecode("." if name is None else name))  # noqa: PTH100  # as above
    if "__pycache__" in path:
        path = source_from_cache(path)
    place = max((place for place in _places if path.startswith(place)), key=len, default="")
    is_hidden = f"{os.sep}." in path[len(place) - 1 :]
    if not place or is_hidden or not is_own(path):
        return
    if f"{path}{os.sep}".startswith(tuple(_run_places)):
        return
    if not (opener := _find_opener(is_listing=event in _LISTINGS)):
        return
    if event == "open" and flags & (os.O_WRONLY | os.O_RDWR):
        for written in (path, os.path.dirname(path)):  # noqa: PTH120  # as above
            _written.add(written)
            _opened.pop(written, None)
        return
    if path in _written:
        return
    if event not in _LISTINGS and not os.path.isfile(path):  # noqa: PTH113  # as above
        return  # a device
    state = _read_state(path)
    before = _opened.get(path)
    known = before.digest if before and before.state == state else ""
    _opened[path] = OpenedFile(known or digest(path), state, opener)


def _find_opener(*, is_listing: bool) -> str:
    """Return the file of the user's code that Sextant called, and that opens a file now; "" for none.

    An import looks at folders on its own account.
    """
    opener = ""
    frame = sys._getframe(3)  # noqa: SLF001  # inspect reads source files, which are opened
    while True:
        file = frame.f_code.co_filename
        if file.startswith(_OURS):
            break
        if is_own(file):
            opener = file
        elif is_listing and not opener and "importlib" in file:
            return ""
        if frame.f_back is None:
            if frame.f_globals.get("__name__") == "__main__":
                return ""
            break
        frame = frame.f_back
    return opener if opener.startswith(tuple(_code_folders)) else ""
