"""A REST interface: a session for each query, described at /docs, and searches as Search-R1 and
Anserini are asked.

    POST   /sessions                   open a query: the next, or {"query_id": ...}
    GET    /sessions/{session}         what was done so far
    POST   /sessions/{session}/search  a tool, with its arguments; so the others of --tools
    POST   /sessions/{session}/usage   what the agent's own model has used
    DELETE /sessions/{session}         give the query back

The id of a session cannot be guessed, and is the right to it. /retrieve and /v1/{index}/search are
for clients that speak these protocols: they belong to no session and leave no trace, so runs with
exclusions, pools or limits, or without the tool search, refuse them. They have threads of their own
(search_queue.py), so that no session waits for them, nor for another session (session_calls.py).
"""

import html
import json
import secrets
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as Refusal

from sextant.evals.serving import web_auth
from sextant.evals.serving.client_config import ServerAddress
from sextant.evals.serving.episode import (
    Episode,
    EpisodeTool,
    ReportedUsage,
    describe,
    query_for_agent,
)
from sextant.evals.serving.episode_server import EpisodeServer, NoQueryAvailable
from sextant.evals.serving.search_queue import TOGETHER, SearchQueue
from sextant.evals.serving.session_calls import RETRY_AFTER, SessionCalls, TooManyCalls
from sextant.tools import schemas
from sextant.tools.errors import RunIncomplete, SessionRefusal, UsageError
from sextant.tools.models.answers.arguments import (
    Form,
    Text,
    Texts,
    Whole,
    list_strange,
    read_form,
    read_json,
)
from sextant.tools.platform.terminal import first_sentence
from sextant.tools.records import Hits, JsonObject
from sextant.tools.retrievers.base import Search

Result = TypeVar("Result")

MOST_FOUND = 10_000  # documents in an answer to a search without a session


class Answer(JSONResponse):
    """JSON of texts that may have halves of surrogate pairs."""

    def render(self, content: Any) -> bytes:
        """Write it."""
        return json.dumps(content, ensure_ascii=False).encode(errors="replace")


async def _read_sent(request: Request) -> Any:
    """Return the body of a request, for any Content-Type."""
    try:
        return read_json(await request.body())
    except ValueError as error:
        raise HTTPException(400, f"the request is {error}") from None


Sent = Annotated[Any, Depends(_read_sent)]


class Opening(BaseModel):
    """Body of a request that opens a session."""

    query_id: Text = ""


class SearchR1Request(BaseModel):
    """Body of a search in Search-R1's format."""

    queries: Annotated[Texts, Field(description="a list of texts")]
    topk: Annotated[Whole, Field(description="a whole number")] = 3
    return_scores: Annotated[bool, Field(description="true or false")] = False


def serve(host: EpisodeServer, address: ServerAddress) -> None:
    """Serve until every query is answered."""
    web_auth.serve(application(host, address), host, address)


def application(host: EpisodeServer, address: ServerAddress) -> FastAPI:
    """Return the interface as an ASGI application."""
    rest = RestApi(host, address)
    session = "/sessions/{session}"
    app = FastAPI(
        title="Sextant",
        description=first_sentence(__doc__),
        docs_url=None,
        redoc_url=None,
        default_response_class=Answer,
    )
    app.state.tools = [*rest.tools]
    add = partial(app.add_api_route, response_model=None)
    for path, show in (
        ("/", rest.count),
        (session, rest.show),
        ("/v1/{index}/search", rest.search),
    ):
        add(path, show, methods=["GET"])
        add(path, show, methods=["HEAD"], include_in_schema=False)
    add(session, rest.leave, methods=["DELETE"])
    posts: list[tuple[str, Callable[..., Any], JsonObject]] = [
        ("/sessions", rest.open, Opening.model_json_schema()),
        ("/retrieve", rest.retrieve, SearchR1Request.model_json_schema()),
        (f"{session}/usage", rest.charge, schemas.schema(ReportedUsage)),
        *(
            (f"{session}/{name}", rest.does(tool), describe(tool)["parameters"])
            for name, tool in rest.tools.items()
        ),
    ]
    for path, answer, schema in posts:
        add(
            path,
            answer,
            methods=["POST"],
            openapi_extra={"requestBody": {"content": {"application/json": {"schema": schema}}}},
        )
    app.add_exception_handler(Refusal, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_form)
    page = _page(app.openapi()["paths"])
    app.add_api_route("/docs", lambda: HTMLResponse(page), include_in_schema=False)
    return app


