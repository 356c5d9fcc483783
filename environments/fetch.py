"""Fetch a task's public release from the Hugging Face Hub or GitHub: list it, download it, check
it, mark it complete.

The release's listing at the pinned revision gives each file's size and content address (the Hub's
LFS SHA-256, or git's blob id). A file is moved to its place only when both are right, and the
marker `<task>.complete.json` is written last. A fetch that ends earlier leaves
`<file>.<address>.part` behind, and the same command goes on from there.

A listing of another revision, or with a path that leads out of its folder, is refused. The address
proves that a file is the listed one; that the listing is the release's own rests on HTTPS and the
pinned commit.

The Hub's files are downloaded here, too: `hf_hub_download` of huggingface_hub 1.33 deletes a
partial file on failure.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from rich.filesize import decimal

from sextant import environments
from sextant.environments.base import Release
from sextant.environments.task_card import check_files
from sextant.tools.errors import DataError, RunConflict, UsageError
from sextant.tools.platform import files as disk
from sextant.tools.platform.cli import Progress
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.temporary_changes import changed_environment

WAITS = (1.0, 4.0)  # seconds before the second and the third try; a fourth is not made
WORTH = 1_000_000  # new bytes that a try must bring for the count of tries to begin again
LISTING_SECONDS = 30.0  # for all of a listing
LISTING_BYTES = 64 << 20  # of a listing, at most; 100,000 files, GitHub's most, take some 25 MB
LARGEST = 1 << 50  # bytes of a file
TIMEOUT = httpx.Timeout(30.0, connect=10.0)  # seconds without a byte, not for a whole file

_ADDRESS = re.compile(r"sha256:[0-9a-f]{64}|git:[0-9a-f]{40}")
_T = TypeVar("_T")


class ReleaseFile(NamedTuple):
    """A file as the pinned release lists it."""

    path: str  # inside the release, with slashes
    size: int  # in bytes
    address: str  # "sha256:<hex>" or "git:<hex>" (a blob id)
    url: str

    def part(self, folder: Path) -> Path:
        """Return the path of the partial file; another revision's has another name."""
        return folder / f"{self.path}.{self.address.partition(':')[2][:12]}.part"


def fetch(full_name: str, *, say: Callable[[str], None]) -> Path:
    """Download the files of `full_name` (a variant is ignored) unless they are there; return the
    suite's data folder.

    `say` is given lines for people. DataError when the release, the network or the disk fails,
    RunConflict while another process fetches the same task, UsageError when the data folder or the
    Hub may not be used.
    """
    suite_name, name, _ = environments.split_name(environments.resolve(full_name))
    task = f"{suite_name}/{name}"
    release = environments.suite(suite_name).release
    marker = environments.fetch_marker(task)
    folder = marker.parent

    def busy() -> None:
        raise RunConflict(f"another process is fetching {task} into {folder}; wait for it")

    try:
        if environments.is_fetched_from(marker, release) and check_files(task).fine:
            say(f"{task}: all files from {release} are in {folder} already")
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        # Two fetches of a task would write the same parts. The lock ends with the process.
        with disk.lock_file(folder / f".{name}.lock", busy):
            _fetch_files(task, release, marker, say)
    except OSError as error:
        reason = f"{error.filename or folder} cannot be written: {error.strerror or error}"
        if error.errno in disk.FULL:
            raise DataError(
                f"{reason}; make room, or set SEXTANT_HOME to a folder on another disk, and the "
                f"same command goes on"
            ) from None
        raise UsageError(f"{reason}; set SEXTANT_HOME") from None
    say(f"{task}: whole and checked, in {folder}")
    return folder


def _fetch_files(task: str, release: Release, marker: Path, say: Callable[[str], None]) -> None:
    """Download the files of a task that are not there yet, and write its marker."""
    suite_name, name, _ = environments.split_name(task)
    paths = environments.suite(suite_name).tasks[name].files
    folder = marker.parent
    with _connect(release) as client:
        listed = _list_files(client, release, paths)
        missing = [file for file in listed if not _is_listed(folder / file.path, file)]
        needed = sum(file.size - _size_of(file.part(folder)) for file in missing)
        total = sum(file.size for file in listed)
        say(
            f"{task}: {plural(len(listed), 'file')}, {decimal(total)} from {release} "
            f"({release.licence}); {decimal(total - needed)} of it are here already"
        )
        marker.unlink(missing_ok=True)  # it is of another revision, or of files that are gone
        progress = Progress(task, total, "bytes", total - needed)
        for file in missing:
            _download(client, release, folder, file, progress)
        content = {
            "task": task,
            "repository": release.repository,
            "revision": release.revision,
            "licence": release.licence,
            "files": {
                file.path: {"bytes": file.size, "sha256": disk.sha256(folder / file.path)}
                for file in listed
            },
            "fetched": datetime.now(UTC).date().isoformat(),
        }
        disk.replace(marker, json.dumps(content, indent=2) + "\n", disk.SHARED)


