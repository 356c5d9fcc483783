"""A corpus in parts, each with an index in a process of its own, ranked as by one index:
`sharded(bm25,parts=16)`.

A part has a run of the corpus' rows. The first part is in this process, the others in processes of this machine or,
if Ray is initialized here or ELSEWHERE is set, in actors of a cluster. Ids, order and scores are those of the
unsharded retriever to the last bit: words are weighed by counts that the parts add up for every search, and queries are
embedded once.
Left out: replicas, and combinations, which go outside, as in `fusion(sharded(bm25),sharded(dense))`.
"""

import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from functools import cached_property, partial
from importlib import import_module
from itertools import chain, pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias, cast
from weakref import finalize

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, UsageError, require_at_least
from sextant.tools.platform.cli import Progress
from sextant.tools.platform.forkserver import fork_server, receive_result, serve_forks
from sextant.tools.platform.interrupts import start_thread
from sextant.tools.platform.system_calls import available_cores
from sextant.tools.records import Hit, Hits
from sextant.tools.retrievers.base import Options, Retriever, Searches
from sextant.tools.retrievers.lexical.bm25 import LexicalRetriever
from sextant.tools.retrievers.lexical.inverted_index import CorpusTotals
from sextant.tools.retrievers.lexical.numba_kernels import Ints
from sextant.tools.retrievers.vectors.exact_search import VectorRetriever

_KINDS = ("bm25", "bm25s", "dense")
# Starts the process of a part, which is sent the arguments of a PartProcess.
_Begin: TypeAlias = Callable[[], Connection]
_Listen: TypeAlias = Callable[[Connection], Any]  # as processes.hear, with Ended
# For other machines.
ELSEWHERE: ContextVar[tuple[_Begin, _Listen] | None] = ContextVar("elsewhere", default=None)


class PartEnded(Exception):
    """The process of a part has ended."""


