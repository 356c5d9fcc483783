"""An environment for TRL's GRPOTrainer: its `environment_factory`, and the dataset of queries that
goes with it.

    world = open_training(task="congress")
    GRPOTrainer(model, train_dataset=make_dataset(world), environment_factory=make_factory(world))

The trainer offers the methods to the model as tools, and takes the reward from get_reward. TRL
limits the turns (GRPOConfig.max_tool_calling_iterations).
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from sextant.tools.platform.installation import importing_extra

with importing_extra("trl", __name__):
    from datasets import Dataset

from sextant.evals.serving.episode import EpisodeFactory, EpisodeTool, rename_parameters
from sextant.evals.serving.rl_training import prompt_rows
from sextant.programs.search_tools import public_name
from sextant.tools.models.answers.arguments import list_parameters


def _as_method(tool: EpisodeTool) -> Callable[..., str]:
    @wraps(tool.function)
    def method(self: "SearchEnvironment", **arguments: Any) -> str:
        return self._episode.act(tool.name, arguments).with_left()

    # Of these the trainer makes the schema that a model is shown.
    method.__doc__ = rename_parameters(method.__doc__ or "")
    method.__annotations__ = {
        public_name(parameter.name): parameter.annotation
        for parameter in list_parameters(tool.function)
    } | {"return": str}
    return method


class SearchEnvironment:
    """The episode of a rollout."""

    def __init__(self, world: EpisodeFactory) -> None:
        self._world = world

    def reset(self, query_id: str = "", **row: Any) -> None:
        """Start an episode of a row's query; its prompt has the text already."""
        self._episode = self._world.open(query_id)

    def get_reward(self) -> float:
        """Return the sum of the episode's rewards, after the model's last step."""
        self._episode.cut()
        return self._episode.given


def make_factory(world: EpisodeFactory) -> Callable[[], SearchEnvironment]:
    """Return a function that makes an environment for each rollout."""
    methods = {name: _as_method(tool) for name, tool in world.tools.items()}
    return partial(type("SearchEnvironment", (SearchEnvironment,), methods), world)


def make_dataset(world: EpisodeFactory) -> Dataset:
    """Return a row for each query: its prompt and its id."""
    return Dataset.from_list(prompt_rows(world))