class RestApi:
    """The sessions of a server."""

    def __init__(self, host: EpisodeServer, address: ServerAddress) -> None:
        self._host = host
        self.tools = host.tools
        self._rewards = address.rewards
        self._sessions = dict[str, Episode]()
        self._documents = host.environment.documents
        narrow = any(
            query.excluded or query.candidates is not None for query in host.queries.values()
        )
        self._free = not narrow and not host.limits and "search" in host.tools
        self._queue = SearchQueue()
        self._calls = SessionCalls(host.most)

    def count(self) -> dict[str, int]:
        """Tell how many queries there are, and how many of them are answered and open."""
        return self._host.state()

    def open(self, body: Sent = None) -> JsonObject:
        """Open a session for a query, by default the next; its id is the right to it."""
        opening = _checked(Opening, body)
        try:
            episode = self._host.open(opening.query_id)
        except NoQueryAvailable as refusal:
            full = self._host.state()["open"] >= self._host.most
            raise HTTPException(429 if full else 409, str(refusal)) from None
        except UsageError as refusal:
            raise HTTPException(404, str(refusal)) from None
        for over in [session for session, episode in list(self._sessions.items()) if episode.over]:
            self._sessions.pop(over, None)
        self._sessions[session := secrets.token_urlsafe(24)] = episode
        ignored = list_strange(Opening, body)
        return {
            "session": session,
            **query_for_agent(episode.query),
            **({"ignored": ignored} if ignored else {}),
        }

    async def show(self, session: str) -> JsonObject:
        """Return the steps of a session so far."""
        return await self._call(session, self._find(session).state)

    async def _call(self, session: str, work: Callable[[], Result]) -> Result:
        """Do something in a session, after its earlier calls. HTTPException if it has too many of them."""
        try:
            return await self._calls.run(session, work)
        except TooManyCalls as refusal:
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE, str(refusal), {"Retry-After": str(RETRY_AFTER)}
            ) from None

    def does(self, tool: EpisodeTool) -> Callable[..., Any]:
        """Return the handler of a tool."""

        async def use(session: str, body: Sent = None) -> Response:
            return await self._call(session, partial(act, self._find(session), body))

        def act(episode: Episode, body: Any) -> Response:
            try:
                observation = self._host.act(episode, tool.name, body)
            except RunIncomplete as failure:
                raise HTTPException(503, str(failure)) from None
            parts = {"result": observation.text, "done": json.dumps(observation.done)}
            if self._rewards:
                parts["reward"] = json.dumps(observation.reward)
            if unknown := list_strange(tool.form, body):
                parts["ignored"] = json.dumps(unknown)
            if observation.left is not None:
                parts["left"] = json.dumps(observation.left)
            if observation.refused:
                parts["error"] = json.dumps(json.loads(observation.text)["error"])
            members = [f'"{name}": {part}' for name, part in parts.items()]
            return Response(
                f"{{{', '.join(members)}}}".encode(errors="replace"),
                observation.refused or HTTPStatus.OK,
                media_type="application/json",
            )

        use.__name__ = tool.name
        use.__doc__ = describe(tool)["description"]
        return use

    async def charge(self, session: str, body: Sent = None) -> dict[str, bool]:
        """Record the usage of the agent's own model."""
        charge = partial(self._find(session).charge, body)
        try:
            await self._call(session, charge)
        except UsageError as refusal:
            raise HTTPException(422, str(refusal)) from None
        except SessionRefusal as refusal:
            raise HTTPException(409, str(refusal)) from None
        return {"noted": True}

    async def leave(self, session: str) -> dict[str, bool]:
        """Give the query of a session back, which is then handed out again."""
        await self._call(session, self._find(session).leave)
        self._sessions.pop(session, None)
        return {"left": True}

    async def retrieve(self, request: Request, body: Sent = None) -> Response:
        """Search as Search-R1's retrieval_server.py does, in batches; it belongs to no session, and leaves no trace."""
        with self._queue.admit():
            batch = await self._queue.run(partial(_checked, SearchR1Request, body))
            self._check_search(len(batch.queries), batch.topk)
            chunks = []
            for start in range(0, len(batch.queries), TOGETHER):
                if await request.is_disconnected():
                    break
                chunks.append(
                    await self._queue.run(
                        partial(self._retrieve_part, batch.queries[start : start + TOGETHER], batch)
                    )
                )
        return Response(b'{"result": [' + b", ".join(chunks) + b"]}", media_type="application/json")

    def _retrieve_part(self, texts: list[str], batch: SearchR1Request) -> bytes:
        """Return the results of some queries of a batch, as the elements of a list in JSON."""
        results = []
        for hits in self._search(texts, batch.topk):
            result = []
            for hit in hits:
                document = self._documents[hit.doc_id]
                shown = {
                    "id": document.doc_id,
                    "contents": f'"{document.title}"\n{document.text}',
                }
                result.append(
                    {"document": shown, "score": hit.score} if batch.return_scores else shown
                )
            results.append(json.dumps(result))
        return ", ".join(results).encode()

    async def search(self, index: str, query: str, hits: int = 10) -> Response:
        """Search as Anserini's RestServer does; it belongs to no session, and leaves no trace."""
        if index != (ours := self._host.environment.task.rpartition("/")[2]):
            raise HTTPException(400, f"Unable to open index: {index[:60]}; this one is {ours}")
        self._check_search(1, hits)
        with self._queue.admit():
            return await self._queue.run(partial(self._search_index, index, query, hits))

    def _search_index(
        self,
        index: str,
        query: str,
        k: int,
    ) -> Response:
        candidates = [
            {
                "docid": hit.doc_id,
                "score": hit.score,
                "rank": rank,
                "doc": self._documents[hit.doc_id].text,
            }
            for rank, hit in enumerate(self._search([query], k)[0], start=1)
        ]
        answer = {"api": "v1", "index": index, "query": {"text": query}, "candidates": candidates}
        return Response(json.dumps(answer), media_type="application/json")

    def _check_search(self, searches: int, k: int) -> None:
        """Refuse searches without a session if the run has none, and such as find too much."""
        if not self._free:
            raise HTTPException(
                403,
                "the run has exclusions, pools, limits or no search, which hold in sessions alone; "
                "open one",
            )
        if k < 1 or k * searches > MOST_FOUND:
            raise HTTPException(
                400, f"a request finds 1 to {MOST_FOUND:,} documents, for all its queries together"
            )

    def _search(self, texts: list[str], k: int) -> list[Hits]:
        return self._host.retriever.search_many([Search(text) for text in texts], k)

    def _find(self, session: str) -> Episode:
        if (episode := self._sessions.get(session)) is None:
            raise HTTPException(404, "there is no such session, or it is over")
        episode.touch()
        return episode


