"""Searches without a session: they wait for a few threads of their own, and take them in turns.

The other threads of the server are those of sessions, whose agents wait for each answer. A batch is
searched in parts, and goes to the end of the queue after each, so that a short request does not
wait for the whole of a long request.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.exceptions import HTTPException

from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.number_format import plural
from sextant.tools.plugins import describe_exception as describe_error

Result = TypeVar("Result")

THREADS = max(1, (os.cpu_count() or 1) // 2)  # sessions have the other cores
MOST_REQUESTS = 64  # under way or waiting, each with its texts and what has been found for them
TOGETHER = 32  # queries of a batch that are searched as one part
RETRY_AFTER = 2  # seconds that a client is told to wait where the queue is full


class SearchQueue:
    """The requests that search without a session. They share the event loop of the server."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(THREADS)  # first come, first served
        self._requests = 0

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Let a request in for the time of the block. HTTPException if too many are in already."""
        if self._requests >= MOST_REQUESTS:
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"no more than {plural(self._requests, 'request')} may search at a time; come again later",
                {"Retry-After": str(RETRY_AFTER)},
            )
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do a part of a request's work in a thread of the pool. HTTPException if it fails, without
        its words.
        """
        try:
            return await run_sync(work, limiter=self._limiter)
        except HTTPException:
            raise
        except Exception as error:  # noqa: BLE001  # of a provider, an index or a user's retriever: others go on
            print_stderr(
                f"a search without a session: {describe_error(error)}"
            )  # may name files of ours
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "this search failed here; the server's terminal says why",
            ) from None
