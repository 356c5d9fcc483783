"""A corpus in parts, each with an index in a process of its own, ranked as by one index: `sharded(bm25,parts=16)`.

A part has a run of the corpus' rows. The first part is in this process, the others in processes of this machine or,
where Ray is initialized here, in actors of its cluster. Ids, order and scores are those of the unsharded retriever to
the last bit: words are weighed by counts that the parts add up for every search, and queries are embedded once.
Left out: replicas, and combinations, which go outside, as in `fusion(sharded(bm25),sharded(dense))`.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property, partial
from importlib import import_module
from itertools import chain, pairwise
from multiprocessing import Pipe, get_context, parent_process
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from threading import Lock, Thread
from typing import Any, cast

from tools.console import Progress
from tools.corpus import Corpus
from tools.errors import DataError, UsageError, at_least
from tools.records import Hit
from tools.retriever import Retriever, Search
from tools.retrievers.bm25 import WordRetriever
from tools.retrievers.kernels import Ints
from tools.retrievers.segments import Totals
from tools.retrievers.vectors.exact_search import VectorRetriever

_KINDS = ("bm25", "bm25s", "dense")
CONNECT: ContextVar[Callable[[], object] | None] = ContextVar("connect", default=None)  # to the run's Ray cluster


class Sharded(Retriever):
    """The ranking of one retriever over the whole corpus, with that one's name: the `parts` change nothing of it."""

    def __init__(
        self, corpus: Corpus, home: Path | None, part: Callable[[Corpus], Retriever], *, parts: int = 8
    ) -> None:
        build = cast("partial[Retriever]", part)
        if (spec := build.args[0]).kind not in _KINDS:
            why = "whose scores depend on other parts by nothing but sums of counts"
            raise UsageError(f"sharded is made of one of {', '.join(_KINDS)}, {why}; not of {spec}")
        make = partial(build.func, spec, home=home and home.absolute(), terms=None)
        if connect := CONNECT.get():
            connect()
        parts = min(parts, max(1, len(corpus)))
        own, *slices = [corpus.slice(*rows) for rows in pairwise(len(corpus) * n // parts for n in range(parts + 1))]
        self._others = [_Part(make, rows, f"part {n} of {parts}") for n, rows in enumerate(slices, start=2)]
        self._lock = Lock()  # an exchange with the parts at a time
        self.parts = (make(own),)
        self.name = self.parts[0].name
        progress, at_once = Progress("sharded", len(slices), "parts"), len(os.sched_getaffinity(0))
        if _on_ray() or isinstance(self.parts[0], VectorRetriever):  # other machines; or a model, which uses all cores
            at_once = len(slices) if _on_ray() else 1
        for first in range(0, len(slices), max(1, at_once)):
            self._exchange(lot := self._others[first : first + at_once], Retriever.search_many, (), 1)
            progress.add(len(lot))

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse less than one part."""
        at_least(1, "sharded", parts=options["parts"])

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        with self._lock:
            if isinstance(own := self.parts[0], VectorRetriever):
                vectors = own.prepare(searches)
                found = self._exchange(self._others, VectorRetriever.search_with, vectors, searches, k)
            else:
                totals, counts = zip(*self._exchange(self._others, _count, searches), strict=True)
                whole = Totals(*map(sum, zip(*totals, strict=True)))
                frequencies = [sum(parts) for parts in zip(*counts, strict=True)]
                found = self._exchange(self._others, WordRetriever.search_as_part, searches, k, whole, frequencies)
        return [_merge(lists, k) for lists in zip(*found, strict=True)]

    def _exchange(self, others: "list[_Part]", call: Callable[..., Any], *arguments: Any) -> list[Any]:
        try:
            for one in others:
                one.send(call, *arguments)
            return [call(self.parts[0], *arguments), *(one.receive() for one in others)]
        except BaseException:  # such as a Ctrl-C: what others will answer is not the answer to the next call
            for one in others:
                one.line = None
            raise


def _count(words: WordRetriever, searches: Sequence[Search]) -> tuple[Totals, list[Ints]]:
    return words.totals, [words.frequencies(search.text) for search in searches]


def _merge(lists: Sequence[list[Hit]], k: int) -> list[Hit]:
    hits = sorted(chain.from_iterable(lists), key=attrgetter("doc_id"))
    return sorted(hits, key=attrgetter("score"), reverse=True)[:k]  # which leaves equal scores in the order of ids


def _on_ray() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


class Server:
    """The retriever of a part, in a process of its own. It is opened by the first call."""

    def __init__(self, make: Callable[[Corpus], Retriever], corpus: Corpus) -> None:
        self._make, self._corpus = make, corpus

    @cached_property
    def _retriever(self) -> Retriever:
        return self._make(self._corpus)

    def do(self, call: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
        """Call a function with the retriever and what else it takes, and return what came of it."""
        try:
            return call(self._retriever, *arguments), None
        except Exception as error:  # noqa: BLE001  # it is raised where it was asked for
            error.add_note(traceback.format_exc())
            return None, error


class _Part:  # the other end of a Server
    def __init__(self, make: Callable[[Corpus], Retriever], corpus: Corpus, name: str) -> None:
        self._made_of, self._name = (make, corpus), name
        self.line: _Process | _Actor | None = None

    def send(self, *call: Any) -> None:
        self.line = self.line or (_Actor if _on_ray() else _Process)(*self._made_of)
        self._call = call
        self.line.send(*call)

    def receive(self, *, again: bool = True) -> Any:
        line = cast("_Process | _Actor", self.line)
        try:
            value, error = line.receive()
        except line.ended:
            if not again:
                why = "see whether there is memory for it, and give the same command again"
                raise DataError(f"the process of {self._name} of the index has ended by itself twice; {why}") from None
            self.line = None
            self.send(*self._call)
            return self.receive(again=False)
        if error:
            raise error
        return value


class _Process:  # of this machine
    ended: tuple[type[Exception], ...] = (EOFError, OSError)

    def __init__(self, *made_of: Any) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            get_context("spawn").Process(target=_serve, args=(theirs, *made_of), daemon=True).start()

    def send(self, *call: Any) -> None:
        with suppress(OSError):  # it has ended, as who receives will see
            self._connection.send(call)

    def receive(self) -> Any:
        return self._connection.recv()


def _serve(connection: Connection, *made_of: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the process that asks
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # which it sends when it ends
    os.dup2(2, 1)  # its standard output is for results
    Thread(target=_end_with_parent, daemon=True).start()
    server = Server(*made_of)
    with suppress(EOFError, OSError):
        while True:
            connection.send(server.do(*connection.recv()))


def _end_with_parent() -> None:  # at once, in the middle of a build, too, whose draft is kept
    if parent := parent_process():
        parent.join()
    os._exit(0)


class _Actor:  # somewhere in a Ray cluster
    def __init__(self, *made_of: Any) -> None:
        self._ray = import_module("ray")
        self.ended = (self._ray.exceptions.RayActorError,)
        # Without a core of its own, so that none waits where a cluster has fewer than there are parts.
        self._actor = self._ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(Server).remote(*made_of)

    def send(self, *call: Any) -> None:
        self._answer = self._actor.do.remote(*call)

    def receive(self) -> Any:
        return self._ray.get(self._answer)
