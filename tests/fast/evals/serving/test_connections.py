"""Clients that send half a request, nothing, or a head without an end."""

import http.client
import socket
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute

from sextant.evals.serving import connections
from sextant.evals.serving.client_config import ServerAddress
from sextant.evals.serving.web_auth import AuthMiddleware, WebServer

START = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HALVES = {
    "nothing": b"",
    "half a head": START,
    "half a body": START + b"Content-Length: 10\r\n\r\n{",
    "half a chunk": START + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
}
parametrize_halves = pytest.mark.parametrize("sent", HALVES.values(), ids=HALVES)


async def greet(request):
    return PlainTextResponse("hello")


async def echo(websocket):
    await websocket.accept()
    while True:
        await websocket.send_text(await websocket.receive_text())


@contextmanager
def serving():
    """Give the port of a server that reads requests as every door does."""
    routes = [Route("/", greet, methods=["GET", "POST"]), WebSocketRoute("/", echo)]
    guarded = AuthMiddleware(Starlette(routes=routes), ServerAddress("127.0.0.1", 0, ""))
    server = WebServer(guarded, "127.0.0.1", 0)
    yield server.port
    server.stop()


def connect(port, sent, *, asks_before=False):
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    if asks_before:
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        received = b""
        while not received.endswith(b"hello"):
            received += client.recv(10_000) or pytest.fail(received.decode())
    client.sendall(sent)
    return client


def ask(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/")
    text = connection.getresponse().read()
    connection.close()
    return text


@parametrize_halves
def test_others_come_in_however_many_clients_send_half_a_request(sent, monkeypatch):
    monkeypatch.setattr(connections, "CONNECTIONS", 16)
    with serving() as port:
        clients = [connect(port, sent, asks_before=number % 2 > 0) for number in range(50)]
        assert ask(port) == b"hello"
        for client in clients:
            client.close()


@parametrize_halves
def test_a_connection_without_a_whole_request_is_closed_after_some_time(sent, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST", 0.5)
    for asks_before in (False, True):
        with serving() as port, connect(port, sent, asks_before=asks_before) as client:
            if (
                sent or not asks_before
            ):  # else it may send another request, which has a limit of its own
                assert client.makefile("rb").read().startswith(b"HTTP/1.1 408 Request Timeout\r\n")


def test_a_client_that_keeps_on_sending_a_little_has_no_more_time(monkeypatch):
    monkeypatch.setattr(connections, "REQUEST", 0.5)
    with serving() as port, connect(port, START) as client, pytest.raises(OSError):
        for _ in range(200):
            client.sendall(b"X: 1\r\n")
            time.sleep(0.05)


def test_a_head_without_an_end_is_refused():
    with serving() as port, connect(port, START) as client:
        with pytest.raises(OSError):
            for number in range(2000):
                client.sendall(b"X-%d: " % number + b"1" * 1000 + b"\r\n")
                time.sleep(0.001)
        assert ask(port) == b"hello"


def test_a_websocket_has_all_the_time_that_it_needs(monkeypatch):
    client_of = pytest.importorskip("websockets.sync.client")
    monkeypatch.setattr(connections, "REQUEST", 0.3)
    with serving() as port, client_of.connect(f"ws://127.0.0.1:{port}/") as client:
        for _ in range(3):
            time.sleep(0.3)
            client.send("x")
            assert client.recv(30) == "x"
