"""The coordinator: has workers answer the queries of a run, and keeps all shared resources.

That is the ledger with its cache, the budgets, the limiter, the outcomes and the terminal, and
retrievers whose models are loaded or asked once. A worker runs the program, with word indexes of
its own, and sends the requests to the model, each when the coordinator lets it. Queries begun by a
worker that ends are begun again by another.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sextant.evals.running.request import Request
from sextant.evals.running.resolve import PreparedRun
from sextant.evals.running.runner import RemoteSystem
from sextant.evals.running.workers.channels import Connection, Line, PeerClosed
from sextant.tools import retrievers, session, user_files
from sextant.tools.errors import Interrupted, RunIncomplete
from sextant.tools.models.client import DEADLINE
from sextant.tools.models.provider_errors import QueryTimeout
from sextant.tools.models.provider_response import ProviderResponse
from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.interrupts import start_thread
from sextant.tools.platform.system_calls import list_cores
from sextant.tools.records import JsonMapping, JsonObject, Query, Usage
from sextant.tools.retrievers.base import Search
from sextant.tools.session import Limits, Session

# workers that may end with a query beside others, then with it alone, before it is left pending
BESIDE = 2
ALONE = 3


def is_mapped(spec: retrievers.RetrieverSpec) -> bool:
    """Tell whether each worker opens the retriever by itself."""
    return all(part.mapped for _, part in retrievers.iter_classes(spec))


class WorkerSetup(NamedTuple):
    """The facts of a run that a worker needs."""

    request: Request
    folder: Path
    environment: Mapping[str, str]  # variables
    here: str  # the working folder
    servers: JsonMapping  # what was found out of them, as resources.servers
    anew: Mapping[str, int]
    kept: bool  # whether answers are kept in a ledger
    # Whether calls of a model that is free are only counted afterwards, for no budget is there to
    # keep
    counts: bool
    core: (
        int | None
    )  # that it is to keep to, so that its threads take turns without waking another core
    searched: Mapping[
        str, tuple[str, bool]
    ]  # by expression, what the coordinator has: its name, whether queries pay for it


class _ChargedSession(Session):
    """Stands in for the session of a worker's query while a retriever is asked, and notes the charges of that."""

    def __init__(
        self,
        query_id: str,
        limits: Limits,
        snapshot: JsonMapping,
    ) -> None:
        super().__init__(Query(query_id, ""), ({}, {}, limits, time.perf_counter), snapshot)
        self.charged = list[tuple[Usage, str]]()
        self.allowed = 0

    def charge(self, usage: Usage, key: str = "") -> None:
        self.charged.append((usage, key))
        super().charge(usage, key)

    def allow_call(self) -> None:
        super().allow_call()
        self.allowed += 1


