"""The files of a public release as its service lists them: each one's size, and the address of its content.

Three kinds of service are asked: the Hugging Face Hub, GitHub and Zenodo. A listing is of the pinned revision or it is
refused, and so is one whose paths lead out of their folder. Questions are asked again a few times, and then given up
with one line. What is done with the files is in fetch.py.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from time import monotonic, sleep
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from environments.base import Release
from tools.errors import DataError, UsageError

WAITS = (1.0, 4.0)  # seconds before the second and the third try; a fourth is not made
WORTH = 1_000_000  # a try that brought so many new bytes was none in vain, and the count begins again
LISTING_SECONDS = 30.0  # for all of a listing
LISTING_BYTES = 64 << 20  # of a listing, at most; 100,000 files, GitHub's most, take some 25 MB
TIMEOUT = httpx.Timeout(30.0, connect=10.0)  # seconds without a byte, not for a whole file

_OVERLOADED = (408, 429)
_T = TypeVar("_T")

_Row = tuple[str, Any, Any, Any]  # path, size, address and URL of a listed file, unchecked


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as the pinned release lists it."""

    path: str  # inside the release, with slashes
    size: int  # in bytes
    address: str  # "sha256:<hex>", "git:<hex>" (a blob id) or "md5:<hex>"
    url: str


def _base(variable: str, usual: str) -> str:
    address = (os.environ.get(variable) or usual).rstrip("/")
    try:
        parts = urlsplit(address)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        fine = False
    if not fine:
        raise UsageError(f"{variable} is {address[:100]!r}, which is no http:// or https:// address")
    return address


def connect(release: Release) -> httpx.Client:
    """A client for the release's listing and files. UsageError when the Hub may not be used."""
    # A compressed answer could not be resumed: its ranges count compressed bytes.
    headers = {"accept-encoding": "identity", "user-agent": "sextant"}
    if release.kind == "hub":
        headers |= _hub_headers()
    try:
        return httpx.Client(headers=headers, follow_redirects=True, timeout=TIMEOUT)
    except (ImportError, OSError, ValueError) as error:  # of *_PROXY or SSL_CERT_* in the environment
        reason = " ".join(str(error).split())
        raise UsageError(f"the network cannot be used as *_PROXY and SSL_CERT_* say: {reason}") from None


