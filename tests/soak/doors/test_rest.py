"""Agents come in by REST: they do what our own programs do, and nobody comes in who may not, or harms another."""

import base64
import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT
from rest_client import Client, opened, outcomes, run_in_process, serving
from waiting import wait_for

from sextant import environments
from sextant.evals.serving import rest, web_auth
from sextant.tools.retrievers.base import Retriever

TASK = ("--task", "congress", "--split", "dev")


@pytest.fixture
def ours(run, tmp_path):
    return run_in_process(run, tmp_path / "ours")


@pytest.fixture
def serve(tmp_path):
    with serving(sys.executable, *TASK, "--http", "--runs", tmp_path / "runs") as start:
        yield start


@pytest.mark.smoke
def test_a_run_over_rest_is_that_of_a_program(serve, tmp_path, ours):
    process, port = serve()

    def work(_):
        client = Client(port)
        session, task = client.open()
        return client.answer(session, task["query"]) == {
            "submitted": len(ours[task["query_id"]]["ranking"])
        }

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(12)))
    assert process.wait(60) == 0
    assert outcomes(tmp_path / "runs") == ours


def test_what_goes_over_the_wire_has_no_judgement_no_other_query_and_no_path(tmp_path):
    with opened(rest.application, tmp_path, retriever="bm25") as (port, host):
        client = Client(port)
        session, task = client.open()
        shown = {one["doc_id"] for one in client.act(session, "search", query=task["query"])}
        state = client.ask("GET", f"/sessions/{session}")[1]
        assert [one["tool"] for one in state["steps"]] == ["search"]
        client.act(session, "read", doc_id="../../etc/passwd")
        client.act(session, "submit")
        heard = client.heard.decode()
    judged = {doc_id for grades in host.environment.qrels.values() for doc_id in grades}
    assert not [doc_id for doc_id in judged - shown if doc_id in heard]
    others = [
        query
        for query in environments.load("congress").queries
        if query.query_id != task["query_id"]
    ]
    assert not [one.query_id for one in others if one.query_id in heard or one.text[:40] in heard]
    assert "reward" not in heard and "nDCG" not in heard
    assert not [path for path in (ROOT, tmp_path, Path.home()) if str(path) in heard]


def test_who_may_not_come_in_is_refused_and_harms_nobody(tmp_path):
    with opened(rest.application, tmp_path, token="sesame", rewards=True) as (port, host):
        mine = Client(port, "sesame")
        session, task = mine.open()
        found = mine.act(session, "search", query="gas bill")
        before = mine.ask("GET", f"/sessions/{session}")[1]

        def status(method, path, body=None, token="sesame", **headers):
            return Client(port, token).ask(method, path, body, **headers)[0]

        use = f"/sessions/{session}/submit"
        assert status("POST", use, {}, token="") == status("POST", use, {}, token="sesam") == 401
        password = base64.b64encode(b"agent:sesame").decode()
        assert status("GET", "/", token="", Authorization=f"Basic {password}") == 200
        assert status("GET", "/", token="", Authorization="Basic ???") == 401
        assert status("POST", use, {}, Host=f"evil.example:{port}") == 421
        assert status("POST", use, {}, Origin="http://evil.example") == 403
        assert (
            status("POST", use, {}, Origin="null")
            == status("GET", "/", Sec_Fetch_Site="cross-site")
            == 403
        )
        for forged in (
            session[:-1],
            session + "A",
            "",
            "..%2F" + session,
            "../" + session,
            "%00",
            "a" * 3000,
        ):
            assert status("POST", f"/sessions/{forged}/submit", {}) in (404, 405)
        assert status("POST", use, {"query": "x" * 10_000_000}) == 413
        assert (
            status("POST", use, {"doc_ids": [True]}) == status("GET", f"/sessions/{session}") == 200
        )
        assert status("POST", "/sessions", {"query_id": "../../x"}) == 404
        assert status("POST", "/sessions", {"query_id": task["query_id"]}) == 409
        assert (
            status(
                "POST", f"/sessions/{session}/usage", {"calls": -1, "tokens_in": 0, "tokens_out": 0}
            )
            == 422
        )
        raw = socket.create_connection(("127.0.0.1", port))
        raw.sendall(
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            % use.encode()
        )
        assert b"401" in raw.recv(100)
        assert mine.ask("GET", f"/sessions/{session}")[1] == before
        assert mine.act(session, "submit", doc_ids=[found[0]["doc_id"]]) == {"submitted": 1}
        assert host.state()["answered"] == 1


