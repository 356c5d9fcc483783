"""A client that sends a head without an end."""

import http.client
import socket
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from sextant.evals.serving.client_config import ServerAddress
from sextant.evals.serving.web_auth import AuthMiddleware, WebServer

START = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def greet(request):
    return PlainTextResponse("hello")


@contextmanager
def serving():
    """Give the port of a server that reads requests as every door does."""
    routes = [Route("/", greet, methods=["GET", "POST"])]
    guarded = AuthMiddleware(Starlette(routes=routes), ServerAddress("127.0.0.1", 0, ""))
    server = WebServer(guarded, "127.0.0.1", 0)
    yield server.port
    server.stop()


def ask(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/")
    text = connection.getresponse().read()
    connection.close()
    return text


def test_a_head_without_an_end_is_refused():
    with serving() as port, socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(START)
        with pytest.raises(OSError):
            for number in range(2000):
                client.sendall(b"X-%d: " % number + b"1" * 1000 + b"\r\n")
                time.sleep(0.001)
        assert ask(port) == b"hello"
