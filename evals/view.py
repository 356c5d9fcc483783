"""Look at runs in a browser: `python -m evals.view RUNS`, or one file that can be sent: `--export FILE.html`.

A local page, served on 127.0.0.1 and nowhere else, that asks for what is looked at; the exported file carries the same
answers and needs neither server nor network. That address is open to every user of the machine and to every page in
the browser, so each path begins with a secret, without which nothing is answered. Texts of corpora and models are data
in both: a content security policy lets no script run but ours. Left out: what the answers say
(evals/showing/page_data.py) and how it is drawn (evals/page/).
"""

import argparse
import base64
import gzip
import hashlib
import html
import json
import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.measuring.scored import counted
from tools.console import interrupts
from tools.console.command import Parser, clean, positive, put_out, run_and_leave, say
from tools.errors import DataError, SextantError, UsageError

if TYPE_CHECKING:
    from evals.showing.page_data import Answers

HOST = "127.0.0.1"
PORT = 8017
PORTS = 10  # that are tried where none is named
PAGE = Path(__file__).parent / "showing" / "page"

# Where the skeleton asks for them; the exported page has them inside.
_STYLE = re.compile(r'<link\b[^>]*"page\.css"[^>]*>')
_SCRIPT = re.compile(r'<script\b[^>]*"page\.js"[^>]*></script>')

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def page() -> str:
    """The page's skeleton."""
    return (PAGE / "page.html").read_text(encoding="utf-8")


def style() -> str:
    """Its style sheet."""
    return (PAGE / "page.css").read_text(encoding="utf-8")


