"""Programs of a user's own: each form runs, its steps are in the trace, and what it does wrong is said in one line."""

import asyncio
import contextvars
import copy
import datetime
import functools
import gc
import itertools
import json
import re
import shlex
import sys
import urllib.request
import weakref
from dataclasses import dataclass
from decimal import Decimal
from types import FunctionType, ModuleType, SimpleNamespace
from typing import NamedTuple, TypedDict, get_origin

import dspy
import httpx
import numpy as np
import pydantic
import pytest
import torch
from conftest import ROOT
from dspy.adapters.baml_adapter import BAMLAdapter
from dspy.lm15 import Message, Request
from dspy.primitives.facade import SandboxLM
from langchain_core.documents import Document as LangChainDocument
from langgraph.graph import START, StateGraph
from openai_server import Failure

from examples.langgraph_agent import build
from sextant import environments
from sextant.evals import compare
from sextant.evals.running.request import parse_parameters
from sextant.evals.running.runner import answer_query as run_query
from sextant.programs import custom
from sextant.programs.custom import extract_doc_ids, make_program_class
from sextant.tools.errors import UsageError
from sextant.tools.models import language_model
from sextant.tools.process_changes import while_running
from sextant.tools.records import Hit, Query, Snippet
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Limits, Toolbox

QUERY = Query("q1", "copper in blue blood", "animals", excluded=frozenset({"d3"}))


def outcome(made, corpus, *, spec="offline", limits=None, **parameters):
    """What the runner records of one query."""
    index = BM25(corpus)
    program = make_program_class(made, "mine.py:made")(
        Toolbox(corpus, index, limits=limits), depth=4, **parameters
    )
    model = language_model.connect(spec, statistics=index.statistics)

    def ask():
        with while_running(), model.active():
            return run_query(program, QUERY, corpus)

    return contextvars.copy_context().run(ask)


def steps(found):
    return [step["tool"] for step in found["trace"]["steps"] if step["tool"] != "drop"]


def function(query, search, read, per=3):
    hits = search(query, per)
    assert query.objective == "animals" and read(hits[0].doc_id)
    return hits


async def awaiting(question, search):
    first, second = await asyncio.gather(search(question), search(question.text))
    return [(hit.doc_id, hit.score) for hit in first + second + search(question)]


class Module(dspy.Module):
    def __init__(self, search):
        super().__init__()
        self.search, self.write = (
            search,
            dspy.ChainOfThought("question, objective -> words: str, sure: bool"),
        )

    def forward(self, question, objective):
        return [
            hit.doc_id
            for hit in self.search(
                self.write(question=question, objective=objective).words
            ).snippets
        ]


class OnlyAsync(dspy.Module):
    def __init__(self, tools):
        super().__init__()
        [self.search, _, _] = tools

    async def aforward(self, text):
        return dspy.Prediction(
            reasoning="none", found=[hit.doc_id for hit in self.search(text).snippets]
        )


class Retrieving(dspy.Module):
    def __init__(self):
        super().__init__()
        self.retrieve = dspy.Retrieve(k=3)
        self.respond = dspy.ChainOfThought("context, question -> response")

    def forward(self, question):
        context = self.retrieve(question).passages
        response = self.respond(context=context, question=question).response
        return dspy.Prediction(context=context, response=response)


agent = dspy.ReAct("query -> answer", tools=[custom.search, custom.read], max_iters=3)


class State(TypedDict):
    question: str
    ids: list[str]


def graph(*nodes):
    made = StateGraph(State)
    for node in nodes:
        made.add_node(node.__name__, node)
    made.add_edge(START, nodes[0].__name__)
    return made


def look(state, config):
    found = config["configurable"]["search"].invoke({"query": state["question"]})
    return {"ids": [hit.doc_id for hit in found.snippets]}


async def keep_two(state):
    custom.search(state["question"])
    assert "no document shown so far is called 'd3'" in custom.select(
        ["d3"]
    ) and "no document" in custom.read("d3")
    custom.select(["d2"])
    return {}


def build_module(tools, width: int = 3):
    return dspy.ReAct("query -> doc_ids: list[str]", tools=tools, max_iters=width)


