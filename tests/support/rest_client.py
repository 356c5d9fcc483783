"""Clients of a door over HTTP, by Python's own http.client, and a door that is opened in a thread."""

import http.client
import json
import os
import socket
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

from conftest import ROOT
from waiting import wait_for

from sextant.evals.running.request import Request
from sextant.evals.serving import episode_server as hosts
from sextant.evals.serving import web_auth
from sextant.evals.serving.client_config import ServerAddress


class Client:
    """Keeps all that came over the wire in `heard`."""

    def __init__(self, port, token=""):
        self._connection, self.heard = (
            http.client.HTTPConnection("127.0.0.1", port, timeout=60),
            b"",
        )
        self._token = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method, path, body=None, **headers):
        data = None if body is None else json.dumps(body).encode()
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(
            method, path, data, {"Content-Type": "application/json", **self._token, **more}
        )
        answer = self._connection.getresponse()
        self.heard += str(answer.headers).encode() + (said := answer.read())
        return answer.status, json.loads(said)

    def reconnect(self):
        """Send the next request on a new connection."""
        self._connection.close()

    def open(self, **body):
        status, made = self.ask("POST", "/sessions", body)
        assert status == 200, made
        return made["session"], made

    def act(self, session, tool, **arguments):
        status, made = self.ask("POST", f"/sessions/{session}/{tool}", arguments)
        assert status == 200, made
        return made["result"]

    def answer(self, session, query):
        """Do what mcp_agents.in_process does."""
        found = [one["doc_id"] for one in self.act(session, "search", query=query, k=5)]
        self.act(session, "read", doc_id=found[0])
        self.act(session, "select", doc_ids=found[1:3])
        more = [one["doc_id"] for one in self.act(session, "search", query=query[:40])]
        return self.act(session, "submit", doc_ids=list(dict.fromkeys([*found[::-1], *more])))


def run_in_process(run, runs):
    """Give the outcomes of sextant.evals.run for a function of one's own that does what agents outside do."""
    assert (
        run(
            "--program",
            "mcp_agents:in_process",
            "--task",
            "congress",
            "--split",
            "dev",
            "--runs",
            runs,
        ).code
        == 0
    )
    return outcomes(runs)


@contextmanager
def serving(python, *words, **environment):
    """Give what starts sextant.evals.serve on one free port, with more options; it returns the process and the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port, started = free.getsockname()[1], []

    def start(*options):
        command = [
            python,
            "-m",
            "sextant.evals.serve",
            *map(str, (*words, *options)),
            "--port",
            str(port),
        ]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        started.append(
            process := subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL)
        )
        wait_for(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
        return process, port

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def opened(door, runs, *, token="", rewards=False, **fields):
    """Open a door in a thread; gives its port and its host."""
    ready, over, there = threading.Event(), threading.Event(), []
    place = ServerAddress("127.0.0.1", 0, token, rewards=rewards)

    def play(host):
        server = web_auth.WebServer(
            web_auth.AuthMiddleware(door(host, place), place), place.address, 0
        )
        there.extend((server.port, host))
        ready.set()
        host.wait(over.is_set)
        server.stop()

    request = Request(
        program="served:agent", task="congress", split="dev", runs=Path(runs), **fields
    )
    thread = threading.Thread(target=hosts.serve_episodes, args=(request, play), daemon=True)
    thread.start()
    assert ready.wait(120)
    yield there
    over.set()
    thread.join(60)


def outcomes(runs):
    """What every query came to, but for times and digests over them."""
    (path,) = Path(runs).rglob("outcomes.jsonl")
    found = {}
    for one in map(json.loads, path.read_text().splitlines()):
        for step in one["trace"]["steps"]:
            del step["started"], step["seconds"]
        found[one["query_id"]] = {
            name: one[name] for name in ("ranking", "answer", "trace", "usage", "error")
        }
    return found