def _is_listed(path: Path, file: ReleaseFile) -> bool:
    return _size_of(path) == file.size and path.is_file() and _address(path, file) == file.address


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _download(
    client: httpx.Client,
    release: Release,
    folder: Path,
    file: ReleaseFile,
    progress: Progress,
) -> None:
    """Download one file.

    DataError when it is not the listed one (the part goes) or cannot be had (it stays).
    """
    part_path = file.part(folder)
    label = f"{file.path} of {release}"
    part_path.parent.mkdir(parents=True, exist_ok=True)
    _try_again(
        lambda: _receive(client, file, part_path, progress),
        label,
        file.url,
        lambda: _size_of(part_path),
    )
    if not _is_listed(part_path, file):
        got = f"{_address(part_path, file)}, {_size_of(part_path)} bytes"
        part_path.unlink()
        raise DataError(
            f"{label} is not what is listed: expected {file.address}, {file.size} bytes, got {got}; "
            f"fetch again; if it stays so, the release has changed"
        )
    disk.sync(part_path)  # content, and below the name: the marker must not outlive them
    path = part_path.replace(folder / file.path)
    for old_part in path.parent.glob(f"{path.name}.*.part"):  # of other revisions
        old_part.unlink()
    disk.sync(path.parent)


def _receive(
    client: httpx.Client,
    file: ReleaseFile,
    part_path: Path,
    progress: Progress,
) -> None:
    have = _size_of(part_path)
    if have >= file.size > 0:
        return
    with client.stream(
        "GET", file.url, headers={"range": f"bytes={have}-"} if have else {}
    ) as response:
        status = response.status_code
        goes_on = response.headers.get("content-range", "").startswith(f"bytes {have}-")
        if status == 416 or (status == 206 and not (have and goes_on)):
            part_path.unlink(missing_ok=True)  # so that the next try asks for the whole file
            raise httpx.RemoteProtocolError("it does not go on where the part ends")
        if response.raise_for_status().status_code not in (200, 206):
            raise httpx.RemoteProtocolError(f"{_status(response)} is no file")
        if status == 200:
            progress.add(-have)
            have = 0
        # Unbuffered, so that the part has every byte that came, however this ends.
        with part_path.open("ab" if have else "wb", buffering=0) as out:
            for chunk in response.iter_bytes():
                remaining = memoryview(chunk)
                while remaining:  # a disk that is nearly full takes only some of it
                    remaining = remaining[out.write(remaining) :]
                have += len(chunk)
                progress.add(len(chunk))
                if have > file.size:
                    return  # it is not the listed file, and might have no end


def _address(path: Path, file: ReleaseFile) -> str:
    if file.address.startswith("sha256:"):
        return f"sha256:{disk.sha256(path)}"
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as content:
        return f"git:{hashlib.file_digest(content, lambda: digest).hexdigest()}"


# --- Listings
# --------------------------------------------------------------------------------------------------------


def _connect(release: Release) -> httpx.Client:
    # A compressed answer could not be resumed: its ranges count compressed bytes.
    headers = {"accept-encoding": "identity", "user-agent": "sextant"}
    if release.kind == "hub":
        with changed_environment({"HF_HUB_DISABLE_TELEMETRY": "1"}):
            import huggingface_hub.utils  # here, because it reads the variable as it is imported

        if huggingface_hub.is_offline_mode():
            raise UsageError("HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set; unset it to fetch")
        # httpx does not send the user's token on to the hosts that files come from.
        headers |= huggingface_hub.utils.build_hf_headers(library_name="sextant")  # type: ignore[attr-defined]
    try:
        return httpx.Client(headers=headers, follow_redirects=True, timeout=TIMEOUT)
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"the network cannot be used as *_PROXY and SSL_CERT_* say: {reason}"
        ) from None