class Over:
    def __init__(self, toolbox, k=2):
        self.toolbox, self.k = toolbox, k

    def __call__(self, query):
        return [hit.doc_id for hit in self.toolbox.open(query).search(query.text, self.k)]


def yielding(query, search):
    yield from search(query)


async def yielding_later(query, search):
    for hit in await search(query):
        yield hit.doc_id


class Callable:
    def __init__(self, search):
        self.search = search

    def __call__(self, query):
        return [hit.doc_id for hit in self.search(query).snippets]

    def answer(self, query, search):
        return search(query)


@dataclass(slots=True)
class Slotted:
    k: int = 3

    async def __call__(self, query, search, /):
        return search(query, self.k)


def build_function(model):
    return function


@functools.wraps(function)
def wrapped(*given, **named):
    return function(*given, **named)


CALLED = {
    "generator": yielding,
    "async generator": yielding_later,
    "class": Callable,
    "bound method": Callable(None).answer,
    "object": Slotted(),
    "class with slots": Slotted,
    "partial": functools.partial(function, per=4),
    "partial by place": functools.partial(lambda prefix, query, search: search(query), "x"),
    "lambda": lambda query, search: search(query),
    "maker": build_function,
    "wrapped": wrapped,
    "cached": functools.cache(yielding),
}


@pytest.mark.parametrize("made", CALLED.values(), ids=CALLED.keys())
def test_whatever_can_be_called_with_a_query_is_a_function(made, corpus):
    found = outcome(made, corpus)
    assert found["error"] is None, found.get("traceback")
    assert "d2" in found["ranking"][:2] and steps(found)[0] == "search"


@pytest.mark.parametrize(
    "made",
    [
        function,
        awaiting,
        Module,
        OnlyAsync,
        Retrieving,
        agent,
        graph(look),
        graph(keep_two).compile(),
        build,
        build_module,
        Over,
    ],
    ids=lambda made: getattr(made, "__name__", type(made).__name__),
)
def test_each_form_searches_in_a_session_of_its_own_and_hands_in_what_it_found(made, corpus):
    found = outcome(made, corpus)
    assert found["error"] is None, found.get("traceback")
    assert "d2" in found["ranking"][:2] and "d3" not in found["ranking"]
    assert steps(found)[0] == "search" and steps(found)[-1] == "stop" and len(found["ranking"]) <= 4
    assert made is build or {"select", "rank"} & {*steps(found)}
    assert found["trace"]["steps"][0]["hop"] == (made is not Over)


def test_parameters_of_whatever_form_are_set_by_name(corpus):
    for made, name in ((function, "per"), (Over, "k"), (build_module, "width")):
        values = parse_parameters("mine", make_program_class(made, "mine.py:made"), {name: "1"})
        assert values.pop("tools", "default") == "default"  # of a maker that asks for them
        assert values == {name: 1} and len(outcome(made, corpus, **values)["ranking"]) in (1, 4)


def test_compiling_takes_the_predictors_of_a_module_and_leaves_the_users_own_alone(corpus):
    index = BM25(corpus)
    program = make_program_class(agent, "mine.py:agent")(Toolbox(corpus, index))
    compiler = dspy.BootstrapFewShot(
        metric=lambda *_: True, max_bootstrapped_demos=1, max_labeled_demos=0
    )
    with language_model.connect("offline", statistics=index.statistics).active():
        compiled = compiler.compile(
            program, trainset=[dspy.Example(query=QUERY).with_inputs("query")]
        )
    assert any(one.demos for one in compiled.predictors()) and not any(
        one.demos for one in agent.predictors()
    )