class Coordinator(RemoteSystem):
    """Has workers answer queries. Threads share it."""

    def __init__(
        self,
        ready: PreparedRun,
        folder: Path,
        count: int,
    ) -> None:
        """Start so `many` workers for the run in `folder`."""
        request = ready.resolved.request
        model = ready.model
        self._client = model.lm.client
        self._budget = model.resources.budget
        self._start = ready.start
        self._retrievers = {
            str(spec): retriever for spec, retriever in ready.retrievers if not is_mapped(spec)
        }
        limits = request.budget_usd, request.budget_tokens, request.budget_calls, request.time_limit
        self._setup = WorkerSetup(
            request,
            folder,
            dict(os.environ),
            str(Path.cwd()),
            model.resources.servers,
            model.lm.anew,
            kept=self._client.keeps,
            counts=self._client.free and not any(limits),
            core=None,
            searched={
                str(spec): (
                    retriever.name,
                    bool(retrievers.find_lenses(spec) or retrievers.find_api_parts(spec)),
                )
                for spec, retriever in ready.retrievers
            },
        )
        self._changed = threading.Condition()  # the workers, or what they are at
        cores = list_cores()
        self._cores = cores if count >= len(cores) and not request.on_ray else []
        self._closed = False
        self._failure: Exception | None = None
        self._workers = list[Connection]()
        for _ in range(count):
            self._recruit()

    def _recruit(self) -> None:
        if self._setup.request.on_ray:
            start_thread(self._hire)  # which waits for a place
        else:
            self._hire()

    def _hire(self) -> None:
        try:
            link = Connection(
                self._start(),
                lambda line: self._serve(line, *line.receive()),
                print_stderr,
                first=2,
            )
            if self._cores:
                link.core = min(self._cores, key=[worker.core for worker in self._workers].count)
            link.send(0, self._setup._replace(core=link.core))
        except (RunIncomplete, OSError, PeerClosed) as error:
            lost = (
                RunIncomplete(f"workers can be started no more ({error})")
                if isinstance(error, OSError)
                else error
            )
            with self._changed:
                self._failure = self._failure or (
                    lost if isinstance(lost, RunIncomplete) else Interrupted()
                )
                self._changed.notify_all()
            return
        start_thread(link.listen)
        with self._changed:
            self._workers.append(link)
            self._changed.notify_all()
        if self._closed:
            link.close()

    def attempt(self, query: Query) -> Any:
        """Have a worker answer; return as runner.attempt does."""
        for alone in [False] * BESIDE + [True] * ALONE:
            if not (worker := self._take(alone)):
                return self._failure or Interrupted()
            try:
                return self._ask(worker, query)
            except PeerClosed:
                if self._closed:
                    return Interrupted()
                self._replace(worker)
            finally:
                with self._changed:
                    worker.busy -= 1
                    worker.alone &= not alone
                    self._changed.notify_all()
        return QueryTimeout(
            f"{ALONE} processes ended, one after another, while each had only query "
            f"{query.query_id!r}"
        )

    def _take(self, alone: bool) -> Connection | None:
        """Return the worker with the fewest queries, to be `alone` once these have ended;
        None if none will come.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._free() or self._closed or (self._failure and not self._workers)
            )
            if not (free := self._free()):
                return None
            worker = min(free, key=lambda worker: worker.busy)
            worker.alone = alone  # from now on, nobody else gets it
            self._changed.wait_for(
                lambda: not (alone and worker.busy and worker in self._workers) or self._closed
            )
            if worker not in self._workers:
                return self._take(alone)
            worker.busy += 1
            return worker

    def _free(self) -> list[Connection]:
        return [worker for worker in self._workers if not worker.alone]

    def _replace(self, worker: Connection) -> None:
        with self._changed:
            if worker in self._workers:
                self._workers.remove(worker)
                self._recruit()
                print_stderr("a worker has ended, and its queries are asked again")

    def _ask(self, worker: Connection, query: Query) -> Any:
        with worker.open() as line:
            line.send(query)
            outcome, calls, opened = line.receive()
        user_files.import_opened(opened)
        if calls:
            self._budget.resume(Usage(calls=calls))
        return outcome

    def _serve(self, line: Line, action: str, remaining: float, *arguments: Any) -> None:
        """Serve a worker's request within `remaining` seconds."""
        with session.set_contextvar(DEADLINE, time.monotonic() + remaining):
            {
                "call": self._call,
                "learn": self._learn,
                "search": self._search,
            }[action](line, *arguments)

    def _call(
        self,
        line: Line,
        owner: str,
        key: str,
        size: int,
        schemas: str,
        limit: int | None,
    ) -> None:
        client = self._client
        raised = []

        def send(deadline: float) -> ProviderResponse:
            line.send("send", deadline - time.monotonic())
            message, failure = line.receive()
            if failure:
                raised.append(failure)
                raise failure
            return message  # type: ignore[no-any-return]

        if schemas == "off":
            client.schemas = "off"
        try:
            answer = client.ask(owner, key, size, send, limit)
            failure = None
        except Exception as error:  # noqa: BLE001  # raised again by the worker
            answer = None
            failure = raised.index(error) if error in raised else error
        line.send("done", answer, failure, self._state())

    def _state(self) -> JsonObject:
        client = self._client
        return {
            "window": client.window,
            "schemas": client.schemas,
            "_answered": client.answered,
        }

    def _learn(self, line: Line, *refused: Any) -> None:
        line.send(self._client.learns(*refused), self._state())

    def _search(
        self,
        line: Line,
        key: str,
        searches: Sequence[Search],
        k: int,
        payer: Any,
    ) -> None:
        opened = _ChargedSession(*payer) if payer else None
        hits = []
        left_out = []
        failure = None
        retriever = self._retrievers[key]
        try:
            with session.as_current(opened), session.usage_recorded_elsewhere():
                hits = retriever.search_many(searches, k)
                left_out = [
                    retriever.left_out(search.text, search.instruction) for search in searches
                ]
        except Exception as error:  # noqa: BLE001  # as above
            failure = error
        line.send(
            hits,
            left_out,
            failure,
            *((opened.allowed, opened.charged, opened.fault) if opened else (0, (), None)),
        )

    def close(self) -> None:
        """End the workers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.close()