def _list_files(
    client: httpx.Client, release: Release, paths: tuple[str, ...]
) -> list[ReleaseFile]:
    """Return the files named by `paths`, as listed.

    DataError when one is missing or the listing not to be trusted.
    """
    if release.kind == "hub":
        base = _server("HF_ENDPOINT", "https://huggingface.co")
        read = _list_hub
    else:
        base = _server("SEXTANT_GITHUB_API", "https://api.github.com")
        read = _list_github
    try:
        listed = _try_again(lambda: list(read(client, release, base)), str(release), base)
        for file in listed:  # also those that are not needed
            inside = PurePosixPath(file.path)
            if inside.is_absolute() or ".." in inside.parts or "\0" in file.path:
                raise DataError(
                    f"the listing of {release} is refused: {file.path!r:.200} leads out of its folder"
                )
            if not _ADDRESS.fullmatch(file.address) or not 0 <= file.size < LARGEST:
                raise ValueError(file.path)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise DataError(
            f"{base} answers for {release} with no listing of files; is it the right address?"
        ) from None
    rows = {file.path: file for file in listed}
    if missing := [path for path in paths if path not in rows]:
        raise DataError(f"{release} has no file {missing[0]!r}")
    return [rows[path] for path in paths]


def _server(variable: str, usual: str) -> str:
    return (os.environ.get(variable) or usual).rstrip("/")


def _list_hub(client: httpx.Client, release: Release, base: str) -> Iterator[ReleaseFile]:
    info = _get_json(
        client, f"{base}/api/datasets/{release.repository}/revision/{release.revision}?blobs=true"
    )
    if info["sha"] != release.revision:
        raise DataError(f"{base} answers for {release} with revision {info['sha']!r:.50}")
    files = f"{base}/datasets/{release.repository}/resolve/{release.revision}"
    for file in info["siblings"]:
        name = file["rfilename"]
        lfs = file.get("lfs")
        address = f"sha256:{lfs['sha256']}" if lfs else f"git:{file['blobId']}"
        yield ReleaseFile(name, file["size"], address, f"{files}/{quote(name)}")


def _list_github(client: httpx.Client, release: Release, base: str) -> Iterator[ReleaseFile]:
    raw = _server("SEXTANT_GITHUB_RAW", "https://raw.githubusercontent.com")
    files = f"{raw}/{release.repository}/{release.revision}"
    answer = _get_json(
        client, f"{base}/repos/{release.repository}/git/trees/{release.revision}?recursive=1"
    )
    for entry in answer["tree"]:
        if entry["type"] == "blob":
            name = entry["path"]
            address = f"git:{entry['sha']}"
            yield ReleaseFile(name, entry["size"], address, f"{files}/{quote(name)}")


def _get_json(client: httpx.Client, url: str) -> Any:
    content = bytearray()
    ends = monotonic() + LISTING_SECONDS
    with client.stream("GET", url) as answer:
        # Raw bytes: compressed data was not asked for, and might have no end.
        for block in answer.raise_for_status().iter_raw():
            content += block
            if len(content) > LISTING_BYTES:
                raise DataError(
                    f"{url} answers with more than {LISTING_BYTES >> 20} MiB; is it the right "
                    f"address?"
                )
            if monotonic() > ends:
                raise httpx.ReadTimeout(f"its listing takes longer than {LISTING_SECONDS:g} s")
    return json.loads(content)


def _try_again(
    call: Callable[[], _T],
    label: str,
    address: str,
    size: Callable[[], int] = int,
) -> _T:
    """Return the result of `call`, tried up to three times; DataError when the server refuses
    `what`, or is not reached.

    `size` returns the bytes that are here of a file. A try that brought WORTH of them does not
    count: lines break.
    """
    tries = 0
    most = size()
    while True:
        try:
            return call()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            if isinstance(error, httpx.HTTPStatusError):  # errors of the Hub are of httpx, too
                reason = _status(error.response)
                if error.response.status_code < 500 and error.response.status_code not in (
                    408,
                    429,
                ):
                    raise _refused(error.response, label) from None
            tries += 1
            if (received := size()) >= most + WORTH:
                tries = 1
                most = received
            if tries > len(WAITS):
                raise DataError(
                    f"{urlsplit(address).netloc or address} cannot be reached ({reason}); the same "
                    f"command goes on where this one stopped"
                ) from None
        sleep(WAITS[tries - 1])


def _refused(response: httpx.Response, label: str) -> DataError:
    status = f"{_status(response)} from {response.url.host}"
    # GitHub answers 422 if a name cannot be a commit.
    if response.status_code in (404, 410, 422):
        return DataError(f"{label} is not there any more ({status})")
    return DataError(
        f"{label} is refused ({status}); a token may be needed: set HF_TOKEN for the Hugging Face Hub; "
        f"or there were too many requests: try again in an hour"
    )


def _status(response: httpx.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}".strip()
