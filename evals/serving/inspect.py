"""Our tasks for Inspect AI: `inspect eval sextant/congress --model ... -T split=dev`.

Each has our tools in the place of a setup step, so that any solver works, a scorer with the metrics
of the task, and the submission, with its trace, in the log: `sextant import LOG` makes
a run folder of it. The arguments (-T) are those of open_training, whose split is dev here, too.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from sextant.tools.platform.installation import importing_extra

with importing_extra("inspect", __name__):
    from inspect_ai import Task, task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, generate, solver
    from inspect_ai.tool import Tool, ToolDef, ToolError, ToolParams

from sextant.environments.opaque_ids import reveal
from sextant.evals.running.runner import submission_record
from sextant.evals.scoring.metrics import compute, is_pairwise, ranking_of
from sextant.evals.serving.episode import (
    Episode,
    EpisodeFactory,
    EpisodeTool,
    describe,
    query_for_agent,
)
from sextant.evals.serving.rl_training import MOST, open_training, registered_names
from sextant.programs.search_tools import as_json

_EPISODES = dict[str, Episode]()  # by the identity of a sample that is being answered


def _make_tool(state: TaskState, episode: Episode, tool: EpisodeTool) -> Tool:
    async def use(**kwargs: Any) -> str:  # by this name Inspect hands all arguments on
        observation = episode.act(tool.name, kwargs)
        state.completed = observation.done
        if observation.refused:
            raise ToolError(observation.with_left())
        return observation.with_left()

    if tool.of_desk:  # a parameter may be called `from`, which no signature can have
        described = describe(tool)
        parameters = ToolParams.model_validate(described["parameters"])
        return ToolDef(use, tool.name, described["description"], parameters).as_tool()
    return ToolDef(wraps(tool.bind(episode))(use), tool.name).as_tool()


@solver  # type: ignore[untyped-decorator]
def open_episode(world: EpisodeFactory) -> Solver:
    """Give each sample the tools of an episode of its own."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        _EPISODES[state.uuid] = episode = world.open(str(state.sample_id))
        state.tools = [_make_tool(state, episode, tool) for tool in world.tools.values()]
        return state

    return solve


@scorer(metrics={"*": [mean(), stderr()]})  # type: ignore[untyped-decorator]
def metrics_of_ranking(world: EpisodeFactory) -> Scorer:
    """Score the submission, or the ranking so far, by every metric of the task."""
    environment = world.environment
    names = [name for name in environment.metrics if not is_pairwise(name)]

    async def score(state: TaskState, target: Target) -> Score:
        episode = _EPISODES[state.uuid]
        episode.cut()
        assert episode.submission
        outcome = submission_record(episode.submission, episode.query, environment.documents)
        rankings = {(query_id := episode.query.query_id): ranking_of(outcome)}
        computed = {name: compute(name, query_id, rankings, environment) for name in names}
        values = {
            name: float("nan") if value is None else value for name, value in computed.items()
        }
        return Score(
            value=values,
            answer=episode.submission.answer,
            metadata={"outcome": reveal(outcome, environment.release_ids)},
        )

    return score


async def _forget(state: TaskState) -> None:
    _EPISODES.pop(state.uuid).leave()


def _make_task(name: str) -> Callable[..., Task]:
    def search(split: str = "dev", max_messages: int = 4 * MOST, **fields: Any) -> Task:
        world = open_training(task=name, split=split, allow_test=True, **fields)
        samples = [
            Sample(as_json(query_for_agent(query)), id=query_id)
            for query_id, query in world.queries.items()
        ]
        options = {"scorer": metrics_of_ranking(world), "message_limit": max_messages}
        return Task(
            samples, setup=open_episode(world), solver=generate(), cleanup=_forget, **options
        )

    return search


for _name, _task in registered_names().items():
    _made = _make_task(_task)
    _made.__module__ = (
        "sextant"  # which is in no distribution, so that Inspect takes the name as it is
    )
    task(name=f"sextant/{_name}")(_made)