def _checked(form: type[Form], body: Any) -> Form:
    """Parse a body by a schema. HTTPException with a line if it does not fit."""
    try:
        return read_form(form, body)
    except ValueError as error:
        raise HTTPException(422, f"the request {error}") from None


def _refuse(request: Request, refusal: Any) -> Response:
    reason = refusal.detail
    if reason in (HTTPStatus.NOT_FOUND.phrase, HTTPStatus.METHOD_NOT_ALLOWED.phrase):
        tools = ", ".join(request.app.state.tools)
        reason += f"; to a session POST {tools} or usage, as /docs describes"
    return Answer({"error": reason}, refusal.status_code, refusal.headers)


def _refuse_form(_: Request, refusal: Any) -> Response:
    wrong = refusal.errors()[0]
    location = wrong["loc"][-1] if wrong["loc"][0] == "query" else "the body"
    return Answer({"error": f"{location}: {wrong['msg']}"}, 422)


def _page(paths: JsonObject) -> str:
    """Return the description as a page that loads nothing."""
    rows = "".join(
        f"<dt><code>{method.upper()} "
        f"{html.escape(path)}</code></dt><dd>{html.escape(call['description'])}</dd>"
        for path, methods in paths.items()
        for method, call in methods.items()
    )
    return (
        f"<!doctype html><html "
        f"lang=en><title>Sextant</title><h1>Sextant</h1><p>"
        "Arguments are JSON objects. <a href=openapi.json>openapi.json</a> has them all, in "
        "OpenAPI's words."
        f"</p><dl>{rows}</dl></html>"
    )