ADAPTERS = {
    "JSON": dspy.JSONAdapter,
    "XML": dspy.XMLAdapter,
    "chat": dspy.ChatAdapter,
    "BAML": BAMLAdapter,
    "two steps": lambda: dspy.TwoStepAdapter(dspy.settings.lm),
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_engine_without_a_model_fills_the_fields_under_any_adapter(adapter, corpus):
    write = dspy.Predict("query -> searches: list[str], sure: bool, why")

    def ask(query, search):
        with dspy.context(adapter=ADAPTERS[adapter]()):
            made = write(query=query)
        assert made.sure is True and made.why
        return [hit for text in made.searches for hit in search(text)]

    found = outcome(ask, corpus)
    assert found["error"] is None and found["ranking"]


@pytest.mark.parametrize("annotation", [datetime.date, datetime.datetime, Decimal, tuple[str, int]])
def test_the_engine_without_a_model_fills_fields_of_any_type(annotation, corpus):
    signature = dspy.Signature("query -> value").with_updated_fields("value", type_=annotation)
    write = dspy.Predict(signature)
    values = []

    def answer(query, search):
        values.append(write(query=query).value)
        return search(query)

    assert outcome(answer, corpus)["error"] is None
    assert isinstance(values[0], get_origin(annotation) or annotation)


def test_a_prompt_of_a_program_s_own_is_not_answered_with_the_fields_of_the_call_before_it(corpus):
    def ask(query, search):
        with dspy.context(adapter=dspy.JSONAdapter()):
            dspy.Predict("query -> words")(query=query)
        assert dspy.settings.lm("And now?") == [""]
        return search(query)

    assert outcome(ask, corpus)["error"] is None


@pytest.mark.parametrize("spec", ["offline", "server"])
def test_a_program_sees_what_its_calls_use_as_with_a_plain_model_of_dspy_s(spec, corpus, server):
    server.answer = lambda prompt: {"words": "octopus"}
    write, seen = dspy.Predict("query -> words"), []

    def ask(query, search):
        model = dspy.settings.lm
        assert not model.history, "each query has a history of its own"
        with dspy.track_usage() as used:
            made = [write(query=f"{query} {number}") for number in range(3)]
        history = list(model.history)
        with dspy.context(track_usage=True):
            of_one = write(query=f"{query} 2").get_lm_usage()
        seen.append((used.get_total_tokens(), of_one, history))
        return search(made[0].words)

    spec = server.spec if spec == "server" else spec
    for _ in range(2):
        assert outcome(ask, corpus, spec=spec)["error"] is None
    (total, of_one, history), again = seen
    [(name, used)] = total.items()
    assert len(history) == len(again[2]) == 3
    assert used["total_tokens"] == sum(entry["usage"]["total_tokens"] for entry in history)
    assert of_one == {name: history[-1]["usage"]}
    last = history[-1]
    assert last["model"] == name and "blue blood 2" in str(last["messages"])
    if spec != "offline":
        assert used["total_tokens"] > 0 and last["cost"] is None, "its price is not known"
        assert (
            last["response"]["choices"][0]["finish_reason"] == "stop"
            and "octopus" in last["outputs"][0]
        )
    else:
        assert last["cost"] == 0


def ask_by_request(model, text):
    return Request(model=model.model, messages=(Message.user(text),))


WAYS_TO_ASK = {
    "forward": lambda model: model.forward("the query").choices[0].message.content,
    "forward with messages": lambda model: model.forward(
        messages=[{"role": "user", "content": "the query"}]
    )["choices"][0]["message"]["content"],
    "aforward": lambda model: asyncio.run(model.aforward("the query")).choices[0]["message"][
        "content"
    ],
    "a request": lambda model: model(ask_by_request(model, "the query")).text,
    "a request by name": lambda model: model(request=ask_by_request(model, "the query")).text,
    "a request, awaited": lambda model: (
        asyncio.run(model.acall(ask_by_request(model, "the query"))).text
    ),
    "a copy": lambda model: (
        model.copy(temperature=1.0).forward("the query").choices[0].message.content
    ),
    "a copy of a module's": lambda model: copy.deepcopy(model)("the query")[0],
    "in a sandbox": lambda model: SandboxLM(model).forward("the query").choices[0].message.content,
}


@pytest.mark.parametrize("way", WAYS_TO_ASK)
def test_in_whatever_way_a_program_asks_its_model_the_call_is_the_run_s(way, corpus, server):
    server.answer = lambda prompt: {"raw": "octopus"}

    def ask(query, search):
        return search(WAYS_TO_ASK[way](dspy.settings.lm) or query)

    for spec in ("offline", server.spec):
        found = outcome(ask, corpus, spec=spec)
        assert found["error"] is None and found["usage"]["calls"] == 1
        assert "unmetered" not in found["usage"]
    assert len(server.requests) == 1
    assert found["trace"]["steps"][0]["argument"] == "octopus"


def test_a_program_s_own_call_with_tools_gets_the_calls_as_from_a_plain_model_of_dspy_s(
    corpus, server
):
    server.answer = lambda prompt: {"tool_calls": [("look", {"text": "octopus"})]}
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}

    def ask(query, search):
        [output] = dspy.settings.lm("x", tools=[tool])
        [call] = output["tool_calls"]
        assert call.function.name == "look"
        return search(json.loads(call["function"]["arguments"])["text"])

    assert outcome(ask, corpus, spec=server.spec)["trace"]["steps"][0]["argument"] == "octopus"


CODE_MODULES = {
    "ProgramOfThought": lambda: dspy.ProgramOfThought("query -> words"),
    "CodeAct": lambda: dspy.CodeAct("query -> words", tools=[ask_by_request]),
    "RLM": lambda: dspy.RLM("query -> words"),
}


@pytest.mark.parametrize("name", CODE_MODULES)
def test_a_module_that_runs_code_says_that_it_needs_deno_before_it_asks_its_model(
    name, corpus, server, monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))

    def answer(query, search):
        return search(CODE_MODULES[name]()(query=query).words)

    refused = outcome(answer, corpus, spec=server.spec)
    assert isinstance(refused, UsageError) and "needs Deno 2: `pip install deno`" in str(refused)
    assert server.requests == []


def test_ids_that_no_search_brought_are_left_out_and_counted(corpus):
    found = outcome(lambda query, search: ["d9", *search(query), "d8", "d2"], corpus)
    assert (
        found["error"] is None
        and found["trace"]["invented_ids"] == 2
        and "d9" not in found["ranking"]
    )
    assert "select" not in steps(found), "it ranks all that it has"
    assert steps(outcome(lambda query, search: search(query)[1:], corpus)) == [
        "search",
        "select",
        "rank",
        "stop",
    ]
    assert "no search of the query brought 2 of the 6 ids" in found["trace"]["notes"][0]
    error = outcome(lambda query, search: ["d9"], corpus)["error"]
    assert "e.g. 'd9'" in error and "another query's search (test_custom.py, line " in error


class Row(NamedTuple):
    docno: str
    score: float


@dataclass
class Answer:
    answer: str
    doc_ids: list[str]


class Answered(NamedTuple):
    documents: list[str]
    answer: str = "iron"


class Ranked(pydantic.BaseModel):
    ranking: list[str]
    notes: list[str]


def tensor(*numbers):
    return torch.tensor(numbers)


@pytest.mark.parametrize(
    "returned",
    [
        ("7",),
        [7],
        [("7", 0.5)],
        [(np.str_("7"), np.float32(0.5))],
        [Snippet("7", "", "", 0.5)],
        [Hit("7", 0.5)],
        [SimpleNamespace(doc_id="7")],
        [Row("7", 0.5)],
        [dspy.Prediction(doc_id="7")],
        [LangChainDocument("text", metadata={"doc_id": 7})],
        [(LangChainDocument("text", id="7"), 0.5)],
        iter([{"doc_id": "7"}]),
        (doc_id for doc_id in ["7"]),
        [{"id": "7"}],
        {"doc_ids": ["7"], "answer": "iron"},
        Answer("iron", ["7"]),
        Answered(["7"]),
        Ranked(ranking=["7"], notes=["iron"]),
        {"7": 0.5},
        {"7": 1}.keys(),
        np.array([7]),
        np.array([7.0]),  # a column of whole numbers, one of which is missing elsewhere
        np.array(["7"]),
        np.array(["7"], dtype="S"),
        np.array(["7"], dtype=object),
        tensor(7),
        dspy.Prediction(doc_ids=np.array([7])),
    ],
    ids=lambda returned: type(returned).__name__,
)
def test_ids_come_in_many_shapes(returned):
    assert extract_doc_ids(returned) == ["7"]


def test_a_frame_or_a_series_has_the_ids_in_a_column():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"score": [0.5], "docno": ["7"]})
    for returned in (frame, frame["docno"], pandas.Series([7]), pandas.Index(["7"])):
        assert extract_doc_ids(returned) == ["7"]
    with pytest.raises(TypeError, match="returned a frame with columns score; name one doc_id"):
        extract_doc_ids(frame[["score"]])


@pytest.mark.parametrize(
    "returned", [[7.5], [float("inf")], {"7": float("nan"), "8": 1.0}], ids=str
)
def test_what_is_neither_an_id_nor_a_score_is_refused(returned):
    with pytest.raises(
        TypeError, match=r"a list of document ids is expected|nan as the score of '7'"
    ):
        extract_doc_ids(returned)


def test_scores_by_id_are_ordered_and_texts_are_split():
    assert extract_doc_ids({"a": 0.1, "b": np.float32(0.9), "c": tensor(0.5)[0]}) == ["b", "c", "a"]
    for text in ("a b, c", "1. a b\n2. c", '["a b", "c"]', "- a b\n- c"):
        assert "".join(extract_doc_ids(dspy.Prediction(answer=text, reasoning="x"))) in (
            "a bc",
            "abc",
        )
    assert extract_doc_ids(dspy.Prediction(thoughts=["x"], documents=["7"])) == ["7"]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "returned None"),
        ({"a": "x", "b": 2}, "returned dict with keys a, b; a list of document ids is expected"),
        ("d1", "returned str 'd1'"),
        ("", "returned str ''"),
        ([1.5], "a list with float '1.5'"),
        ([True], "a list with bool 'True'"),
        ([None], "a list with None"),
        ([(0.5, "d1")], "or of pairs of an id and a score"),
        ([("d1", "d2")], "or of pairs of an id and a score"),
        ({"d1", "d2"}, "returned a set, which has no order"),
        (dspy.Prediction(a=["x"], b=["y"]), "predicted a, b; a field doc_ids is expected"),
        (Row("d1", 0.5), "returned Row with fields docno, score; a field doc_ids is expected"),
    ],
)
def test_what_is_no_list_of_ids_is_named_with_the_users_line(returned, said, corpus):
    error = outcome(lambda query: returned, corpus)["error"]
    assert said in error and "(test_custom.py, line " in error and "\n" not in error


class Broken(dspy.Module):
    def __init__(self):
        raise RuntimeError("no key")


class TwoInputs(dspy.Module):
    def forward(self, image, question):
        return []


def bare(decorated):
    def wrapper(*given, **named):
        return decorated(*given, **named)

    return wrapper


def bare_but_for_the_query(decorated):
    def wrapper(query, **named):
        return decorated(query, **named)

    return wrapper


class Bare:
    def __init__(self, decorated):
        self.decorated = decorated

    def __call__(self, *given, **named):
        return self.decorated(*given, **named)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (3, "int '3', and no program: it has to be"),
        (SimpleNamespace, "and no program"),
        (lambda query, corpus: [], "asks for 'corpus'"),
        (lambda search: [search], "returned list"),
        (Broken, "cannot be made: RuntimeError: no key (test_custom.py, line "),
        (TwoInputs, "has the inputs image, question"),
        (bare(function), "give its inner function @functools.wraps(function)"),
        (bare_but_for_the_query(function), "give its inner function @functools.wraps(function)"),
        (Bare(function), "takes (*given, **named)"),
        (max, "Python does not know the parameters of mine.py:made"),
        (lambda search: lambda: [], "returned a function without a query"),
        (
            StateGraph(dict).add_node("keep_two", keep_two).add_edge(START, "keep_two"),
            "has none of messages, query",
        ),
    ],
)
def test_what_is_no_program_is_refused_in_one_line(made, said, corpus):
    with pytest.raises(UsageError) as refused:
        outcome(made, corpus)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_limit_ends_a_program_with_what_it_has(corpus):
    def greedy(query, search):
        search(query, 2)
        return search("heart")

    found = outcome(greedy, corpus, limits=Limits(searches=1))
    assert found["error"] is None and found["ranking"] == ["d2", "d1"]
    assert found["trace"]["steps"][-1]["argument"] == "budget"

    async def side_by_side(query, search):
        async def awaited(text):
            return search(text, 2)

        async with asyncio.TaskGroup() as group:
            group.create_task(awaited(query))
            group.create_task(awaited("heart"))

    assert outcome(side_by_side, corpus, limits=Limits(searches=1))["ranking"] == ["d2", "d1"]
    endless = graph(look)
    endless.add_edge("look", "look")
    assert outcome(endless, corpus)["trace"]["steps"][-1]["argument"] == "steps"


