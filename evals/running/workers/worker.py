"""A worker: answers queries that a coordinator sends (coordinator.py), and asks it for resources that only
the coordinator has.
"""

import io
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from sextant.evals.running.evaluate import load_run, prepare_loaded
from sextant.evals.running.runner import answer_with_model
from sextant.evals.running.workers.channels import Connection, Line
from sextant.evals.running.workers.coordinator import WorkerSetup, is_mapped
from sextant.tools import session, user_files
from sextant.tools.corpus import Corpus
from sextant.tools.errors import SessionRefusal
from sextant.tools.models.client import DEADLINE, ModelClient
from sextant.tools.models.provider_response import Send
from sextant.tools.models.storage.ledger import ModelResponse, StoredPartIds
from sextant.tools.platform import forkserver
from sextant.tools.platform.system_calls import stay_on_core
from sextant.tools.process_changes import while_running
from sextant.tools.records import Document, Hit
from sextant.tools.retrievers import with_lens_attribute
from sextant.tools.retrievers.base import Retriever, Search
from sextant.tools.retrievers.lexical.bm25 import BM25


def be_starter(descriptor: int) -> None:
    """Fork workers with modules that nearly every query needs, numba's kernels among it, which take
    seconds to load.
    """
    import openai  # noqa: F401  # before the forks, which then share it

    from sextant.tools.models.transport import openai_client  # noqa: F401  # as above

    BM25(Corpus([Document("1", "a word")])).search("word", 1)
    forkserver.serve_forks(descriptor, _serve)


def _serve(connection: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, setup = pickle.loads(connection.recv_bytes())  # from the coordinator
    if setup.core is not None:
        stay_on_core(setup.core)
    os.environ |= {**setup.environment, **os.environ}  # what a node has of its own stays
    if Path(setup.here).is_dir():
        os.chdir(setup.here)
    worker = _Worker(connection, setup)
    with while_running():
        worker.link.listen()


class _Worker:
    def __init__(self, connection: Any, setup: WorkerSetup) -> None:
        self.link = Connection(connection, self._answer, lambda words: None, first=1)
        sys.stdout = sys.stderr = _StdoutRelay(self.link)
        opened = load_run(setup.request)
        self._documents = opened.environment.documents
        self._resources = opened.resources
        # which are not asked again
        opened.resources.servers = {**setup.servers}
        opened.resources.cassette = ({}, "")
        resolved = opened.resolved
        elsewhere = setup.searched
        for spec in (resolved.retriever, *resolved.others.values()):
            if not is_mapped(spec):
                opened.run_retrievers.built[
                    str(with_lens_attribute(spec, opened.run_retrievers.attribute))
                ] = _RemoteRetriever(self, str(spec), *elsewhere[str(spec)])
        ready = prepare_loaded(opened, setup.folder)
        self._system = ready.system
        self._model = ready.model
        lm = ready.model.lm
        lm.anew = setup.anew
        if not setup.counts:
            lm.client = _Client(
                **{field.name: getattr(lm.client, field.name) for field in fields(ModelClient)}
            )
            lm.client.by = self
            lm.client.keeps = setup.kept
            lm.client.parts = StoredPartIds()
        self._counted = 0
        self._counting = threading.Lock()

    def _answer(self, line: Line) -> None:
        try:
            answer: Any = answer_with_model(
                self._system, line.receive()[0], self._documents, self._model
            )
        except BaseException as error:  # noqa: BLE001  # the coordinator waits for it
            answer = error
        with self._counting:
            calls = self._resources.budget.calls - self._counted
            self._counted = self._resources.budget.calls
        line.send(answer, calls, user_files.export_opened())

    @contextmanager
    def asking(self, action: str, *arguments: Any) -> Iterator[Line]:
        """Ask the coordinator for something, on a line of its own."""
        with self.link.open() as line:
            line.send(action, DEADLINE.get() - time.monotonic(), *arguments)
            yield line


class _Client(ModelClient):
    """Has the coordinator decide about each request, which is then sent from here."""

    by: _Worker
    keeps = True  # the worker sets what the coordinator says, which has the ledger
    parts: StoredPartIds

    def ask(
        self,
        owner: str,
        key: str,
        content: bytes | int,
        send: Send,
        limit: int | None = None,
    ) -> ModelResponse:
        assert isinstance(content, bytes)
        failures = []
        packed = None
        with self.by.asking("call", owner, key, len(content), self.schemas, limit) as line:
            while (message := line.receive())[0] == "send":
                try:
                    with session.usage_recorded_elsewhere():
                        response = send(time.monotonic() + message[1])
                    packed = self.pack(content, self.parts) if key and self.keeps else None
                    line.send(response._replace(packed=packed), None)
                except Exception as error:  # noqa: BLE001  # raised by the coordinator's caller, which may go on after it
                    failures.append(error)
                    line.send(None, error)
        _, answer, failure, state = message
        self.__dict__ |= state
        if failure is not None:
            raise failures[failure] if isinstance(failure, int) else failure
        self.parts.note(packed[1] if packed else ())
        return answer  # type: ignore[no-any-return]

    def learns(
        self,
        refusal: Any,
        messages: Any,
        before: int | None,
    ) -> bool:
        if isinstance(refusal, SessionRefusal):
            return False
        with self.by.asking("learn", refusal, messages, before) as line:
            learnt, state = line.receive()
        self.__dict__ |= state
        if learnt:
            refusal.learnt = True
        return learnt  # type: ignore[no-any-return]


class _RemoteRetriever(Retriever):
    """A retriever that the coordinator has."""

    def __init__(
        self,
        by: _Worker,
        key: str,
        name: str,
        pays: bool,
    ) -> None:
        self.name = name
        self._by = by
        self._key = key
        self._pays = pays
        self._left_out = dict[tuple[str, str], int]()  # of texts that are too long

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        payer = session.current() if self._pays else None
        with self._by.asking(
            "search",
            self._key,
            searches,
            k,
            payer and (payer.query_id, payer.limits, payer.snapshot()),
        ) as line:
            hits, left_out, failure, allowed, charged, fault = line.receive()
        if payer:
            for _ in range(allowed):
                payer.allow_call()
            for usage, key in charged:
                payer.charge(usage, key)
            payer.fault = payer.fault or fault
        if failure:
            raise failure
        self._left_out |= {
            (search.text, search.instruction): count
            for search, count in zip(searches, left_out, strict=True)
            if count
        }
        return hits  # type: ignore[no-any-return]

    def left_out(self, text: str, instruction: str = "") -> int:
        return self._left_out.get((text, instruction), 0)


class _StdoutRelay(io.TextIOBase):
    """Sends printed lines to the coordinator, which prints them."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._link.send(0, line)
        return len(text)