def _hub_headers() -> dict[str, str]:
    """The headers of the Hub's client; httpx does not send the user's token on to the hosts that files come from."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # read when the library is imported
    import huggingface_hub  # here, because it reads the line above when it is imported
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, re-exported lazily

    if huggingface_hub.is_offline_mode():
        name = "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
        raise UsageError(f"{name} is set; unset it to fetch")
    headers: dict[str, str] = build_hf_headers(library_name="sextant")
    return headers


def list_files(client: httpx.Client, release: Release, paths: tuple[str, ...]) -> list[Listed]:
    """The files named by `paths`, as listed; DataError when one is missing or the listing cannot be trusted."""
    base, ask = {
        "hub": (_base("HF_ENDPOINT", "https://huggingface.co"), _hub),
        "github": (_base("SEXTANT_GITHUB_API", "https://api.github.com"), _github),
        "zenodo": (_base("SEXTANT_ZENODO", "https://zenodo.org"), _zenodo),
    }[release.kind]
    what = name_release(release)
    try:
        rows = {row[0]: row for row in try_again(lambda: ask(client, release, base), what, base)}
        _check_inside(rows, release)
        listed = [_listed(*rows[path]) for path in paths if path in rows]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise DataError(
            f"{base} answers for {what} with what is no listing of files; is it the right address?"
        ) from None
    if missing := [path for path in paths if path not in rows]:
        raise DataError(f"{what} has no file {missing[0]!r}")
    return listed


def _hub(client: httpx.Client, release: Release, base: str) -> list[_Row]:
    info = _get_json(client, f"{base}/api/datasets/{release.repository}/revision/{release.revision}", {"blobs": "true"})
    if info["sha"] != release.revision:
        raise DataError(f"{base} answers for {name_release(release)} with revision {info['sha']!r:.50}")
    files = f"{base}/datasets/{release.repository}/resolve/{release.revision}"
    rows = []
    for file in info["siblings"]:
        name, lfs = file["rfilename"], file.get("lfs")
        address = f"sha256:{lfs['sha256']}" if lfs else f"git:{file['blobId']}"
        rows.append((name, file["size"], address, f"{files}/{quote(name)}"))
    return rows


def _github(client: httpx.Client, release: Release, base: str) -> list[_Row]:
    raw = f"{_base('SEXTANT_GITHUB_RAW', 'https://raw.githubusercontent.com')}/{release.repository}/{release.revision}"
    answer = _get_json(client, f"{base}/repos/{release.repository}/git/trees/{release.revision}", {"recursive": "1"})
    blobs = [entry for entry in answer["tree"] if entry["type"] == "blob"]
    return [(blob["path"], blob["size"], f"git:{blob['sha']}", f"{raw}/{quote(blob['path'])}") for blob in blobs]


def _zenodo(client: httpx.Client, release: Release, base: str) -> list[_Row]:
    record = _get_json(client, f"{base}/api/records/{release.repository}")
    if str(record["id"]) != release.repository:  # the number of all versions leads to the newest
        raise DataError(f"{base} answers for {name_release(release)} with record {record['id']!r:.50}")
    return [(file["key"], file["size"], file["checksum"], file["links"]["self"]) for file in record["files"]]


def _get_json(client: httpx.Client, url: str, question: Mapping[str, str] | None = None) -> Any:
    """The JSON that a service answers with. DataError, or an error of httpx, when it has no end in size or time."""
    content, ends = bytearray(), monotonic() + LISTING_SECONDS
    with client.stream("GET", url, params=question) as answer:
        for block in answer.raise_for_status().iter_raw():  # raw: compressed was not asked for, and might have no end
            content += block
            if len(content) > LISTING_BYTES:
                raise DataError(f"{url} answers with more than {LISTING_BYTES >> 20} MiB; is it the right address?")
            if monotonic() > ends:
                raise httpx.ReadTimeout(f"its listing takes longer than {LISTING_SECONDS:g} s")
    return json.loads(content)


def _listed(path: str, size: Any, address: Any, url: Any) -> Listed:
    """A row of a listing; ValueError when a file could not be checked by it."""
    if not isinstance(size, int) or size < 0 or not isinstance(url, str):
        raise ValueError(path)
    if not re.fullmatch(r"sha256:[0-9a-f]{64}|git:[0-9a-f]{40}|md5:[0-9a-f]{32}", address):
        raise ValueError(path)
    return Listed(path, size, address, url)


def _check_inside(paths: Iterable[str], release: Release) -> None:
    """Refuse a listing with a path that leads out of its folder, whatever else is in it."""
    for path in paths:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\0" in path:
            raise DataError(f"the listing of {name_release(release)} is refused: {path!r:.200} leads out of its folder")


def name_release(release: Release) -> str:
    """The release as messages name it."""
    if not release.revision:
        return f"record {release.repository} of Zenodo"
    return f"revision {release.revision[:8]} of {release.repository}"


def try_again(call: Callable[[], _T], what: str, address: str, here: Callable[[], int] = int) -> _T:
    """Return what `call` returns, tried up to three times; DataError when the server refuses `what`, or is not reached.

    `here` returns the bytes that there are of a file. A try that brought a good many is not counted, so that a large
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
                reason = str(error) or type(error).__name__ if response is None else name_status(response)
                raise DataError(
                    f"{urlsplit(address).netloc or address} cannot be reached ({reason}); "
                    "the same command goes on where this one stopped"
                ) from None
        sleep(WAITS[tries - 1])


def _refused(response: httpx.Response, what: str) -> DataError:
    said, host = name_status(response), response.url.host
    if response.status_code in (404, 410, 422):  # 422 is GitHub's answer for what cannot be a commit
        return DataError(f"{what} is not there any more ({said} from {host})")
    if response.headers.get("x-ratelimit-remaining") == "0":
        return DataError(f"{host} takes no more requests from here for now ({said}); try again in an hour")
    if response.status_code in (401, 403):
        return DataError(
            f"{host} does not give {what} to everybody, or not any more ({said}); "
            "a token may be needed: set HF_TOKEN for the Hugging Face Hub"
        )
    return DataError(f"{host} refuses {what} ({said})")


def name_status(response: httpx.Response) -> str:
    """An answer's status as messages name it, e.g. "404 Not Found"."""
    return f"{response.status_code} {response.reason_phrase}".strip()
