"""A user's own LangGraph graph (programs/custom.py): its tools, its model, its input,
its result.
"""

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, get_origin, get_type_hints, is_typeddict
from uuid import uuid4

import dspy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphRecursionError

from sextant.programs.custom_results import ANSWERS, QUERY
from sextant.programs.search_tools import convert_arguments, make_tools
from sextant.tools import plugins as names
from sextant.tools.errors import OwnCodeFailed, UsageError
from sextant.tools.models.answers.call_ids import identify
from sextant.tools.models.answers.checks import PredictorCall, changed_call
from sextant.tools.models.answers.fields import ToolCalls, find_tool, read_arguments
from sextant.tools.models.prompting import ask
from sextant.tools.platform.interrupts import start_thread
from sextant.tools.platform.threads import EventLoop, run_coroutine
from sextant.tools.records import JsonObject, Query
from sextant.tools.session import SharedOnDeepcopy

STEPS = 50  # of a graph that has no recursion_limit of its own; LangGraph's default is 10,007


# Settings of a call that may be bound to LangChain's models, beside `stop`
_BINDABLE = ("temperature", "top_p", "max_tokens", "seed")


class Tool(StructuredTool):
    """A tool of LangChain's that can be called as a function, too, with arguments in the forms that models write."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call its function."""
        return self.func(*arguments, **named)  # type: ignore[misc]  # all have one

    def _parse_input(
        self, tool_input: str | JsonObject, tool_call_id: str | None
    ) -> str | JsonObject:
        if isinstance(tool_input, dict):
            parameters = inspect.signature(self.func or self).parameters
            tool_input = convert_arguments(
                self.name,
                tool_input,
                {name: parameter.annotation for name, parameter in parameters.items()},
            )
        return super()._parse_input(tool_input, tool_call_id)


class NextMessage(dspy.Signature):
    """Write the next message of a conversation: what is to be said, or one call or more of the tools."""

    tools: list[JsonObject] = dspy.InputField(desc="what can be called")
    conversation: list[JsonObject] = dspy.InputField(desc="the messages so far, oldest first")
    message: str = dspy.OutputField(desc="what is said; may be empty beside calls")
    calls: ToolCalls = dspy.OutputField(desc="calls of tools; none where the message is an answer")