def test_a_thousand_sessions_that_are_left_are_bounded_and_make_room(tmp_path):
    with opened(rest.application, tmp_path, max_concurrent=6) as (port, host):
        host.repeat = True
        busy, client = Client(port), Client(port)
        mine, task = busy.open()
        statuses = [client.ask("POST", "/sessions", {})[0] for _ in range(1000)]
        assert statuses == [200] * 5 + [429] * 995
        host.idle = 0.3
        time.sleep(0.2)
        busy.reconnect()  # the server may have closed a connection that lay idle meanwhile
        busy.act(mine, "note", text="still here")
        time.sleep(0.2)
        assert client.open()
        assert busy.answer(mine, task["query"])["submitted"]


def test_a_client_that_reads_nothing_is_cut_off_and_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(web_auth, "UNREAD", 1000)
    with opened(rest.application, tmp_path) as (port, _):
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", port))
        asked = (
            b"GET /v1/congress/search?query=the+chair&hits=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        deaf.settimeout(5)

        def cut_off():
            try:
                deaf.sendall(asked * 50)
            except TimeoutError:
                return False
            except OSError:
                return True
            client = Client(port)
            return client.ask("GET", "/")[0] != 200

        wait_for(cut_off, 60)


class _Broken(Retriever):
    name = "broken"

    def _search_many(self, searches, k):
        raise OSError(f"no such file: {ROOT}/index")


def test_a_search_that_fails_here_is_told_without_its_words_and_its_query_is_asked_again(tmp_path):
    with opened(rest.application, tmp_path) as (port, host):
        host.toolbox._world[1][""] = _Broken()
        client = Client(port)
        session, task = client.open()
        status, said = client.ask("POST", f"/sessions/{session}/search", {"query": "anything"})
        assert (status, str(ROOT) in json.dumps(said)) == (503, False)
        assert client.open(query_id=task["query_id"])


@pytest.mark.parametrize("dialect", ["anserini", "search-r1"])
def test_a_run_that_searches_by_a_door_of_ours_ranks_as_the_retriever_behind_it(
    run, tmp_path, dialect
):
    with opened(rest.application, tmp_path / "door", retriever="bm25") as (port, _):
        url = f"http://127.0.0.1:{port}" + ("/v1/congress" if dialect == "anserini" else "")
        named = ["--program", "retrieve", *TASK, "--limit", "4"]
        there = run(
            *named, "--retriever", f"http({url},dialect={dialect})", "--runs", tmp_path / "there"
        )
    here = run(*named, "--retriever", "bm25", "--runs", tmp_path / "here")
    assert here.code == there.code == 0, there.err
    rankings = [
        {q: one["ranking"] for q, one in outcomes(tmp_path / name).items()}
        for name in ("here", "there")
    ]
    assert rankings[0] == rankings[1]


def test_searches_without_a_session_are_refused_where_sessions_have_limits(tmp_path):
    with opened(rest.application, tmp_path, parameters={"max_searches": 3}) as (port, _):
        assert Client(port).ask("POST", "/retrieve", {"queries": ["a"]})[0] == 403


def test_a_call_costs_the_processor_less_than_two_milliseconds_at_64_sessions(tmp_path):
    with opened(rest.application, tmp_path) as (port, host):
        host.repeat = True
        clients = [Client(port) for _ in range(64)]
        sessions = [client.open()[0] for client in clients]

        def work(place):
            for _ in range(10):
                clients[place].act(sessions[place], "note", text="x")

        with ThreadPoolExecutor(64) as threads:
            before = time.process_time()
            list(threads.map(work, range(64)))
        assert (time.process_time() - before) / 640 < 0.002 * 2, (
            "of the server and of its clients, which are here too"
        )
