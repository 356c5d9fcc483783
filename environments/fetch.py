"""Fetching a task's public release: found out, downloaded, checked, and marked complete last.

What a file must be is said by the release's own listing at the pinned revision: its size, and its content's address
(the Hub's LFS SHA-256, git's blob id, Zenodo's MD5). A file takes its place only when both are right, and the marker
`<task>.complete.json` is written when all of them have. Whatever ends a fetch before that, an interrupt included,
leaves `<file>.part` behind, and the same command goes on where it stopped.

All three kinds of release are downloaded here, the Hub's files too: `hf_hub_download` of huggingface_hub 1.33 throws
away what it has of a file when it fails. What the address proves is that a file is what the server lists under that
name. That the listing is the release's own rests on HTTPS, and on the pinned commit (Zenodo has none).
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

import environments
from environments.base import Release
from tools import disk
from tools.errors import DataError, RunConflict, UsageError

WAITS = (1.0, 4.0)  # seconds before the second and the third try; a fourth is not made
WORTH = 1_000_000  # a try that brought so many new bytes was none in vain, and the count begins again
LISTING_SECONDS = 30.0
TIMEOUT = httpx.Timeout(30.0, connect=10.0)  # seconds without a byte, not for a whole file
PLAIN_LINES = 10  # of progress, at most, where there is no terminal

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OVERLOADED = (408, 429)
_T = TypeVar("_T")

_Row = tuple[str, Any, Any, Any]  # path, size, address and URL of a listed file, unchecked

Say = Callable[[str], None]
Pause = Callable[[float], None]


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


@dataclass(frozen=True, slots=True)
class _Listed:
    """A file as the pinned release lists it."""

    path: str  # inside the release, with slashes
    size: int  # in bytes
    address: str  # "sha256:<hex>", "git:<hex>" (a blob id) or "md5:<hex>"
    url: str


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
    task = environments.resolve(full_name).partition(":")[0]
    suite_name, _, name = task.partition("/")
    suite = environments.suite(suite_name)
    release, paths = suite.release, suite.tasks[name].files
    folder = environments.home() / "data" / suite_name
    marker = folder / f"{name}.complete.json"
    try:
        if _is_whole(marker, release, paths):
            say(f"{task}: all {len(paths)} files from {release} are in {folder} already")
            return folder
        with _lock(folder, name, task), _client(release) as client:
            listed = _listing(client, release, paths, pause)
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
    """Whether the marker is of this revision, and the files have the sizes in it."""
    try:
        mark = json.loads(marker.read_bytes())
        sizes = {path: mark["files"][path]["bytes"] for path in paths}
        pinned = (mark["repository"], mark["revision"]) == (release.repository, release.revision)
        return pinned and all((marker.parent / path).stat().st_size == size for path, size in sizes.items())
    except (FileNotFoundError, NotADirectoryError, ValueError, LookupError, TypeError):
        return False


@contextmanager
def _lock(folder: Path, name: str, task: str) -> Iterator[None]:
    """One fetch of a task at a time: two would write the same parts. The lock goes with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunConflict(f"another process is fetching {task} into {folder}; wait for it") from None
        yield


# What the release lists.


def _base(variable: str, usual: str) -> str:
    return (os.environ.get(variable) or usual).rstrip("/")


def _client(release: Release) -> httpx.Client:
    # A compressed answer could not be resumed: its ranges count compressed bytes.
    headers = {"accept-encoding": "identity", "user-agent": "sextant"}
    if release.kind == "hub":
        headers |= _hub_headers()
    return httpx.Client(headers=headers, follow_redirects=True, timeout=TIMEOUT)


