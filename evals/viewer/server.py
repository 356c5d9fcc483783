"""The page, served on 127.0.0.1 and nowhere else, or in one file that carries every answer inside.

That address is open to every user of the machine and every page in the browser, so each path begins
with a secret. Texts of corpora and models are data: a content security policy lets no script run
but ours.
"""

import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from evals.viewer import single_file
from evals.viewer.data import NotFound, ViewerApi, plain_json
from evals.viewer.single_file import PAGE
from tools import files
from tools.errors import DataError, SextantError, UsageError
from tools.interrupts import check_interrupts

HOST = "127.0.0.1"
PORT = 8017
PORTS = 10  # that are tried where none is named

# Files of page/, which are the page's program one after the other.
SCRIPTS = (
    "dom data words charts lists calls trajectory overview find behaviour run query compare frame "
    "main"
)


_FILES: dict[str, tuple[str, Callable[[], str]]] = {
    "": ("text/html", lambda: single_file.html_shell("Sextant", PAGE / "page.html")),
    "page.css": ("text/css", lambda: (PAGE / "page.css").read_text("utf-8")),
    "page.js": (
        "text/javascript",
        lambda: single_file.join_scripts(PAGE / f"{name}.js" for name in SCRIPTS.split()),
    ),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """Serves the page and its data to anyone who knows the address."""

    def __init__(self, port: int, answers: ViewerApi) -> None:
        super().__init__((HOST, port), _Handler)
        self.answers = answers
        self.root = f"/{secrets.token_urlsafe()}/"
        self.once = [f"/{secrets.token_urlsafe()}"]

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}{self.root}"

    @property
    def address_once(self) -> str:
        """An address that works once: every user of the machine can see the arguments of a
        browser.
        """
        return f"http://{HOST}:{self.server_port}{self.once[0]}"

    def service_actions(self) -> None:
        """End the server where Ctrl-C was pressed since the last request."""
        check_interrupts()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, but not that a reader has gone."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "sextant"
    sys_version = ""
    timeout = 60  # seconds that a connection may be silent

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        root = self.server.root
        with suppress(ValueError):
            self.server.once.remove(path)
            return self._send(HTTPStatus.FOUND, "text/plain", b"", Location=root)
        if not secrets.compare_digest(path[: len(root)].encode(), root.encode()):
            return self._refuse(
                HTTPStatus.FORBIDDEN, "open the whole address that python -m evals.view printed"
            )
        name = path[len(root) :]
        try:
            if name.startswith("data/"):
                kind = "application/json"
                content = self.server.answers(name.removeprefix("data/"))
            elif name in _FILES:
                kind = _FILES[name][0]
                content = _FILES[name][1]().encode()
            else:
                raise NotFound(f"there is no {name[:200]!r}")
        except NotFound as problem:
            return self._refuse(HTTPStatus.NOT_FOUND, str(problem))
        except (SextantError, OSError) as problem:
            why = files.describe(problem) if isinstance(problem, OSError) else str(problem)
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, why)
        self._send(HTTPStatus.OK, kind, content)

    do_HEAD = do_GET

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(
            status,
            "application/json",
            json.dumps({"error": " ".join(why.split())}).encode() + b"\n",
        )

    def _send(self, status: HTTPStatus, kind: str, content: bytes, **more: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **more}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self.close_connection = True
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests."""


def open_server(answers: ViewerApi, port: int | None) -> Server:
    """Open the server at `port`, or else at the first free one from PORT on.

    UsageError where there is none.
    """
    for one in range(PORT, PORT + PORTS) if port is None else [port]:
        try:
            return Server(one, answers)
        except OSError as error:
            problem = files.describe(error)
    where = f"ports {PORT} to {PORT + PORTS - 1}" if port is None else f"port {port}"
    raise UsageError(f"{where} of {HOST} cannot be served ({problem}); choose another --port")


def list_answers(answers: ViewerApi) -> Iterator[tuple[str, bytes]]:
    """Yield every answer with its path, but for searches."""
    yield "runs.json", answers("runs.json")
    for run_id in answers.run_ids:
        yield f"run/{run_id}.json", answers(f"run/{run_id}.json")
        with suppress(DataError):  # an earlier version did not say what became of documents
            yield (path := f"run/{run_id}/behaviour/all.json"), answers(path)
        keys: dict[str, None] = {}  # of model calls; a call may be of several queries
        for name in answers.query_ids(run_id):
            quoted = quote(name, safe="!'()*")  # as encodeURIComponent does
            answer = answers(path := f"run/{run_id}/query/{quoted}.json")
            yield path, answer
            if answers.prompts:
                made = files.loads(answer)
                keys |= dict.fromkeys(
                    key for place in [*made["steps"], made] for key in place.get("calls", ())
                )
        for path in (f"run/{run_id}/call/{key}.json" for key in keys):
            with suppress(NotFound):  # the page says that it is not there
                yield path, answers(path)


def write_page(answers: ViewerApi, path: Path) -> int:
    """Write the page with all answers into one file, the same bytes for the same runs; return
    its size in bytes.
    """
    hidden = _hidden(answers)

    def said(answer: bytes) -> bytes:
        for text, instead in hidden:
            answer = answer.replace(text, instead)
        return answer

    data = ((name, said(answer)) for name, answer in list_answers(answers))
    shell, style, program = (make() for _, make in _FILES.values())
    return single_file.write_single_file(path, shell, style, program, data)


def _hidden(
    answers: ViewerApi,
) -> list[tuple[bytes, bytes]]:  # keys and places on this machine, and what replaces them
    secret = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
    known = {
        value: f"[{name}]" for name, value in sorted(os.environ.items()) if secret.search(name)
    }
    # A short one may be any word.
    named = {value: name for value, name in known.items() if len(value) >= 12} | answers.places
    if len(Path(home := os.environ.get("HOME", "")).parts) > 2:  # /root names nobody
        named[f"{home}/"] = "~/"
    return [
        (plain_json(text)[1:-1], plain_json(named[text])[1:-1])
        for text in sorted(named, key=len, reverse=True)
    ]
