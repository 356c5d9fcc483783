"""Workers on the nodes of a Ray cluster (https://docs.ray.io), each with an actor that takes a CPU.

An actor forks a worker on its node, and passes messages on in its methods: no ports are opened, and
ray:// works. Actors for which there is no CPU are waited for, so a cluster that grows by itself
grows. Ray ends a process that is connected to it, without a word, when its node or the head is
lost: so the coordinator is not, but has a starter that is. Nodes share $SEXTANT_HOME by a shared file
system, or each its own, or copies of $SEXTANT_SHARE, which Ray makes.
"""

import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sextant.tools import session
from sextant.tools.corpus import Corpus
from sextant.tools.errors import RunIncomplete, SextantError
from sextant.tools.platform import forkserver
from sextant.tools.platform.interrupts import start_thread
from sextant.tools.retrievers import sharded
from sextant.tools.retrievers.vectors.embedder import ELSEWHERE, Block, Embedder, Vectors
from sextant.tools.retrievers.vectors.ray_embedding import (
    BLOCKS,
    connect_ray,
    make_blocks,
    ray,
    ray_excepthook,
)

_STARTS = 5  # actors that may die before they are ready, one after another
_BATCH = 256  # messages that are passed on at a time, at most


@contextmanager
def starting(address: str) -> "Iterator[Callable[[], Connection]]":
    """Yield a function that starts a worker and, once there is room, returns the connection;
    `address` is that of --workers.

    DataError if no cluster is. In the block, the cluster makes vectors, too, and has the parts
    of `sharded`.
    """
    if address == "ray" and ray.is_initialized():  # by whoever calls this
        address = ray.get_runtime_context().gcs_address
    with ExitStack() as stack:
        starter = _Starter(stack.enter_context(forkserver.fork_server(__name__, address)), address)
        starter.hear(starter.ask(_be_there))
        stack.enter_context(session.set_contextvar(ELSEWHERE, starter.make_blocks))
        stack.enter_context(
            session.set_contextvar(
                sharded.ELSEWHERE, (partial(starter.ask, sharded.serve_by_actor), starter.hear)
            )
        )
        yield starter.start


class _Starter:
    """The process that is connected, as the coordinator knows it: a line of it runs a function, such as
    those below.
    """

    def __init__(self, begin: Callable[[], Connection], address: str) -> None:
        lost = f"the Ray cluster at {address}, or the node of it that is used here, is lost"
        self._begin = begin
        self._lost = partial(RunIncomplete, lost)
        self.hear = partial(forkserver.receive_result, lost=self._lost)

    def ask(self, *request: Any) -> Connection:
        try:
            (line := self._begin()).send_bytes(ray.cloudpickle.dumps(request))
        except OSError:
            raise self._lost() from None
        return line

    def start(self) -> Connection:
        self.hear(line := self.ask(_host))
        return line

    def make_blocks(
        self,
        embedder: Embedder,
        corpus: Corpus,
        blocks: Iterable[Block],
    ) -> Iterator[tuple[int, Vectors]]:
        blocks = iter(blocks)
        while batch := list(islice(blocks, BLOCKS)):
            line = self.ask(_make, embedder, corpus, batch)
            while block := self.hear(line):
                yield block


def be_starter(descriptor: int, address: str) -> None:
    """Be connected to the cluster, and serve requests, until the coordinator is gone."""
    threading.excepthook = ray_excepthook
    with ExitStack() as stack:
        try:
            failure = stack.enter_context(connect_ray(address, os.environ.get("SEXTANT_SHARE", "")))
        except SextantError as error:
            failure = error
        for connection in forkserver.iter_requests(descriptor):
            start_thread(partial(_answer, forkserver.ClosableConnection(connection), failure))
    os._exit(0)  # whatever its threads are at


def _answer(line: Connection, failure: SextantError | None) -> None:
    try:
        action, *arguments = pickle.loads(line.recv_bytes())  # from the coordinator
        if failure:
            raise failure
        action(line, *arguments)
    except SextantError as error:
        line.send((None, error))
    finally:
        line.close()


def _be_there(line: Connection) -> None:
    line.send((None, None))


def _make(line: Connection, *arguments: Any) -> None:
    for block in make_blocks(*arguments):
        line.send((block, None))
    line.send((None, None))


def _host(line: Connection) -> None:
    actor = _find_place()
    line.send((None, None))

    def pass_back() -> None:
        with suppress(Exception):
            while True:
                for data in ray.get(actor.give.remote()):
                    line.send_bytes(data)
        line.close()

    start_thread(pass_back)
    with suppress(Exception):
        while True:
            ray.get(actor.take.remote(_receive(line)))
    with suppress(Exception):
        ray.kill(actor)


def _find_place() -> Any:
    """Return an actor, once there is room.

    RunIncomplete if several die before they are ready.
    """
    actor_class = ray.remote(num_cpus=1, max_concurrency=2, scheduling_strategy="SPREAD")(_Host)
    for remaining in reversed(range(_STARTS)):
        try:
            actor = actor_class.remote("SEXTANT_SHARE" in os.environ)
            ray.get(actor.__ray_ready__.remote())
            return actor
        # The actor's node may have died meanwhile; Ray's client raises this class itself.
        except Exception as error:
            # The connection to ray:// is lost; in other cases Ray has ended this process itself.
            if not ray.is_initialized():
                os._exit(1)
            if not remaining:
                line = str(error).strip().partition("\n")[0]
                raise RunIncomplete(f"the Ray cluster has no place for a worker: {line}") from error
    raise AssertionError  # the last start returns or raises


def _receive(line: Connection) -> list[bytes]:
    """Wait for a message, and return it with those that are there already."""
    batch = [line.recv_bytes()]
    while len(batch) < _BATCH and line.poll():
        batch.append(line.recv_bytes())
    return batch


class _Host:
    """The actor. Its end is that of the worker, which sees its connection closed."""

    def __init__(self, shares: bool) -> None:
        if shares:
            os.environ["SEXTANT_HOME"] = str(Path.cwd())  # with a copy of $SEXTANT_SHARE
        self._open = ExitStack()
        self._worker = self._open.enter_context(
            forkserver.fork_server("sextant.evals.running.workers.worker")
        )()

    def take(self, batch: list[bytes]) -> None:
        for data in batch:
            self._worker.send_bytes(data)

    def give(self) -> list[bytes]:
        return _receive(self._worker)
