"""A gate before a model server: it passes bytes on in both directions as they are, and keeps the exchanges.

Connections are the server's own, so that whatever it does to them reaches the client: idle ones are closed, answers
are cut. A client sends one request at a time on a connection, as HTTP/1.1 without pipelining has it.
"""

import http.client
import io
import json
import re
import socket
import socketserver
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

HEAD_END = b"\r\n\r\n"
CHUNK = 65_536  # bytes read at a time


@dataclass
class Exchange:
    """A request as it was sent, and as much of the response as has come."""

    method: str
    path: str
    body: bytes
    response: bytearray = field(default_factory=bytearray)

    @property
    def status(self) -> int:
        """The status of the response; 0 before there is one."""
        found = re.match(rb"HTTP/1\.[01] (\d{3})", bytes(self.response))
        return int(found[1]) if found else 0

    @property
    def request(self) -> dict[str, Any]:
        return json.loads(self.body)

    def answer(self) -> str:
        """The text of the answer, streamed or not, of a response that is whole."""
        events = _read_body(bytes(self.response)).decode()
        if not events.startswith("data:"):
            return json.loads(events)["choices"][0]["message"]["content"] or ""
        pieces = []
        for event in re.findall(r"^data: (\{.*)$", events, re.MULTILINE):
            for choice in json.loads(event)["choices"]:
                pieces.append(choice["delta"].get("content") or "")
        return "".join(pieces)

    def reported(self, name: str) -> int:
        """The last number under this name in the response, e.g. "prompt_tokens"; 0 without one."""
        found = re.findall(rb'"%s": ?(\d+)' % name.encode(), bytes(self.response))
        return int(found[-1]) if found else 0


class WatchedServer:
    """Stands before the server of a local port; `url` is its own."""

    def __init__(self, port: int) -> None:
        self.exchanges = list[Exchange]()
        watched = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                with socket.create_connection(("127.0.0.1", port)) as server:
                    watched.pass_on(self.request, server)

        self._gate = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._gate.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._gate.server_address[1]}"
        threading.Thread(target=self._gate.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._gate.shutdown()
        self._gate.socket.close()  # not server_close, which waits for threads of open connections

    def chats(self) -> list[Exchange]:
        """The requests for an answer, in the order in which they came."""
        return [one for one in self.exchanges if one.path.endswith("/chat/completions")]

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        """Pass the bytes of one connection on until one of its ends closes."""
        exchanges = list[Exchange]()  # of this connection
        answering = threading.Thread(
            target=_pass_responses, args=(server, client, exchanges), daemon=True
        )
        answering.start()
        unread = bytearray()
        with suppress(OSError):
            while data := client.recv(CHUNK):
                unread += data
                while complete := _take_request(unread):
                    exchanges.append(complete)
                    self.exchanges.append(complete)
                server.sendall(data)
        _close(server)  # a client that was killed is gone for the server, too
        answering.join()


class _Received:
    """As much of a socket as the reader of a response wants."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _read_body(response: bytes) -> bytes:
    """The body of a response, out of its chunks if it has any."""
    reader = http.client.HTTPResponse(_Received(response))
    reader.begin()
    return reader.read()


def _pass_responses(
    server: socket.socket, client: socket.socket, exchanges: list[Exchange]
) -> None:
    with suppress(OSError):
        while data := server.recv(CHUNK):
            if exchanges:
                exchanges[-1].response += data
            client.sendall(data)
    _close(client)


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _take_request(unread: bytearray) -> Exchange | None:
    """Remove a whole request from the front of `unread` and return it; None before it is whole."""
    head, end, rest = bytes(unread).partition(HEAD_END)
    if not end:
        return None
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    size = int(length[1]) if length else 0
    if len(rest) < size:
        return None
    method, path, _ = head.decode("latin-1").split(" ", 2)
    del unread[: len(head) + len(end) + size]
    return Exchange(method, path, rest[:size])
