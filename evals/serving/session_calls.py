"""Calls of tools in sessions: those of a session take turns, and only the current call holds a
thread.

An episode runs a single call at a time. If each of its calls waited for that in a thread, then a
session that sends many calls during a long search would take the threads of all others.
"""

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync

Result = TypeVar("Result")

MOST_CALLS = 32  # of a session, under way or waiting
RETRY_AFTER = 2  # seconds that a client is told to wait where its session has too many calls


class TooManyCalls(Exception):
    """A session has as many calls under way or waiting as it may have."""

    def __init__(self) -> None:
        super().__init__(
            f"this session has {MOST_CALLS} calls under way or waiting already, which is the most; "
            f"come again later"
        )


class SessionCalls:
    """The calls of all sessions of a server. They share its event loop."""

    def __init__(self, most_sessions: int) -> None:
        """Have a thread for each of the sessions that may be open at a time."""
        self._limiter = anyio.CapacityLimiter(most_sessions)
        # The turn of each session with calls under way: first come, first served.
        self._queues = dict[str, anyio.Lock]()

    async def run(self, session: str, work: Callable[[], Result]) -> Result:
        """Do a call's work in a thread once the session's earlier calls have ended. TooManyCalls
        beyond the limit.
        """
        turn = self._queues.setdefault(session, anyio.Lock())
        if turn.locked() + turn.statistics().tasks_waiting >= MOST_CALLS:
            raise TooManyCalls
        try:
            async with turn:
                return await run_sync(work, limiter=self._limiter)
        finally:
            if not turn.locked():
                self._queues.pop(session, None)
