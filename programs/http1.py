"""A lean HTTP/1.1 client for many threads that block: one POST, one response, all over by a deadline.

Source: RFC 9110 and 9112 (HTTP/1.1). It exists for its price, which is little above that of a bare socket
(docs/calls.md); httpx looks through its whole pool for each call. A request that a server may have seen is never sent
twice: who pays for answers has to decide that, and every error says by `sent` whether there is something to decide.

It leaves out: redirects (a 3xx is a response), cookies, streams, HTTP/2, proxies that are reached by TLS or SOCKS. And
an answer that comes over TLS while a large request is still being sent is read only when the request is out.
"""

import base64
import contextlib
import errno
import math
import os
import re
import select
import socket
import ssl
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import NamedTuple, NoReturn
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import certifi

from tools.errors import UsageError

RECEIVE = 64 << 10  # bytes asked of the kernel at once
JOINED = 64 << 10  # a body up to this is copied behind its head; a larger one is not worth the copy
LARGEST_HEAD = 64 << 10  # of an answer, interim answers and trailers included
LARGEST_LINE = 4 << 10  # of a chunk's size and extensions
IDLE = 30.0  # seconds that a connection may lie unused; servers close theirs after 60 or more
KNOWN_ADDRESS = 30.0  # seconds that an answer of DNS is believed
TICK = 5  # seconds that a receive may wait in the kernel, if the deadline is farther off
LONGEST_POLL = 3600.0  # seconds; poll() takes milliseconds in a C int

STATUS = re.compile(r"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?", re.ASCII)
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token, RFC 9110, 5.6.2
VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)
OURS = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}  # headers the pool decides
LISTS = {"connection", "transfer-encoding"}  # headers of which several lines are one list, RFC 9110, 5.3


class Response(NamedTuple):
    """An answer: headers by their name in lower case (of several, the last; those in LISTS joined by commas)."""

    status: int
    headers: dict[str, str]
    body: bytes