class Model(BaseChatModel):
    """The run's own model, as LangChain has models. If it takes no tools, they are fields of a prompt."""

    offered: tuple[JsonObject, ...] = ()
    choice: str = ""  # whether it calls one of the tools: "none", "required", "" is up to it

    @property
    def _llm_type(self) -> str:
        return "sextant"

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: Any = None, **options: Any
    ) -> "Model":
        """Return the model with tools that it may call, or has to call if `tool_choice` says so.

        The choice is in LangChain's words or the protocol's: "auto", "any", the name of a tool, ...
        """
        offered = tuple(convert_to_openai_tool(tool) for tool in tools)
        if isinstance(tool_choice, dict):
            tool_choice = tool_choice.get("function", tool_choice).get("name", "required")
        named = tuple(tool for tool in offered if tool["function"]["name"] == tool_choice)
        choice = "required" if named or tool_choice in ("any", "required", True) else ""
        if tool_choice == "none":
            choice = "none"
        return self.model_copy(update={"offered": named or offered, "choice": choice})

    def _generate(
        self,
        messages: Any,
        stop: Any = None,
        run_manager: Any = None,
        **options: Any,
    ) -> ChatResult:
        written = convert_to_openai_messages(messages)
        conversation = [
            message | original.additional_kwargs.get("parts", {})
            for message, original in zip(written, messages, strict=True)
        ]
        settings = {name: options[name] for name in _BINDABLE if options.get(name) is not None}
        if stop:
            settings["stop"] = list(stop)
        answer = self._converse(conversation, settings) or self._fill(conversation)
        parts = answer.get("parts", {})
        content = answer["content"]
        for text in stop or ():
            content = content.partition(text)[0]  # not every interface stops there
        message = AIMessage(
            content=content,
            tool_calls=identify(answer["calls"], conversation),
            additional_kwargs={"parts": parts} if parts else {},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _converse(self, conversation: list[JsonObject], settings: JsonObject) -> JsonObject | None:
        """Return the next message by the protocol's interface for tools; None if the model has none."""
        model = dspy.settings.lm
        if getattr(model, "tools", None) is None:
            return None
        inputs = {"conversation": conversation, "tools": [*self.offered]}
        if self.offered and self.choice:
            settings = settings | {"tool_choice": self.choice}
        try:
            with changed_call(predictor_call=PredictorCall(None, NextMessage, inputs)):
                answer = model.converse(conversation, [*self.offered], settings)
        except dspy.LMUnsupportedFeatureError:
            if not self.offered:
                raise
            model.tools = None  # for the rest of the run: it says that it takes none
            return None
        parameters = {
            tool["function"]["name"]: tool["function"].get("parameters", {})
            for tool in self.offered
        }
        calls = []
        for call in answer["tool_calls"]:
            arguments = read_arguments(
                call["arguments"], parameters.get(call["name"], {}).get("properties")
            )
            calls.append(
                {
                    "name": call["name"],
                    "args": arguments or {},
                    "id": call["id"],
                }
            )
        return {
            "content": answer["content"],
            "calls": calls,
            "parts": answer.get("parts", {}),
        }

    def _fill(self, conversation: list[JsonObject]) -> dict[str, Any]:
        """Return the next message as the fields of a prompt."""
        answer = ask(
            dspy.Predict(NextMessage),
            conversation=conversation,
            tools=[*self.offered],
        )
        names = [tool["function"]["name"] for tool in self.offered]
        return {
            "content": answer.message,
            "calls": [
                {"name": find_tool(call.name, names), "args": call.args}
                for call in answer.calls.tool_calls
            ],
        }


class Runner(SharedOnDeepcopy):
    """Runs a user's graph for one query after another, in threads. UsageError for a graph that cannot be run."""

    def __init__(
        self,
        graph: Any,
        label: str,
        loop: EventLoop | None = None,
    ) -> None:
        """Run in the event `loop` that the graph was made in, or else in a loop for each query."""
        self.graph = graph.compile() if hasattr(graph, "compile") else graph
        self._label = label
        graphs = [self.graph, *(subgraph for _, subgraph in self.graph.get_subgraphs(recurse=True))]
        savers = [
            each.checkpointer
            for each in graphs
            if isinstance(each.checkpointer, BaseCheckpointSaver)
        ]
        if loop is None and any(hasattr(saver, "loop") for saver in savers):
            loop = EventLoop()  # one for all queries, which share the locks of such a checkpointer
        self._run_async: Callable[[Coroutine[Any, Any, Any]], Any] = (
            loop.run if loop else run_coroutine
        )
        self._inputs = _find_inputs(self.graph, label)
        self._context, self._context_fault = _make_context(self.graph, label)
        if self.graph.interrupt_before_nodes or self.graph.interrupt_after_nodes:
            raise UsageError(
                f"{label} is compiled with interrupt_before or interrupt_after, and nobody is there "
                "to go on with it; leave that out"
            )
        self._is_async = self._can_await(savers)
        if not self._is_async and (awaited := _find_async_node(graphs)):
            raise UsageError(
                f"{label} has the async node {awaited!r} and a checkpointer that is not async; "
                "give it another checkpointer, such as InMemorySaver, or none"
            )

    def run(self, query: Query) -> tuple[Any, str]:
        """Return the state in which the graph ends for a query, and why it ended."""
        tools = make_tools(Tool.from_function)
        configurable = {
            **tools,
            "tools": list(tools.values()),
            "thread_id": uuid4().hex,
        }
        limit = (self.graph.config or {}).get("recursion_limit", STEPS)
        options = {"recursion_limit": limit, "configurable": configurable}
        try:
            if self._is_async:
                state, stop_reason = self._run_async(
                    self._walk_async(self._make_input(query), options)
                )
            else:
                state, stop_reason = self._walk(self._make_input(query), options)
        except AttributeError as error:
            if self._context_fault and "'NoneType'" in str(error):
                raise UsageError(self._context_fault) from error
            raise
        if isinstance(state, Mapping) and (interrupts := state.get("__interrupt__")):
            question = str(interrupts[0].value)[:60]
            raise RuntimeError(
                f"{self._label} waits for somebody's answer (interrupt: {question!r}), and nobody is "
                f"there"
            )
        return state, stop_reason

    def _walk(self, begin: Any, options: dict[str, Any]) -> tuple[Any, str]:
        state = {}
        try:
            for state in self.graph.stream(  # noqa: B007  # the last one is used
                begin, options, **self._context, stream_mode="values"
            ):
                pass
        except GraphRecursionError:
            return state, "steps"
        return state, "done"

    async def _walk_async(self, begin: Any, options: dict[str, Any]) -> tuple[Any, str]:
        state = {}
        try:
            async for state in self.graph.astream(  # noqa: B007  # as above
                begin, options, **self._context, stream_mode="values"
            ):
                pass
        except GraphRecursionError:
            return state, "steps"
        return state, "done"

    def _make_input(self, query: Query) -> Any:
        if self._inputs is None:  # a function of LangGraph's functional API
            return query.text
        inputs: dict[str, Any] = {}
        for name in self._inputs:
            if name == "messages":
                inputs[name] = [("user", f"{query.objective}\n\n{query.text}".strip())]
            else:
                inputs[name] = query.objective if name == "objective" else query.text
        return inputs

    def _can_await(self, savers: Sequence[Any]) -> bool:
        """Return whether the graph's checkpointers can be awaited; UsageError if a checkpointer works in no thread."""
        somewhere = {"configurable": {"thread_id": uuid4().hex, "checkpoint_ns": ""}}
        try:
            for saver in savers:
                self._run_async(saver.aget_tuple(somewhere))
        except NotImplementedError:
            pass
        else:
            return True
        try:
            for saver in savers:
                # In a thread, as queries are answered.
                start_thread(partial(saver.get_tuple, somewhere)).result()
        except Exception as error:
            raise OwnCodeFailed(
                f"the checkpointer of {self._label} cannot be used in a thread; with sqlite3, "
                f"connect(FILE, check_same_thread=False): {names.describe_exception(error)}"
            ) from error
        return False


def _find_async_node(graphs: Sequence[Any]) -> str:
    """Return the name of a node that can only be awaited, of these graphs; "" if there is none."""
    for graph in graphs:
        for name, node in graph.nodes.items():
            for step in getattr(node.bound, "steps", [node.bound]):
                if getattr(step, "afunc", None) and step.func is None:
                    return str(name)
    return ""


def _make_context(graph: Any, label: str) -> tuple[dict[str, Any], str]:
    """Return the argument `context` of a graph's run, of its defaults and tools by name; none without a schema.

    And why it cannot be made of these, "" if it can.
    """
    schema = getattr(graph, "context_schema", None)
    if schema is None:
        return {}, ""
    offered = {**make_tools(Tool.from_function), "model": Model()}
    values = {name: offered[name] for name in _read_hints(schema) if name in offered}
    if is_typeddict(schema):
        values = offered  # LangGraph takes an empty dictionary for none
    try:
        return {"context": schema(**values)}, ""
    except Exception as error:  # noqa: BLE001  # a user's class may raise anything
        return {}, (
            f"the context of {label} cannot be made: {names.describe_exception(error)}; give each "
            "field a default"
        )


def _find_inputs(graph: Any, label: str) -> list[str] | None:
    """Return the keys of a graph's input that the query goes to; None if its input is a text."""
    builder = getattr(graph, "builder", None)
    schema = builder.input_schema if builder else graph.channels["__start__"].ValueType
    if not builder and schema in (Any, str):
        return None
    hints = _read_hints(schema)
    takes_any = not builder and (get_origin(schema) or schema) is dict  # of a function
    names_of_inputs = [
        name for name in ("messages", *QUERY, "objective") if name in hints or takes_any
    ]
    if not {"messages", *QUERY}.isdisjoint(names_of_inputs):
        return names_of_inputs
    texts = [
        name
        for name, hint in hints.items()
        if hint in (str, str | None) and name not in ("objective", *ANSWERS)
    ]
    if len(texts) == 1:
        return [*texts, *names_of_inputs]
    raise UsageError(
        f"the state of {label} has none of messages, {', '.join(QUERY)}: the query goes there, or "
        f"to its only text"
    )


def _read_hints(schema: Any) -> dict[str, Any]:
    """Return the fields of a TypedDict, a dataclass or a model of pydantic's with their types; none if unknown."""
    try:
        return get_type_hints(schema)
    except (NameError, TypeError):  # a type that is only imported for type checkers
        return dict.fromkeys(getattr(schema, "__annotations__", {}))