def _hub_headers() -> dict[str, str]:
    """Who asks, and with which token, if there is one. httpx does not send it on to the hosts that files come from."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # read when the library is imported
    import huggingface_hub
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, but re-exported lazily

    if huggingface_hub.is_offline_mode():
        name = "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
        raise UsageError(f"{name} is set; unset it to fetch")
    headers: dict[str, str] = build_hf_headers(library_name="sextant")
    return headers


def _listing(client: httpx.Client, release: Release, paths: tuple[str, ...], pause: Pause) -> list[_Listed]:
    """The files named by `paths`, as listed; DataError when one is missing or the listing cannot be trusted."""
    base, ask = {
        "hub": (_base("HF_ENDPOINT", "https://huggingface.co"), _hub),
        "github": (_base("SEXTANT_GITHUB_API", "https://api.github.com"), _github),
        "zenodo": (_base("SEXTANT_ZENODO", "https://zenodo.org"), _zenodo),
    }[release.kind]
    what = _pinned(release)
    try:
        rows = {row[0]: row for row in _tried(lambda: ask(client, release, base), what, base, pause)}
        _check_inside(rows, release)
        listed = [_listed(*rows[path]) for path in paths if path in rows]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DataError(
            f"{base} answers for {what} with what is no listing of files; is it the right address?"
        ) from None
    if missing := [path for path in paths if path not in rows]:
        raise DataError(f"{what} has no file {missing[0]!r}")
    return listed


def _hub(client: httpx.Client, release: Release, base: str) -> list[_Row]:
    from huggingface_hub import HfApi, hf_hub_url

    # The whole repository is asked for, because of all questions about its files only this one takes a time limit.
    info = HfApi(endpoint=base, library_name="sextant").dataset_info(
        release.repository, revision=release.revision, files_metadata=True, timeout=LISTING_SECONDS
    )
    if info.sha != release.revision:
        raise DataError(f"{base} answers for {_pinned(release)} with revision {info.sha!r:.50}")
    rows = []
    for file in info.siblings or ():
        address = f"sha256:{file.lfs.sha256}" if file.lfs else f"git:{file.blob_id}"
        url = hf_hub_url(
            release.repository, file.rfilename, repo_type="dataset", revision=release.revision, endpoint=base
        )
        rows.append((file.rfilename, file.size, address, url))
    return rows


def _github(client: httpx.Client, release: Release, base: str) -> list[_Row]:
    raw = f"{_base('SEXTANT_GITHUB_RAW', 'https://raw.githubusercontent.com')}/{release.repository}/{release.revision}"
    answer = client.get(f"{base}/repos/{release.repository}/git/trees/{release.revision}", params={"recursive": "1"})
    blobs = [entry for entry in answer.raise_for_status().json()["tree"] if entry["type"] == "blob"]
    return [(blob["path"], blob["size"], f"git:{blob['sha']}", f"{raw}/{quote(blob['path'])}") for blob in blobs]


def _zenodo(client: httpx.Client, release: Release, base: str) -> list[_Row]:
    record = client.get(f"{base}/api/records/{release.repository}").raise_for_status().json()
    if str(record["id"]) != release.repository:  # the number of all versions leads to the newest
        raise DataError(f"{base} answers for {_pinned(release)} with record {record['id']!r:.50}")
    return [(file["key"], file["size"], file["checksum"], file["links"]["self"]) for file in record["files"]]


def _listed(path: str, size: Any, address: Any, url: Any) -> _Listed:
    """A row of a listing; ValueError when a file could not be checked by it."""
    if not isinstance(size, int) or size < 0 or not isinstance(url, str):
        raise ValueError(path)
    if not re.fullmatch(r"sha256:[0-9a-f]{64}|git:[0-9a-f]{40}|md5:[0-9a-f]{32}", address):
        raise ValueError(path)
    return _Listed(path, size, address, url)


def _check_inside(paths: Iterable[str], release: Release) -> None:
    """A listing with a path that leads out of its folder is no honest one, whatever else is in it."""
    for path in paths:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\0" in path:
            raise DataError(f"the listing of {_pinned(release)} is refused: {path!r:.200} leads out of its folder")


def _pinned(release: Release) -> str:
    """The release as messages name it."""
    if not release.revision:
        return f"record {release.repository} of Zenodo"
    return f"revision {release.revision[:8]} of {release.repository}"


# Asking again, and giving up.


def _tried(call: Callable[[], _T], what: str, address: str, pause: Pause, here: Callable[[], int] = int) -> _T:
    """What `call` returns, tried up to three times; DataError when the server refuses `what`, or is not reached.

    `here` tells the bytes that there are of a file. A try that brought a good many is not counted, so that a large
    file comes through a bad line; each such try gets further than all before it, so there is an end.
    """
    tries, most = 0, here()
    while True:
        try:
            return call()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            response = getattr(error, "response", None)  # of a status; the Hub's own errors are httpx's, too
            if response is not None and response.status_code < 500 and response.status_code not in _OVERLOADED:
                raise _refused(response, what) from None
            tries += 1
            if (now := here()) >= most + WORTH:
                tries, most = 1, now
            if tries > len(WAITS):
                reason = str(error) or type(error).__name__ if response is None else _status(response)
                raise DataError(
                    f"{urlsplit(address).netloc or address} cannot be reached ({reason}); "
                    "the same command goes on where this one stopped"
                ) from None
        pause(WAITS[tries - 1])


def _refused(response: httpx.Response, what: str) -> DataError:
    status, host = _status(response), response.url.host
    if response.status_code in (404, 410, 422):  # 422 is GitHub's answer for what cannot be a commit
        return DataError(f"{what} is not there any more ({status} from {host})")
    if response.headers.get("x-ratelimit-remaining") == "0":
        return DataError(f"{host} takes no more requests from here for now ({status}); try again in an hour")
    if response.status_code in (401, 403):
        return DataError(
            f"{host} does not give {what} to everybody, or not any more ({status}); "
            "a token may be needed: set HF_TOKEN for the Hugging Face Hub"
        )
    return DataError(f"{host} refuses {what} ({status})")


def _status(response: httpx.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}".strip()


# What is here, and whether there is room for the rest.


def _found(folder: Path, file: _Listed) -> str:
    """The SHA-256 of a file that has its place already, as an earlier fetch leaves it; empty when it has not."""
    path = folder / file.path
    if not path.is_file() or path.stat().st_size != file.size:
        return ""
    sha256, address = _addresses(path, file)
    return sha256 if address == file.address else ""


def _announce(task: str, release: Release, listed: list[_Listed], already: int, say: Say) -> None:
    total = sum(file.size for file in listed)
    begun = f"; {_size(already)} of it are here already" if already else ""
    say(f"{task}: {len(listed)} files, {_size(total)} from {release} ({release.licence}){begun}")


def _check_room(folder: Path, listed: list[_Listed], already: int, free: Callable[[Path], int]) -> None:
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

    def __init__(self, folder: Path, file: _Listed) -> None:
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
        disk.replace(self._note, json.dumps({"address": self._address, "etag": etag}))

    def remove(self) -> None:
        """Keep nothing of it."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        """Let it take its place. Content and name go to disk, because the marker must not outlive them."""
        _sync(self.path)
        self.path.replace(target)
        self._note.unlink(missing_ok=True)
        _sync(target.parent)

    def _noted(self) -> dict[str, Any]:
        try:
            note = json.loads(self._note.read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _counter(shown: Bar, begun: int) -> Callable[[int], None]:
    return lambda count: shown.at(begun + count)


def _download(
    client: httpx.Client, release: Release, folder: Path, file: _Listed, at: Callable[[int], None], pause: Pause
) -> str:
    """Download one file to its place, and return its SHA-256; `at` is told its bytes.

    DataError, with nothing left of it, when it is another file than the listed one; DataError, with the part left,
    when the disk is full or the server gone.
    """
    part, what = _Part(folder, file), f"{file.path} of {_pinned(release)}"
    try:
        _tried(lambda: _receive(client, file, part, at), what, file.url, pause, lambda: part.size)
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
        if error.errno not in _FULL:
            raise
        raise DataError(
            f"{part.path}: {error.strerror}; {_size(part.size)} of {_size(file.size)} are here. "
            "Make room, and the same command goes on from there"
        ) from None
    return sha256


def _receive(client: httpx.Client, file: _Listed, part: _Part, at: Callable[[int], None]) -> None:
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
            raise httpx.RemoteProtocolError(f"{_status(response)} is no file")
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


def _append(response: httpx.Response, file: _Listed, part: _Part, have: int, at: Callable[[int], None]) -> None:
    """Write what comes, unbuffered, so that the part has every byte that came, however this ends."""
    with part.path.open("ab", buffering=0) as out:
        at(have)
        for chunk in response.iter_bytes():
            left = memoryview(chunk)
            while left:  # a disk that is nearly full takes only some of it
                left = left[out.write(left) :]
            have += len(chunk)
            at(have)
            if have > file.size:
                return  # it is not the listed file, and might have no end


def _addresses(path: Path, file: _Listed) -> tuple[str, str]:
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


def _mark(marker: Path, task: str, release: Release, listed: list[_Listed], here: Mapping[str, str]) -> None:
    """Write, in one step, that the task's files are whole; `environments.folder_of` looks for this file."""
    content = {
        "task": task,
        "repository": release.repository,
        "revision": release.revision,
        "licence": release.licence,
        "files": {file.path: {"bytes": file.size, "sha256": here[file.path]} for file in listed},
        "fetched": datetime.now(UTC).date().isoformat(),
    }
    disk.replace(marker, json.dumps(content, indent=2) + "\n")


def _unwritable(folder: Path, error: OSError) -> DataError | UsageError:
    if error.errno in _FULL:
        return DataError(f"{folder}: {error.strerror}. Make room, and the same command goes on from there")
    return UsageError(f"{error.filename or folder} cannot be written: {error.strerror or error}; set SEXTANT_HOME")
