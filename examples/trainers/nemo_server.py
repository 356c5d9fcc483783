"""A NeMo Gym resources server over our REST door: NeMo Gym wants a newer Python than ours, so each has its own.

    sextant serve --task congress --split dev --http --rewards --repeat
    python examples/trainers/nemo_rows.py > rows.jsonl

This file is the server's `app.py`, beside a configuration as those of NeMo Gym's own servers. $SEXTANT_URL is where our
door is, with its token as a password where it has one. The reward of a rollout is the sum of the episode's. A rollout
that does not submit is scored by what it has found. Left out: rollouts that are never verified; the door takes their
queries back after ten minutes.
"""

import os
from typing import Any

import httpx
from fastapi import Request
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY
from pydantic import Field

TOOLS = ("search", "read", "select", "note", "submit")


class Seed(BaseSeedSessionRequest):
    """A row of the dataset, as far as it is needed."""

    query_id: str = ""


class SearchServer(SimpleResourcesServer):
    """The episodes of all rollouts, by NeMo Gym's sessions."""

    config: BaseResourcesServerConfig
    episodes: dict[str, dict[str, Any]] = Field(
        default_factory=dict
    )  # the door's session, the reward, and its end

    def setup_webserver(self):
        app = super().setup_webserver()
        for tool in TOOLS:
            app.post(f"/{tool}")(self._make_tool(tool))
        return app

    async def seed_session(self, request: Request, body: Seed) -> BaseSeedSessionResponse:
        made = await self._ask("/sessions", {"query_id": body.query_id})
        episode = {"place": f"/sessions/{made['session']}", "reward": 0.0, "done": False}
        self.episodes[request.session[SESSION_ID_KEY]] = episode
        return BaseSeedSessionResponse()

    async def verify(self, request: Request, body: BaseVerifyRequest) -> BaseVerifyResponse:
        episode = self.episodes.pop(request.session[SESSION_ID_KEY])
        if not episode["done"]:
            await self._use(episode, "submit", {})
        return BaseVerifyResponse(**body.model_dump(), reward=episode["reward"])

    def _make_tool(self, tool):
        async def use(request: Request, body: dict[str, Any]) -> Any:
            episode = self.episodes[request.session[SESSION_ID_KEY]]
            return (
                {"error": "this episode is over"}
                if episode["done"]
                else await self._use(episode, tool, body)
            )

        return use

    async def _use(self, episode, tool, arguments):
        seen = await self._ask(f"{episode['place']}/{tool}", arguments)
        episode["reward"] += seen["reward"]
        episode["done"] = seen["done"]
        return seen["result"]

    async def _ask(self, path, body):
        async with httpx.AsyncClient(base_url=os.environ["SEXTANT_URL"], timeout=60) as door:
            answer = await door.post(path, json=body)
            return answer.raise_for_status().json()


if __name__ == "__main__":
    SearchServer.run_webserver()
