"""Posts to a server: each is answered whole by a deadline, within a bound, by that server and no
other.

libcurl does the work: of the clients that were measured (benchmarks/RESULTS.md) it alone
costs the processor no more than a bare socket. A request that a server may have seen is never sent
twice, because answers are paid for. Left out: redirects (a 3xx is an answer), HTTP/2, and sending
again.
"""

import math
import os
import re
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import certifi
import httpx
import pycurl

from tools.errors import UsageError

CONNECT = 10.0  # seconds
IDLE = 30  # seconds that a connection may lie unused; servers close theirs after 60 or more
LARGEST_HEAD = 64 << 10  # bytes of an answer's headers, interim answers included
LONGEST = 3600.0  # seconds; a deadline further off is taken for this one

Enough = (
    Callable[[bytes], bool] | None
)  # given each part of an answer, says whether the rest can be left
Kind = Literal["connection", "TLS", "timeout", "reset", "too large", "unreadable"]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token, RFC 9110, 5.6.2
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

# libcurl's errors; any other means that there is no connection yet, or that the answer is not HTTP.
_KINDS: dict[int, Kind] = {
    pycurl.E_PEER_FAILED_VERIFICATION: "TLS",
    **dict.fromkeys((pycurl.E_FILESIZE_EXCEEDED, pycurl.E_WRITE_ERROR), "too large"),
    pycurl.E_OPERATION_TIMEDOUT: "timeout",
    **dict.fromkeys((pycurl.E_GOT_NOTHING, pycurl.E_PARTIAL_FILE, pycurl.E_RECV_ERROR), "reset"),
    **dict.fromkeys((pycurl.E_SEND_ERROR, pycurl.E_SEND_FAIL_REWIND), "reset"),
}


