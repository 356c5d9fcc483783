"""Connections to a server with httpx: each answer comes whole by a deadline, within a bound, from
that server alone.

Each connection has a transport of its own, because httpx searches all connections of a client for
every request. Answers are paid for, so a request is sent a second time only if the server had
closed the connection between two requests: no byte of an answer has come, and the connection is not
a new one.

httpx bounds the wait for the next bytes alone, and neither the whole time nor the size of the
unpacked body. The bounds are those of a context, because libraries send over our connections, too.
Left out: redirects (a 3xx is an answer), HTTP/2, and other repetitions (tools/models/client.py).
"""

import math
import os
import re
import socket
import ssl
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import certifi
import httpcore
import httpx

from sextant.tools.errors import UsageError
from sextant.tools.models.provider_response import TIMEOUT
from sextant.tools.models.transport.streams import StreamReader
from sextant.tools.session import set_contextvar

CONNECT = 10.0  # seconds
# Seconds that a connection may lie unused, if the server names no time; most servers close theirs
# after 60 or more, llama.cpp's after 5.
IDLE = 30.0
_IDLE_SHARE = 0.8  # of the time that a server names; a request takes a while to arrive
# Seconds after sending in which a connection that the server had closed before shows that: a round
# trip. A server that closes later may have worked on the request.
STALE = 1.0
LONGEST = 3600.0  # seconds; a deadline further off is taken for this one

Kind = Literal["connection", "TLS", "timeout", "reset", "too large", "unreadable"]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token, RFC 9110, 5.6.2
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
# The seconds after which a server closes an idle connection, in its header Keep-Alive
_IDLE_SECONDS = re.compile(r"\btimeout\s*=\s*(\d{1,9})")
# The start of messages of httpx about answers that begin and do not end, or do not begin.
_BROKEN_OFF = ("Server disconnected", "peer closed connection")
# Routers forget a connection on which a model thinks for minutes
_KEEP_ALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]


class HttpResponse(NamedTuple):
    """The answer of a server, whatever its status; headers have names in lower case, and of several the last counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    # Bytes of the body that had come, and when, by time.monotonic
    arrivals: Sequence[tuple[int, float]] = ()
    # Why the rest was not waited for, as a finish reason (tools/models/provider_response.py); "" if this
    # is all
    left: str = ""


class TransportError(Exception):
    """No whole answer; `kind` is the reason in a word."""

    def __init__(self, message: str, kind: Kind) -> None:
        super().__init__(message)
        self.kind = kind


class HttpClient:
    """Connections to a server, shared by any number of threads; the connection used last is used
    next.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], *, largest: int, certificate: Path | None = None
    ) -> None:
        """Take http(s)://host[:port][/path], headers, and the client's certificate with its key.

        `largest` is the bound on the body of an answer, in bytes after decompression. UsageError if
        the address, a header, the certificate or the proxy cannot be used.
        """
        self.url = _check_address(url)
        self.headers = {name: _check_header(name, value) for name, value in headers.items()}
        self._largest = largest
        self._proxy = find_proxy(self.url)
        if self.url.startswith("https:"):
            tls = _make_tls_context(certificate)
        else:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # for a proxy by https
        self.client = httpx.Client(
            transport=ServerConnections(tls, self._proxy),
            headers={"user-agent": "sextant", "accept-encoding": "identity"},
            follow_redirects=False,
            trust_env=False,  # the proxy and the certificates of the environment are read here
        )
        self.client._cookies = _Cookies()  # noqa: SLF001  # the client copies those that it is given

    def post(
        self, path: str, body: bytes, *, deadline: float, reader: StreamReader | None = None
    ) -> HttpResponse:
        """Return the answer to `body`, or to a GET if that is empty, by `deadline`. Raises TransportError only."""
        with self.bounded(deadline) as timeout:
            request = self.client.build_request(
                "POST" if body else "GET",
                self.url + path,
                content=body or None,
                headers=self.headers,
                timeout=timeout,
            )
            return read_answer(self.client.send(request, stream=True), reader)

    @contextmanager
    def bounded(self, deadline: float) -> Iterator[httpx.Timeout]:
        """Bound each request of the block by `deadline`; yield the timeout to send it with.

        httpx's errors, and those of libraries that httpx's errors are the cause of, become
        TransportError.
        """
        seconds = min(deadline - time.monotonic(), LONGEST)
        if seconds <= 0:
            raise TransportError("no time is left to send anything", "timeout")
        connecting = min(CONNECT, seconds)
        try:
            with bounding(time.monotonic() + seconds, self._largest):
                yield httpx.Timeout(seconds, connect=connecting)
        except httpx.HTTPError as error:
            raise self._explain(error, connecting) from None

    def _explain(self, error: httpx.HTTPError, connecting: float) -> TransportError:
        """Return the error without a whole answer that an error of httpx is."""
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            return self._explain_unconnected(error, connecting)
        message = str(error)
        if isinstance(error, TooLarge):
            return TransportError(message, "too large")
        if isinstance(error, httpx.TimeoutException):
            return TransportError("no whole answer in time", "timeout")
        if isinstance(error, httpx.NetworkError) or message.startswith(_BROKEN_OFF):
            if tls_message := _tls_message(error):
                return TransportError(f"cannot connect to {self._place}: {tls_message}", "TLS")
            reset = "the server closed the connection without a whole answer"
            return TransportError(f"{reset}: {message}", "reset")
        return TransportError(f"the server's answer is not HTTP: {message}", "unreadable")

    def _explain_unconnected(self, error: httpx.HTTPError, connecting: float) -> TransportError:
        if isinstance(error, httpx.ConnectTimeout) and connecting < CONNECT:
            return TransportError(f"no connection to {self._place} in time", "timeout")
        tls_message = _tls_message(error)
        reason = tls_message or _system_message(error)
        through = f" through the proxy {_hide_secrets(self._proxy)}" if self._proxy else ""
        kind: Kind = "TLS" if tls_message else "connection"
        return TransportError(f"cannot connect to {self._place}{through}: {reason}", kind)

    @property
    def _place(self) -> str:
        return urlsplit(self.url).netloc


def read_answer(response: httpx.Response, reader: StreamReader | None = None) -> HttpResponse:
    """Read an answer, of a stream as much as its `reader` wants. Raises httpx's errors.

    A stream that goes on when its time is up is returned as far as it has come.
    """
    body = bytearray()
    arrivals = []
    left = ""
    with closing(response):
        try:
            for piece in response.iter_raw():
                body += piece
                arrivals.append((len(body), time.monotonic()))
                if reader is not None and reader.take(piece):
                    left = reader.finish
                    break
        except httpx.TimeoutException:
            if reader is None or not reader.is_writing():
                raise
            left = TIMEOUT
    headers = {name.lower(): value for name, value in response.headers.multi_items()}
    return HttpResponse(response.status_code, headers, bytes(body), arrivals, left)


class _Connection(httpx.HTTPTransport):
    """One connection, which is opened by its first request."""

    _stream: Any = None  # httpcore's, wrapped by tools/models/transport/py
    _idle_seconds = IDLE
    _idle_since = 0.0  # by time.monotonic

    @property
    def received(self) -> int:
        """The bytes that have come over the connection, over all requests."""
        return self._stream.received if self._stream else 0

    def note_answer(self, response: httpx.Response) -> None:
        """Note how long the server keeps the connection open, by the head of its answer."""
        self._stream = response.extensions["network_stream"]
        named = _IDLE_SECONDS.search(response.headers.get("keep-alive", ""))
        if named:
            self._idle_seconds = min(IDLE, _IDLE_SHARE * int(named[1]))

    def rest(self) -> None:
        """Note that the connection lies unused from now on."""
        self._idle_since = time.monotonic()

    def is_open(self) -> bool:
        """Return whether the connection is open and silent, so that it can take another request."""
        if time.monotonic() - self._idle_since > self._idle_seconds:
            return False
        connections = self._pool.connections
        return any(
            connection.is_idle() and not connection.has_expired() for connection in connections
        )


class _Cookies(httpx.Cookies):
    """Cookies of a server. httpx makes a request and an answer of urllib for each answer, cookies or not."""

    def extract_cookies(self, response: httpx.Response) -> None:
        """Keep the cookies that an answer sets, if it sets any."""
        if "set-cookie" in response.headers:
            super().extract_cookies(response)


class ServerConnections(httpx.BaseTransport):
    """Connections to a server, of which each request takes the one used last. They keep to the
    bounds of their context.
    """

    def __init__(self, tls: ssl.SSLContext, proxy: str) -> None:
        self._tls = tls
        self._proxy = httpx.Proxy(proxy) if proxy else None
        self._idle = deque[_Connection]()  # deques append and pop atomically

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, a second time if its connection turns out to have been closed before."""
        ask_for_known_encodings(request)
        unused = self._take_open()
        connection = unused or self._connect()
        received_before = connection.received
        started = time.monotonic()
        try:
            response = connection.handle_request(request)
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
            connection.close()
            is_closed = isinstance(error, httpx.NetworkError) or str(error).startswith(
                _BROKEN_OFF[0]
            )
            has_answer = connection.received > received_before
            is_late = time.monotonic() - started > STALE
            if not unused or has_answer or not is_closed or is_late:
                raise
            connection = self._connect()
            response = connection.handle_request(request)
        connection.note_answer(response)
        try:
            response.stream = _Body(response, connection, self._idle)
        except httpx.HTTPError:
            response.close()
            connection.close()
            raise
        return response

    def _take_open(self) -> _Connection | None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                return None
            if connection.is_open():
                return connection
            connection.close()
        return None

    def _connect(self) -> _Connection:
        connection = _Connection(
            verify=self._tls,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=IDLE),
            trust_env=False,
            proxy=self._proxy,
            socket_options=_KEEP_ALIVE,
        )
        connection._pool._network_backend = TimedBackend()  # noqa: SLF001  # httpx takes none
        return connection

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that led to one of httpx; httpcore gives them as contexts alone."""
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _tls_message(error: BaseException) -> str:
    """Return what is wrong with TLS, "" if the connection broke off or something else is wrong."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError) and not isinstance(
            cause, ssl.SSLEOFError | ssl.SSLZeroReturnError
        ):
            return str(cause)
    return ""


def _system_message(error: BaseException) -> str:
    """Return the operating system's message for an error, without its number."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return str(error)


def _check_address(url: str) -> str:
    """Return `url` without a slash at its end, with a host name that DNS takes."""
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL:
        address = httpx.URL("")
    named = re.fullmatch(rb"[0-9A-Za-z._:-]+", address.raw_host)
    if address.scheme not in ("http", "https") or not named or (address.port or 0) > 65_535:
        raise UsageError(
            f"{_hide_secrets(url)!r} is not the address of a server; write it as "
            f"http://host:port/v1"
        )
    if address.query or address.fragment or address.userinfo:
        wrong = "has more than a host, a port and a path; a key belongs in the environment"
        raise UsageError(f"{_hide_secrets(url)!r} {wrong}")
    return str(address).rstrip("/")


def _hide_secrets(url: str) -> str:
    return re.sub(r"//[^/]*@", "//***@", url.split("?", 1)[0].split("#", 1)[0])


def _check_header(name: str, value: str) -> str:
    """Return the value of a header that can be sent."""
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        wrong = "has a line break or a character that no header holds; check the key"
        raise UsageError(f"the value of the header {name!r} {wrong}")
    return value


def find_proxy(url: str) -> str:
    """Return the proxy that the environment names for an address, "" for none."""
    address = urlsplit(url)
    proxies = getproxies_environment()
    proxy = str(proxies.get(address.scheme) or proxies.get("all") or "")
    is_here = re.fullmatch(r"localhost|::1|127(\.\d+){3}", address.hostname or "")
    if not proxy or is_here or proxy_bypass_environment(address.netloc):
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not re.match(r"(https?|socks5h?)://[^/]", proxy, re.IGNORECASE):
        wrong = f"the proxy {_hide_secrets(proxy)!r} is not an http:// or socks5:// one"
        raise UsageError(f"{wrong}; set ${address.scheme.upper()}_PROXY to one")
    return proxy


def _make_tls_context(certificate: Path | None) -> ssl.SSLContext:
    """Return the context of TLS with the authorities to trust and the client's own certificate.

    The authorities are those of $SSL_CERT_FILE and $SSL_CERT_DIR, or else certifi's and those of
    the system's folder.
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
    if certificate is None:
        return context
    try:
        # With a password, even an empty one, nothing is asked for on the terminal
        context.load_cert_chain(certificate, password="")
    except (OSError, ValueError) as error:
        wrong = (
            f"--client-certificate '{certificate}' holds no certificate with its key that can be "
            f"read: {error}"
        )
        raise UsageError(
            f"{wrong}; write both into one file in PEM, without a passphrase"
        ) from None
    return context


# Bytes of an answer: three times what 100 vectors of 4,096 numbers have, written out. A stream has
# some 300 a token.
LARGEST = 32 << 20
_WRITTEN = 64 << 10  # bytes after which a request that is being sent looks at the deadline
_UNPACKED = 1 << 20  # bytes that are unpacked at a time
_ENCODINGS = ("gzip", "deflate")
# For zlib: it looks itself whether it has data of gzip or of deflate.
_ANY_HEADER = zlib.MAX_WBITS | 32


class TooLarge(httpx.DecodingError):
    """An answer is larger than it may be, once unpacked."""

    kind = "too large"  # for tools/models/provider_errors.py


class _Bounds(NamedTuple):
    deadline: float  # on time.monotonic()
    largest: int  # bytes of an answer's body, once unpacked

    def left(self, late: type[Exception]) -> float:
        """Return the seconds that are left; raise `late` if there are none."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise late("the answer did not come in time")
        return seconds


