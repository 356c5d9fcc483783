"""Bounds on a request that httpx sends: a deadline of the whole, and a largest answer.

httpx bounds the wait for the next bytes alone, and neither the whole time nor the size of the
unpacked body. The bounds are those of a context, because libraries send over our connections, too;
tools/models/transport/http_client.py applies them.
"""

import time
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple

import httpcore
import httpx

from sextant.tools.session import set_contextvar

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

    def left(self) -> float:
        """Return the seconds that are left. httpx.ReadTimeout if there are none."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise httpx.ReadTimeout("the answer did not come in time")
        return seconds


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


def bound_body(response: httpx.Response) -> httpx.SyncByteStream:
    """Return the unpacked body of an answer, which raises TooLarge and ReadTimeout as it is read."""
    assert isinstance(response.stream, httpx.SyncByteStream)
    bounds = _BOUNDS.get()
    return _BoundedStream(response, bounds) if bounds else response.stream


class TimedBackend(httpcore.SyncBackend):
    """Makes connections whose reads and writes end at the deadline of the context."""

    def connect_tcp(self, *arguments: Any, **options: Any) -> httpcore.NetworkStream:
        """Connect as httpcore does."""
        return _Timed(super().connect_tcp(*arguments, **options))


class _Unpacking:
    """Unpacks a body piece by piece; httpx is left to believe that it was not packed."""

    def __init__(self, response: httpx.Response, bounds: _Bounds) -> None:
        self._bounds = bounds
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

    def take(self, received: bytes) -> Iterator[bytes]:
        """Yield the unpacked bytes of a part of the body. TooLarge if that is too much, ReadTimeout
        when time is up.
        """
        self._bounds.left()
        self._received += len(received)
        self._check(self._received)
        if self._decompressor is None:
            yield received
            return
        while received:
            unpacked = self._unpack(received)
            received = self._decompressor.unconsumed_tail
            self._unpacked += len(unpacked)
            self._check(self._unpacked)
            yield unpacked

    def _unpack(self, received: bytes) -> bytes:
        try:
            unpacked: bytes = self._decompressor.decompress(received, _UNPACKED)
        except zlib.error as error:
            if not self._bare or self._unpacked:
                raise httpx.DecodingError(f"the packed answer is damaged: {error}") from None
            self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
            self._bare = False
            return self._unpack(received)
        return unpacked

    def _check(self, size: int) -> None:
        if size > self._bounds.largest:
            raise TooLarge(f"the server's answer is larger than {self._bounds.largest:,} bytes")


class _BoundedStream(httpx.SyncByteStream):
    def __init__(self, response: httpx.Response, bounds: _Bounds) -> None:
        assert isinstance(response.stream, httpx.SyncByteStream)
        self._stream = response.stream
        self._unpacking = _Unpacking(response, bounds)

    def __iter__(self) -> Iterator[bytes]:
        for received in self._stream:
            yield from self._unpacking.take(received)

    def close(self) -> None:
        self._stream.close()


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
    seconds = bounds.deadline - time.monotonic()
    if seconds <= 0:
        raise late("the answer did not come in time")
    return seconds if timeout is None else min(timeout, seconds)