class HTTPError(Exception):
    """No response; `sent` is whether any part of the request may have reached the server."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class ConnectFailed(HTTPError):
    """No connection: DNS, refused, unreachable, TLS, or a proxy that will not."""


class Reset(HTTPError):
    """The connection ended before the answer did."""


class DeadlinePassed(HTTPError):
    """The deadline came before the answer."""


class TooLarge(HTTPError):
    """The answer is larger than allowed; the rest of it was not read."""


class Malformed(HTTPError):
    """What came back is not HTTP/1."""


class Pool:
    """Connections to one server, shared by any number of threads; the one used last is used next.

    `url` is http(s)://host[:port][/path]. `largest` bounds the body of an answer, in bytes.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str], connect_timeout: float = 10.0, largest: int = 16 << 20
    ) -> None:
        self._site = _site(url)
        self._proxy = _proxy(self._site)
        self._tls = _trust() if self._site.scheme == "https" else None
        self._connect_timeout = connect_timeout
        self._largest = largest
        self._lines = _request_lines(self._site, headers, self._proxy)
        self._prefixes: dict[str, bytes] = {}
        self._lock = threading.Lock()  # of the three below
        self._idle: deque[_Connection] = deque()  # the one used last at the right
        self._open: set[_Connection] = set()
        self._closed = False
        self._resolving = threading.Lock()  # many threads that start at once ask DNS once
        self._addresses: tuple[float, list[_Address]] = (-math.inf, [])

    def post(self, path: str, body: bytes, *, deadline: float) -> Response:
        """The response to a POST of `body`; `deadline` is on time.monotonic(). Raises HTTPError and nothing else."""
        prefix = self._prefixes.get(path) or self._prefix(path)
        head = b"%b%d\r\n\r\n" % (prefix, len(body))
        parts = [head + body] if len(body) <= JOINED else [head, body]
        connection = self._borrow()
        while True:
            reused = connection is not None
            if connection is None:
                connection = self._connect(deadline)
            answer = _Answer(connection, deadline, self._largest)
            try:
                complete = connection.send(parts, deadline, answer.begun)
                response, again = answer.read()
            except BaseException as error:
                self._drop(connection)
                if reused and isinstance(error, Reset) and not error.sent:
                    connection = None  # closed while it lay idle, and not a byte went out: once more, on a new one
                    continue
                raise
            if again and complete:
                self._give_back(connection)
            else:
                self._drop(connection)
            return response

    def close(self) -> None:
        """Close every connection; calls under way end at once with Reset, later ones with ConnectFailed."""
        with self._lock:
            self._closed = True
            idle, busy = list(self._idle), self._open - set(self._idle)
            self._idle.clear()
        for connection in idle:
            self._drop(connection)
        for connection in busy:
            connection.interrupt()

    def _prefix(self, path: str) -> bytes:
        """A request's head up to the length of its body."""
        if len(self._prefixes) >= 64:  # a caller whose paths are all different
            self._prefixes.clear()
        target = quote(path, safe="/%?&=:@+,;~!$'()*", errors="replace")
        start, rest = self._lines
        self._prefixes[path] = prefix = start + target.encode("ascii") + rest
        return prefix

    # -- Connections

    def _borrow(self) -> "_Connection | None":
        """The idle connection used last, if it is still open and silent."""
        oldest = time.monotonic() - IDLE
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.since > oldest and connection.silent():
                return connection
            self._drop(connection)

    def _give_back(self, connection: "_Connection") -> None:
        connection.since = time.monotonic()
        stale = []
        with self._lock:
            keep = not self._closed
            if keep:
                self._idle.append(connection)
                while self._idle[0].since < connection.since - IDLE:
                    stale.append(self._idle.popleft())
        for other in stale if keep else [connection]:
            self._drop(other)

    def _drop(self, connection: "_Connection") -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _connect(self, deadline: float) -> "_Connection":
        """A new connection, through TLS and the proxy where there are any, before anything of the request is sent."""
        until = min(deadline, time.monotonic() + self._connect_timeout)
        connection = None
        try:
            connection = self._reach(until)
            with self._lock:
                self._open.add(connection)
                closed = self._closed
            if closed:
                raise ConnectFailed("the client is closed", sent=False)
            if self._tls is not None:
                if self._proxy is not None:
                    self._tunnel(connection, until)
                connection.wrap(self._tls, self._site.host, until)
            return connection
        except BaseException as error:
            if connection is not None:
                self._drop(connection)
            if isinstance(error, HTTPError | OSError | ValueError):
                self._explain(error, deadline)
            raise

    def _explain(self, error: Exception, deadline: float) -> NoReturn:
        """Raise what a failure to connect is to the caller of post()."""
        if time.monotonic() >= deadline:
            raise DeadlinePassed(f"no connection to {self._site.authority} in time", sent=False) from error
        if isinstance(error, DeadlinePassed):
            reason = f"no answer in {self._connect_timeout:g} s"
        elif isinstance(error, ssl.SSLCertVerificationError):
            reason = f"its certificate is not accepted: {error.verify_message}"
        elif isinstance(error, ssl.SSLError):
            reason = f"TLS failed: {(error.reason or 'the server ended it').lower().replace('_', ' ')}"
        else:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        through = f" through the proxy {self._proxy.authority}" if self._proxy else ""
        raise ConnectFailed(f"cannot connect to {self._site.authority}{through}: {reason}", sent=False) from error

    def _reach(self, until: float) -> "_Connection":
        """A TCP connection to the server or its proxy: each address in turn, each with its share of the time."""
        addresses = self._resolve(until)
        failure: Exception = OSError("no address")
        for place, address in enumerate(addresses):
            now = time.monotonic()
            try:
                return _connect_to(address, now + (until - now) / (len(addresses) - place))
            except (OSError, HTTPError) as error:
                failure = error
        self._addresses = (-math.inf, [])
        raise failure

    def _resolve(self, until: float) -> "list[_Address]":
        """The addresses of the server or its proxy. DNS has no deadline of its own, so a thread asks it."""
        if not self._resolving.acquire(timeout=max(0.0, until - time.monotonic())):
            raise DeadlinePassed("no answer of DNS", sent=False)
        try:
            asked, known = self._addresses
            if time.monotonic() < asked + KNOWN_ADDRESS:
                return known
            site = self._proxy or self._site
            known = site.lookup() if site.is_address else _in_time(site, until)
            self._addresses = (time.monotonic(), known)
            return known
        finally:
            self._resolving.release()

    def _tunnel(self, connection: "_Connection", until: float) -> None:
        """Ask the proxy for a tunnel to the server."""
        assert self._proxy is not None
        request = f"CONNECT {self._site.tunnel} HTTP/1.1\r\nhost: {self._site.tunnel}\r\n{self._proxy.credentials}\r\n"
        answer = _Answer(connection, until, self._largest)
        connection.send([request.encode("ascii")], until, answer.begun)
        status, _, _ = answer.final_head()
        if not 200 <= status < 300:
            raise OSError(f"it answered {status} to CONNECT")
        if answer.unread():
            raise OSError("it sent more than an answer to CONNECT")


