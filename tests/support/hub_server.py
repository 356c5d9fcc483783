"""A local server that answers as the Hugging Face Hub and GitHub do where files are listed and fetched.

One release at a time, for both. As on the real Hub, large files are kept elsewhere, and a request for one is
redirected there: to a second server, on a port of its own. Tests say how it fails by setting its attributes.
"""

import gzip
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

LARGE = 20_000  # bytes from which the Hub keeps a file in LFS


class Sent(NamedTuple):
    """A file, or a part of one, that was sent."""

    path: str
    status: int
    first: int  # position of the first byte
    count: int  # bytes of the body
    authorization: str | None


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments: object) -> None:
        pass  # a client that has seen enough goes without a word, and some tests want it to


class HubServer:
    def __init__(self, repository: str, revision: str, files: dict[str, bytes]) -> None:
        self.repository, self.revision = repository, revision
        self.files = dict(files)  # what is sent
        self.listed = dict(files)  # what is listed; tests that want wrong bytes let the two differ
        self.cuts: list[
            int | None
        ] = []  # after how many bytes the next answers with a file break off
        self.busy = 0  # so many of the next requests are answered with 503
        self.status = 200  # of every listing, if another
        self.endless = False  # a listing has no end
        self.ranges = True
        self.asked: list[str] = []  # paths of all requests
        self.sent: list[Sent] = []
        self._servers = [_Quiet(("127.0.0.1", 0), _handler(self)) for _ in range(2)]
        for server in self._servers:
            threading.Thread(
                target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
            ).start()
        self.address, self.store = (
            f"http://127.0.0.1:{server.server_port}" for server in self._servers
        )

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def bytes_sent(self, ending: str) -> int:
        return sum(sent.count for sent in self.sent if sent.path.endswith(ending))

    def listing(self, path: str) -> Any:
        """The answer to a question for a listing; None when the path is none."""
        hub = f"/api/datasets/{self.repository}/revision/"
        github = f"/repos/{self.repository}/git/trees/"
        if path in (hub + self.revision, github + self.revision) and self.status != 200:
            return {"error": "as the test wants it"}
        if path == hub + self.revision:
            rows = [_sibling(name, content) for name, content in self.listed.items()]
            return {"id": self.repository, "sha": self.revision, "siblings": rows}
        if path == github + self.revision:
            rows = [
                {
                    "path": name,
                    "mode": "100644",
                    "type": "blob",
                    "sha": blob_id(content),
                    "size": len(content),
                }
                for name, content in self.listed.items()
            ]
            folders = [{"path": "datasets", "mode": "040000", "type": "tree", "sha": "0" * 40}]
            return {"sha": self.revision, "tree": folders + rows, "truncated": False}
        return None

    def moved(self, path: str) -> str:
        """Where the Hub redirects a request for a file; empty when the path is none."""
        start = f"/datasets/{self.repository}/resolve/{self.revision}/"
        name = path.removeprefix(start)
        if not path.startswith(start) or name not in self.files:
            return ""
        if len(self.files[name]) >= LARGE:
            return f"{self.store}/lfs/{quote(name)}"
        return f"/api/resolve-cache/datasets/{self.repository}/{self.revision}/{quote(name)}"

    def content(self, path: str) -> bytes | None:
        for pattern in (
            r"/lfs/(.+)",
            rf"/api/resolve-cache/datasets/{self.repository}/{self.revision}/(.+)",
            rf"/{self.repository}/{self.revision}/(.+)",
        ):
            if match := re.fullmatch(pattern, path):
                return self.files.get(match[1])
        return None


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob_id(content)}
    if len(content) >= LARGE:
        row["blobId"] = blob_id(b"version https://git-lfs.github.com/spec/v1\n")  # of the pointer
        row["lfs"] = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "pointerSize": 134,
        }
    return row


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _handler(outer: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or a body waits 40 ms for its headers to be acknowledged

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            outer.asked.append(path)
            if outer.busy:
                outer.busy -= 1
                self._answer(503, b"busy")
            elif (listing := outer.listing(path)) is not None and outer.endless:
                self._answer(200, b"", length=1 << 60)
                while self.wfile.write(b"[" * 100_000):
                    pass
            elif listing is not None:
                self._answer(outer.status, json.dumps(listing).encode())
            elif place := outer.moved(path):
                self._answer(302, b"", {"location": place, "x-repo-commit": outer.revision})
            elif (content := outer.content(path)) is not None:
                self._file(path, content)
            else:
                code = "EntryNotFound" if f"/{outer.revision}/" in path else "RevisionNotFound"
                self._answer(404, b"", {"x-error-code": code})

        def _file(self, path: str, content: bytes) -> None:
            headers, status, first = dict[str, str](), 200, 0
            if "gzip" in self.headers.get(
                "accept-encoding", ""
            ):  # as GitHub does; ranges are of what is sent
                content, headers["content-encoding"] = gzip.compress(content, mtime=0), "gzip"
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
            if wanted and outer.ranges:
                status, first = 206, int(wanted[1])
                headers["content-range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            cut = outer.cuts.pop(0) if outer.cuts else None
            body = content[first:][:cut]
            outer.sent.append(
                Sent(path, status, first, len(body), self.headers.get("authorization"))
            )
            self._answer(status, body, headers, length=len(content) - first)

        def _answer(
            self,
            status: int,
            body: bytes,
            headers: dict[str, str] | None = None,
            length: int | None = None,
        ) -> None:
            self.send_response(status)
            length = len(body) if length is None else length
            for name, value in {"content-length": str(length), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = length != len(body)  # which is how the answer breaks off

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler
