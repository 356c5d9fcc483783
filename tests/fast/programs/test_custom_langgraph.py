"""LangGraph graphs of a user's own: what runs by invoke or ainvoke runs here, and else one line says why not."""

import operator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from sqlite3 import connect
from typing import Annotated, Any, TypedDict

import dspy
import numpy as np
import pydantic
import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send, interrupt
from test_custom import Answer, outcome

from sextant.programs.custom import search
from sextant.tools.errors import UsageError

write = dspy.Predict("query -> words")


class State(TypedDict, total=False):
    query: str
    doc_ids: Annotated[list[str], operator.add]


def find(words, most=None):
    return {"doc_ids": [hit.doc_id for hit in search(words).snippets[:most]]}


def look(state):
    return find(write(query=state["query"]).words)


async def look_async(state):
    return find((await write.acall(query=state["query"])).words)


def chain(*nodes, schema=State, **schemas):
    graph = StateGraph(schema, **schemas)
    for place, node in enumerate(nodes):
        graph.add_node(f"node_{place}", node)
        graph.add_edge(START if not place else f"node_{place - 1}", f"node_{place}")
    return graph


def sqlite(**options):
    return SqliteSaver(connect(":memory:", check_same_thread=False, **options))


def fan_out():
    graph = StateGraph(State)
    graph.add_node("one", look)
    graph.add_conditional_edges(
        START, lambda state: [Send("one", state) for _ in range(3)], ["one"]
    )
    return graph


class Input(TypedDict):
    topic: str


class Topic(Input, total=False):
    notes: str
    doc_ids: list[str]


class Model(pydantic.BaseModel):
    question: str
    doc_ids: list[str] = []


@dataclass
class Record:
    description: str
    doc_ids: Any = field(default_factory=list)


@entrypoint()
def entry(text):
    return find(text)["doc_ids"]


@task
def found_for(words):
    return find(words)


@entrypoint(checkpointer=sqlite())
def entry_with_tasks(inputs: dict):
    futures = [found_for(inputs["query"]) for _ in range(2)]
    return futures[0].result()


class Act(MessagesState):
    pass


def call_tools(state):
    calls = [
        {"name": "search", "args": {"query": word}, "id": word} for word in ("copper", "heart")
    ]
    return {"messages": [AIMessage("", tool_calls=calls)]}


def build_tool_node(tools):
    return chain(call_tools, ToolNode(tools), schema=Act)


def build_with_pool(model):
    def think(state):
        with ThreadPoolExecutor(2) as pool:
            assert len(list(pool.map(model.invoke, ["copper", "blood"]))) == 2
        return look(state)

    return chain(think)


def build_from_config(config):
    assert config["configurable"] == {}
    return chain(look)


async def build_async(model):
    saver = AsyncSqliteSaver.from_conn_string(":memory:")
    KEPT.append(saver)
    return chain(look_async).compile(checkpointer=await saver.__aenter__())


KEPT = []


@asynccontextmanager
async def open_async(config):
    async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
        yield chain(look, look_async).compile(checkpointer=saver)


@contextmanager
def open_sync():
    with SqliteSaver.from_conn_string(":memory:") as saver:
        yield chain(look).compile(checkpointer=saver)


class Asked(pydantic.BaseModel):
    user_input: str | None = None
    doc_ids: list[str] = []


@dataclass
class Settings:
    search: Any
    most: int = 5


def look_by_context(state, runtime: Runtime[Settings]):
    snippets = runtime.context.search(state["query"]).snippets
    return {"doc_ids": [hit.doc_id for hit in snippets[: runtime.context.most]]}


class Found(pydantic.BaseModel):
    """The documents that fit."""

    doc_ids: list[str]


class Structured(MessagesState):
    structured_response: Any


def answer_by_schema(state):
    search("copper")
    return {"structured_response": Found(doc_ids=["d2"])}


