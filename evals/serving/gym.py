"""Gymnasium environments of our tasks, for policies that act by texts: `sextant/congress-v0` and so
on.

    environment = gymnasium.make("sextant.evals.serving.gym:sextant/congress-v0", shaping="surfaced")
    several = gymnasium.make_vec("sextant.evals.serving.gym:sextant/congress-v0", num_envs=8)

Importing this registers them. Left out: AsyncVectorEnv with shared memory, which has no room for
texts of any length.
"""

from typing import Any

from sextant.tools.platform.installation import importing_extra

with importing_extra("gymnasium", __name__):
    import gymnasium

from sextant.evals.serving.episode import EpisodeFactory, query_for_agent
from sextant.evals.serving.episode_server import EpisodeServer
from sextant.evals.serving.rl_training import MOST, Turns, open_training, registered_names
from sextant.programs.search_tools import as_json
from sextant.tools.records import JsonObject


class AnyText(gymnasium.spaces.Text):
    """Any text; samples are short."""

    def __init__(self) -> None:
        super().__init__(1000)

    def contains(self, x: Any) -> bool:
        """Return whether it is a text."""
        return isinstance(x, str)


class SearchEnv(gymnasium.Env[str, str]):
    """A query is an episode: observations are JSON, and an action is the call of a tool as JSON.

    The first observation is the query; `{"name": "search", "arguments": {"query": "..."}}` is an action. After
    `max_turns` an episode is truncated, and scored by the ranking that its trace would have handed in.
    `info["refused"]` says whether a call did nothing; the observation has the "error".
    """

    metadata = {"render_modes": []}  # noqa: RUF012  # as its base class has it

    def __init__(
        self,
        world: EpisodeFactory | None = None,
        *,
        max_turns: int = MOST,
        render_mode: None = None,
        **task: Any,
    ) -> None:
        """Without a `world`, of `task`: the arguments of open_training."""
        self.world = world or open_training(**task)
        self.max_turns = max_turns
        self.render_mode = render_mode
        self.action_space = self.observation_space = AnyText()
        self._query_ids = list(self.world.queries)
        self._turns: Turns | None = None

    def reset(
        self, *, seed: int | None = None, options: JsonObject | None = None
    ) -> tuple[str, JsonObject]:
        """Start an episode of options["query_id"]; without it of any query, or of the next query of
        a run.
        """
        super().reset(seed=seed)
        self.close()
        query_id = (options or {}).get("query_id", "")
        if not query_id and not isinstance(self.world, EpisodeServer):
            query_id = self._query_ids[self.np_random.integers(len(self._query_ids))]
        self._turns = Turns(self.world, query_id, self.max_turns)
        return as_json(query_for_agent(self._turns.episode.query)), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, JsonObject]:
        """Call a tool."""
        assert self._turns, "call reset first"
        observation = self._turns.take(action)
        return (
            observation.text,
            observation.reward,
            observation.done and not self._turns.cut,
            self._turns.cut,
            {"refused": observation.refused is not None},
        )

    def close(self) -> None:
        """End the episode, if it is open, without an outcome."""
        if self._turns:
            self._turns.episode.leave()


for _name, _task in registered_names().items():
    gymnasium.register(
        f"sextant/{_name}-v0", entry_point=f"{__name__}:SearchEnv", kwargs={"task": _task}
    )
