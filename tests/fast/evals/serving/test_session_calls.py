"""Calls of one session take turns: however many it sends, the sessions of others go on."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from rest_client import Client, opened
from waiting import wait_for

pytest.importorskip("fastapi")

import anyio

from sextant.evals.serving import rest
from sextant.evals.serving.session_calls import MOST_CALLS, RETRY_AFTER, SessionCalls, TooManyCalls
from sextant.tools.records import Hit
from sextant.tools.retrievers.base import Retriever

SLOW = "a search that takes long"


class Gated(Retriever):
    """Searches for SLOW only while `go_on` is set."""

    name = "gated"

    def __init__(self, documents):
        self._doc_id = next(iter(documents))
        self.go_on = threading.Event()
        self.waits = threading.Event()

    def _search_many(self, searches, k):
        if searches[0].text == SLOW:
            self.waits.set()
            assert self.go_on.wait(60)
        return [[Hit(self._doc_id, 1.0)] for _ in searches]


def test_a_session_that_fills_its_queue_holds_up_nobody_and_is_told_to_come_again(tmp_path):
    retrievers = []

    def make_application(host, place):
        documents, by_name = host.toolbox._world[:2]
        by_name[""] = Gated(documents)
        retrievers.append(by_name[""])
        return rest.application(host, place)

    def search(port, session):
        client = Client(port)
        sent = client.ask("POST", f"/sessions/{session}/search", {"query": SLOW})
        return *sent, client.heard.decode().lower()

    requests = MOST_CALLS + 20  # 12 more than the threads that a server of its kind has
    with (
        opened(make_application, tmp_path) as (port, _),
        ThreadPoolExecutor(requests) as threads,
    ):
        [gated] = retrievers
        greedy, _ = Client(port).open()
        sent = [threads.submit(search, port, greedy) for _ in range(requests)]
        try:
            assert gated.waits.wait(60)
            wait_for(lambda: sum(answer.done() for answer in sent) == requests - MOST_CALLS)
            refused = [answer.result() for answer in sent if answer.done()]
            assert all(
                status == 503 and "come again" in body["error"] for status, body, _ in refused
            )
            assert all(f"retry-after: {RETRY_AFTER}" in heard for _, _, heard in refused)
            other = Client(port)
            session, _ = other.open()
            assert len(other.act(session, "search", query="gas bill")) == 1
            assert other.ask("GET", f"/sessions/{session}")[0] == 200
        finally:
            gated.go_on.set()
        assert sorted(answer.result()[0] for answer in sent) == [200] * MOST_CALLS + [503] * 20


def test_calls_of_a_session_end_in_their_order_and_leave_nothing_behind():
    ended = list[int]()

    async def send_all():
        calls = SessionCalls(2)
        async with anyio.create_task_group() as group:
            for number in range(MOST_CALLS):
                group.start_soon(calls.run, "one", lambda number=number: ended.append(number))
            await anyio.lowlevel.checkpoint()
            with pytest.raises(TooManyCalls):
                await calls.run("one", lambda: None)
            await calls.run("another", lambda: None)
        return calls

    calls = anyio.run(send_all)
    assert ended == list(range(MOST_CALLS)) and not calls._queues
