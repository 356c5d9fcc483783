"""Searches without a session: sessions do not wait for them, nor do short requests for long batches."""

import json
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest
from rest_client import Client, opened
from waiting import wait_for

pytest.importorskip("fastapi")

from sextant.evals.serving import rest, search_queue
from sextant.tools.records import Hit
from sextant.tools.retrievers.base import Retriever

LONG = "in a long batch"
DOORS = [("POST", "/retrieve", {"queries": ["a"]}), ("GET", "/v1/congress/search?query=a", None)]


class Gated(Retriever):
    """Searches long batches only while `go_on` is set, and keeps the texts of each call in `calls`."""

    name = "gated"

    def __init__(self, documents):
        self._doc_id = next(iter(documents))
        self.calls, self.go_on = [], threading.Event()

    def _search_many(self, searches, k):
        self.calls.append([search.text for search in searches])
        if searches[0].text == LONG:
            assert self.go_on.wait(60)
        return [[Hit(self._doc_id, 1.0)] for _ in searches]


class Broken(Retriever):
    name = "broken"

    def _search_many(self, searches, k):
        raise OSError("no such file: /private/index")


def serve_by(make_retriever, retrievers):
    """Return a REST application whose sessions and requests search by a retriever of the test's."""

    def make_application(host, place):
        documents, by_name = host.toolbox._world[:2]
        host.retriever = by_name[""] = make_retriever(documents)
        retrievers.append(by_name[""])
        return rest.application(host, place)

    return make_application


def post_batch(port):
    """Send a long batch; return the status, what is answered, and the whole answer as it came."""
    client = Client(port)
    batch = {"queries": [LONG] * (search_queue.TOGETHER + 1), "topk": 1}
    return *client.ask("POST", "/retrieve", batch), client.heard.decode()


def test_a_session_searches_while_batches_hold_every_thread_that_they_may_have_and_more_are_refused(
    tmp_path,
):
    retrievers = []
    requests = search_queue.MOST_REQUESTS + 1
    with (
        opened(serve_by(Gated, retrievers), tmp_path) as (port, _),
        ThreadPoolExecutor(requests) as threads,
    ):
        [gated] = retrievers
        sent = [threads.submit(post_batch, port) for _ in range(requests)]
        try:
            [refused], under_way = wait(sent, 60, FIRST_COMPLETED)
            status, refusal, whole_answer = refused.result()
            assert status == 503 and "come again" in refusal["error"]
            assert f"retry-after: {search_queue.RETRY_AFTER}" in whole_answer.lower()
            wait_for(lambda: len(gated.calls) == search_queue.THREADS)
            client = Client(port)
            session, _ = client.open()
            assert len(client.act(session, "search", query="gas bill")) == 1
            assert gated.calls.count([LONG] * search_queue.TOGETHER) == search_queue.THREADS, (
                "no more than they may"
            )
        finally:
            gated.go_on.set()
        for answer in under_way:
            status, body, _ = answer.result()
            assert status == 200 and len(body["result"]) == search_queue.TOGETHER + 1
    assert max(map(len, gated.calls)) == search_queue.TOGETHER


@pytest.mark.parametrize(("method", "path", "body"), DOORS)
def test_a_search_without_a_session_that_fails_is_told_in_one_line_without_its_words(
    tmp_path, capfd, method, path, body
):
    with opened(serve_by(lambda _: Broken(), []), tmp_path) as (port, _):
        status, answer = Client(port).ask(method, path, body)
        assert status == 503 and "failed" in answer["error"] and "private" not in json.dumps(answer)
        assert Client(port).ask("GET", "/")[0] == 200, "others go on"
    assert "/private/index" in capfd.readouterr().err