class HttpResponse(NamedTuple):
    """The answer of a server, whatever its status; headers have names in lower case, and of several the last counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    arrivals: Sequence[
        tuple[int, float]
    ] = ()  # how much of the body had come, and when, by time.monotonic
    left: bool = False  # whether there might have been more that was not waited for


class TransportError(Exception):
    """No whole answer; `kind` says why in a word."""

    def __init__(self, message: str, kind: Kind) -> None:
        super().__init__(message)
        self.kind = kind


class HttpClient:
    """Connections to one server, shared by any number of threads; the one used last is used next."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, largest: int, certificate: Path | None = None
    ) -> None:
        """Take http(s)://host[:port][/path], headers, and the client's certificate with its key.

        UsageError where these, or the proxy, cannot be used.
        """
        self._url = _address(url)
        self._largest = largest  # bytes of the body of an answer, after decompression
        self._headers = [_line(name, value) for name, value in headers.items()]
        self._proxy = _proxy(self._url)
        self._trusted = _trust(certificate) if self._url.startswith("https:") else {}
        # libcurl's handles, each with its connection, and since when it is unused; deques append
        # and pop atomically
        self._idle: deque[tuple[Any, float]] = deque()

    def post(
        self, path: str, body: bytes, *, deadline: float, enough: Enough = None
    ) -> HttpResponse:
        """Return the answer to `body`, or where that is empty to a GET, by `deadline`. Raises Unanswered only."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TransportError("no time is left to send anything", "timeout")
        handle = self._borrow() or self._handle()
        exchange = _Transfer(body, self._largest, enough)
        handle.setopt(pycurl.POST if body else pycurl.HTTPGET, 1)
        handle.setopt(pycurl.URL, self._url + path)  # libcurl takes a ".." in it away
        handle.setopt(pycurl.TIMEOUT_MS, max(1, math.ceil(1000 * min(left, LONGEST))))
        handle.setopt(pycurl.POSTFIELDSIZE_LARGE, len(body))
        handle.setopt(pycurl.READFUNCTION, exchange.read)
        handle.setopt(pycurl.OPENSOCKETFUNCTION, exchange.connect)
        handle.setopt(pycurl.HEADERFUNCTION, exchange.head)
        handle.setopt(pycurl.WRITEFUNCTION, exchange.write)
        try:
            handle.perform()
        except pycurl.error as error:
            if exchange.left or exchange.whole_before_a_reset():
                return exchange.answer()
            code, words, *_ = cast(tuple[Any, ...], error.args)
            raise self._failure(handle, code, words, exchange) from None
        self._idle.append((handle, time.monotonic()))
        return exchange.answer()

    def _borrow(self) -> Any:
        """Return the handle used last whose connection is open and silent, which libcurl at times sees too late."""
        with suppress(IndexError):
            while True:
                handle, since = self._idle.pop()
                if time.monotonic() - since < IDLE and _is_silent(
                    handle.getinfo(pycurl.ACTIVESOCKET)
                ):
                    return handle
                handle.close()
        return None

    def _handle(self) -> Any:
        handle = pycurl.Curl()
        options: dict[int, Any] = {
            pycurl.NOSIGNAL: 1,
            pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
            pycurl.FOLLOWLOCATION: 0,
            pycurl.CONNECTTIMEOUT_MS: int(1000 * CONNECT),
            pycurl.MAXCONNECTS: 1,
            pycurl.MAXFILESIZE_LARGE: self._largest,  # where the answer states its length
            # Routers forget a connection on which a model thinks for minutes
            pycurl.TCP_KEEPALIVE: 1,
            pycurl.PROXY: self._proxy,
            # Compression that was not asked for is undone, so that it is bounded
            pycurl.ACCEPT_ENCODING: "",
            pycurl.HTTPHEADER: [
                *self._headers,
                "Accept-Encoding: identity",
                "User-Agent: sextant",
                "Expect:",
            ],
            **self._trusted,
        }
        for option, value in options.items():
            handle.setopt(option, value)
        return handle

    def _failure(self, handle: Any, code: int, words: str, exchange: "_Transfer") -> Exception:
        if exchange.wrong:
            return TransportError(
                f"the server's answer is not HTTP: {exchange.wrong}", "unreadable"
            )
        kind = _KINDS.get(code, "unreadable")
        if kind == "too large":
            return TransportError(
                f"the server's answer is larger than {self._largest:,} bytes", kind
            )
        if exchange.sent and code == pycurl.E_COULDNT_CONNECT:
            kind = "reset"  # and it was not connected to again
        elif not exchange.sent:
            return self._unconnected(handle, kind, words)
        if kind == "timeout":
            return TransportError("no whole answer in time", kind)
        if kind == "reset":
            return TransportError(
                f"the server closed the connection without a whole answer: {words}", kind
            )
        return TransportError(f"the server's answer is not HTTP: {words}", "unreadable")

    def _unconnected(self, handle: Any, kind: Kind, words: str) -> Exception:
        place = urlsplit(self._url).netloc
        if kind == "timeout" and handle.getinfo(pycurl.TOTAL_TIME) < CONNECT - 0.1:
            return TransportError(f"no connection to {place} in time", kind)
        if kind == "TLS" or (
            words.startswith("TLS connect error: error:") and "unexpected eof" not in words
        ):
            kind = "TLS"
        elif number := handle.getinfo(pycurl.OS_ERRNO):
            words = os.strerror(number)
        through = f" through the proxy {_hide_secrets(self._proxy)}" if self._proxy else ""
        return TransportError(
            f"cannot connect to {place}{through}: {words}", "TLS" if kind == "TLS" else "connection"
        )


class _Transfer:
    """A request on its way out, and what has come back so far."""

    def __init__(self, body: bytes, largest: int, enough: Enough) -> None:
        self.sent = False  # whether any of the body may have been
        self.wrong = ""  # why no more is read, where that is not its length
        self._question = BytesIO(body)
        self._largest = largest
        self._lines: list[bytes] = []  # of the last head
        self._heads = 0  # bytes
        self._body = bytearray()
        self._arrivals = list[tuple[int, float]]()
        self._enough = enough
        self.left = False

    def read(self, size: int) -> bytes:
        """Give libcurl more of the body."""
        self.sent = True
        return self._question.read(size)

    def connect(self, purpose: int, address: Any) -> Any:
        """Make a socket for libcurl, but none after a part of the body was sent: the server may have answered that."""
        if self.sent:
            return pycurl.SOCKET_BAD  # else libcurl would send the request again
        return socket.socket(address.family, address.socktype, address.protocol)

    def head(self, line: bytes) -> int:
        """Take a line of a head; return its length, or -1 to have libcurl give up."""
        self._heads += len(line)
        if line.startswith(b"HTTP/"):
            self._lines = []
        self._lines.append(line)
        if self._heads > LARGEST_HEAD:
            self.wrong = f"its head is longer than {LARGEST_HEAD >> 10} KB"
            return -1
        return len(line)

    def write(self, data: bytes) -> int:
        """Take a part of the body, as `head` does a line."""
        self._body += data
        self._arrivals.append((len(self._body), time.monotonic()))
        self.left = self._enough is not None and self._enough(data)
        return len(data) if len(self._body) <= self._largest and not self.left else -1

    def answer(self) -> HttpResponse:
        """Return the answer, which is whole."""
        headers = {}
        for line in self._lines[1:]:
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon:
                break  # behind the empty line are trailers
            headers[name.lower()] = value.strip()
        return HttpResponse(
            int(self._lines[0].split(b" ", 2)[1]),
            headers,
            bytes(self._body),
            self._arrivals,
            self.left,
        )

    def whole_before_a_reset(self) -> bool:
        """Whether the answer is as long as it states: an error after it does not matter."""
        if self.wrong or not self.sent or len(self._lines) < 2 or self._lines[-1].strip():
            return False
        answer = self.answer()
        stated = answer.headers.get("content-length", "")
        plain = "content-encoding" not in answer.headers and answer.status >= 200
        return plain and stated.isdecimal() and len(answer.body) == int(stated)


def _is_silent(descriptor: int) -> bool:
    """Whether this is an open socket with nothing to read, not even its end."""
    poll = select.poll()
    if descriptor >= 0:
        poll.register(descriptor, select.POLLIN)
    return descriptor >= 0 and not poll.poll(0)


def _address(url: str) -> str:
    """Return `url` without a slash at its end, with a host name that DNS takes."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        parts = httpx.URL("")
    named = re.fullmatch(rb"[0-9A-Za-z._:-]+", parts.raw_host)
    if parts.scheme not in ("http", "https") or not named or (parts.port or 0) > 65_535:
        raise UsageError(
            f"{_hide_secrets(url)!r} is not the address of a server; write it as "
            f"http://host:port/v1"
        )
    if parts.query or parts.fragment or parts.userinfo:
        wrong = "has more than a host, a port and a path; a key belongs in the environment"
        raise UsageError(f"{_hide_secrets(url)!r} {wrong}")
    return str(parts).rstrip("/")