def script() -> str:
    """Its program: the files of evals/page/ in their order, in a scope of their own."""
    from evals.showing.page_data import SCRIPTS

    parts = [(PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return '(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n"


class Server(ThreadingHTTPServer):
    """Serves the page and its answers to who knows its address, by whatever name and port that is reached."""

    daemon_threads = True

    def __init__(self, port: int, answers: "Answers") -> None:
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
        """What leads there one time, because everybody can see with which arguments a browser is started."""
        return f"http://{HOST}:{self.server_port}{self.once[0]}"

    def service_actions(self) -> None:
        """Between two requests."""
        interrupts.check()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who has gone is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "sextant"
    sys_version = ""
    timeout = 60  # seconds that a connection may be silent

    def do_GET(self) -> None:
        """Files of the page, and answers."""
        path = self.path.partition("?")[0]
        with suppress(ValueError):
            self.server.once.remove(path)
            return self._send(HTTPStatus.FOUND, "text/plain", b"", {"Location": self.server.root})
        start, name = path[: len(self.server.root)], path[len(self.server.root) :]
        if not secrets.compare_digest(start.encode(), self.server.root.encode()):
            return self._refuse(HTTPStatus.FORBIDDEN, "open the whole address that python -m evals.view printed")
        try:
            kind, content = self._content(name)
        except SextantError as problem:
            from evals.showing.page_data import NoSuchAnswer

            missing = isinstance(problem, NoSuchAnswer)
            return self._refuse(HTTPStatus.NOT_FOUND if missing else HTTPStatus.INTERNAL_SERVER_ERROR, str(problem))
        except OSError as problem:
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{problem.filename}: {problem.strerror}")
        self._send(HTTPStatus.OK, kind, content)

    do_HEAD = do_GET

    def _content(self, path: str) -> tuple[str, bytes]:
        from evals.showing.page_data import NoSuchAnswer

        files: dict[str, tuple[str, Callable[[], str]]] = {
            "": ("text/html", page),
            "page.css": ("text/css", style),
            "page.js": ("text/javascript", script),
        }
        if path in files:
            kind, content = files[path]
            return kind, content().encode()
        if path.startswith("data/"):
            return "application/json", self.server.answers(path.removeprefix("data/"))
        raise NoSuchAnswer(f"there is no {path[:200]!r}")

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        line = json.dumps({"error": " ".join(why.split())}) + "\n"
        self._send(status, "application/json", line.encode())

    def _send(self, status: HTTPStatus, kind: str, content: bytes, more: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **more}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses: another method, a request that is none."""
        self.close_connection = True
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not talked about."""


def server(answers: "Answers", port: int | None) -> Server:
    """The server, at `port` or else the first that is free from PORT on. UsageError where there is none."""
    ports = range(PORT, PORT + PORTS) if port is None else [port]
    for one in ports:
        try:
            return Server(one, answers)
        except OSError as error:
            problem = error.strerror
    where = f"ports {PORT} to {PORT + PORTS - 1}" if port is None else f"port {port}"
    raise UsageError(f"{where} of {HOST} cannot be served ({problem}); choose another --port")


def export(answers: "Answers", path: Path) -> int:
    """Write the page with every answer in it into one file; its size in bytes. The same bytes for the same runs."""
    from evals.showing.page_data import every
    from tools import disk

    before, after = _shell()
    hidden = _Hidden(answers.places)
    with disk.replacing(path) as file:
        file.write(before)
        for name, answer in every(answers):
            packed = base64.b64encode(gzip.compress(hidden(answer), 6, mtime=0)).decode()
            file.write(f'<script type="application/json+gzip" data-path="{html.escape(name)}">{packed}</script>\n')
        file.write(after)
    return path.stat().st_size


def _shell() -> tuple[str, str]:
    """The page before and after its data, with style and program inside and a policy that allows just these two."""
    skeleton, css, program = page(), style(), script()
    if re.search("</script|</style|<!--", css + program, re.IGNORECASE):
        raise DataError(f"a file in {PAGE} would end its block early; write </script and <!-- otherwise")
    policy = (
        f"default-src 'none'; script-src {_hash(program)}; style-src {_hash(css)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{css}</style>'
    before, after = _STYLE.sub(lambda _: head, _SCRIPT.sub("", skeleton)).split("</body>")
    return before, f"<script>{program}</script>\n</body>{after}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class _Hidden:
    """Takes out of what is sent what an error or a configuration may have quoted: keys, and places on this machine."""

    def __init__(self, places: Mapping[str, str]) -> None:
        words, least = ("KEY", "TOKEN", "SECRET", "PASSWORD"), 12  # characters: a shorter one may be any word
        named = {
            value: f"[{name}]"
            for name, value in sorted(os.environ.items())
            if len(value) >= least and any(word in name.upper() for word in words)
        } | dict(places)
        if len(Path(home := os.environ.get("HOME", "")).parts) > 2:  # /root names nobody
            named[f"{home}/"] = "~/"
        # As JSON has them; what lies inside another one comes after it.
        self._hidden = [(_inside(text), _inside(named[text])) for text in sorted(named, key=len, reverse=True)]

    def __call__(self, answer: bytes) -> bytes:
        for text, instead in self._hidden:
            if text in answer:
                answer = answer.replace(text, instead)
        return answer


def _inside(text: str) -> bytes:
    from evals.showing.page_data import plain_json

    return plain_json(text)[1:-1]


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.view", description="Look at runs in a browser, or write them into one file.")
    made.add_argument("runs", type=Path, nargs="+", metavar="RUNS", help="run folders, or folders with some in them")
    made.add_argument("--port", type=_port, metavar="N", help=f"{PORT}, or the next that is free; 0 is any")
    made.add_argument("--no-open", action="store_true", help="print the address, open no browser")
    made.add_argument("--export", type=Path, metavar="FILE.html", help="write the page into one file, serve nothing")
    made.add_argument("--query", action="append", default=[], metavar="ID", help="export this query; may be repeated")
    made.add_argument("--limit", type=positive, metavar="N", help="export the first N queries of each run")
    made.add_argument("--no-texts", action="store_true", help="export ids of documents, for a corpus that stays here")
    return made


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 0 to 65535")
    return int(text)


def command(arguments: argparse.Namespace) -> int:
    """Serve, or export."""
    if arguments.export:
        return _export(arguments)
    if arguments.query or arguments.limit or arguments.no_texts:
        raise UsageError("--query, --limit and --no-texts are for --export; the page that is served has everything")
    from evals.showing.page_data import Answers

    answers = Answers(arguments.runs)
    for path, why in answers.unreadable:
        say(f"not shown: {path}: {why}")
    say(f"{counted(len(answers.run_ids), 'run')}; Ctrl-C ends the page")
    with server(answers, arguments.port) as served, suppress(KeyboardInterrupt):
        put_out(f"{served.address}\n")
        if not arguments.no_open:
            _open(served.address_once)
        served.serve_forever(poll_interval=0.1)
    return 0


def _open(address: str) -> None:
    """Open the browser, where a person sees it: not in a script, nor over a line to a machine without a screen."""
    screen = sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if screen and sys.stdout is not None and sys.stdout.isatty():
        import webbrowser

        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def _export(arguments: argparse.Namespace) -> int:
    from evals.folder import check_output
    from evals.showing.page_data import Answers

    path: Path = arguments.export
    if not path.parent.is_dir() or path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        why = "it is a folder" if path.is_dir() else f"{path.parent} is no folder that can be written to"
        raise UsageError(f"{path} cannot be written: {why}; choose another --export")
    check_output(path)
    wanted: list[str] = arguments.query

    def chosen(query_ids: Sequence[str]) -> Sequence[str]:
        return [query_id for query_id in query_ids if not wanted or query_id in wanted][: arguments.limit]

    answers = Answers(arguments.runs, exported=True, texts=not arguments.no_texts, chosen=chosen)
    for folder, why in answers.unreadable:
        say(f"left out: {folder}: {why}")
    if not answers.run_ids:
        raise DataError("none of these runs can be shown, so nothing is written")
    known = [answers.query_ids(run_id) for run_id in answers.run_ids]
    if strange := [query_id for query_id in wanted if not any(query_id in ids for ids in known)]:
        raise UsageError(f"none of these runs has a query {strange[0]!r}; --query takes the ids of scores.csv")
    try:
        size = export(answers, path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}; choose another --export, or make room") from None
    runs, trajectories = counted(len(known), "run"), counted(sum(map(len, known)), "trajectory", "trajectories")
    put_out(f"{clean(str(path))}: {runs}, {trajectories}, {size / 1e6:.1f} MB\n")
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
