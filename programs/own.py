"""A user's own program as one of ours: it gets a session, a trace, limits and books as the others do.

    a class over a Toolbox    as programs/base.py has them
    a dspy.Module             a class or an instance; inputs and outputs are found by their names
    a LangGraph graph         compiled or not (programs/own_graph.py)
    a function                answer(query, search, read) -> ids, sync or async
    a maker                   a function of tools that returns a graph or a module

`Own` makes a ranking of what they return. docs/guide/own-programs.md shows each form.
"""

import asyncio
import inspect
import re
import types
from collections.abc import Callable, Generator, Iterable, Mapping
from enum import Enum
from functools import cache, partial, wraps
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin

import dspy
import httpx
import pydantic
from dspy.utils.callback import BaseCallback

from programs.base import Program
from programs.desk import DESK, Desk, make_tools, read, search, select
from tools import names, session
from tools.errors import SextantError, UsageError
from tools.models import offline
from tools.models.lm import LanguageModel
from tools.models.prompting import Fault
from tools.records import Query, Snippet, Submission
from tools.session import Toolbox
from tools.text import TermStatistics

__all__ = ["adapt", "read", "search", "select"]

QUERY = ("query", "question", "description")  # names under which the text of a query is asked for
ANSWERS = ("doc_ids", "ranking", "documents", "document_ids", "ids")  # names under which a ranking is handed in
_FUNCTIONS = (*QUERY, "objective", "search", "read", "select", "depth")  # what a function of a query may ask for
_MAKERS = ("search", "read", "select", "tools", "model", "depth", "toolbox")  # what a class or a maker may ask for
_DOCUMENTS = re.compile(r"answer|doc|ids?$|passage|rank|relevant|select")  # in the name of a field


def adapt(made: Any, name: str) -> Any:
    """Return a constructor as programs have it, for what `name` refers to; UsageError where that is no program."""
    if isinstance(made, type) and issubclass(made, Program):
        return made
    is_class, is_object = isinstance(made, type), isinstance(made, dspy.Module) or is_graph(made)
    asked = _parameters(made) if callable(made) and not is_object else {}
    strange_class = is_class and not (issubclass(made, dspy.Module) or "toolbox" in asked)
    if strange_class or not (is_object or callable(made)):
        raise UsageError(
            f"{name} is {_describe(made)}, and no program: it has to be a class over a toolbox, a dspy.Module, "
            "a LangGraph graph, a function of a query, or a function of tools that returns one of these"
        )
    needed = [one.name for one in asked.values() if one.default is one.empty]
    answers = not is_class and bool(asked.keys() & {*QUERY} or {*needed} - {*_MAKERS})
    given = _FUNCTIONS if answers else _MAKERS
    strange = [one for one in needed if one not in given]
    if strange[answers and not asked.keys() & {*QUERY} :]:  # of a function, the first one may be the query
        raise UsageError(f"{name} asks for {strange[-1]!r}; it is given {', '.join(given)}; give others a default")
    settings = [one.replace(kind=one.KEYWORD_ONLY) for one in asked.values() if one.name not in (*needed, *given)]
    base = inspect.signature(Own.__init__).parameters
    about = {
        "__init__": Own.__init__,  # a dataclass would make another one
        "__doc__": inspect.getdoc(made) if callable(made) else None,
        "__signature__": inspect.Signature([base["toolbox"], base["depth"], *settings]),
        "source": (made,),  # a function by itself would be a method
        "label": names.label(name),
        "asks": tuple(one for one in asked if one in (*needed, *given)),  # what it is given by name
        "answers": answers,  # whether it is a function of a query
    }
    _watch_requests()
    return type(names.label(name).rpartition(":")[2], (Own,), about)


def _parameters(made: Any) -> dict[str, inspect.Parameter]:
    is_class = isinstance(made, type)  # whose own signature DSPy hides
    parameters = [*inspect.signature(made.__init__ if is_class else made).parameters.values()][is_class:]
    return {one.name: one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}


def is_graph(made: Any) -> bool:
    """Return whether this is a graph of LangGraph's, compiled or not."""
    return any(one.__module__.startswith("langgraph.") for one in type(made).__mro__)


class _There:
    """Something that is there already, and that `await` returns as well."""

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self


class Hits(_There, list[Snippet]):
    """What a search returned, best first."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # asyncio.gather wants one


class Text(_There, str):
    """A text; a query's has `text`, `objective` and `query_id`."""


# What the engine without a model answers to a program without rules, by the names and types of fields, so that any
# runs from end to end. A field that asks for documents gets ids that the call shows; an agent's next call is a search,
# and then its end; other texts are the heaviest words of the query.