def _hide_secrets(url: str) -> str:
    return re.sub(r"//[^/]*@", "//***@", url.split("?", 1)[0].split("#", 1)[0])


def _line(name: str, value: str) -> bytes:
    """Return a header as libcurl wants it; a semicolon stands for an empty value."""
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        wrong = "has a line break or a character that no header holds; check the key"
        raise UsageError(f"the value of the header {name!r} {wrong}")
    return (f"{name}: {value}" if value else f"{name};").encode("latin-1")


def _proxy(url: str) -> str:
    parts = urlsplit(url)
    known = getproxies_environment()
    proxy = str(known.get(parts.scheme) or known.get("all") or "")
    here = re.fullmatch(r"localhost|::1|127(\.\d+){3}", parts.hostname or "")
    if not proxy or here or proxy_bypass_environment(parts.netloc):
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not re.match(r"(https?|socks[45][ah]?)://[^/]", proxy, re.IGNORECASE):
        wrong = f"the proxy {_hide_secrets(proxy)!r} is not an http:// or socks5:// one"
        raise UsageError(f"{wrong}; set ${parts.scheme.upper()}_PROXY to one")
    return proxy


def _trust(certificate: Path | None) -> dict[int, str]:
    """Return the options for TLS: who is trusted, and who we are.

    Trusted are $SSL_CERT_FILE and $SSL_CERT_DIR, or else certifi's authorities and the system's folder.
    """
    file = os.environ.get("SSL_CERT_FILE") or ""
    folder = os.environ.get("SSL_CERT_DIR") or ""
    if not file and not folder:
        file = certifi.where()
        folder = ssl.get_default_verify_paths().capath or ""
    try:
        context = ssl.create_default_context(cafile=file or None, capath=folder or None)
    except OSError as error:
        raise UsageError(
            f"$SSL_CERT_FILE is {file!r}, which holds no certificates that can be read"
        ) from error
    ours = str(certificate) if certificate else ""
    try:
        if ours:
            context.load_cert_chain(
                ours, password=""
            )  # an empty one, so that nobody is asked for it
    except (OSError, ValueError) as error:
        wrong = (
            f"--client-certificate {ours!r} holds no certificate with its key that can be read: "
            f"{error}"
        )
        raise UsageError(
            f"{wrong}; write both into one file in PEM, without a passphrase"
        ) from None
    named = {pycurl.CAINFO: file, pycurl.CAPATH: folder, pycurl.SSLCERT: ours, pycurl.SSLKEY: ours}
    return {option: value for option, value in named.items() if value}