# -- Where to, and how


class _Address(NamedTuple):
    """What getaddrinfo says of one address."""

    family: int
    kind: int
    protocol: int
    name: str
    where: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


class _Site(NamedTuple):
    """A server or a proxy."""

    scheme: str
    host: str  # without the brackets of IPv6
    port: int
    path: str
    credentials: str = ""  # a proxy's, as a header line

    @property
    def tunnel(self) -> str:
        """Host and port, as CONNECT wants them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authority(self) -> str:
        """The same without the port that goes without saying."""
        usual = {"http": 80, "https": 443}[self.scheme]
        return self.tunnel.removesuffix(f":{self.port}") if self.port == usual else self.tunnel

    @property
    def is_address(self) -> bool:
        try:
            ip_address(self.host)
        except ValueError:
            return False
        return True

    @property
    def is_here(self) -> bool:
        return self.host == "localhost" or (self.is_address and ip_address(self.host).is_loopback)

    def lookup(self) -> list[_Address]:
        return [_Address(*found) for found in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)]


def _site(url: str) -> _Site:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode("ascii")
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        host, port = "", 0
    if not host or not re.fullmatch(r"[0-9A-Za-z._:-]+", host):
        raise UsageError(f"{_unsecret(url)!r} is not the address of a server; write it as http://host:port/v1")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise UsageError(
            f"{_unsecret(url)!r} has more than a host, a port and a path; a key belongs in the environment"
        )
    path = quote(parts.path.rstrip("/"), safe="/%:@+,;~!$'()*", errors="replace")
    return _Site(parts.scheme, host, port, path)


def _unsecret(url: str) -> str:
    """A URL without what may be secret in it."""
    return re.sub(r"//[^/]*@", "//***@", url.split("?", 1)[0].split("#", 1)[0])


def _proxy(site: _Site) -> _Site | None:
    """The proxy that $HTTP_PROXY, $HTTPS_PROXY, $ALL_PROXY and $NO_PROXY name; none for this machine, as in Go."""
    known = getproxies_environment()
    url = known.get(site.scheme) or known.get("all")
    if not url or site.is_here or proxy_bypass_environment(site.tunnel) or proxy_bypass_environment(site.host):
        return None
    user, at, place = url.partition("://")[2].rpartition("@") if "://" in url else url.rpartition("@")
    scheme = url.partition("://")[0].lower() if "://" in url else "http"
    if scheme != "http":
        raise UsageError(f"the proxy {_unsecret(url)!r} is not an http:// one; set ${site.scheme.upper()}_PROXY to one")
    found = _site(f"http://{place}")
    if not at:
        return found
    name, _, password = user.partition(":")
    secret = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode("ascii")
    return found._replace(credentials=f"proxy-authorization: Basic {secret}\r\n")


def _trust() -> ssl.SSLContext:
    """Whom to believe: $SSL_CERT_FILE and $SSL_CERT_DIR, or else the system's authorities and certifi's."""
    file, folder = os.environ.get("SSL_CERT_FILE") or None, os.environ.get("SSL_CERT_DIR") or None
    try:
        context = ssl.create_default_context(cafile=file, capath=folder)
    except OSError as error:
        raise UsageError(f"$SSL_CERT_FILE is {file!r}, which holds no certificates that can be read") from error
    if not file and not folder:
        context.load_verify_locations(certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


def _request_lines(site: _Site, headers: Mapping[str, str], proxy: _Site | None) -> tuple[bytes, bytes]:
    """A request's head before the path and after it, up to the length of the body."""
    lines = [f"host: {site.authority}", "accept-encoding: identity"]
    for name, value in headers.items():
        if not NAME.fullmatch(name) or not VALUE.fullmatch(value):
            raise UsageError(
                f"the value of the header {name!r} has a line break or a character that no header holds; check the key"
            )
        if name.lower() not in OURS:
            lines.append(f"{name}: {value}")
    forward = proxy is not None and site.scheme == "http"  # the proxy reads the request, and wants the whole URL
    origin = f"http://{site.authority}" if forward else ""
    rest = " HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n"
    if proxy is not None and forward:
        rest += proxy.credentials
    return f"POST {origin}{site.path}".encode("ascii"), (rest + "content-length: ").encode("latin-1")


