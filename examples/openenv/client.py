"""A typed client."""

from models import SearchAction, SearchObservation
from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import State


class SearchEnv(EnvClient[SearchAction, SearchObservation, State]):
    def _step_payload(self, action):
        return {"tool": action.tool, "arguments": action.arguments}

    def _parse_result(self, payload):
        done, reward = payload["done"], payload["reward"]
        seen = SearchObservation(**payload["observation"], done=done, reward=reward)
        return StepResult(observation=seen, reward=reward, done=done)

    def _parse_state(self, payload):
        return State(**payload)
