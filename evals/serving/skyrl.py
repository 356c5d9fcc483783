"""A SkyRL-Gym environment of our tasks, for models that call tools in their texts: `sextant`.

    skyrl_gym.register(id="sextant", entry_point="evals.serving.skyrl:SearchEnv")

Rows of its dataset are those of make_rows; the trainer's configuration (environment.skyrl_gym.sextant) has the
arguments of open_training.
"""

from collections.abc import Mapping
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from evals.serving.episode import World
from evals.serving.training import MOST, Turns, open_training, prompt_rows


class SearchEnv(BaseTextEnv):
    """A query of the task, answered by a conversation."""

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        extras: Mapping[str, Any] | None = None,
        *,
        world: World | None = None,
    ) -> None:
        """`extras` is a row of the dataset, and may have "max_turns"."""
        super().__init__()
        extras = extras or {}
        self.max_turns = extras.get("max_turns", MOST)
        world = world or open_training(**dict(env_config or {}))
        self._game = Turns(world, extras.get("query_id", ""), self.max_turns)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Do what the model's text asks for."""
        self.turns += 1
        seen = self._game.take(action)
        observations = [] if seen.done else [{"role": "user", "content": seen.text}]
        return BaseTextEnvStepOutput(observations=observations, reward=seen.reward, done=seen.done, metadata={})

    def get_metrics(self) -> dict[str, float]:
        """Return what the trainer logs of an episode."""
        steps = self._game.episode.desk.session.trace.steps
        return {"reward": self._game.episode.given, "searches": sum(step.tool == "search" for step in steps)}

    def close(self) -> None:
        """End the episode, where it is open, without an outcome."""
        self._game.episode.leave()


def make_rows(world: World) -> list[dict[str, Any]]:
    """Return the dataset: for each query a prompt that describes the tools."""
    return [row | {"env_class": "sextant"} for row in prompt_rows(world, described=True)]