def _in_time(site: _Site, until: float) -> list[_Address]:
    """What DNS answers, unless it takes too long; the thread that asks is then left behind."""
    found: list[_Address] = []
    failures: list[Exception] = []

    def ask() -> None:
        try:
            found.extend(site.lookup())
        except (OSError, ValueError) as error:
            failures.append(error)

    thread = threading.Thread(target=ask, name="dns", daemon=True)
    thread.start()
    thread.join(max(0.0, until - time.monotonic()))
    if failures:
        raise failures[0]
    if not found:
        raise DeadlinePassed("no answer of DNS", sent=False)
    return found


def _connect_to(address: _Address, until: float) -> "_Connection":
    made = socket.socket(address.family, address.kind, address.protocol)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # routers forget a connection on which a model thinks for minutes
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        connection = _Connection(made)
        failure = made.connect_ex(address.where)
        if failure in (errno.EINPROGRESS, errno.EWOULDBLOCK):
            while not connection.wait(select.POLLOUT, until):
                pass
            failure = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, os.strerror(failure))
        made.setblocking(True)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", TICK, 0))
        return connection
    except BaseException:
        made.close()
        raise


# -- One connection


class _Connection:
    """A socket, and the waiting for it.

    A plain one blocks while it receives, for TICK at most: half the system calls of a poll() before each. One with TLS
    never blocks, because a record may ask for either direction.
    """

    __slots__ = ("_readable", "_socket", "_tls", "sent", "since")

    def __init__(self, connected: socket.socket) -> None:
        self._use(connected)
        self._tls: ssl.SSLSocket | None = None
        self.since = 0.0  # when it was given back
        self.sent = False  # whether any part of the present request may have reached the server

    def _use(self, connected: socket.socket) -> None:
        self._socket = connected
        self._readable = select.poll()  # made once: a wait is then one call
        self._readable.register(connected, select.POLLIN)

    def close(self) -> None:
        self._socket.close()

    def interrupt(self) -> None:
        """Wake the thread that waits for this connection."""
        with contextlib.suppress(OSError):  # it has ended already
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not SSLSocket's, which forgets that it is TLS

    def silent(self) -> bool:
        """Whether the server has neither closed the connection nor said anything unasked."""
        return not self._readable.poll(0) and not (self._tls and self._tls.pending())

    def wait(self, events: int, deadline: float) -> int:
        """Wait until the socket is ready; the events that it is ready for."""
        left = deadline - time.monotonic()
        if left > 0:
            if events == select.POLLIN:
                poller = self._readable
            else:
                poller = select.poll()
                poller.register(self._socket, events)
            if ready := poller.poll(math.ceil(min(left, LONGEST_POLL) * 1e3)):
                return ready[0][1]
            if deadline > time.monotonic():
                return 0
        raise DeadlinePassed("no whole answer in time", sent=self.sent)

    def wrap(self, context: ssl.SSLContext, host: str, deadline: float) -> None:
        """Speak TLS from here on."""
        self._socket.setblocking(False)
        tls = context.wrap_socket(self._socket, server_hostname=host, do_handshake_on_connect=False)
        self._tls = tls
        self._use(tls)
        while True:
            try:
                return tls.do_handshake()
            except ssl.SSLWantReadError:
                self.wait(select.POLLIN, deadline)
            except ssl.SSLWantWriteError:
                self.wait(select.POLLOUT, deadline)

    def send(self, parts: list[bytes], deadline: float, begun: Callable[[], bool]) -> bool:
        """Whether everything was sent. Not, if the server answered or closed before that.

        `begun` is asked when the server says something before that: whether it is the answer, or the end.
        """
        self.sent = False
        if time.monotonic() >= deadline:
            raise DeadlinePassed("no time was left to ask", sent=False)
        try:
            if self._tls is None:
                return self._send_plain(parts, deadline, begun)
            for part in parts:
                self._send_tls(self._tls, part, deadline)
            return True
        except OSError as error:
            if self.sent:
                return False  # it may have answered before it closed
            raise Reset("the server closed the connection before the request", sent=False) from error

    def _send_plain(self, parts: list[bytes], deadline: float, begun: Callable[[], bool]) -> bool:
        rest = [memoryview(part) for part in parts]
        while rest:
            try:
                count = self._socket.sendmsg(rest, (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                ready = self.wait(select.POLLOUT | select.POLLIN, deadline)
                if ready & select.POLLIN and not ready & select.POLLOUT and begun():
                    return False
                continue
            self.sent = True
            while rest and count >= len(rest[0]):
                count -= len(rest.pop(0))
            if rest:
                rest[0] = rest[0][count:]
        return True

    def _send_tls(self, tls: ssl.SSLSocket, part: bytes, deadline: float) -> None:
        rest = memoryview(part)
        while rest:
            try:
                rest = rest[tls.send(rest) :]
                self.sent = True
            except ssl.SSLWantWriteError:
                self.sent = True  # part of a record may be out
                self.wait(select.POLLOUT, deadline)
            except ssl.SSLWantReadError:
                self.wait(select.POLLIN, deadline)

    def receive(self, deadline: float) -> bytes:
        """The next bytes; none at the end of the connection."""
        try:
            if self._tls is not None:
                return self._receive_tls(self._tls, deadline)
            while True:
                flags = 0
                if deadline - time.monotonic() < TICK:
                    self.wait(select.POLLIN, deadline)
                    flags = socket.MSG_DONTWAIT
                with contextlib.suppress(BlockingIOError):  # TICK is over
                    return self._socket.recv(RECEIVE, flags)
        except OSError as error:
            reason = getattr(error, "strerror", None) or "the connection was reset"
            raise Reset(f"no whole answer: {reason}", sent=self.sent) from error

    def _receive_tls(self, tls: ssl.SSLSocket, deadline: float) -> bytes:
        events = select.POLLIN
        while True:
            if not tls.pending():
                self.wait(events, deadline)
            elif time.monotonic() >= deadline:
                raise DeadlinePassed("no whole answer in time", sent=self.sent)
            try:
                return tls.recv(RECEIVE)
            except ssl.SSLWantReadError:
                events = select.POLLIN
            except ssl.SSLWantWriteError:
                events = select.POLLOUT


# -- One answer


class _Head(NamedTuple):
    """Of an answer: its status, the version of HTTP after the dot, its headers."""

    status: int
    minor: int
    headers: dict[str, str]


class _Answer:
    """What comes back on a connection, read as far as it is needed."""

    def __init__(self, connection: _Connection, deadline: float, largest: int) -> None:
        self._connection = connection
        self._deadline = deadline
        self._largest = largest
        self._buffer = bytearray()
        self._position = 0  # what is before it has been used
        self._searched = 0  # bytes after the position in which no head ends
        self._heads = LARGEST_HEAD  # bytes that are left for heads
        self._final: _Head | None = None
        self._came = False  # whether anything did

    def begun(self) -> bool:
        """Read what comes while the request is still going out. Whether it is the answer's head, or the end.

        Neither is an interim answer (1xx), such as one that says that the server goes on reading.
        """
        return not self._fill() or self._look() is not None

    def read(self) -> tuple[Response, bool]:
        """The response, and whether the connection can be used again."""
        status, minor, headers = self.final_head()
        coding = headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        tokens = {token.strip().lower() for token in headers.get("connection", "").split(",")}
        again = "close" not in tokens and (minor == 1 or "keep-alive" in tokens)
        if status in (204, 304):
            body = b""
        elif coding not in ("", "identity"):
            body, again = self._chunked(coding), again and length is None
        elif length is not None:
            body = self._exactly(self._length(length))
        else:
            body, again = self._until_close(), False
        if encoding := headers.get("content-encoding"):
            body = self._decoded(body, encoding.lower())
        return Response(status, headers, body), again and not self.unread()

    def unread(self) -> bool:
        """Whether more came than was read."""
        return self._position < len(self._buffer)

    def final_head(self) -> "_Head":
        """The first head that is not one of an interim answer (1xx)."""
        while (head := self._look()) is None:
            self._more()
        return head

    def _look(self) -> "_Head | None":
        """The same, if it is in the buffer already."""
        while self._final is None and (raw := self._head()) is not None:
            head = self._parse(raw.decode("latin-1"))
            if head.status == 101:
                raise self._malformed("it changes to another protocol, unasked")
            if head.status >= 200:
                self._final = head
        return self._final

    def _head(self) -> bytes | None:
        """Up to the empty line, if that is there. A line may end in a bare line feed, as in http.client."""
        strict = self._buffer.find(b"\n\r\n", self._position + self._searched)
        until = strict + 1 if strict >= 0 else len(self._buffer)
        loose = self._buffer.find(b"\n\n", self._position + self._searched, until)
        end = loose if loose >= 0 else strict
        found = end if end >= 0 else len(self._buffer)
        if not b"HTTP/1.".startswith(bytes(self._buffer[self._position : min(found, self._position + 7)])):
            raise self._malformed("it does not begin with HTTP/1")
        if found - self._position > self._heads:
            raise self._malformed(f"its head is longer than {LARGEST_HEAD >> 10} KB")
        if end < 0:
            self._searched = max(0, len(self._buffer) - self._position - 2)
            return None
        raw = bytes(self._buffer[self._position : end])
        self._position, self._searched = end + (2 if loose >= 0 else 3), 0
        self._heads -= len(raw)
        return raw

    def _parse(self, head: str) -> "_Head":
        first, *lines = head.removesuffix("\r").replace("\r\n", "\n").split("\n")
        match = STATUS.fullmatch(first)
        if not match:
            raise self._malformed("it does not begin with a status line of HTTP/1")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            name, value = name.lower(), value.strip(" \t")
            if not colon or not NAME.fullmatch(name) or not VALUE.fullmatch(value):
                raise self._malformed("a line of its head is not a header")  # its text may be our key, echoed
            if name == "content-length" and headers.get(name, value) != value:
                raise self._malformed("it states two lengths")
            headers[name] = f"{headers[name]}, {value}" if name in LISTS and name in headers else value
        return _Head(int(match[2]), int(match[1]), headers)

    def _length(self, stated: str) -> int:
        if not (stated.isascii() and stated.isdigit()):
            raise self._malformed("its content-length is not a number")
        digits = stated.lstrip("0") or "0"
        if len(digits) > 18 or int(digits) > self._largest:
            raise self._too_large()
        return int(digits)

    def _exactly(self, length: int) -> bytes:
        while len(self._buffer) - self._position < length:
            self._more()
        start, self._position = self._position, self._position + length
        return bytes(memoryview(self._buffer)[start : self._position])

    def _until_close(self) -> bytes:
        while len(self._buffer) - self._position <= self._largest:
            if not self._fill():
                return self._exactly(len(self._buffer) - self._position)
        raise self._too_large()

    def _chunked(self, coding: str) -> bytes:
        """RFC 9112, 7.1: sizes in hexadecimal before each chunk; extensions and trailers are read past."""
        if coding != "chunked":
            raise self._malformed("its transfer-encoding is not known")
        body = bytearray()
        while True:
            match = CHUNK.fullmatch(self._line(LARGEST_LINE))
            if not match:
                raise self._malformed("a chunk of it has no size")
            size = int(match[1], 16)
            if not size:
                break
            if len(body) + size > self._largest:
                raise self._too_large()
            body += self._exactly(size)
            if self._line(LARGEST_LINE):
                raise self._malformed("a chunk of it is longer than its size")
        allowed = LARGEST_HEAD
        while line := self._line(allowed):
            allowed -= len(line)
        return bytes(body)

    def _line(self, allowed: int) -> bytes:
        searched = 0  # bytes after the position
        while (end := self._buffer.find(b"\n", self._position + searched)) < 0:
            searched = len(self._buffer) - self._position
            if searched > allowed:
                break
            self._more()
        if end < 0 or end - self._position > allowed:
            raise self._malformed("a line of it is too long")
        line = bytes(self._buffer[self._position : end])
        self._position = end + 1
        return line.removesuffix(b"\r")

    def _more(self) -> None:
        if not self._fill():
            what = "in the middle of its answer" if self._came else "without an answer"
            raise Reset(f"the server closed the connection {what}", sent=self._connection.sent)

    def _fill(self) -> bool:
        """Whether more came. It may move the buffer, but not what is in it after the position."""
        data = self._connection.receive(self._deadline)
        if self._position > RECEIVE:  # many small chunks: what they were read from is not kept
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data
        self._came = self._came or bool(data)
        return bool(data)

    def _decoded(self, body: bytes, encoding: str) -> bytes:
        """The body without the compression that a proxy put on it, unasked; never more than is allowed."""
        if encoding == "identity" or not body:
            return body
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise self._malformed("its content-encoding was not asked for")
        formats = (47, -15) if encoding == "deflate" else (47,)  # 47: gzip or zlib by its header; -15: bare deflate
        for form in formats:
            try:
                return self._inflated(body, form)
            except zlib.error:
                continue
        raise self._malformed("its compression is damaged")

    def _inflated(self, body: bytes, form: int) -> bytes:
        out = bytearray()
        while body:  # a gzip file may have several members
            stream = zlib.decompressobj(form)
            out += stream.decompress(body, self._largest + 1 - len(out))
            if len(out) > self._largest:
                raise self._too_large()
            if not stream.eof:
                raise zlib.error("cut off")
            body = stream.unused_data
        return bytes(out)

    def _malformed(self, what: str) -> Malformed:
        return Malformed(f"the server's answer is not HTTP: {what}", sent=self._connection.sent)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the server's answer is larger than {self._largest:,} bytes", sent=self._connection.sent)
