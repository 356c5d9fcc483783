"""A user's own LangGraph graph (programs/own.py): its tools, its model, what it begins with, what it ends with."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import dspy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphRecursionError

from programs.desk import make_tools
from programs.own import QUERY
from tools.disk import read_object
from tools.errors import UsageError
from tools.models.offline import Call, publish
from tools.models.prompting import ask
from tools.records import Query

STEPS = 50  # of a graph that has no recursion_limit of its own; LangGraph's default is 10,007


class Tool(StructuredTool):
    """A tool of LangChain's that can be called as a function, too."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call its function."""
        return self.func(*arguments, **named)  # type: ignore[misc]  # all have one


class NextMessage(dspy.Signature):
    """Write the next message of a conversation: what is to be said, or one call or more of the tools."""

    conversation: list[dict[str, Any]] = dspy.InputField(desc="the messages so far, oldest first")
    tools: list[dict[str, Any]] = dspy.InputField(desc="what can be called")
    message: str = dspy.OutputField(desc="what is said; may be empty beside calls")
    calls: dspy.ToolCalls = dspy.OutputField(desc="calls of tools; none where the message is an answer")


class Model(BaseChatModel):
    """The run's own model, as LangChain has models. Where it takes no tools, they are fields of a prompt."""

    offered: tuple[dict[str, Any], ...] = ()

    @property
    def _llm_type(self) -> str:
        return "sextant"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> "Model":
        """Return the model with tools that it may call."""
        return self.model_copy(update={"offered": tuple(convert_to_openai_tool(tool) for tool in tools)})

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        said = convert_to_openai_messages(messages)
        conversation = [one | made.additional_kwargs.get("parts", {}) for one, made in zip(said, messages, strict=True)]
        model, parts = dspy.settings.lm, dict[str, Any]()
        inputs = {"conversation": conversation, "tools": [*self.offered]}
        if getattr(model, "tools", None) is None:
            made = ask(dspy.Predict(NextMessage), **inputs)
            text, calls = made.message, [{"name": one.name, "args": one.args} for one in made.calls.tool_calls]
        else:
            with publish(Call(None, NextMessage, inputs)):
                made = model.converse(conversation, [*self.offered])
            text, called, parts = made["content"], made["tool_calls"], dict(made.get("parts", {}))
            calls = [{"name": one["name"], "args": read_object(one["arguments"]) or {}} for one in called]
        # The next prompt has these ids: by their places they are the same when answers are taken from the ledger.
        named = [{**one, "id": f"call_{len(conversation)}_{place}"} for place, one in enumerate(calls)]
        if kept := parts.get("tool_calls"):
            parts["tool_calls"] = [call | {"id": one["id"]} for call, one in zip(kept, named, strict=True)]
        message = AIMessage(content=text, tool_calls=named, additional_kwargs={"parts": parts} if parts else {})
        return ChatResult(generations=[ChatGeneration(message=message)])


def prepare(graph: Any, label: str) -> Any:
    """Return a graph compiled; UsageError for one that has no place for a query."""
    compiled = graph.compile() if hasattr(graph, "compile") else graph
    if not {"messages", *QUERY} & {*compiled.channels}:
        raise UsageError(f"the state of {label} has none of messages, {', '.join(QUERY)}: the query goes there")
    return compiled


def run(graph: Any, query: Query) -> tuple[Mapping[str, Any], str]:
    """Return the state in which a graph ends for a query, and why it ended."""
    start: dict[str, Any] = dict.fromkeys(QUERY, query.text) | {"objective": query.objective}
    start["messages"] = [("user", f"{query.objective}\n\n{query.text}".strip())]
    tools = make_tools(Tool.from_function)
    given = {**tools, "tools": list(tools.values()), "thread_id": uuid4().hex}
    options = {"recursion_limit": (graph.config or {}).get("recursion_limit", STEPS), "configurable": given}

    async def walk() -> tuple[Any, str]:
        state: Any = {}
        begin = {name: value for name, value in start.items() if name in graph.channels}
        try:
            async for state in graph.astream(begin, options, stream_mode="values"):  # noqa: B007  # the last one is used
                pass
        except GraphRecursionError:
            return state, "steps"
        return state, "done"

    return asyncio.run(walk())
