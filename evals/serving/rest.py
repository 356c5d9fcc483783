"""A REST interface: a session for each query, described at /docs, and searches as Search-R1 and Anserini are asked.

    POST   /sessions                   open a query: the next, or {"query_id": ...}
    GET    /sessions/{session}         what was done so far
    POST   /sessions/{session}/search  one of the tools, with its arguments; so read, select, note and submit
    POST   /sessions/{session}/usage   what the agent's own model has used
    DELETE /sessions/{session}         give the query back

The id of a session cannot be guessed, and is the right to it. /retrieve and /v1/{index}/search are for clients that
speak these protocols: they belong to no session and leave no trace, so runs with exclusions, pools or limits of
searches and reads refuse them.
"""

import asyncio
import html
import inspect
import json
import re
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from evals.serving import web
from evals.serving.clients import Place
from evals.serving.episode import TOOLS, Episode
from evals.serving.host import MOST, Host, NothingOpen
from tools.console import say
from tools.errors import UsageError
from tools.retriever import Search

MOST_FOUND = 10_000  # documents in an answer to a search without a session
_KINDS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    list[str]: {"type": "array", "items": {"type": "string"}},
}
_STILL = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Call(NamedTuple):
    """One thing that can be asked for."""

    method: str
    path: str
    does: Callable[..., Any]
    takes: Mapping[str, inspect.Parameter]  # beside what is in the path
    says: str


def serve(host: Host, place: Place) -> None:
    """Serve until every query is answered."""
    web.run(application(host, place), host, place)


def application(host: Host, place: Place) -> Starlette:
    """Return the interface as an ASGI application."""
    rest = Rest(host, place)
    tools = [_call("POST", f"/sessions/{{session}}/{tool}", rest.act(tool), getattr(Episode, tool)) for tool in TOOLS]
    calls = [
        _call("GET", "/", rest.count),
        _call("POST", "/sessions", rest.open),
        _call("GET", "/sessions/{session}", rest.show),
        *tools,
        _call("POST", "/sessions/{session}/usage", rest.charge),
        _call("DELETE", "/sessions/{session}", rest.leave),
        _call("POST", "/retrieve", rest.retrieve),
        _call("GET", "/v1/{index}/search", rest.anserini),
    ]
    threads = ThreadPoolExecutor(MOST, "rest")
    routes = [Route(call.path, _endpoint(call, threads), methods=[call.method]) for call in calls]
    description, page = _describe(calls, place), _page(calls)
    routes += [
        Route("/openapi.json", lambda request: JSONResponse(description)),
        Route("/docs", lambda request: HTMLResponse(page, headers=_STILL)),
    ]
    return Starlette(routes=routes)