class Guesses(dict[str, Any]):
    """Rules for all fields there can be."""

    def __contains__(self, name: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True

    def __missing__(self, name: str) -> Callable[..., Any]:
        return partial(_guess, name)


def _guess(name: str, inputs: Mapping[str, Any], statistics: TermStatistics) -> Any:
    call: Any = offline.CALL.get()
    kind = call.signature.output_fields[name].annotation
    texts = {key: str(one) for key, one in inputs.items()}
    asked = [texts[key] for key in ("description", *QUERY) if key in texts] or [*texts.values(), ""]
    shown, desk = "\n".join(texts.values()), DESK.get()
    ids = [doc_id for doc_id in (desk.best_rank if desk else ()) if doc_id in shown]
    words = offline.rewrite({"description": asked[0]}, statistics)
    if name == "next_tool_name":  # of dspy.ReAct
        return "search" if "search" in get_args(kind) and not ids else "finish"
    if name == "next_tool_args":
        return {} if ids else {"query": words}
    if kind is dspy.ToolCalls:
        calls = [] if ids or "search" not in shown else [{"name": "search", "args": {"query": words}}]
        return dspy.ToolCalls.from_dict_list(calls)
    return _fill(kind, name, ids, words)


def _fill(kind: Any, name: str, ids: list[str], words: str) -> Any:
    inside, origin = get_args(kind), get_origin(kind) or kind
    if origin is Literal:
        return inside[0]
    if origin in (Union, types.UnionType):
        return _fill(inside[0], name, ids, words)
    if origin in (list, tuple, set, frozenset):
        if inside and inside[0] is not str:
            return [_fill(inside[0], name, ids, words)]
        return ids if _DOCUMENTS.search(name) else [words]
    if inspect.isclass(kind) and issubclass(kind, pydantic.BaseModel):
        return {key: _fill(field.annotation, key, ids, words) for key, field in kind.model_fields.items()}
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return next(iter(kind)).value
    if origin in (bool, int, float, dict):
        return {bool: True, int: 1, float: 1.0, dict: {}}[origin]
    if ids and _DOCUMENTS.search(name):
        return ids[0] if name.endswith("id") else ", ".join(ids)
    return words


class Own(Program):
    """A user's own program. Subclasses, which `adapt` makes, say which."""

    offline: ClassVar[Mapping[str, Any]] = Guesses()

    def __init__(self, toolbox: Toolbox, *, depth: int = 1000, **parameters: Any) -> None:
        super().__init__(toolbox, depth=depth)
        try:
            self.inner = self._make(parameters)
        except SextantError:
            raise
        except Exception as error:  # a user's code may raise anything
            raise UsageError(f"{self.label} cannot be made: {names.describe(error)}") from error
        if isinstance(self.inner, dspy.Module) and "toolbox" not in self.asks:
            self.inputs = _inputs_of(self.inner, self.label)

    def _make(self, parameters: Mapping[str, Any]) -> Any:
        made = self.source[0]
        if self.answers:
            return partial(made, **parameters)
        if isinstance(made, dspy.Module):
            return made.deepcopy()
        given: dict[str, Any] = {"toolbox": self.toolbox, "depth": self.depth}

        def make(tools: Mapping[str, Any]) -> Any:
            offered = {**given, **tools, "tools": list(tools.values())}
            return made(**{name: offered[name] for name in self.asks}, **parameters)

        if isinstance(made, type):
            made = make(make_tools())
        elif not is_graph(made):
            given["model"] = _graphs().Model()
            found = make(make_tools(_graphs().Tool.from_function))
            made = make(make_tools()) if isinstance(found, dspy.Module) else found
        if not (isinstance(made, dspy.Module) or is_graph(made) or "toolbox" in self.asks):
            raise UsageError(f"{self.label} returned {_describe(made)}; it has to return a graph or a module")
        return _graphs().prepare(made, self.label) if is_graph(made) else made

    def forward(self, query: Query) -> Submission:
        """Search for one query."""
        with dspy.context(callbacks=[*dspy.settings.callbacks, _Watch(dspy.settings.lm)]):
            if "toolbox" in self.asks:
                found, why = self.inner(query=query), "done"
                if isinstance(found, Submission):
                    return found
                desk = Desk(session.current() or self.toolbox.open(query))
            else:
                desk = Desk(self.toolbox.open(query), hops=0)
                DESK.set(desk)
                found, why = self._ask(query, desk)
            if found is None and is_graph(self.inner):
                return desk.session.submit(desk.rank_all()[: self.depth], why=why)
            return self._hand_in(query, desk, found, why)

    def _ask(self, query: Query, desk: Desk) -> tuple[Any, str]:
        if is_graph(self.inner):
            state, why = _graphs().run(self.inner, query)
            return next((state[name] for name in ANSWERS if state.get(name)), None), why
        if isinstance(self.inner, dspy.Module):
            texts = {name: query.objective if name == "objective" else query.text for name in self.inputs}
            found = self.inner(**texts) if hasattr(type(self.inner), "forward") else self.inner.acall(**texts)
        else:
            found = self._call(query, desk)
        return asyncio.run(found) if inspect.iscoroutine(found) else found, "done"

    def _call(self, query: Query, desk: Desk) -> Any:
        text = Text(query.text)
        vars(text).update(text=query.text, objective=query.objective, query_id=query.query_id)

        def search(text: str, k: int = 10) -> Hits:
            return Hits(desk.find(text, k))

        def read(doc_id: str) -> Text:
            return Text(desk.session.read(doc_id))

        given = {"objective": query.objective, "search": search, "read": read, "select": desk.keep, "depth": self.depth}
        return self.inner(**{name: given.get(name, text) for name in self.asks})

    def _hand_in(self, query: Query, desk: Desk, found: Any, why: str) -> Submission:
        """End the session with the documents that the program returned, of those that it can have found."""
        made = self.source[0]
        code = getattr(made.forward if isinstance(made, type) and hasattr(made, "forward") else made, "__code__", None)
        place = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
        try:
            named = list(dict.fromkeys(list_ids(found)))
        except TypeError as error:
            raise TypeError(f"{self.label} {error}{place}") from None
        try:
            known = named if "toolbox" in self.asks else desk.known(named, query)
        except Fault as fault:
            raise ValueError(f"{fault}{place}") from None
        return desk.hand_in(known, self.depth, why=why)


def list_ids(found: Any) -> list[str]:
    """Return the ids in what a program returned, in their order. TypeError, as the end of a sentence, for none."""
    if isinstance(found, dspy.Prediction):
        found = _pick(dict(found.items()))
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise TypeError(f"returned {_describe(found)}; a list of document ids is expected")
    ids = []
    for one in found:
        value = one.get("doc_id", one.get("id")) if isinstance(one, Mapping) else getattr(one, "doc_id", one)
        if isinstance(value, list | tuple) and len(value) == 2:  # with its score
            value = value[0]
        if not isinstance(value, str | int):
            raise TypeError(f"returned a list with {_describe(one)}; a list of document ids is expected")
        ids.append(str(value))
    return ids


def _pick(outputs: dict[str, Any]) -> Any:
    """Return the documents of a prediction: by the name of the field, or else the only list, or the only field."""
    outputs = {name: one for name, one in outputs.items() if name not in ("trajectory", "reasoning")}
    named = [outputs[name] for name in ANSWERS if name in outputs]
    found = named[:1] or [one for one in outputs.values() if isinstance(one, list | tuple)] or [*outputs.values()]
    if len(found) != 1:
        raise TypeError(f"predicted {', '.join(outputs) or 'nothing'}; a field doc_ids is expected")
    if not isinstance(found[0], str):
        return found[0]
    text = found[0].strip(" []\n")  # a list in words
    lines = text.split("\n") if "\n" in text else re.split(r"[,;\s]+", text)
    return [one for line in lines if (one := re.sub(r"^(?:[-*]|\d+[.)])\s+", "", line.strip()).strip("\"'`, "))]


def _inputs_of(module: Any, label: str) -> list[str]:
    """Return the inputs that a module is given: for the query's text, and `objective`."""
    kind = type(module)
    asked = _parameters(kind.forward if hasattr(kind, "forward") else kind.aforward)
    inputs = [name for name, one in [*asked.items()][1:] if one.default is one.empty or name in (*QUERY, "objective")]
    if len(asked) == 1:  # it takes what its signature has
        signed = [one.signature for one in (module, *module.predictors()) if hasattr(one, "signature")]
        inputs = [name for one in signed[:1] for name in one.input_fields]
    texts = [name for name in inputs if name != "objective"]
    if not texts or (len(texts) > 1 and not {*texts} <= {*QUERY}):
        given = f"{', '.join(QUERY)} and objective, or the only input; give others a default"
        raise UsageError(f"{label} has the inputs {', '.join(inputs) or 'none'}; it is given {given}")
    return inputs


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with keys {', '.join(map(str, value)) or 'none'}"
    return "None" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"


def _graphs() -> Any:
    return import_module("programs.own_graph")  # only where there is a graph: LangGraph takes seconds to import


@cache
def _watch_requests() -> None:
    """Have requests that a program sends by itself counted, those by httpx and by Python's own client."""

    def counted(send: Callable[..., Any], host: Callable[..., str]) -> Callable[..., Any]:
        @wraps(send)
        def sent(client: Any, *arguments: Any, **options: Any) -> Any:
            session.count_unbooked(host(client, *arguments, **options))
            return send(client, *arguments, **options)

        return sent

    for one in (httpx.Client, httpx.AsyncClient):
        one.send = counted(one.send, lambda client, request, **options: request.url.host)  # type: ignore[method-assign]
    connection: Any = HTTPConnection  # of urllib, and of requests and urllib3
    connection.putrequest = counted(connection.putrequest, lambda client, *arguments, **options: client.host)


class _Watch(BaseCallback):
    """A callback of DSPy's that counts a program's own calls of models other than the one `given`."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Count a call, and then no more of how it is sent."""
        if instance is not self._given and not isinstance(instance, LanguageModel):
            session.count_unbooked(instance.model)
            session.BOOKED.set(True)

    def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        session.BOOKED.set(False)