class Sharded(Retriever):
    """The ranking of a retriever over the whole corpus, with its name: the `parts` change nothing
    of the ranking.
    """

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        part: Callable[[Corpus], Retriever],
        *,
        parts: int = 8,
    ) -> None:
        build = cast("partial[Retriever]", part)
        if (spec := build.args[0]).kind not in _KINDS:
            raise UsageError(
                f"sharded is made of one of {', '.join(_KINDS)}, whose scores depend on other "
                f"parts by nothing but sums of counts; not of {spec}"
            )
        make = partial(
            build.func,
            spec,
            home=home and home.absolute(),
            resources=None,
        )
        listen: _Listen = partial(receive_result, lost=PartEnded)
        on_ray = "ray" in sys.modules and sys.modules["ray"].is_initialized()
        elsewhere = ELSEWHERE.get() or ((_begin_on_ray, listen) if on_ray else None)
        ends = ExitStack()
        finalize(self, ends.close)
        lines = elsewhere or (ends.enter_context(fork_server(__name__)), listen)
        parts = min(parts, max(1, len(corpus)))
        first_slice, *slices = [
            corpus.slice(*rows)
            for rows in pairwise(len(corpus) * n // parts for n in range(parts + 1))
        ]
        self._others = [
            _PartRetriever(*lines, make, rows, name=f"part {n} of {parts}")
            for n, rows in enumerate(slices, 2)
        ]
        self._lock = Lock()  # an exchange with the parts at a time
        self.parts = (make(first_slice),)
        self.name = self.parts[0].name
        progress = Progress("sharded", len(slices), "parts")
        at_once = available_cores()
        # Other machines; or a model, which uses all cores.
        if elsewhere or isinstance(self.parts[0], VectorRetriever):
            at_once = len(slices) if elsewhere else 1
        for first in range(0, len(slices), max(1, at_once)):
            self._exchange(
                lot := self._others[first : first + at_once], Retriever.search_many, (), 1
            )
            progress.add(len(lot))

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse less than one part."""
        require_at_least(1, "sharded", parts=options["parts"])

    def _search_many(self, searches: Searches, k: int) -> list[list[Hit]]:
        with self._lock:
            if isinstance(first_part := self.parts[0], VectorRetriever):
                results = self._exchange(
                    self._others,
                    VectorRetriever.search_with,
                    first_part.prepare(searches),
                    searches,
                    k,
                )
            else:
                totals, counts = zip(*self._exchange(self._others, _count, searches), strict=True)
                all_totals = CorpusTotals(*map(sum, zip(*totals, strict=True)))
                results = self._exchange(
                    self._others,
                    LexicalRetriever.search_as_part,
                    searches,
                    k,
                    all_totals,
                    [sum(parts) for parts in zip(*counts, strict=True)],
                )
        return [_merge(lists, k) for lists in zip(*results, strict=True)]

    def _exchange(
        self, remote_parts: "list[_PartRetriever]", call: Callable[..., Any], *arguments: Any
    ) -> list[Any]:
        try:
            for part in remote_parts:
                part.send(call, *arguments)
            return [call(self.parts[0], *arguments), *(part.receive() for part in remote_parts)]
        except BaseException:
            # Such as a Ctrl-C: late answers of the parts are not answers to the next call.
            for part in remote_parts:
                part.line = None
            raise


def _count(words: LexicalRetriever, searches: Searches) -> tuple[CorpusTotals, list[Ints]]:
    return words.totals, [words.frequencies(search.text) for search in searches]


def _merge(lists: Sequence[Hits], k: int) -> list[Hit]:
    # The sort is stable, so equal scores stay in the order of ids.
    return sorted(
        sorted(chain.from_iterable(lists), key=attrgetter("doc_id")),
        key=attrgetter("score"),
        reverse=True,
    )[:k]


class PartProcess:
    """The retriever of a part, in a process of its own. It is opened by the first call."""

    def __init__(self, make: Callable[[Corpus], Retriever], corpus: Corpus) -> None:
        self._make = make
        self._corpus = corpus

    @cached_property
    def _retriever(self) -> Retriever:
        return self._make(self._corpus)

    def do(self, call: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
        """Call a function with the retriever and arguments; return (its result, its exception)."""
        try:
            return call(self._retriever, *arguments), None
        except Exception as error:  # noqa: BLE001  # it is raised where it was asked for
            error.add_note(traceback.format_exc())
            return None, error


class _PartRetriever:  # the other end of a Server
    def __init__(
        self,
        begin: _Begin,
        listen: _Listen,
        *made_of: Any,
        name: str,
    ) -> None:
        self._begin = begin
        self._listen = listen
        self._made_of = made_of
        self._name = name
        self.line: Connection | None = None

    def send(self, *call: Any) -> None:
        self._call = call
        with suppress(OSError):  # it has ended or cannot be started, as who receives will see
            if not self.line:
                self.line = self._begin()
                self.line.send(self._made_of)
            self.line.send(call)

    def receive(self, *, retry: bool = True) -> Any:
        try:
            if not self.line:
                raise PartEnded
            return self._listen(self.line)
        except PartEnded:
            if not retry:
                raise DataError(
                    f"the process of {self._name} of the index has ended by itself twice; see "
                    "whether there is memory for it, and give the same command again"
                ) from None
            self.line = None
            self.send(*self._call)
            return self.receive(retry=False)


def _serve(line: Connection) -> None:
    with suppress(EOFError, OSError):
        server = PartProcess(*line.recv())
        while True:
            line.send(server.do(*line.recv()))


be_starter = partial(serve_forks, serve=_serve)  # of parts on this machine


def _begin_on_ray() -> Connection:
    ours, theirs = Pipe()
    start_thread(partial(serve_by_actor, theirs))
    return ours


def serve_by_actor(line: Connection) -> None:
    """Have a part somewhere in the Ray cluster to which this process is connected."""
    ray = import_module("ray")
    # Without a core of its own, so that none waits where a cluster has fewer than there are parts.
    actor = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(PartProcess).remote(*line.recv())
    with suppress(EOFError, OSError):
        while True:
            call = line.recv()
            try:
                answer = ray.get(actor.do.remote(*call))
            except ray.exceptions.RayActorError:
                answer = None, PartEnded()
            line.send(answer)