_UNBOUNDED = _Bounds(math.inf, sys.maxsize)


_BOUNDS: ContextVar[_Bounds | None] = ContextVar("bounds", default=None)


def bounding(deadline: float, largest: int = LARGEST) -> AbstractContextManager[None]:
    """Bound each request of the block, by time.monotonic and in bytes of an answer."""
    return set_contextvar(_BOUNDS, _Bounds(deadline, largest))


def ask_for_known_encodings(request: httpx.Request) -> None:
    """Name the encodings of an answer that are unpacked here, piece by piece."""
    # AWS names there the headers that its signature is over
    signed = request.headers.get("authorization", "").lower()
    is_plain = request.headers.get("accept-encoding") == "identity"
    if not is_plain and "accept-encoding" not in signed:
        request.headers["accept-encoding"] = ", ".join(_ENCODINGS)


class TimedBackend(httpcore.SyncBackend):
    """Makes connections whose reads and writes end at the deadline of the context."""

    def connect_tcp(self, *arguments: Any, **options: Any) -> httpcore.NetworkStream:
        """Connect as httpcore does."""
        return _Timed(super().connect_tcp(*arguments, **options))


class _Body(httpx.SyncByteStream):
    """The body of an answer, unpacked piece by piece, at whose end the connection can be used again.

    httpx is left to believe that it was not packed. TooLarge and ReadTimeout come as it is read.
    """

    def __init__(
        self, response: httpx.Response, connection: _Connection, idle: deque[_Connection]
    ) -> None:
        assert isinstance(response.stream, httpx.SyncByteStream)
        self._stream = response.stream
        self._connection = connection
        self._idle = idle
        self._bounds = _BOUNDS.get() or _UNBOUNDED
        stated = response.headers.get("content-length", "")
        if stated.isdecimal():
            self._check(int(stated))
        self._received = self._unpacked = 0  # bytes
        self._decompressor: Any = None
        encoding = response.headers.pop("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            if encoding not in _ENCODINGS:
                raise httpx.DecodingError(
                    f"the answer is packed as {encoding:.40}, which was not asked for"
                )
            self._decompressor = zlib.decompressobj(_ANY_HEADER)
        self._bare = encoding == "deflate"  # which some servers send without the header of zlib

    def __iter__(self) -> Iterator[bytes]:
        for received in self._stream:
            self._bounds.left(httpx.ReadTimeout)
            self._received += len(received)
            self._check(self._received)
            if self._decompressor is None:
                yield received
                continue
            packed = received
            while packed:
                unpacked = self._unpack(packed)
                packed = self._decompressor.unconsumed_tail
                self._unpacked += len(unpacked)
                self._check(self._unpacked)
                yield unpacked

    def close(self) -> None:
        self._stream.close()
        self._connection.rest()
        self._idle.append(self._connection)

    def _unpack(self, packed: bytes) -> bytes:
        try:
            unpacked: bytes = self._decompressor.decompress(packed, _UNPACKED)
        except zlib.error as error:
            if not self._bare or self._unpacked:
                raise httpx.DecodingError(f"the packed answer is damaged: {error}") from None
            self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
            self._bare = False
            return self._unpack(packed)
        return unpacked

    def _check(self, size: int) -> None:
        if size > self._bounds.largest:
            raise TooLarge(f"the server's answer is larger than {self._bounds.largest:,} bytes")


class _Timed(httpcore.NetworkStream):
    """A connection that ends at the deadline, also while a head comes byte by byte."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        self.received = 0  # bytes read so far, over all requests

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._stream.read(max_bytes, _shorten(timeout, httpcore.ReadTimeout))
        self.received += len(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _WRITTEN):
            piece = buffer[start : start + _WRITTEN]
            self._stream.write(piece, _shorten(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        seconds = _shorten(timeout, httpcore.ConnectTimeout)
        return _Timed(self._stream.start_tls(ssl_context, server_hostname, seconds))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _shorten(timeout: float | None, late: type[Exception]) -> float | None:
    """Return `timeout`, or the seconds until the deadline if these are fewer; raise `late` after
    it.
    """
    bounds = _BOUNDS.get()
    if bounds is None:
        return timeout
    seconds = bounds.left(late)
    return seconds if timeout is None else min(timeout, seconds)
