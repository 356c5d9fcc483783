"""Shared parts of the environments for trainers: the task that they train on, and actions that are
written as texts.

    world = open_training(task="congress", shaping="surfaced")

In place of such a world, an environment takes the host of a run (evals/serving/episode_server.py), whose
outcomes are kept: that is how a checkpoint is evaluated. Left out: training.
"""

import inspect
from collections import Counter
from threading import Lock
from typing import Any

from sextant import environments
from sextant.evals.running.request import Request
from sextant.evals.serving.episode import (
    EpisodeFactory,
    Observation,
    RewardSettings,
    query_for_agent,
    rename_parameters,
)
from sextant.evals.serving.episode_server import open_training_pool
from sextant.programs.search_tools import as_json
from sextant.tools.platform import cli_options
from sextant.tools.platform.files import read_object
from sextant.tools.records import JsonObject

MOST = 32  # turns of an episode, unless told otherwise
_CALL_START = "<tool_call>"
_CALL_END = "</tool_call>"
_FORM = '<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>'
_WORLDS = dict[str, EpisodeFactory]()
_LOCK = Lock()


def open_training(
    *,
    task: str = "congress",
    split: str = "dev",
    reward: str = "",
    shaping: str = "",
    search_cost: float = 0.0,
    token_cost: float = 0.0,
    allow_test: bool = False,
    **fields: Any,
) -> EpisodeFactory:
    """Return the world of a task, the same for the same arguments: its index is there once.

    The rewards are as in sextant.evals.serving.episode.RewardSettings; `fields` are others of a Request,
    such as `retriever` or `limit`.
    """
    named = {"program": "served:policy", "task": task, "split": split, **fields}
    worth = RewardSettings(reward, shaping, search_cost, token_cost, allow_test)
    with _LOCK:
        if (key := repr((sorted(named.items()), worth))) not in _WORLDS:
            _WORLDS[key] = open_training_pool(cli_options.make_request(Request, named), worth)
        return _WORLDS[key]


def describe_tools(world: EpisodeFactory) -> str:
    """Return the tools and the call format, for the prompt of a model without native tool calls."""
    descriptions = []
    for name, tool in world.tools.items():
        signature = inspect.signature(tool.function)
        parameters = list(signature.parameters.values())[1:]
        shown = signature.replace(parameters=parameters)
        text = f"{name}{shown}\n{inspect.getdoc(tool.function)}"
        descriptions.append(rename_parameters(text))
    return "\n\n".join(
        [
            f"Find the documents that satisfy a query. Call a tool in each reply, as {_FORM}.",
            *descriptions,
        ]
    )


def prompt_rows(world: EpisodeFactory, *, described: bool = False) -> list[JsonObject]:
    """Return a row for each query, for a trainer's dataset; `described` puts the tools into its prompt."""
    system = [{"role": "system", "content": describe_tools(world)}] if described else []
    rows = []
    for query_id, query in world.queries.items():
        message = {"role": "user", "content": as_json(query_for_agent(query))}
        rows.append({"prompt": [*system, message], "query_id": query_id})
    return rows


def registered_names() -> dict[str, str]:
    """Return tasks by their registered names: without their suite, if no other task has that name."""
    ends = {task: task.rpartition("/")[2] for task in environments.tasks()}
    several = Counter(ends.values())
    return {
        end if several[end] == 1 else task.replace("/", "-"): task for task, end in ends.items()
    }


class Turns:
    """An episode that is played by texts, up to a limit: then it is cut off, and scored as it
    stands.
    """

    def __init__(
        self,
        world: EpisodeFactory,
        query_id: str = "",
        most: int = MOST,
    ) -> None:
        self.episode = world.open(query_id)
        self.left = most
        self.cut = False

    def take(self, text: str) -> Observation:
        """Run the calls in a text: a call as JSON, or calls in <tool_call> tags."""
        observations = [
            self.episode.act(*_read_call(call)) for call in _tagged_calls(text) or [text]
        ]
        reward = sum(one.reward for one in observations)
        self.left = self.left - 1
        self.cut = not self.episode.over and self.left < 1
        if self.cut:
            reward += self.episode.cut()
        text = "\n".join(one.with_left() for one in observations)
        return Observation(
            text,
            reward,
            self.episode.over,
            next((one.refused for one in observations if one.refused), None),
        )


def _tagged_calls(text: str) -> list[str]:
    """Return the texts between <tool_call> and </tool_call>; a call without an end is none."""
    calls = []
    end = 0
    while (tag := text.find(_CALL_START, end)) >= 0:
        start = tag + len(_CALL_START)
        end = text.find(_CALL_END, start)
        if end < 0:
            break
        calls.append(text[start:end])
    return calls


def _read_call(text: str) -> tuple[str, Any]:
    call = read_object(text) or {}
    name = call.get("name")
    arguments = call.get("arguments", call.get("parameters"))  # some chat templates call them so
    return name if isinstance(name, str) else "", arguments