def test_what_a_program_sends_by_itself_is_counted_as_unknown_and_what_the_run_sends_is_not(
    corpus, server
):
    server.answer = lambda prompt: {"raw": "hello"}
    url, body = server.spec.partition("@")[2], {"model": "m", "messages": [{"content": "hi"}]}

    def sending(query, search):
        with httpx.Client() as client:
            client.post(f"{url}/chat/completions", json=body)
            with client.stream("POST", f"{url}/chat/completions", json=body):
                pass
        urllib.request.urlopen(f"{url}/chat/completions", b'{"model": "m", "messages": []}')
        dspy.LM("openai/m", api_base=url, api_key="none", cache=False)("hi")
        return search(query)

    found = outcome(sending, corpus)
    assert found["usage"]["calls"] == found["usage"]["unmetered"] == len(server.requests) == 4
    assert found["usage"]["paid_usd"] is found["usage"]["list_usd"] is None
    sent = [note.partition(" by itself")[0] for note in found["trace"]["notes"]]
    assert sent == ["sends to 127.0.0.1", "sends to openai/m"]

    calls = iter([{"tool_calls": [("search", {"query": "blue blood"})]}, {"raw": "done"}])
    server.answer = lambda prompt: next(calls)
    found = outcome(build, corpus, spec=server.spec)
    assert found["usage"]["calls"] == 2 and "unmetered" not in found["usage"] and found["ranking"]
    assert found["trace"]["notes"] == []


SEARCHING = [("search", {"query": "blue blood"})]
GRAPH_TURNS = {
    "ids of its own": [
        {"tool_calls": SEARCHING},
        {"tool_calls": [("select", {"doc_ids": "D1, doc d2"})]},
    ],
    "in the text": [
        {"raw": '<tool_call>{"name": "search", "arguments": {"query": "blue blood"}}</tool_call>'},
        {
            "raw": '<tool_call>{"name": "functions.select", "arguments": "{\\"doc_ids\\": [\\"D1\\"]}"}</tool_call>'
        },
    ],
    "by prompts": [
        {
            "message": "",
            "calls": '{"tool_calls": [{"name": "search", "args": {"query": "blue blood"}}]}',
        },
        {"message": "", "calls": '[{"name": "select", "arguments": {"doc_ids": ["d1"]}}]'},
    ],
}


@pytest.mark.parametrize("case", GRAPH_TURNS)
def test_a_graph_s_calls_are_made_in_whatever_form_a_server_gives_them_and_keep_their_ids(
    case, corpus, server
):
    said = iter(
        [
            *GRAPH_TURNS[case],
            {"message": "done", "calls": "[]"} if case == "by prompts" else {"raw": "done"},
        ]
    )
    reply = server.reply

    def answer(prompt):
        if case == "by prompts" and "tools" in server.requests[-1]:
            raise Failure(400, message="this server takes no tools; start it with --jinja")
        return next(said)

    def with_ids(path, body):
        made = reply(path, body)
        for call in made["choices"][0]["message"].get("tool_calls") or ():
            call["id"] = f"aB3dE6gH{len(server.requests)}"
        return made

    server.answer, server.reply = answer, with_ids
    found = outcome(build, corpus, spec=server.spec)
    assert found["error"] is None and found["ranking"][0] == "d1"
    assert [step["tool"] for step in found["trace"]["steps"]][:2] == ["search", "select"]
    if case != "by prompts":
        last = server.requests[-1]["messages"]
        sent = [call["id"] for message in last for call in message.get("tool_calls") or ()]
        assert sent == [message["tool_call_id"] for message in last if message["role"] == "tool"]
        assert sent == (
            ["aB3dE6gH1", "aB3dE6gH2"] if case == "ids of its own" else ["c00001000", "c00003000"]
        )


