"""Workers on the nodes of a Ray cluster (https://docs.ray.io), each beside an actor that takes one CPU.

An actor runs what local.py runs here, and passes messages on in its methods: no ports are opened, and ray:// works.
Actors for which there is no CPU are waited for, so a cluster that grows by itself grows. Left out: copying data
to nodes; they have one $SEXTANT_HOME by a shared file system, or each its own.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

from evals.workers import local
from tools.console import in_thread
from tools.errors import RunIncomplete
from tools.retrievers.vectors.on_ray import encoding, ray

_LOST = (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError)  # an actor, its node or the cluster
_STARTS = 5  # actors that may die before they are ready, one after another
_BATCH = 256  # messages that are passed on at a time, at most


@contextmanager
def starting(address: str) -> "Iterator[Callable[[], _Messages]]":
    """Yield what starts a worker and, once there is room, returns the connection; `address` is that of --workers.

    DataError where no cluster is. Vectors that are made in the block are made by the cluster, too.
    """
    actors, actor_class = list[Any](), ray.remote(num_cpus=1, max_concurrency=2, scheduling_strategy="SPREAD")(_Host)

    def start() -> _Messages:
        for left in reversed(range(_STARTS)):
            try:
                actors.append(actor := actor_class.remote())
                ray.get(actor.__ray_ready__.remote())
                return _Messages(actor)
            except _LOST as error:  # its node may have died meanwhile
                if not left:
                    line = str(error).strip().partition("\n")[0]
                    raise RunIncomplete(f"the Ray cluster at {address} has no place for a worker: {line}") from error
        raise AssertionError  # the last start returns or raises

    with encoding(address):
        try:
            yield start
        finally:
            for actor in actors:
                with suppress(*_LOST):
                    ray.kill(actor)


class _Messages:
    """A connection by the methods of an actor: one call of each at a time, for whatever has come together meanwhile."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._arrived, self._leaving = deque[bytes](), SimpleQueue[bytes | None]()
        self._gone = threading.Event()
        in_thread(self._send)

    def send_bytes(self, data: bytes, /) -> None:
        if self._gone.is_set():
            raise OSError
        self._leaving.put(data)

    def recv_bytes(self) -> bytes:
        while not self._arrived:
            try:
                self._arrived.extend(ray.get(self._actor.give.remote()))
            except _LOST:
                self.close()
                raise EOFError from None
        return self._arrived.popleft()

    def close(self) -> None:
        self._gone.set()
        self._leaving.put(None)
        with suppress(*_LOST):
            ray.kill(self._actor)

    def _send(self) -> None:
        while (data := self._leaving.get()) is not None:
            batch = [data]
            with suppress(Empty):
                while len(batch) < _BATCH and (data := self._leaving.get_nowait()) is not None:
                    batch.append(data)
            try:
                ray.get(self._actor.take.remote(batch))
            except _LOST:
                break  # recv_bytes meets the same


class _Host:
    """The actor. Its end is that of the worker, which sees its connection closed."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._worker = self._open.enter_context(local.starting())()

    def take(self, batch: list[bytes]) -> None:
        for data in batch:
            self._worker.send_bytes(data)

    def give(self) -> list[bytes]:
        batch = [self._worker.recv_bytes()]
        while len(batch) < _BATCH and self._worker.poll():
            batch.append(self._worker.recv_bytes())
        return batch