class Rest:
    """The sessions of one server."""

    def __init__(self, host: Host, place: Place) -> None:
        self._host, self._rewards = host, place.rewards
        self._sessions = dict[str, Episode]()
        documents, retrievers, limits, _ = host.toolbox._world  # noqa: SLF001  # programs have no search without a trace
        self._documents, self._retriever = documents, retrievers[""]
        narrow = any(query.excluded or query.candidates is not None for query in host.environment.queries)
        self._free = not narrow and limits.searches is None and limits.reads is None

    def count(self) -> Any:
        """Tell how many queries there are, and how many of them are answered and open."""
        return self._host.state()

    def open(self, query_id: str = "") -> Any:
        """Open a session for a query, by default the next; its id is the right to it."""
        if not isinstance(query_id, str):
            raise Refused(400, "query_id is a text")
        try:
            episode = self._host.open(query_id)
        except NothingOpen as refusal:
            full = self._host.state()["open"] >= self._host.most
            raise Refused(429 if full else 409, str(refusal)) from None
        except UsageError as refusal:
            raise Refused(404, str(refusal)) from None
        for session in [one for one, other in list(self._sessions.items()) if other.over]:
            self._sessions.pop(session, None)
        self._sessions[session := secrets.token_urlsafe(24)] = episode
        return {"session": session, **episode.task()}

    def show(self, session: str) -> Any:
        """Tell what was done in a session so far."""
        episode = self._find(session)
        steps = [step.tool for step in list(episode.desk.session.trace.steps) if not step.refused]
        done = {"searches": steps.count("search"), "reads": steps.count("read")}
        return {**episode.task(), **done, "selected": list(episode.desk.selected), "done": episode.over}

    def act(self, tool: str) -> Callable[..., Any]:
        """Return what does one thing in a session."""

        def does(session: str, **arguments: Any) -> Response:
            episode = self._find(session)
            try:
                seen = episode.act(tool, arguments)
            except Exception:
                episode.leave()
                raise
            reward = f', "reward": {json.dumps(seen.reward)}' if self._rewards else ""
            made = f'{{"result": {seen.text}, "done": {json.dumps(seen.done)}{reward}}}'
            return Response(made.encode("utf-8", "replace"), media_type="application/json")

        return does

    def charge(self, session: str, calls: int, tokens_in: int, tokens_out: int, usd: float | None = None) -> Any:
        """Book what the agent's own model has used."""
        counts = (calls, tokens_in, tokens_out)
        if not all(type(one) is int and one >= 0 for one in counts) or not isinstance(usd, int | float | None):
            raise Refused(400, "calls, tokens_in and tokens_out are whole numbers, usd is a number")
        self._find(session).charge(calls=calls, tokens_in=tokens_in, tokens_out=tokens_out, usd=usd)
        return {"noted": True}

    def leave(self, session: str) -> Any:
        """Give the query of a session back, which is then handed out again."""
        self._find(session).leave()
        self._sessions.pop(session, None)
        return {"left": True}

    def retrieve(self, queries: list[str], topk: int | None = None, return_scores: bool = False) -> Any:
        """Search as Search-R1's retrieval_server.py does, in batches; it belongs to no session, and leaves no trace."""
        if not isinstance(queries, list) or not all(isinstance(text, str) for text in queries):
            raise Refused(400, "queries is a list of texts")
        lists = list[Any]()
        for hits in self._search(queries, 3 if topk is None else topk):
            found = [(self._documents[hit.doc_id], hit.score) for hit in hits]
            shown = [({"id": one.doc_id, "contents": f'"{one.title}"\n{one.text}'}, score) for one, score in found]
            lists.append([{"document": one, "score": score} if return_scores else one for one, score in shown])
        return {"result": lists}

    def anserini(self, index: str, query: str = "", hits: str = "10", **_: str) -> Any:
        """Search as Anserini's RestServer does; it belongs to no session, and leaves no trace."""
        if index != (ours := self._host.environment.task.rpartition("/")[2]):
            raise Refused(400, f"Unable to open index: {index[:60]}; this one is {ours}")
        if not query or not hits.isdecimal() or not int(hits):
            raise Refused(400, "Parameter 'query' is required; 'hits' must be a positive integer")
        found = self._search([query], int(hits[:9]))[0]
        shown = [{"docid": hit.doc_id, "score": hit.score, "rank": rank, "doc": self._documents[hit.doc_id].text}
                 for rank, hit in enumerate(found, start=1)]  # fmt: skip
        return {"api": "v1", "index": index, "query": {"text": query}, "candidates": shown}

    def _search(self, texts: list[str], k: int) -> Any:
        if not self._free:
            raise Refused(403, "the run has exclusions, pools or limits, which hold in sessions alone; open one")
        if type(k) is not int or k < 1 or k * len(texts) > MOST_FOUND:
            raise Refused(400, f"a request finds 1 to {MOST_FOUND:,} documents, for all its queries together")
        return self._retriever.search_many([Search(text) for text in texts], k)

    def _find(self, session: str) -> Episode:
        if (episode := self._sessions.get(session)) is None:
            raise Refused(404, "there is no such session, or it is over")
        self._host.touch(episode)
        return episode


