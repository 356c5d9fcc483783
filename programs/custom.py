"""A user's own program as one of ours: it gets a session, a trace, limits and books as the others
do.

    a class over a Toolbox    as programs/base.py has them
    a dspy.Module             a class or an instance; inputs and outputs are found by their names
    a LangGraph graph         compiled or not (programs/custom_langgraph.py)
    a function                answer(query, search, read) -> ids, sync or async; also as an object that is called
    a maker                   a function of tools that returns a graph, a module or a function

`CustomProgram` makes a ranking of what they return. docs/guide/own-programs.md shows each form.
"""

import inspect
import re
import types
from collections.abc import Callable, Generator, Mapping, Sequence, Sized
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from enum import Enum
from functools import cache, partial, wraps
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin

import dspy
import httpx
import pydantic
from dspy.utils.callback import BaseCallback

from programs.base import Program
from programs.custom_results import ANSWERS, QUERY, describe, extract_doc_ids
from programs.search_tools import DESK, SearchTools, make_tools, read, search, select
from tools import plugins, session
from tools.errors import OwnCodeFailed, SextantError, UsageError
from tools.models import offline_engine, offline_rules
from tools.models.answer_checks import InvalidAnswer
from tools.models.language_model import LanguageModel
from tools.records import Query, Snippet, Submission
from tools.session import Toolbox
from tools.text import TermStatistics
from tools.threads import REMEDY, EventLoop, instrument_threads, lend_event_loop, run_coroutine

__all__ = ["make_program_class", "read", "search", "select"]

_FUNCTIONS = (
    *QUERY,
    "objective",
    "search",
    "read",
    "select",
    "depth",
)  # what a function of a query may ask for
# What a class or a maker may ask for.
_MAKERS = ("search", "read", "select", "tools", "model", "depth", "toolbox", "config")
_OTHER_LOOP = re.compile("different (?:event )?loop|[Ee]vent loop is closed")
_DOCUMENTS = re.compile(r"answer|doc|ids?$|passage|rank|relevant|select")  # in the name of a field


def make_program_class(made: Any, name: str) -> Any:
    """Return a constructor as programs have it, for what `name` refers to; UsageError where that is no program."""
    instrument_threads()
    if isinstance(made, type) and issubclass(made, Program):
        return made
    is_class = isinstance(made, type)
    is_object = isinstance(made, dspy.Module) or is_graph(made)
    asked = {} if is_object or not callable(made) else _parameters(made, name)
    usable_class = is_class and (
        issubclass(made, dspy.Module) or "toolbox" in asked or _has_call(made)
    )
    if not (is_object or usable_class or (callable(made) and not is_class)):
        raise UsageError(
            f"{name} is {describe(made)}, and no program: it has to be a class over a toolbox, a "
            f"dspy.Module, "
            "a LangGraph graph, a function of a query, or a function of tools that returns one of "
            "these"
        )
    answers = not is_class and not is_object and _is_of_a_query(asked)
    needed = _check_needed(asked, _FUNCTIONS if answers else _MAKERS, name, first_is_query=answers)
    offered = _FUNCTIONS if answers else _MAKERS
    settings = [
        one.replace(kind=one.KEYWORD_ONLY)
        for one in asked.values()
        if one.name not in (*needed, *offered)
    ]
    base = inspect.signature(CustomProgram.__init__).parameters
    about = {
        "__init__": CustomProgram.__init__,  # a dataclass would make another one
        "__doc__": inspect.getdoc(made) if callable(made) else None,
        "__signature__": inspect.Signature([base["toolbox"], base["depth"], *settings]),
        "source": (made,),  # a function by itself would be a method
        "label": plugins.display_name(name),
        "asks": tuple(
            one for one in asked if one in (*needed, *offered)
        ),  # what it is given by name
        "answers": answers,  # whether it is a function of a query
    }
    _watch_requests()
    return type(plugins.display_name(name).rpartition(":")[2], (CustomProgram,), about)


