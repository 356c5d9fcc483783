"""The page, served on 127.0.0.1 and nowhere else, or in a file that carries every answer inside.

That address is open to every user of the machine and every page in the browser, so each path begins
with a secret. Texts of corpora and models are data: a content security policy lets no script run
but ours.
"""

import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from sextant.evals import web_page
from sextant.evals.viewer.data import NotFound, ViewerApi
from sextant.evals.viewer.loaded_run import plain_json
from sextant.evals.viewer.panel import Panel
from sextant.evals.web_page import PAGE
from sextant.tools.errors import DataError, SextantError, UsageError
from sextant.tools.platform import files
from sextant.tools.platform.interrupts import check_interrupts

HOST = "127.0.0.1"
PORT = 8017
# Ports that are tried if none is named.
PORTS = 10
# Bytes of a remark.
LARGEST_BODY = 1 << 20

# Files of page/, which are the page's program one after the other; panels come between them.
BEFORE_PANELS = (
    "theme",
    "dom",
    "data",
    "words",
    "charts",
    "lists",
    "calls",
    "trajectory",
    "remarks",
    "search",
    "live",
    "overview",
    "panels",
)
AFTER_PANELS = ("timeline", "run", "query", "compare", "frame", "main")

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


class _PageFile(NamedTuple):
    media_type: str
    content: bytes


def page_files(panels: Iterable[Panel]) -> dict[str, _PageFile]:
    """Return the files of a page with these panels, by name; "" is the page itself."""
    scripts = [
        *map(_read_script, BEFORE_PANELS),
        *(panel.read_script() for panel in panels),
        *map(_read_script, AFTER_PANELS),
    ]
    shell = web_page.html_shell("Sextant", PAGE / "page.html")
    style = (PAGE / "page.css").read_text("utf-8")
    return {
        "": _PageFile("text/html", shell.encode()),
        "page.css": _PageFile("text/css", style.encode()),
        "page.js": _PageFile("text/javascript", web_page.join_scripts(scripts).encode()),
    }


def _read_script(name: str) -> str:
    return (PAGE / f"{name}.js").read_text(encoding="utf-8")


