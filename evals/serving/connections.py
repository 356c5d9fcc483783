"""The connections of a web server: each has some seconds to send a request, and makes room while it
does not.

uvicorn has a limit for the time between two requests alone. A client that sends half a request, or
nothing, keeps its connection then for ever, and as many of them as there may be keep everybody out.
"""

import asyncio
import json
import resource
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 1024  # at a time; to more it is said that they should come later
REQUEST = 30.0  # seconds in which a request has to be there, with its body
WAITING_SHARE = (
    0.75  # of all connections, for such as send no whole request; the others are for whole ones
)

# uvicorn would choose httptools if that is installed, which has no limit for the head of a request.
_Protocol: Any = H11Protocol


def count_most() -> int:
    """Return how many connections there may be, which is less if this process may open few files."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return CONNECTIONS
    # The corpus, the run folder and libraries need others.
    return min(CONNECTIONS, soft_limit // 2)


class Connection(_Protocol):
    """A connection of uvicorn's that is closed if its client sends no whole request."""

    waiting_since = 0.0  # when its last request was whole, or it began
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request, in the place of another if there are too many."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.limit_concurrency * WAITING_SHARE:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        if self.is_whole or self.transport.get_protocol() is not self:  # which is a WebSocket's now
            self._wait_no_more()
        elif self._deadline is None and not self.transport.is_closing():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._wait_no_more()
        super().connection_lost(exc)

    @property
    def is_whole(self) -> bool:
        """Whether a request has been read to its end, and is being answered."""
        has_head = self.cycle is not None and not self.cycle.response_complete
        return has_head and not self.cycle.more_body

    def _wait(self) -> None:
        self.waiting_since = self.loop.time()
        self._deadline = self.loop.call_later(REQUEST, self._give_up)

    def _wait_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.is_whole:
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT, f"a request has to be sent within {REQUEST:g} seconds"
            )

    def _make_room(self) -> None:
        """Close the connection that has waited longest for a request, except for this connection."""
        waiting = [
            connection
            for connection in self.connections
            if isinstance(connection, Connection)
            and connection is not self
            and not connection.is_whole
        ]
        if waiting:
            oldest = min(waiting, key=lambda connection: connection.waiting_since)
            self.connections.discard(
                oldest
            )  # at once: others are counted before it is told that it is closed
            oldest.transport.abort()

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Close it, and say why if that cannot be taken for a part of another answer."""
        answered_early = self.cycle is not None and (
            self.cycle.response_started and self.cycle.more_body
        )
        if not self.transport.is_closing() and not answered_early:
            body = json.dumps({"error": reason}).encode()
            self.transport.write(
                (
                    f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: "
                    f"application/json\r\nconnection: close\r\n"
                    f"content-length: {len(body)}\r\n\r\n"
                ).encode()
                + body
            )
        self.transport.close()
