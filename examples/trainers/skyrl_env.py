"""A SkyRL-Gym environment of our tasks, for models that call tools in their texts; a training script registers it:

    skyrl_gym.register(id="sextant", entry_point="skyrl_env:SearchEnv")

Rows of its dataset are those of `make_rows`; the trainer's configuration of the environment has the arguments of
open_training. `python examples/trainers/skyrl_env.py` plays an episode.
"""

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from sextant.evals.serving.rl_training import MOST, Turns, open_training, prompt_rows


class SearchEnv(BaseTextEnv):
    """A query of the task, answered by a conversation; `extras` is a row of the dataset."""

    def __init__(self, env_config=None, extras=None, world=None):
        super().__init__()
        extras = extras or {}
        self.max_turns = extras.get("max_turns", MOST)
        world = world or open_training(**dict(env_config or {}))
        self._game = Turns(world, extras.get("query_id", ""), self.max_turns)

    def step(self, action):
        self.turns += 1
        seen = self._game.take(action)
        observations = [] if seen.done else [{"role": "user", "content": seen.text}]
        return BaseTextEnvStepOutput(
            observations=observations, reward=seen.reward, done=seen.done, metadata={}
        )

    def get_metrics(self):
        steps = self._game.episode.desk.session.trace.steps
        return {
            "reward": self._game.episode.given,
            "searches": sum(step.tool == "search" for step in steps),
        }

    def close(self):
        self._game.episode.leave()


def make_rows(world):
    """Return the dataset: for each query a prompt that describes the tools."""
    return [row | {"env_class": "sextant"} for row in prompt_rows(world, described=True)]


def play(**task):
    """Return the outputs of an episode that searches in a few words, and hands in."""
    skyrl_gym.register(id="sextant", entry_point="skyrl_env:SearchEnv")
    row = make_rows(open_training(**task))[0]
    environment = skyrl_gym.make("sextant", env_config=task, extras=row)
    environment.init(row["prompt"])
    search = '<tool_call>{"name": "search", "arguments": {"query": "engineer on call, the pager was mine"}}</tool_call>'
    outputs = [
        environment.step(search),
        environment.step('I am done.<tool_call>{"name": "submit"}</tool_call>'),
    ]
    return outputs, environment.get_metrics()


if __name__ == "__main__":
    print(play(data="mini", shaping="surfaced"))
