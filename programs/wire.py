"""The connection to an OpenAI-compatible server of the user's own: many calls at once, little work for each.

Requests, the reading of answers and errors are those of DSPy's own native client (`dspy.clients.engines`), which is
made here and handed to `dspy.LM` as an engine. Left to make it by itself, DSPy also looks for a price after every
answer, twice through its whole table of models: 2 ms of CPU, and for nothing, since a server of one's own is in no
table. Nothing is tried again here (programs/lm.py does that), except that a connection which the server closed between
two calls is replaced before anything is sent on it.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, Self

from dspy.clients.engines import AsyncLM15Engine, LM15Engine
from dspy.lm15 import Request, Response, RouterConfig

# Connections at once; a caller beyond them waits. DSPy's own 100 would hold up --max-concurrent 256.
CONNECTIONS = 1024


def engines(url: str, key: str) -> dict[str, Any]:
    """What `dspy.LM` takes for the server at `url`: "engine", "async_engine". Nothing is sent yet."""
    config = RouterConfig(
        api_keys={"openai-chat": key}, base_urls={"openai-chat": url}, env={}, max_connections=CONNECTIONS
    )
    return {"engine": Engine(config), "async_engine": AsyncEngine(config)}


class Engine(LM15Engine):
    """DSPy's client with one pool of connections, which copies of a model share."""

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers copy the language model with the program.
        return self


class AsyncEngine:
    """The same, awaited: one pool for each event loop, because connections belong to theirs."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._engines: dict[asyncio.AbstractEventLoop, Any] = {}
        self._lock = threading.Lock()

    async def complete(self, request: Request) -> Response:
        """One answer."""
        return await self._engine().complete(request)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """One answer in pieces."""
        async for event in self._engine().stream(request):
            yield event

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        await self._engine().aclose()

    def _engine(self) -> Any:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._engines:
                # Those of loops that are over cannot be closed any more; their sockets close when they are collected.
                self._engines = {old: engine for old, engine in self._engines.items() if not old.is_closed()}
                self._engines[loop] = AsyncLM15Engine(self._config)
            return self._engines[loop]

    def __deepcopy__(self, memo: object) -> Self:
        return self