class Server(ThreadingHTTPServer):
    """Serves the page and its data to anyone who knows the address."""

    def __init__(self, port: int, answers: ViewerApi) -> None:
        super().__init__((HOST, port), _Handler)
        self.answers = answers
        self.root = f"/{secrets.token_urlsafe()}/"
        self.once = [f"/{secrets.token_urlsafe()}"]

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}{self.root}"

    @property
    def address_once(self) -> str:
        """An address that works once.

        Every user of the machine can see the arguments of a browser.
        """
        return f"http://{HOST}:{self.server_port}{self.once[0]}"

    def service_actions(self) -> None:
        """End the server if Ctrl-C was pressed since the last request."""
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
    # Seconds that a connection may be silent.
    timeout = 60

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        with suppress(ValueError):
            self.server.once.remove(path)
            self._send(HTTPStatus.FOUND, _PageFile("text/plain", b""), Location=self.server.root)
            return
        self._respond(path, self._answer)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LARGEST_BODY:
            self.close_connection = True
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a remark is at most 1 MB")
            return
        body = self.rfile.read(int(length))
        add = self.server.answers.add_remark
        self._respond(
            self.path,
            lambda name: _PageFile("application/json", add(name.removeprefix("data/"), body)),
        )

    def _respond(self, path: str, answer: Callable[[str], _PageFile]) -> None:
        root = self.server.root
        if not secrets.compare_digest(path[: len(root)].encode(), root.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "open the whole address that sextant view printed")
            return
        name = path[len(root) :]
        try:
            self._send(HTTPStatus.OK, answer(name))
        except NotFound as problem:
            self._refuse(HTTPStatus.NOT_FOUND, str(problem))
        except (SextantError, OSError) as problem:
            self._refuse(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                files.describe(problem) if isinstance(problem, OSError) else str(problem),
            )

    def _answer(self, name: str) -> _PageFile:
        if name.startswith("data/"):
            return _PageFile("application/json", self.server.answers(name.removeprefix("data/")))
        files_of_page = page_files(self.server.answers.panels.values())
        if name not in files_of_page:
            raise NotFound(f"there is no {name[:200]!r}")
        return files_of_page[name]

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._send(
            status,
            _PageFile(
                "application/json", json.dumps({"error": " ".join(reason.split())}).encode() + b"\n"
            ),
        )

    def _send(self, status: HTTPStatus, file: _PageFile, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{file.media_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(file.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(file.content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self.close_connection = True
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests."""


def open_server(answers: ViewerApi, port: int | None) -> Server:
    """Open the server at `port`, or without one at the first free port from PORT on.

    UsageError if none can be opened.
    """
    candidates = range(PORT, PORT + PORTS) if port is None else [port]
    for candidate in candidates:
        try:
            return Server(candidate, answers)
        except OSError as error:
            problem = files.describe(error)
    ports = f"ports {PORT} to {PORT + PORTS - 1}" if port is None else f"port {port}"
    raise UsageError(f"{ports} of {HOST} cannot be served ({problem}); choose another --port")


def list_answers(answers: ViewerApi) -> Iterator[tuple[str, bytes]]:
    """Yield every answer of an exported page with its path."""
    yield "runs.json", answers("runs.json")
    for path in answers.list_comparisons():
        yield path, answers(path)
    for run_id in answers.run_ids:
        yield f"run/{run_id}.json", answers(f"run/{run_id}.json")
        for panel in answers.panels.values():
            names = panel.arguments
            if panel.of_query and names:
                names = answers.query_ids(run_id)
            for argument in names:
                path = f"run/{run_id}/{panel.name}/{_quote(argument)}.json"
                # An earlier version did not say what became of documents, and a retriever may not be
                # at hand to be asked about a query again.
                with suppress(DataError, *([UsageError] if panel.of_query else [])):
                    yield path, answers(path)
        # Keys of model calls; a call may be of several queries.
        keys: dict[str, None] = {}
        for name in answers.query_ids(run_id):
            path = f"run/{run_id}/query/{_quote(name)}.json"
            answer = answers(path)
            yield path, answer
            if answers.prompts:
                query = files.loads(answer)
                for caller in (*query["steps"], query):
                    keys |= dict.fromkeys(caller.get("calls", ()))
        for key in keys:
            path = f"run/{run_id}/call/{key}.json"
            with suppress(NotFound):
                # The page says that it is not there.
                yield path, answers(path)


def _quote(argument: str) -> str:
    """Escape as encodeURIComponent does."""
    return quote(argument, safe="!'()*")


def write_page(answers: ViewerApi, path: Path) -> int:
    """Write the page with all answers into one file; return its size in bytes.

    The bytes are the same for the same runs.
    """
    hidden = _hidden(answers)

    def redact(answer: bytes) -> bytes:
        for text, replacement in hidden:
            answer = answer.replace(text, replacement)
        return answer

    data = ((name, redact(answer)) for name, answer in list_answers(answers))
    shell, style, program = (
        file.content.decode() for file in page_files(answers.panels.values()).values()
    )
    return web_page.write_single_file(path, shell, style, program, data)


def _hidden(answers: ViewerApi) -> list[tuple[bytes, bytes]]:
    """Return keys and paths of this machine as they stand in JSON, each with its replacement."""
    secret = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
    # A shorter value may be any word.
    replacements = {
        value: f"[{name}]"
        for name, value in sorted(os.environ.items())
        if secret.search(name) and len(value) >= 12
    }
    replacements |= answers.places
    home = os.environ.get("HOME", "")
    if len(Path(home).parts) > 2:
        # /root is no name of a person.
        replacements[f"{home}/"] = "~/"
    longest_first = sorted(replacements, key=len, reverse=True)
    return [
        (plain_json(text)[1:-1], plain_json(replacements[text])[1:-1]) for text in longest_first
    ]