def test_no_judgement_is_reached_from_what_a_function_is_given():
    environment, held = environments.load("congress", "mini", "dev"), []

    def curious(query, search, read, select, objective, depth):
        held.extend([query, search, read, select, search(query), sys._getframe()])
        return held[4]

    index = BM25(environment.documents)
    program = make_program_class(curious, "mine.py:curious")(Toolbox(environment.documents, index))
    query = environment.queries[0]
    with language_model.connect("offline", statistics=index.statistics).active():
        program(query=query)
    seen, todo = set(), held[:5]
    while todo:  # everything but what modules, types and frames lead to
        thing = todo.pop()
        if id(thing) not in seen and not isinstance(thing, ModuleType | type):
            seen.add(id(thing))
            inside = (
                [thing.__closure__, thing.__defaults__] if isinstance(thing, FunctionType) else None
            )
            todo += inside or gc.get_referents(thing)
    assert id(environment.documents) in seen and id(environment.qrels) not in seen
    assert not seen & {id(environment), *(id(grades) for grades in environment.qrels.values())}


SECTIONS = ["A function", "A dspy.Module", "A LangGraph graph", "A Program", "An agent"]


def commands(text):
    """The runs that a page or an example shows, but for those that need a key, or compile."""
    lines = re.findall(r"^    sextant run (.+)$", text, re.M)
    return [shlex.split(line) for line in lines if "--lm" not in line]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_programs_of_the_guide_run_as_it_says(section, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    page = (ROOT / "docs/guide/program.md").read_text(encoding="utf-8")
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    for block in re.findall(r"```python\n(.+?)```", text, re.S):
        (tmp_path / re.match(r"# (\S+\.py)\n", block)[1]).write_text(block)
    assert commands(text)
    for words in commands(text):
        done = run(*words, "--limit", 2, "--json")
        assert done.code == 0 and done.json["failed"] == 0, done.err


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem
)
def test_an_example_is_short_runs_and_is_compared_with_one_of_ours(
    example, run, command_of, monkeypatch
):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = example.read_text(encoding="utf-8")
    assert text.count("\n") <= 40
    [words] = commands(text)
    both = (words, ["--program", "multihop", *words[2:4]])
    ran = [run(*program, "--limit", 3, "--json").json["run"] for program in both]
    assert command_of(compare)(*ran).code == 0


def endless(query, search):
    return (str(number) for number in itertools.count())


def the_same_for_ever(query, search):
    return itertools.repeat("d1")


@pytest.mark.parametrize("made", [endless, the_same_for_ever])
def test_an_iterator_that_never_ends_is_refused(made, corpus):
    assert "yields more than 100,000 documents, or never ends" in outcome(made, corpus)["error"]


class _Mute(Exception):
    def __str__(self):
        raise RuntimeError


def raise_a_large_one(query, search):
    raise ValueError("x" * 50_000_000)


def raise_a_mute_one(query, search):
    raise _Mute


def raise_a_long_chain(query, search):
    error = None
    for number in range(1000):
        later = ValueError(number)
        later.__cause__ = error
        error = later
    raise error


@pytest.mark.parametrize("made", [raise_a_large_one, raise_a_mute_one, raise_a_long_chain])
def test_the_record_of_an_exception_is_bounded(made, corpus):
    record = outcome(made, corpus)
    assert 0 < len(record["error"]) <= 10_000 and len(record["traceback"]) < 100_000


class _Held:
    """Something large that a program holds."""


def test_a_failed_query_lets_go_of_what_its_program_held(corpus):
    held = []

    def fails(query, search):
        large = _Held()
        held.append(weakref.ref(large))
        try:
            int("x")
        except ValueError as error:
            raise RuntimeError from error

    gc.disable()
    try:
        assert "RuntimeError" in outcome(fails, corpus)["error"]
        assert held[0]() is None
    finally:
        gc.enable()
