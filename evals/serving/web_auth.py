"""A door on the web: who may come in, and its server in a thread of its own.

A request is checked before the door's application sees it. Its Host and Origin keep out pages in a
browser on this machine, which reach the loopback address under another name (DNS rebinding) or from
another site; then come its token and its length.
"""

import logging
import re
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from hmac import compare_digest
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from sextant.evals.serving.client_config import ServerAddress
from sextant.evals.serving.connections import Connection, count_most
from sextant.evals.serving.episode_server import EpisodeServer
from sextant.tools.errors import UsageError
from sextant.tools.models.answers.arguments import describe_byte
from sextant.tools.platform.cli import print_stderr

MOST_BYTES = 4 * 2**20  # of a request
ENDING = 3.0  # seconds that requests have to end
UNREAD = 60_000  # milliseconds that an answer may lie unread, before its connection is cut off
HIGHEST_PORT = 65_535
WAITING = 256  # connections that are not taken yet
HERE = ("127.0.0.1", "localhost", "[::1]")  # in a Host header
_HOST = re.compile(
    r"(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]\\]+)(?::([0-9]{0,5}))?", re.ASCII
)  # RFC 9110, section 7.2
_ORIGIN = re.compile(r"https?://(.+)")  # RFC 6454, section 7

USUAL = {b"accept": b"*/*", b"content-type": b"application/json"}  # of a POST that does not say

Application = Callable[..., Any]  # ASGI


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: HTTPStatus
    reason: str


TOO_LARGE = Refusal(
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {MOST_BYTES:,} bytes"
)


class AuthMiddleware:
    """An application that only those reach who may come in."""

    def __init__(
        self,
        application: Application,
        address: ServerAddress,
        admits: Callable[[str], bool] | None = None,
    ) -> None:
        """`admits` tells whether a token is right, by default the token of the place."""
        self._application = application
        self._hosts = {*HERE, address.address} if address.is_here else set[str]()
        self._admits = admits or (
            lambda token: (
                not address.token or compare_digest(token.encode(), address.token.encode())
            )
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "websocket" and (refusal := self._refuse(Headers(scope=scope))):
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.reason})
        else:
            await self._application(scope, receive, send)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        headers = Headers(scope=scope)
        refusal = self._refuse(headers) or _refuse_address(scope) or _refuse_encoding(headers)
        if not refusal:
            body = await _read_body(receive)
            if body is None:  # the client went away
                return
            if len(body) <= MOST_BYTES:
                await self._application(_as_usual(scope, headers), replay(body, receive), send)
                return
            refusal = TOO_LARGE
        more = {"www-authenticate": "Bearer"} if refusal.status == HTTPStatus.UNAUTHORIZED else None
        await JSONResponse({"error": refusal.reason}, refusal.status, more)(scope, receive, send)

    def _refuse(self, headers: Headers) -> Refusal | None:
        """Return why somebody may not come in. A client without a Host is no browser, and a name has no case."""
        host = headers.get("host", "").lower()
        if host and self._hosts and _name_in(host) not in self._hosts:
            ours = ", ".join(sorted(self._hosts))
            return Refusal(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"this Host is not ours; there are {ours}; see --address",
            )
        foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if foreign or not _is_own(headers.get("origin", ""), host):
            return Refusal(HTTPStatus.FORBIDDEN, "requests from other sites are refused")
        if not self._admits(request_token(headers)):
            return Refusal(
                HTTPStatus.UNAUTHORIZED,
                "the token is missing or wrong; send Authorization: Bearer TOKEN",
            )
        return None


def _name_in(host: str) -> str:
    """Return the name or the address in a Host header, without its port; "" if it is no such header."""
    match = _HOST.fullmatch(host)
    if match is None or int(match[2] or 0) > HIGHEST_PORT:
        return ""
    return match[1]


def _is_own(origin: str, host: str) -> bool:
    """Whether a page of this server sends a request, or no page."""
    if not origin:
        return True
    match = _ORIGIN.fullmatch(origin.lower())
    return match is not None and match[1] == host and _name_in(host) != ""