GRAPHS = {
    "a text that may be missing": chain(lambda state: find(state.user_input), schema=Asked),
    "context": chain(look_by_context, context_schema=Settings),
    "context as a dictionary": chain(
        lambda state, runtime: find(state["query"], runtime.context.get("most", 5)),
        context_schema=TypedDict("Optional", {"most": int}, total=False),
    ),
    "context that no node uses": chain(look, context_schema=Answer),
    "structured response": chain(answer_by_schema, schema=Structured),
    "sqlite": chain(look).compile(checkpointer=sqlite()),
    "sqlite in a subgraph": chain(look, chain(look).compile(checkpointer=sqlite())).compile(
        checkpointer=InMemorySaver()
    ),
    "sqlite and Send": fan_out().compile(checkpointer=sqlite()),
    "Send": fan_out(),
    "store": chain(look).compile(store=InMemoryStore(), checkpointer=InMemorySaver()),
    "Command": chain(lambda state: Command(goto="node_1"), look),
    "the only text": chain(lambda state: find(state["topic"]), schema=Topic, input_schema=Input),
    "pydantic": chain(lambda state: find(state.question), schema=Model),
    "dataclass and array": chain(
        lambda state: {"doc_ids": np.array(find(state.description)["doc_ids"])}, schema=Record
    ),
    "functional": entry,
    "functional with tasks": entry_with_tasks,
    "tool node": build_tool_node,
    "pool in a node": build_with_pool,
    "config": build_from_config,
    "async maker": build_async,
    "async context manager": open_async,
    "context manager": open_sync,
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())
def test_a_graph_runs_as_by_invoke(graph, corpus):
    found = outcome(graph, corpus)
    assert found["error"] is None, found.get("traceback")
    assert "d2" in found["ranking"] and found["trace"]["steps"][-1]["argument"] == "done"


def test_each_query_has_a_thread_of_its_own_also_of_a_checkpointer_that_is_not_async(corpus):
    def alone(state):
        assert len(state["messages"]) == 1
        search("copper")

    graph = chain(alone, schema=MessagesState).compile(checkpointer=sqlite())
    with ThreadPoolExecutor(4) as pool:
        assert [one["error"] for one in pool.map(lambda _: outcome(graph, corpus), range(8))] == [
            None
        ] * 8


def wait_for_somebody(state):
    interrupt("may I?")


@pytest.mark.parametrize(
    "checkpointer", [None, InMemorySaver(), sqlite()], ids=lambda saver: type(saver).__name__
)
def test_a_graph_that_waits_for_somebody_fails_with_what_it_asks(checkpointer, corpus):
    error = outcome(chain(look, wait_for_somebody).compile(checkpointer=checkpointer), corpus)[
        "error"
    ]
    assert "waits for somebody's answer (interrupt: 'may I?'), and nobody is there" in error


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (
            chain(look).compile(checkpointer=SqliteSaver(connect(":memory:"))),
            "connect(FILE, check_same_thread=False)",
        ),
        (
            chain(look_async).compile(checkpointer=sqlite()),
            "has the async node 'node_0' and a checkpointer that is not",
        ),
        (
            chain(look).compile(checkpointer=InMemorySaver(), interrupt_before=["node_0"]),
            "nobody is there to go on",
        ),
        (chain(look, schema=Topic), "the query goes there, or to its only text"),
    ],
    ids=["bound to a thread", "async node", "interrupt_before", "two texts"],
)
def test_a_graph_that_cannot_be_run_is_refused_before_any_query(graph, said, corpus):
    with pytest.raises(UsageError) as refused:
        outcome(graph, corpus)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_context_that_cannot_be_made_is_refused_where_it_is_used(corpus):
    refused = outcome(chain(look_by_context, context_schema=Answer), corpus)
    assert isinstance(refused, UsageError) and "the context of mine.py:made cannot be" in str(
        refused
    )


def test_what_a_graph_binds_to_the_model_reaches_the_server(corpus, server):
    def build(model, search):
        judge = model.with_structured_output(Found)
        writer = model.bind(stop=["Observation:"], temperature=0.7, max_tokens=9)

        def act(state):
            search("copper")
            assert writer.invoke("Write.").content == "Action: look\n"
            return judge.invoke("Judge.").model_dump()

        return chain(act)

    said = iter(
        [
            {"raw": "Action: look\nObservation: none"},
            {"tool_calls": [("Found", {"doc_ids": ["d2"]})]},
        ]
    )
    server.answer = lambda prompt: next(said)
    found = outcome(build, corpus, spec=server.spec)
    assert found["error"] is None and found["ranking"][0] == "d2"
    written, judged = server.requests
    assert (written["stop"], written["temperature"]) == (["Observation:"], 0.7)
    assert written["max_tokens"] == 9 < judged["max_tokens"]
    assert judged["tool_choice"] == "required" and "stop" not in judged


def test_a_graph_that_asks_for_fields_has_them_filled_without_a_model(corpus):
    def build(model, search):
        judge = model.with_structured_output(Found)
        return chain(lambda state: judge.invoke(str(search(state["query"]))).model_dump())

    found = outcome(build, corpus)
    assert found["error"] is None and found["ranking"]
