"""A verifiers taskset of our queries, with its toolset: one server of tools for all rollouts, its index there once.

    PYTHONPATH=examples/trainers vf-eval sextant_tasks -m MODEL -n 5 --env.taskset.tools.name congress

verifiers finds a taskset by the name of its module, so this file is one as it stands; it wants an environment with both
packages. The reward is the metric of what was handed in, or would have been where a rollout ends before; the model
never has it.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import verifiers.v1 as vf

from sextant.evals.serving.episode import TOOLS, Episode, query_for_agent
from sextant.evals.serving.rl_training import open_training
from sextant.programs.search_tools import as_json

__all__ = ["SearchTaskset"]
_MOST = 4096  # rollouts at a time; before it, the oldest have ended


class SearchState(vf.State):
    """What a rollout shares with the server of its tools."""

    rollout: str = ""
    query_id: str = ""
    value: float = 0.0


class SearchToolsConfig(vf.SharedToolsetConfig):
    """Which task is searched, as open_training takes it: --env.taskset.tools.name and so on."""

    name: str = "congress"
    split: str = "dev"
    data: str | None = None
    retriever: str | None = None
    reward: str = ""
    allow_test: bool = False


class SearchConfig(vf.TasksetConfig):
    """The configuration of the taskset."""

    tools: SearchToolsConfig = SearchToolsConfig()


def _open(config: SearchToolsConfig) -> Any:
    fields = {
        name: getattr(config, name)
        for name in ("split", "data", "retriever", "reward", "allow_test")
    }
    return open_training(task=config.name, **fields)


def _as_tool(name: str) -> Callable[..., str]:
    @wraps(getattr(Episode, name))
    def tool(self: "SearchTools", **arguments: Any) -> str:
        return self.act(name, arguments)

    marked: Callable[..., str] = vf.tool(tool)
    return marked


class SearchTools(vf.Toolset[SearchToolsConfig, SearchState]):
    """The tools, over an episode for each rollout."""

    TOOL_PREFIX = None

    async def setup(self) -> None:
        """Open the task."""
        self._world = _open(self.config)
        self._episodes = dict[str, Episode]()

    def act(self, name: str, arguments: dict[str, Any]) -> str:
        """Do one thing in the episode of the rollout that calls."""
        state = self.state
        if state.rollout not in self._episodes:
            self._episodes[state.rollout] = self._world.open(state.query_id)
        if len(self._episodes) > _MOST:
            del self._episodes[next(iter(self._episodes))]
        episode = self._episodes[state.rollout]
        seen = episode.act(name, arguments)
        state.value = episode.value_so_far()
        return seen.text

    search, read, select, note, submit = map(_as_tool, TOOLS)


class SearchData(vf.TaskData):
    """A query."""

    query_id: str


class SearchTask(vf.Task[SearchData, SearchState]):
    """A query and its reward."""

    async def setup(self, trace: Any, runtime: Any) -> None:
        """Tell the tools which query the rollout has."""
        trace.state.rollout, trace.state.query_id = trace.id, self.data.query_id

    @vf.reward
    async def metric(self, trace: Any) -> float:
        """Return the metric of the ranking."""
        return float(trace.state.value)


class SearchTaskset(vf.Taskset[SearchTask, SearchConfig]):
    """The queries of a task."""

    def load(self) -> Iterable[SearchTask]:
        """Make a task of each query."""
        for query_id, query in _open(self.config.tools).queries.items():
            yield SearchTask(
                SearchData(id=query_id, query_id=query_id, prompt=as_json(query_for_agent(query))),
                self.config.task,
            )

    @classmethod
    def toolsets(cls, config: SearchConfig) -> list[Any]:
        """Have one server of tools for all."""
        return [SearchTools(config.tools)]


if __name__ == "__main__":
    SearchTools.run()