def _call(method: str, path: str, does: Callable[..., Any], like: Callable[..., Any] | None = None) -> Call:
    """Describe a call by the function that answers it, or by one `like` it."""
    described = like or does
    known = inspect.signature(described).parameters.items()
    takes = {name: one for name, one in known if name != "self" and f"{{{name}}}" not in path and name != "_"}
    return Call(method, path, does, takes, (inspect.getdoc(described) or "").partition("\n")[0])


def _endpoint(call: Call, threads: ThreadPoolExecutor) -> Any:
    """Return what answers a call in a thread of its own."""
    signature = inspect.signature(call.does)

    def work(given: Mapping[str, Any], body: bytes) -> Response:
        try:
            try:
                arguments = json.loads(body) if body.strip() else {}
                signature.bind(**given, **arguments)
            except (ValueError, TypeError, RecursionError) as error:
                raise Refused(400, f"the body is a JSON object with the arguments: {str(error)[:100]}") from None
            made = call.does(**given, **arguments)
            return made if isinstance(made, Response) else _as_response(made)
        except Refused as refusal:
            return _as_response({"error": str(refusal)}, refusal.status)
        except Exception as error:  # noqa: BLE001  # of a provider, an index or a user's retriever: others go on
            say(f"{call.path}: {type(error).__name__}: {error}")  # which may name files of this machine
            return _as_response({"error": "this cannot be done now; the query is handed out again"}, 503)

    async def endpoint(request: Request) -> Response:
        given = {**request.query_params, **request.path_params}
        return await asyncio.get_running_loop().run_in_executor(threads, work, given, await request.body())

    return endpoint


def _as_response(made: Any, status: int = 200) -> Response:
    return Response(json.dumps(made), status, media_type="application/json")


def _describe(calls: list[Call], place: Place) -> dict[str, Any]:
    """Return the description in OpenAPI's words."""
    paths = dict[str, Any]()
    for call in calls:
        asked = [(name, "path", True, _KINDS[str]) for name in re.findall(r"{(\w+)}", call.path)]
        fields = {name: _kind(one) for name, one in call.takes.items()}
        needed = [name for name, one in call.takes.items() if one.default is one.empty]
        made: dict[str, Any] = {"summary": call.says, "responses": {"200": {"description": "JSON"}}}
        if call.method == "POST":
            schema = {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}
            made["requestBody"] = {"content": {"application/json": {"schema": schema}}}
        else:
            asked += [(name, "query", name in needed, kind) for name, kind in fields.items()]
        made["parameters"] = [dict(zip(("name", "in", "required", "schema"), one, strict=True)) for one in asked]
        paths.setdefault(call.path, {})[call.method.lower()] = made
    about = {"title": "Sextant", "version": "1", "description": (__doc__ or "").partition("\n")[0]}
    bearer = {"bearer": {"type": "http", "scheme": "bearer"}}
    secured = {"components": {"securitySchemes": bearer}, "security": [{"bearer": []}]} if place.token else {}
    return {"openapi": "3.1.0", "info": about, "servers": [{"url": place.url}], "paths": paths, **secured}


def _kind(parameter: inspect.Parameter) -> dict[str, Any]:
    for kind, schema in _KINDS.items():
        if parameter.annotation in (kind, kind | None):
            return schema
    return {"type": "number"}


def _page(calls: list[Call]) -> str:
    """Return the description as a page that loads nothing."""
    rows = "".join(
        f"<dt><code>{call.method} {html.escape(call.path)}</code> {html.escape(', '.join(call.takes))}</dt>"
        f"<dd>{html.escape(call.says)}</dd>"
        for call in calls
    )
    style = "body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto}dt{margin-top:1em}"
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>Sextant</title><style>{style}</style>"
    said = "Arguments are a JSON object. <a href=openapi.json>openapi.json</a> has the same for programs."
    return f"{head}<h1>Sextant</h1><p>{said}</p><dl>{rows}</dl></html>"