def _refuse_address(scope: Any) -> Refusal | None:
    """Return why an address means nothing: frameworks replace bytes that are no UTF-8."""
    address = scope.get("raw_path", b"") + b"?" + scope["query_string"]
    try:
        unquote_to_bytes(address).decode()
    except UnicodeDecodeError as error:
        return Refusal(HTTPStatus.BAD_REQUEST, f"the address is no UTF-8: {describe_byte(error)}")
    return None


def _refuse_encoding(headers: Headers) -> Refusal | None:
    """Return why a body cannot be read: it is compressed."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        return Refusal(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "a request is sent as it is, without a Content-Encoding",
        )
    return None


async def _read_body(receive: Any) -> bytes | None:
    """Return the body of a request, which may come in chunks, or somewhat more than MOST_BYTES of it; None for none."""
    body = bytearray()
    while len(body) <= MOST_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return bytes(body)


def replay(body: bytes, receive: Any) -> Callable[[], Any]:
    """Return a receiver that yields the body that was read, and then all later messages."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def take() -> Any:
        return messages.pop() if messages else await receive()

    return take


def _as_usual(scope: Any, headers: Headers) -> Any:
    """Return a scope without a slash at the end of its path, and with the headers that clients may leave out."""
    usual = dict(scope)
    if len(path := scope["path"]) > 1 and path.endswith("/"):
        usual |= {
            "path": path.rstrip("/") or "/",
            "raw_path": None,
        }
    if scope["method"] == "POST":
        headers_as_usual = [(name, value) for name, value in scope["headers"] if name not in USUAL]
        for name, value in USUAL.items():
            value_sent = headers.get(
                name.decode(), ""
            )  # types have no case, but libraries compare them
            headers_as_usual.append((name, value_sent.lower().encode("latin-1") or value))
        usual["headers"] = headers_as_usual
    return usual


def request_token(headers: Headers) -> str:
    """Return the token that a request shows, or "". As a password it may come from a client that takes a URL alone."""
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    with suppress(ValueError):
        return b64decode(shown).decode().partition(":")[2] if scheme.lower() == "basic" else shown
    return ""


class WebServer:
    """An application that is being served, until `stop`."""

    def __init__(
        self,
        application: Application,
        address: str,
        port: int,
    ) -> None:
        """Listen there; port 0 is any free port. UsageError if that cannot be."""
        try:
            listening = socket.create_server(
                (address, port),
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                backlog=WAITING,
            )
        except OSError as error:
            raise UsageError(
                f"port {port} of {address} cannot be used: {error.strerror or error}; choose --port"
            ) from None
        self.port: int = listening.getsockname()[1]
        if hasattr(
            socket, "TCP_USER_TIMEOUT"
        ):  # connections have it from the socket that they came to
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD)
        self._server = uvicorn.Server(
            uvicorn.Config(
                application,
                http=Connection,
                log_config=None,
                access_log=False,
                backlog=WAITING,
                limit_concurrency=count_most(),
                ws_max_size=MOST_BYTES,
                timeout_graceful_shutdown=int(ENDING),
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True)
        # Clients that go away are no errors of ours.
        logging.getLogger("uvicorn.error").addFilter(self._is_foreign)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)

    def ended(self) -> bool:
        """Whether it has stopped by itself."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Finish the requests under way, and accept no more."""
        self._server.should_exit = True
        self._thread.join(2 * ENDING)
        logging.getLogger("uvicorn.error").removeFilter(self._is_foreign)

    def _is_foreign(self, record: logging.LogRecord) -> bool:
        """Return whether a record of uvicorn's is of another server."""
        return record.thread != self._thread.ident or record.levelno >= logging.CRITICAL


def serve(application: Application, host: EpisodeServer, address: ServerAddress) -> None:
    """Serve an application at a place until every query of the host is answered, or the command is interrupted."""
    server = WebServer(AuthMiddleware(application, address), address.address, address.port)
    print_stderr(f"serving at {address.url}")
    try:
        host.wait(server.ended)
    finally:
        server.stop()
