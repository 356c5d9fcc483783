"""An OpenEnv environment: reset, step and state, a session for each connection by WebSocket.

`reset(query_id=...)` opens the query, or the next query; a step is a tool with its arguments. A
client that goes away leaves its query pending. examples/openenv is the folder that
OpenEnv's hub expects, with a typed client. Left out: its web interface, and reset and step by HTTP
alone, which have no session.
"""

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from pydantic import Field, create_model

from sextant.tools.platform.installation import importing_extra

with importing_extra("openenv", __name__):
    from fastapi.exceptions import RequestValidationError
    from openenv.core.env_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State
    from starlette.exceptions import HTTPException

    from sextant.evals.serving import web_auth
    from sextant.evals.serving.rest import Answer

from sextant.evals.serving.client_config import ServerAddress
from sextant.evals.serving.episode import Episode, EpisodeTool, describe, query_for_agent
from sextant.evals.serving.episode_server import EpisodeServer
from sextant.evals.serving.openenv_frames import FrameReader
from sextant.programs.search_tools import as_json
from sextant.tools.errors import RunIncomplete, SessionRefusal, UsageError
from sextant.tools.models.answers.arguments import SHOWN
from sextant.tools.models.answers.fields import read_text

# What an environment raises -> the status of the answer to a request by HTTP alone
_STATUSES: dict[type[Exception], HTTPStatus] = {
    RunIncomplete: HTTPStatus.SERVICE_UNAVAILABLE,
    SessionRefusal: HTTPStatus.CONFLICT,
    UsageError: HTTPStatus.NOT_FOUND,
    ValueError: HTTPStatus.UNPROCESSABLE_ENTITY,
    RuntimeError: HTTPStatus.CONFLICT,
}


class SearchAction(Action):
    """A use of a tool."""

    tool: str
    arguments: Any


class SearchObservation(Observation):
    """The result of an action."""

    text: str = Field("", description="JSON; after reset the query, with what counts as a find")
    refused: bool = Field(False, description="whether the action did nothing; text has the error")


class OpenEnvSearch(Environment[SearchAction, SearchObservation, State]):
    """The episodes of a client, one after another."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, host: EpisodeServer, rewards: bool) -> None:
        super().__init__()
        self._host = host
        self._rewards = rewards
        self._steps = 0
        self._episode: Episode | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        *,
        query_id: Any = "",
        **_: Any,
    ) -> SearchObservation:
        """Open a query, by default the next; an open query is given back."""
        self.close()
        self._episode = self._host.open(read_text(query_id or ""))
        self._steps = 0
        return SearchObservation(text=as_json(query_for_agent(self._episode.query)))

    def step(
        self, action: SearchAction, timeout_s: float | None = None, **_: Any
    ) -> SearchObservation:
        """Use a tool."""
        if (episode := self._episode) is None:
            raise RuntimeError("no query is open; reset first, in the same connection")
        self._steps += 1
        observation = self._host.act(episode, action.tool, action.arguments)
        return SearchObservation(
            text=observation.with_left(),
            refused=observation.refused is not None,
            done=observation.done,
            reward=observation.reward if self._rewards else None,
        )

    @property
    def state(self) -> State:
        """The state of the open episode."""
        return State(
            episode_id=self._episode.query.query_id if self._episode else None,
            step_count=self._steps,
        )

    def close(self) -> None:
        """Give an open query back."""
        if self._episode:
            self._episode.leave()


def serve(host: EpisodeServer, address: ServerAddress) -> None:
    """Serve until every query is answered."""
    web_auth.serve(application(host, address), host, address)


def application(host: EpisodeServer, address: ServerAddress) -> Any:
    """Return the environment as an ASGI application."""
    app = create_fastapi_app(
        partial(OpenEnvSearch, host, address.rewards),
        _describe_action(host.tools),
        SearchObservation,
        max_concurrent_envs=host.most,
    )
    for refused in (*_STATUSES, HTTPException, RequestValidationError):
        app.add_exception_handler(refused, _refuse)
    return FrameReader(app)


def _describe_action(tools: Mapping[str, EpisodeTool]) -> type[SearchAction]:
    """Return the action whose JSON Schema names the tools, and has that of the arguments of each."""
    forms: Any = [
        {
            "title": tool["name"],
            "description": tool["description"],
            **tool["parameters"],
        }
        for tool in map(describe, tools.values())
    ]
    name = Field(description="a tool", json_schema_extra={"enum": [*tools]})
    arguments: Any = Field(
        default_factory=dict,
        description="an object: what the tool takes, by name",
        json_schema_extra={"anyOf": forms},
    )
    return create_model(
        "SearchAction",
        __base__=SearchAction,
        tool=(str, name),
        arguments=(Any, arguments),
    )


def _refuse(_: Any, refusal: Any) -> Answer:
    """Say in a line why a request by HTTP alone is refused."""
    detail: Any = str(refusal)
    status: int = next(
        (status for refused, status in _STATUSES.items() if isinstance(refusal, refused)),
        HTTPStatus.UNPROCESSABLE_ENTITY,
    )
    if isinstance(refusal, HTTPException):
        status = refusal.status_code
        detail = refusal.detail
    errors = refusal.errors() if isinstance(refusal, RequestValidationError) else detail
    if isinstance(errors, list) and errors:
        path = ".".join(str(key)[:SHOWN] for key in errors[0]["loc"])
        detail = f"{path or 'the body'}: {errors[0]['msg']}"
    return Answer({"detail": " ".join(str(detail).split())}, status)
