"""Programs and graphs as DSPy and LangGraph document theirs, with a plain `dspy.LM` and without a run."""

import asyncio
import json
import pickle
import re
from dataclasses import FrozenInstanceError, replace
from functools import partial

import dspy
import pytest
from conftest import ROOT
from langgraph.checkpoint.memory import InMemorySaver
from openai_server import fill
from test_contract import ASKING, QUERY, few, made, timeless, world

import sextant.programs.__main__ as shown
from sextant.agents import AGENTS
from sextant.evals.running.request import SYSTEMS
from sextant.tools.errors import UsageError
from sextant.tools.plugins import load_object
from sextant.tools.records import Submission, Trace

PAGE = (ROOT / "docs/guide/outside-a-run.md").read_text(encoding="utf-8")
OTHERS = {
    "guesses": json.dumps(["octopus", "iron"]),
    "criteria": json.dumps(["octopus", "iron"]),
    "calls": json.dumps(
        {
            "tool_calls": [
                {"name": "search", "args": {"query": "octopus"}},
                {"name": "grep", "args": {"pattern": "octopus"}},  # of an agent without search
            ]
        }
    ),
}


@pytest.fixture
def plain(server):
    """A `dspy.LM` as anybody makes one, which answers any field."""
    server.answer = lambda prompt: {
        name: OTHERS.get(name, value) for name, value in fill(prompt).items()
    }
    return partial(
        dspy.LM, "openai/tiny", api_base=server.spec.partition("@")[2], api_key="k", cache=False
    )


@pytest.mark.parametrize("name", SYSTEMS)
def test_it_can_be_called_awaited_streamed_evaluated_and_saved_as_any_module(
    name, plain, corpus, tmp_path
):
    program = made(name, world(corpus)[0], **few(name))

    async def last():
        return [value async for value in dspy.streamify(program)(query=QUERY)][-1]

    with dspy.context(lm=plain(), track_usage=True):
        found = [program(query=QUERY), asyncio.run(program.acall(query=QUERY)), asyncio.run(last())]
        found += dspy.Parallel(num_threads=2, disable_progress_bar=True)(
            [(program, {"query": QUERY})] * 2
        )
        devset = [dspy.Example(query=QUERY).with_inputs("query")]
        scored = dspy.Evaluate(
            devset=devset, metric=lambda _, one: one.ranking == found[0].ranking
        )(program)
    assert all(isinstance(one, dspy.Prediction) and isinstance(one, Submission) for one in found)
    assert len({one["ranking"] for one in found}) == 1 and scored.score == 100
    assert timeless(found[0]) == timeless(found[1]) == timeless(found[2])
    assert (
        bool(found[0].get_lm_usage())
        == bool(found[1].get_lm_usage())
        == bool(program.history)
        == (name in ASKING)
    )
    program.save(tmp_path / "state.json")
    made(name, world(corpus)[0], **few(name)).load(tmp_path / "state.json")


def test_a_submission_is_a_record_and_a_prediction():
    one = Submission(("d1",), Trace("q"), answer="iron")
    assert one == Submission(("d1",), Trace("q"), answer="iron") != replace(one, answer="")
    assert pickle.loads(pickle.dumps(one)) == one and one["answer"] == dict(one)["answer"] == "iron"
    with pytest.raises(FrozenInstanceError):
        one.answer = "copper"


@pytest.mark.parametrize("name", AGENTS)
def test_a_graph_that_stops_before_a_node_goes_on_from_any_checkpointer_to_the_same_end(
    name, corpus
):
    toolbox, model = world(corpus)
    agent = made(name, toolbox)
    with pytest.raises(UsageError, match="has no session"):
        agent.graph.invoke(agent.begin(QUERY).start)
    with model.active():
        whole, work = agent(query=QUERY), agent.begin(QUERY)
        *_, state = agent.graph.stream(work.start, context=work, stream_mode="values")
        assert timeless(work.submit(state)) == timeless(whole)
        for node in list(agent.graph.builder.nodes):
            graph = agent.graph.builder.compile(
                checkpointer=InMemorySaver(), interrupt_before=[node]
            )
            thread, work = {"configurable": {"thread_id": "1"}}, agent.begin(QUERY)
            state = graph.invoke(work.start, thread, context=work)
            while graph.get_state(thread).next:
                state = graph.invoke(None, thread, context=work)
            submission = work.submit(state)
            assert (submission.ranking, timeless(submission)) == (whole.ranking, timeless(whole)), (
                node
            )


def test_the_code_of_the_page_runs(plain, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        dspy, "configure", lambda **_: None
    )  # which a process can do in one thread alone
    monkeypatch.setattr(dspy, "LM", lambda *_: None)
    place: dict[str, object] = {}
    with dspy.context(lm=plain()):
        for block in re.findall(r"```python\n(.+?)```", PAGE, re.S):
            exec(block, place)
    assert place["found"].ranking and (tmp_path / "multihop.json").exists()


# Agents with a graph of their own.
GRAPHS = [name for name in AGENTS if "graph" in vars(load_object("agent", name, AGENTS))]


def test_the_pictures_of_the_page_are_those_that_the_command_prints(command_of):
    pictures = dict(re.findall(r"### (\w+)\n\n```mermaid\n(.+?)```", PAGE, re.S))
    assert pictures == {name: command_of(shown)("draw", name).out for name in GRAPHS}
    refused = command_of(shown)("draw", "retrieve")
    assert refused.code == 2 and "retrieve is no LangGraph graph" in refused.err
