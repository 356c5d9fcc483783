"""Fetching a task's public release: found out, downloaded, checked, and marked complete last.

What a file must be is said by the release's own listing at the pinned revision: its size, and its content's address
(the Hub's LFS SHA-256, git's blob id, Zenodo's MD5). A file takes its place only when both are right, and the marker
`<task>.complete.json` is written when all of them have. Whatever ends a fetch before that, an interrupt included,
leaves `<file>.part` behind, and the same command goes on where it stopped.

All three kinds of release are downloaded here, the Hub's files too: `hf_hub_download` of huggingface_hub 1.33 throws
away what it has of a file when it fails. What the address proves is that a file is what the server lists under that
name. That the listing is the release's own rests on HTTPS, and on the pinned commit (Zenodo has none).
"""

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

import environments
from environments.base import Release
from environments.remote import Listed, Pause, connect, listing, pinned, status, tried
from tools import disk
from tools.console import interrupts
from tools.errors import DataError, RunConflict, UsageError

PLAIN_LINES = 10  # of progress, at most, where there is no terminal


Say = Callable[[str], None]


class Bar:
    """How far a fetch is: a live bar on stderr when that is a terminal, else a plain line at every tenth."""

    def __init__(self, total: int, done: int, say: Say) -> None:
        """`total` bytes are to be here in the end, `done` are here already; `say` gets the plain lines."""
        self._total, self._say = total, say
        self._step = self._steps(done)
        self._live: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            columns = (BarColumn(bar_width=20), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._live = Progress(*columns, console=console)
            self._row = self._live.add_task("", total=total, completed=done)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def at(self, done: int) -> None:
        """`done` bytes are here; fewer than before when a file is begun again."""
        if self._live:
            self._live.update(self._row, completed=done)
        elif (step := self._steps(done)) > self._step:
            self._step = step
            self._say(f"{done / self._total:.0%} of {_size(self._total)}")

    def _steps(self, done: int) -> int:
        return done * PLAIN_LINES // max(self._total, 1)


def fetch(
    full_name: str,
    *,
    say: Say,
    bar: Callable[[int, int, Say], Bar] = Bar,
    pause: Pause = time.sleep,
    free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
) -> Path:
    """Download what `full_name` ("obliq/congress"; a variant is ignored) needs, and return the suite's data folder.

    Does nothing when that is there already. `say` is given lines for people, `bar` the bytes in all and those
    here already. DataError when the release, the network or the disk fails, RunConflict while another process
    fetches the same task, UsageError when the data folder or the Hub may not be used.
    """
    suite_name, name, _ = environments.parts(environments.resolve(full_name))
    task, suite = f"{suite_name}/{name}", environments.suite(suite_name)
    release, paths = suite.release, suite.tasks[name].files
    marker = environments.marker_of(task)
    folder = marker.parent
    try:
        if _is_whole(marker, release, paths):
            say(f"{task}: all {len(paths)} files from {release} are in {folder} already")
            return folder
        with _lock(folder, name, task), connect(release) as client:
            listed = listing(client, release, paths, pause)
            here = {file.path: found for file in listed if (found := _found(folder, file))}
            already = sum(file.size if file.path in here else _Part(folder, file).size for file in listed)
            _announce(task, release, listed, already, say)
            _check_room(folder, listed, already, free)
            # A marker that has come this far is of another revision, or of files that are gone.
            marker.unlink(missing_ok=True)
            with bar(sum(file.size for file in listed), already, say) as shown:
                for file in listed:
                    if file.path not in here:
                        begun = already - _Part(folder, file).size
                        here[file.path] = _download(client, release, folder, file, _counter(shown, begun), pause)
                        already = begun + file.size
            _mark(marker, task, release, listed, here)
    except OSError as error:
        raise _unwritable(folder, error) from None
    say(f"{task}: whole and checked, in {folder}")
    return folder


def _is_whole(marker: Path, release: Release, paths: tuple[str, ...]) -> bool:
    """Whether the marker is of this revision, and the files are what they were when it was written."""
    if not environments.fetched_from(marker, release):
        return False
    try:
        marked = json.loads(marker.read_bytes())["files"]
        return all(disk.sha256(marker.parent / path) == marked[path]["sha256"] for path in paths)
    except (FileNotFoundError, NotADirectoryError, ValueError, LookupError, TypeError):
        return False


@contextmanager
def _lock(folder: Path, name: str, task: str) -> Iterator[None]:
    """One fetch of a task at a time: two would write the same parts. The lock goes with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with disk.open_lock(folder / f".{name}.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunConflict(f"another process is fetching {task} into {folder}; wait for it") from None
        yield


# What is here, and whether there is room for the rest.


def _found(folder: Path, file: Listed) -> str:
    """The SHA-256 of a file that has its place already, as an earlier fetch leaves it; empty when it has not."""
    path = folder / file.path
    if not path.is_file() or path.stat().st_size != file.size:
        return ""
    sha256, address = _addresses(path, file)
    return sha256 if address == file.address else ""


def _announce(task: str, release: Release, listed: list[Listed], already: int, say: Say) -> None:
    total = sum(file.size for file in listed)
    begun = f"; {_size(already)} of it are here already" if already else ""
    say(f"{task}: {len(listed)} files, {_size(total)} from {release} ({release.licence}){begun}")


def _check_room(folder: Path, listed: list[Listed], already: int, free: Callable[[Path], int]) -> None:
    needed, room = sum(file.size for file in listed) - already, free(folder)
    if needed > room:
        raise DataError(
            f"{folder} has room for {_size(room)}, and {_size(needed)} more are needed; "
            "make room, or set SEXTANT_HOME to a folder on another disk"
        )


def _size(count: int) -> str:
    for unit, bytes_in_it in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= bytes_in_it:
            return f"{count / bytes_in_it:,.1f} {unit}"
    return f"{count} bytes"


# Downloading.


class _Part:
    """The beginning of a file, `<file>.part`, and beside it `<file>.part.json`: which file it is the beginning of."""

    def __init__(self, folder: Path, file: Listed) -> None:
        self.path = folder / f"{file.path}.part"
        self._note = folder / f"{file.path}.part.json"
        self._address = file.address

    @property
    def size(self) -> int:
        """Its bytes; 0 when it is the beginning of something else, e.g. of another revision's file."""
        if self._noted().get("address") != self._address or not self.path.is_file():
            return 0
        return self.path.stat().st_size

    @property
    def etag(self) -> str:
        """The server's name for the version that this is the beginning of; empty when it gave none."""
        return str(self._noted().get("etag", ""))

    def begin(self, etag: str) -> None:
        """Make it empty, and a part of this file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")
        disk.replace(self._note, json.dumps({"address": self._address, "etag": etag}), disk.SHARED)

    def remove(self) -> None:
        """Keep nothing of it."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        """Let it take its place. Content and name go to disk, because the marker must not outlive them."""
        disk.sync(self.path)
        self.path.replace(target)
        self._note.unlink(missing_ok=True)
        disk.sync(target.parent)

    def _noted(self) -> dict[str, Any]:
        try:
            note = json.loads(self._note.read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}


def _counter(shown: Bar, begun: int) -> Callable[[int], None]:
    return lambda count: shown.at(begun + count)


def _download(
    client: httpx.Client, release: Release, folder: Path, file: Listed, at: Callable[[int], None], pause: Pause
) -> str:
    """Download one file to its place, and return its SHA-256; `at` is told its bytes.

    DataError, with nothing left of it, when it is another file than the listed one; DataError, with the part left,
    when the disk is full or the server gone.
    """
    part, what = _Part(folder, file), f"{file.path} of {pinned(release)}"
    try:
        tried(lambda: _receive(client, file, part, at), what, file.url, pause, lambda: part.size)
        sha256, got = _addresses(part.path, file)
        if part.path.stat().st_size != file.size or got != file.address:
            got = f"{got}, {part.path.stat().st_size} bytes"
            part.remove()
            raise DataError(
                f"{what} is not what is listed: expected {file.address}, {file.size} bytes, got {got}; "
                "fetch again; if it stays so, the release has changed"
            )
        part.finish(folder / file.path)
    except OSError as error:
        if error.errno not in disk.FULL:
            raise
        raise DataError(
            f"{part.path}: {error.strerror}; {_size(part.size)} of {_size(file.size)} are here. "
            "Make room, and the same command goes on from there"
        ) from None
    return sha256


def _receive(client: httpx.Client, file: Listed, part: _Part, at: Callable[[int], None]) -> None:
    """Bring the part to its end by one request; an error of httpx when that fails or breaks off."""
    have, etag = part.size, part.etag
    if have >= file.size > 0:
        return
    with client.stream("GET", file.url, headers=_range(have, etag)) as response:
        if response.status_code == 200:
            have = 0
            part.begin(response.headers.get("etag", ""))
        elif response.status_code in (206, 416) and not (have and _goes_on(response, have, etag)):
            part.remove()  # so that the next try asks for the whole file
            raise httpx.RemoteProtocolError("it does not go on where the part ends")
        elif response.raise_for_status().status_code != 206:
            raise httpx.RemoteProtocolError(f"{status(response)} is no file")
        _append(response, file, part, have, at)


def _range(have: int, etag: str) -> dict[str, str]:
    if not have:
        return {}
    # A weak ETag is not allowed in If-Range; then `_goes_on` compares, and in the end the checksum.
    return {"range": f"bytes={have}-"} | ({"if-range": etag} if etag.startswith('"') else {})


def _goes_on(response: httpx.Response, have: int, etag: str) -> bool:
    """Whether the answer is the rest of what there is a part of."""
    starts = response.headers.get("content-range", "").startswith(f"bytes {have}-")
    return response.status_code == 206 and starts and etag in ("", response.headers.get("etag", ""))


def _append(response: httpx.Response, file: Listed, part: _Part, have: int, at: Callable[[int], None]) -> None:
    """Write what comes, unbuffered, so that the part has every byte that came, however this ends."""
    with part.path.open("ab", buffering=0) as out:
        at(have)
        for chunk in response.iter_bytes():
            interrupts.check()
            left = memoryview(chunk)
            while left:  # a disk that is nearly full takes only some of it
                left = left[out.write(left) :]
            have += len(chunk)
            at(have)
            if have > file.size:
                return  # it is not the listed file, and might have no end


def _addresses(path: Path, file: Listed) -> tuple[str, str]:
    """The SHA-256 of a file's content in hex, and its address in the form that the listing has."""
    kind = file.address.partition(":")[0]
    sha256 = hashlib.sha256()
    address = hashlib.new("sha1" if kind == "git" else kind, usedforsecurity=False)
    if kind == "git":
        address.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as content:
        while block := content.read(1 << 20):
            sha256.update(block)
            address.update(block)
    return sha256.hexdigest(), f"{kind}:{address.hexdigest()}"


def _mark(marker: Path, task: str, release: Release, listed: list[Listed], here: Mapping[str, str]) -> None:
    """Write, in one step, that the task's files are whole; `environments.folder_of` looks for this file."""
    content = {
        "task": task,
        "repository": release.repository,
        "revision": release.revision,
        "licence": release.licence,
        "files": {file.path: {"bytes": file.size, "sha256": here[file.path]} for file in listed},
        "fetched": datetime.now(UTC).date().isoformat(),
    }
    disk.replace(marker, json.dumps(content, indent=2) + "\n", disk.SHARED)


def _unwritable(folder: Path, error: OSError) -> DataError | UsageError:
    if error.errno in disk.FULL:
        return DataError(f"{folder}: {error.strerror}. Make room, and the same command goes on from there")
    return UsageError(f"{error.filename or folder} cannot be written: {error.strerror or error}; set SEXTANT_HOME")