def _parameters(made: Any, name: str = "") -> dict[str, inspect.Parameter]:
    """Return what a function, or the constructor of a class, asks for by name. UsageError where that is hidden."""
    is_class = isinstance(made, type)  # whose own signature DSPy hides
    try:
        parameters = [*inspect.signature(made.__init__ if is_class else made).parameters.values()][
            is_class:
        ]
    except (ValueError, TypeError):
        raise UsageError(
            f"Python does not know the parameters of {name}; call it in a function answer(query, "
            f"search)"
        ) from None
    by_name = {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    if not is_class and len(by_name) < len(parameters) and _hides_parameters(made, parameters):
        takes = ", ".join(str(one) for one in parameters)
        raise UsageError(
            f"{name} takes ({takes}), so what it asks for cannot be known; if a decorator made it, "
            "give its inner function @functools.wraps(function), else name its parameters"
        )
    return by_name


def _hides_parameters(made: Any, parameters: Sequence[inspect.Parameter]) -> bool:
    """Return whether a callable passes on what it is given, to a function whose parameters it does not show."""
    kinds = {parameter.kind for parameter in parameters}
    if kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return inspect.Parameter.VAR_POSITIONAL in kinds  # with **settings alone, it may be a maker
    if not inspect.isfunction(made):
        return False
    shown = {one.name for one in parameters}
    wrapped = [
        one for one in inspect.getclosurevars(made).nonlocals.values() if inspect.isfunction(one)
    ]
    return any({*inspect.signature(one).parameters} & {*_FUNCTIONS} - shown for one in wrapped)


def _has_call(made: type) -> bool:
    return any("__call__" in vars(kind) for kind in made.__mro__)


def _is_of_a_query(asked: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether a function answers a query, by its parameters; else it makes something that does."""
    needed = {one.name for one in asked.values() if one.default is one.empty}
    return bool(asked.keys() & {*QUERY} or needed - {*_MAKERS})


def _check_needed(
    asked: Mapping[str, inspect.Parameter],
    offered: Sequence[str],
    name: str,
    *,
    first_is_query: bool,
) -> list[str]:
    """Return the parameters without a default. UsageError for one that nothing is `offered` for."""
    needed = [one.name for one in asked.values() if one.default is one.empty]
    unknown = [one for one in needed if one not in offered]
    if first_is_query and not asked.keys() & {*QUERY}:
        unknown = unknown[1:]  # the first one is the query, whatever it is called
    if unknown:
        raise UsageError(
            f"{name} asks for {unknown[-1]!r}; it is given {', '.join(offered)}; give others a "
            f"default"
        )
    return needed


def is_graph(made: Any) -> bool:
    """Return whether this is a graph of LangGraph's, compiled or not."""
    return any(one.__module__.startswith("langgraph.") for one in type(made).__mro__)


class _Awaitable:
    """Something that is there already, and that `await` returns as well."""

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self


class AwaitableHits(_Awaitable, list[Snippet]):
    """What a search returned, best first."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # asyncio.gather wants one


class AwaitableText(_Awaitable, str):
    """A text; a query's has `text`, `objective` and `query_id`."""


# What the engine without a model answers to a program without rules, by the names and types of
# fields, so that any runs from end to end. A field that asks for documents gets ids that the call
# shows; an agent's next call is a search, and then its end; other texts are the heaviest words of
# the query.


class GuessingRules(dict[str, Any]):
    """Rules for all fields there can be."""

    def __contains__(self, name: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True

    def __missing__(self, name: str) -> Callable[..., Any]:
        return partial(_guess, name)


def _guess(name: str, inputs: Mapping[str, Any], statistics: TermStatistics) -> Any:
    call: Any = offline_engine.CALL.get()
    kind = call.signature.output_fields[name].annotation
    texts = {key: str(input_) for key, input_ in inputs.items()}
    asked = [texts[key] for key in ("description", *QUERY) if key in texts] or [*texts.values(), ""]
    shown = "\n".join(texts.values())
    desk = DESK.get()
    ids = [doc_id for doc_id in (desk.best_rank if desk else ()) if doc_id in shown]
    words = offline_rules.rewrite_query({"description": asked[0]}, statistics)
    if name == "next_tool_name":  # of dspy.ReAct
        return "search" if "search" in get_args(kind) and not ids else "finish"
    if name == "next_tool_args":
        return {} if ids else {"query": words}
    if kind is dspy.ToolCalls:
        calls = (
            [] if ids or "search" not in shown else [{"name": "search", "args": {"query": words}}]
        )
        return dspy.ToolCalls.from_dict_list(calls)
    return _fill(kind, name, ids, words)


def _fill(kind: Any, name: str, ids: list[str], words: str) -> Any:
    inside = get_args(kind)
    origin = get_origin(kind) or kind
    if origin is Literal:
        return inside[0]
    if origin in (Union, types.UnionType):
        return _fill(inside[0], name, ids, words)
    if origin in (list, tuple, set, frozenset):
        if inside and inside[0] is not str:
            return [_fill(inside[0], name, ids, words)]
        return ids if _DOCUMENTS.search(name) else [words]
    if inspect.isclass(kind) and issubclass(kind, pydantic.BaseModel):
        return {
            key: _fill(field.annotation, key, ids, words)
            for key, field in kind.model_fields.items()
        }
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return next(iter(kind)).value
    if origin in (bool, int, float, dict):
        return {bool: True, int: 1, float: 1.0, dict: {}}[origin]
    if ids and _DOCUMENTS.search(name):
        return ids[0] if name.endswith("id") else ", ".join(ids)
    return words


class CustomProgram(Program):
    """A user's own program. Subclasses, which `make_program_class` makes, say which."""

    offline: ClassVar[Mapping[str, Any]] = GuessingRules()

    def __init__(self, toolbox: Toolbox, *, depth: int = 1000, **parameters: Any) -> None:
        super().__init__(toolbox, depth=depth)
        self.function_asks: tuple[str, ...] = ()  # of a function that a maker returned
        self._own_loop: EventLoop | None = None
        self._runner: Any = None  # of a graph
        self._opened: Any = None  # a context manager that has made the program
        try:
            with plugins.contained():
                self.inner = self._make(parameters)
        except SextantError:
            raise
        except Exception as error:  # a user's code may raise anything
            raise OwnCodeFailed(
                f"{self.label} cannot be made: {plugins.describe_exception(error)}"
            ) from error
        if isinstance(self.inner, dspy.Module) and "toolbox" not in self.asks:
            self.inputs = _inputs_of(self.inner, self.label)

    def _make(self, parameters: Mapping[str, Any]) -> Any:
        source = self.source[0]
        if self.answers:
            return partial(source, **parameters)
        if isinstance(source, dspy.Module):
            return source.deepcopy()
        if is_graph(source):
            return self._prepare_graph(source)
        is_class = isinstance(source, type)
        made = self._call_maker(
            parameters, make_tools() if is_class else make_tools(_graphs().Tool.from_function)
        )
        if isinstance(made, dspy.Module) and not is_class:
            made = self._call_maker(
                parameters, make_tools()
            )  # with tools of DSPy's instead of LangChain's
        if is_graph(made):
            return self._prepare_graph(made)
        if isinstance(made, dspy.Module) or "toolbox" in self.asks:
            return made
        if not callable(made):
            raise UsageError(
                f"{self.label} returned {describe(made)}; it has to return a graph, a module or a "
                f"function"
            )
        asked = _parameters(made, self.label)
        if not _is_of_a_query(asked):
            raise UsageError(
                f"{self.label} returned a function without a query; it needs a parameter "
                f"{QUERY[0]!r}"
            )
        needed = _check_needed(asked, _FUNCTIONS, self.label, first_is_query=True)
        self.function_asks = tuple(one for one in asked if one in (*needed, *_FUNCTIONS))
        return made

    def _call_maker(self, parameters: Mapping[str, Any], tools: Mapping[str, Any]) -> Any:
        """Return what a class, or a function of tools, makes."""
        offered = {
            "toolbox": self.toolbox,
            "depth": self.depth,
            "config": {"configurable": {}},
            **tools,
        }
        offered["tools"] = list(tools.values())
        if "model" in self.asks:
            offered["model"] = _graphs().Model()
        made = self.source[0](**{name: offered[name] for name in self.asks}, **parameters)
        if inspect.iscoroutine(made):
            return self._loop.run(made)
        if (
            isinstance(made, AbstractAsyncContextManager)
            and not isinstance(made, dspy.Module)
            and not is_graph(made)
        ):
            self._opened = made  # as LangGraph's server takes it; it stays open until the end
            return self._loop.run(made.__aenter__())
        if (
            isinstance(made, AbstractContextManager)
            and not isinstance(made, dspy.Module)
            and not is_graph(made)
        ):
            self._opened = made
            return made.__enter__()
        return made

    @property
    def _loop(self) -> EventLoop:
        """The event loop in which a maker is awaited, and then what it made: a connection belongs to its loop."""
        if self._own_loop is None:
            self._own_loop = EventLoop()
        return self._own_loop

    def _prepare_graph(self, graph: Any) -> Any:
        self._runner = _graphs().Runner(graph, self.label, self._own_loop)
        return self._runner.graph

    def forward(self, query: Query) -> Submission:
        """Search for one query."""
        with (
            dspy.context(
                callbacks=[*dspy.settings.callbacks, _ForeignCallCounter(dspy.settings.lm)]
            ),
            lend_event_loop(),
        ):
            try:
                return self._answer(query)
            except Exception as error:
                if wrong := _explain(error):
                    raise UsageError(
                        f"{self.label} {wrong}{plugins.user_code_line(error)}"
                    ) from error
                if isinstance(error, RuntimeError) and plugins.show(error).startswith(
                    "dspy.settings can only be changed"
                ):
                    error.args = (
                        f"{error} Use `with dspy.context(...)` instead of dspy.configure here.",
                    )
                raise

    def _answer(self, query: Query) -> Submission:
        if "toolbox" in self.asks:
            found = self.inner(query=query)
            if isinstance(found, Submission):
                return found
            return self._hand_in(
                query, SearchTools(session.current() or self.toolbox.open(query)), found, "done"
            )
        desk = SearchTools(self.toolbox.open(query), hops=0)
        DESK.set(desk)
        found, why = self._ask(query, desk)
        if found is None and is_graph(self.inner):
            return desk.session.submit(desk.rank_all()[: self.depth], why=why)
        return self._hand_in(query, desk, found, why)

    def _ask(self, query: Query, desk: SearchTools) -> tuple[Any, str]:
        if is_graph(self.inner):
            state, why = self._runner.run(query)
            if not isinstance(state, Mapping):  # of LangGraph's functional API
                return state, why
            return next((state[name] for name in ANSWERS if _is_filled(state.get(name))), None), why
        if isinstance(self.inner, dspy.Module):
            texts = {
                name: query.objective if name == "objective" else query.text for name in self.inputs
            }
            found = (
                self.inner(**texts)
                if hasattr(type(self.inner), "forward")
                else self.inner.acall(**texts)
            )
        else:
            found = self._call(query, desk)
        if inspect.isasyncgen(found):
            found = _collect(found)
        if inspect.iscoroutine(found):
            found = self._own_loop.run(found) if self._own_loop else run_coroutine(found)
        return list(found) if inspect.isgenerator(found) else found, "done"

    def _call(self, query: Query, desk: SearchTools) -> Any:
        text = AwaitableText(query.text)
        vars(text).update(text=query.text, objective=query.objective, query_id=query.query_id)
        tools = _Tools(desk)
        given: dict[str, Any] = {
            "objective": query.objective,
            "select": desk.keep,
            "depth": self.depth,
        }
        given |= {"search": tools.search, "read": tools.read}
        arguments = {name: given.get(name, text) for name in self.function_asks or self.asks}
        by_place = [
            one.name for one in _parameters(self.inner).values() if one.kind is one.POSITIONAL_ONLY
        ]
        in_place = [arguments.pop(name) for name in by_place if name in arguments]
        return self.inner(*in_place, **arguments)

    def _hand_in(self, query: Query, desk: SearchTools, found: Any, why: str) -> Submission:
        """End the session with the documents that the program returned, of those that it can have found."""
        made = self.source[0]
        code = getattr(
            made.forward if isinstance(made, type) and hasattr(made, "forward") else made,
            "__code__",
            None,
        )
        place = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
        try:
            named = extract_doc_ids(found)
        except TypeError as error:
            raise TypeError(f"{self.label} {error}{place}") from None
        try:
            known = named if "toolbox" in self.asks else desk.known(named, query)
        except InvalidAnswer as fault:
            raise ValueError(f"{fault}{place}") from None
        return desk.hand_in(known, self.depth, why=why)


class _Tools:
    """The tools of one query for a function, which gets records instead of texts for a model."""

    def __init__(self, desk: SearchTools) -> None:
        self._desk = desk

    def search(self, text: str, k: int = 10) -> AwaitableHits:
        """Search the collection."""
        return AwaitableHits(self._desk.find(text, k))

    def read(self, doc_id: str) -> AwaitableText:
        """Return the whole text of a document that a search returned."""
        return AwaitableText(self._desk.session.read(doc_id))


async def _collect(found: Any) -> list[Any]:
    return [one async for one in found]


def _is_filled(value: Any) -> bool:
    """Return whether a field of a state has something; arrays have no truth value."""
    return value is not None and (len(value) > 0 if isinstance(value, Sized) else bool(value))


def _explain(error: BaseException) -> str:
    """Return what is wrong with how a program uses threads, processes or event loops; "" where it is something else."""
    for cause in plugins.list_causes(error):
        words = plugins.show(cause)
        if isinstance(cause, ValueError) and words.startswith("No LM is loaded"):  # DSPy's
            return (
                f"asks the model in a thread or process that does not belong to the query: {REMEDY}"
            )
        if isinstance(cause, RuntimeError) and _OTHER_LOOP.search(words):
            return (
                f"uses an object of another event loop ({words[:200]}); each query has a loop of "
                f"its own: "
                "make clients, locks and sessions of asyncio's in the function, not at the top of "
                "the file"
            )
    return ""


def _inputs_of(module: Any, label: str) -> list[str]:
    """Return the inputs that a module is given: for the query's text, and `objective`."""
    kind = type(module)
    asked = _parameters(kind.forward if hasattr(kind, "forward") else kind.aforward)
    inputs = [
        name
        for name, one in [*asked.items()][1:]
        if one.default is one.empty or name in (*QUERY, "objective")
    ]
    if len(asked) == 1:  # it takes what its signature has
        signed = [
            one.signature for one in (module, *module.predictors()) if hasattr(one, "signature")
        ]
        inputs = [name for one in signed[:1] for name in one.input_fields]
    texts = [name for name in inputs if name != "objective"]
    if not texts or (len(texts) > 1 and not {*texts} <= {*QUERY}):
        given = f"{', '.join(QUERY)} and objective, or the only input; give others a default"
        raise UsageError(
            f"{label} has the inputs {', '.join(inputs) or 'none'}; it is given {given}"
        )
    return inputs


def _graphs() -> Any:
    from programs import (
        custom_langgraph,  # only where there is a graph: LangGraph takes seconds to import
    )

    return custom_langgraph


@cache
def _watch_requests() -> None:
    """Have requests that a program sends by itself counted, those by httpx and by Python's own client."""

    def counted(send: Callable[..., Any], host: Callable[..., str]) -> Callable[..., Any]:
        @wraps(send)
        def sent(client: Any, *arguments: Any, **options: Any) -> Any:
            session.count_unmetered_request(host(client, *arguments, **options))
            return send(client, *arguments, **options)

        return sent

    for one in (httpx.Client, httpx.AsyncClient):
        one.send = counted(one.send, lambda client, request, **options: request.url.host)  # type: ignore[method-assign]
    connection: Any = HTTPConnection  # of urllib, and of requests and urllib3
    connection.putrequest = counted(
        connection.putrequest, lambda client, *arguments, **options: client.host
    )


class _ForeignCallCounter(BaseCallback):
    """A callback of DSPy's that counts a program's own calls of models other than the one `given`."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Count a call, and then no more of how it is sent."""
        if instance is not self._given and not isinstance(instance, LanguageModel):
            session.count_unmetered_request(instance.model)
            session.BOOKED.set(True)

    def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        session.BOOKED.set(False)
