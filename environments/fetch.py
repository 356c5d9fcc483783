"""Fetch a task's public release: download it, check it, and mark it complete at the end.

What a file must be is said by the release's own listing at the pinned revision: its size, and its content's address
(the Hub's LFS SHA-256, git's blob id, Zenodo's MD5). A file takes its place only when both are right, and the marker
`<task>.complete.json` is written when all of them have. Whatever ends a fetch before that, an interrupt included,
leaves `<file>.<address>.part` behind, and the same command goes on where it stopped.

All three kinds of release are downloaded here, the Hub's files too: `hf_hub_download` of huggingface_hub 1.33 throws
away what it has of a file when it fails. What the address proves is that a file is what the server lists under that
name. That the listing is the release's own rests on HTTPS, and on the pinned commit (Zenodo has none).
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

import environments
from environments.base import Release
from environments.remote import Listed, connect, list_files, name_release, name_status, try_again
from tools import disk
from tools.console import interrupts
from tools.errors import DataError, RunConflict, UsageError

PLAIN_LINES = 10  # of progress, at most, where there is no terminal

Say = Callable[[str], None]
Tell = Callable[[int], None]  # is told how many bytes there are


def fetch(full_name: str, *, say: Say) -> Path:
    """Download what `full_name` ("obliq/congress"; a variant is ignored) needs, and return the suite's data folder.

    Does nothing when that is there already. `say` is given lines for people. DataError when the release, the network
    or the disk fails, RunConflict while another process fetches the same task, UsageError when the data folder or the
    Hub may not be used.
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
            listed = list_files(client, release, paths)
            here = {file.path: found for file in listed if (found := _find(folder, file))}
            total = sum(file.size for file in listed)
            already = sum(file.size if file.path in here else _size_of(_part(folder, file)) for file in listed)
            begun = f"; {_size(already)} of it are here already" if already else ""
            say(f"{task}: {len(listed)} files, {_size(total)} from {release} ({release.licence}){begun}")
            _check_room(folder, total - already)
            # A marker that has come this far is of another revision, or of files that are gone.
            marker.unlink(missing_ok=True)
            with _progress(total, already, say) as tell:
                for file in listed:
                    if file.path not in here:
                        before = already - _size_of(_part(folder, file))
                        here[file.path] = _download(client, release, folder, file, _after(before, tell))
                        already = before + file.size
            _mark(marker, task, release, listed, here)
    except OSError as error:
        if error.errno in disk.FULL:
            why = f"{folder}: {error.strerror}. Make room, and the same command goes on from there"
            raise DataError(why) from None
        why = f"{error.filename or folder} cannot be written: {error.strerror or error}; set SEXTANT_HOME"
        raise UsageError(why) from None
    say(f"{task}: whole and checked, in {folder}")
    return folder


@contextmanager
def _progress(total: int, done: int, say: Say) -> Iterator[Tell]:
    """Yield a function to call with the number of bytes that are here of `total`; `done` are here already.

    It draws a live bar on stderr when that is a terminal, and else says a plain line at every tenth.
    """
    console, step = Console(stderr=True), done * PLAIN_LINES // max(total, 1)

    def tell(now: int) -> None:
        nonlocal step
        if (reached := now * PLAIN_LINES // max(total, 1)) > step:
            step = reached
            say(f"{now / total:.0%} of {_size(total)}")

    if not console.is_terminal:
        yield tell
        return
    columns = (BarColumn(bar_width=20), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as live:
        row = live.add_task("", total=total, completed=done)
        yield lambda now: live.update(row, completed=now)


def _after(before: int, tell: Tell) -> Tell:
    return lambda count: tell(before + count)


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

    def busy() -> None:
        raise RunConflict(f"another process is fetching {task} into {folder}; wait for it")

    folder.mkdir(parents=True, exist_ok=True)
    with disk.hold(folder / f".{name}.lock", busy):
        yield


def _find(folder: Path, file: Listed) -> str:
    """The SHA-256 of a file that has its place already, as an earlier fetch leaves it; empty when it has not."""
    path = folder / file.path
    if not path.is_file() or path.stat().st_size != file.size:
        return ""
    sha256, address = _digests(path, file)
    return sha256 if address == file.address else ""


def _check_room(folder: Path, needed: int) -> None:
    if needed > (room := shutil.disk_usage(folder).free):
        raise DataError(
            f"{folder} has room for {_size(room)}, and {_size(needed)} more are needed; "
            "make room, or set SEXTANT_HOME to a folder on another disk"
        )


def _size(count: int) -> str:
    for unit, bytes_in_it in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= bytes_in_it:
            return f"{count / bytes_in_it:,.1f} {unit}"
    return f"{count} bytes"


def _part(folder: Path, file: Listed) -> Path:
    """The beginning of a file. It is named after the content's address, so another revision's has another name."""
    return folder / f"{file.path}.{file.address.partition(':')[2][:12]}.part"


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _download(client: httpx.Client, release: Release, folder: Path, file: Listed, tell: Tell) -> str:
    """Download one file to its place, and return its SHA-256.

    DataError, with nothing left of it, when it is another file than the listed one; DataError, with the part left,
    when the disk is full or the server gone.
    """
    part, what = _part(folder, file), f"{file.path} of {name_release(release)}"
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        try_again(lambda: _receive(client, file, part, tell), what, file.url, lambda: _size_of(part))
        sha256, got = _digests(part, file)
        if (size := _size_of(part)) != file.size or got != file.address:
            part.unlink()
            raise DataError(
                f"{what} is not what is listed: expected {file.address}, {file.size} bytes, got {got}, {size} bytes; "
                "fetch again; if it stays so, the release has changed"
            )
        # Content and name go to disk, because the marker must not outlive them.
        disk.sync(part)
        part.replace(folder / file.path)
        for left in part.parent.glob(f"{part.name.rsplit('.', 2)[0]}.*.part"):  # of other revisions
            left.unlink()
        disk.sync(part.parent)
    except OSError as error:
        if error.errno not in disk.FULL:
            raise
        raise DataError(
            f"{part}: {error.strerror}; {_size(_size_of(part))} of {_size(file.size)} are here. "
            "Make room, and the same command goes on from there"
        ) from None
    return sha256


def _receive(client: httpx.Client, file: Listed, part: Path, tell: Tell) -> None:
    """Bring the part to its end by one request; an error of httpx when that fails or breaks off."""
    have = _size_of(part)
    if have >= file.size > 0:
        return
    with client.stream("GET", file.url, headers={"range": f"bytes={have}-"} if have else {}) as response:
        goes_on = response.headers.get("content-range", "").startswith(f"bytes {have}-")
        if response.status_code == 200:
            have = 0
        elif response.status_code in (206, 416) and not (have and response.status_code == 206 and goes_on):
            part.unlink(missing_ok=True)  # so that the next try asks for the whole file
            raise httpx.RemoteProtocolError("it does not go on where the part ends")
        elif response.raise_for_status().status_code != 206:
            raise httpx.RemoteProtocolError(f"{name_status(response)} is no file")
        # Unbuffered, so that the part has every byte that came, however this ends.
        with part.open("ab" if have else "wb", buffering=0) as out:
            tell(have)
            for chunk in response.iter_bytes():
                interrupts.check()
                left = memoryview(chunk)
                while left:  # a disk that is nearly full takes only some of it
                    left = left[out.write(left) :]
                have += len(chunk)
                tell(have)
                if have > file.size:
                    return  # it is not the listed file, and might have no end


def _digests(path: Path, file: Listed) -> tuple[str, str]:
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
