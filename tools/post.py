"""One request to a server: answered whole by a deadline, within a bound, by that server and no other.

A server may send its answer, or its headers, a byte at a time for ever. Only a deadline of the whole ends that, and
httpx has none; so requests are made in the event loop of one thread, where they can be cut off. Left out: asking again,
which whoever sends decides by what the answer says.
"""

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import httpx

from tools.errors import UsageError


class Answer(NamedTuple):
    """What a server sent, whatever its status is."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Unanswered(Exception):
    """No whole answer: the server is not reached, takes too long or sends too much."""


def post(url: str, headers: Mapping[str, str], body: bytes, *, seconds: float, largest: int) -> Answer:
    """The answer to `body` within `seconds` and of `largest` bytes at most; else Unanswered."""
    loop, client = _sender()
    sending = asyncio.run_coroutine_threadsafe(_post(client, url, headers, body, seconds, largest), loop)
    try:
        return sending.result()
    except TimeoutError:
        raise Unanswered(f"no whole answer in {seconds:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unanswered(str(error) or type(error).__name__) from None
    finally:
        sending.cancel()


async def _post(
    client: httpx.AsyncClient, url: str, headers: Mapping[str, str], body: bytes, seconds: float, largest: int
) -> Answer:
    received = bytearray()
    async with (
        asyncio.timeout(seconds),
        client.stream("POST", url, headers=headers, content=body, follow_redirects=False) as answer,
    ):
        async for part in answer.aiter_bytes():
            received += part
            if len(received) > largest:
                raise Unanswered(f"its answer has more than {largest} bytes")
    return Answer(answer.status_code, answer.headers, bytes(received))


@cache
def _sender() -> tuple[asyncio.AbstractEventLoop, httpx.AsyncClient]:
    """The loop in which requests are made, and the connections."""
    with network():
        client = httpx.AsyncClient(
            headers={"accept-encoding": "identity", "user-agent": "sextant"},
            timeout=httpx.Timeout(None, connect=10.0),
            limits=httpx.Limits(max_connections=None),
        )
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="post", daemon=True).start()
    return loop, client


os.register_at_fork(after_in_child=_sender.cache_clear)  # the thread stays behind


@contextmanager
def network() -> Iterator[None]:
    """Inside, a client is made. UsageError for a proxy or a certificate in the environment that cannot be used."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"the network cannot be used as *_PROXY and SSL_CERT_* say: {reason}") from None


def redirected(status: int, headers: Mapping[str, str]) -> str:
    """What is said of an answer that leads elsewhere."""
    place = headers.get("location", "nowhere").partition("?")[0]
    return (
        f"the server redirects to {place} (status {status}), where nothing is sent; if that is the right place, "
        "name it as the server"
    )
