"""A user's own program as a program of Sextant: with a session, a trace, limits and usage totals.

    a class over a Toolbox    as programs/base.py has them
    a dspy.Module             a class or an instance; inputs and outputs are found by their names
    a LangGraph graph         compiled or not (programs/custom_langgraph.py)
    a function                answer(query, search, read) -> ids, sync or async; also as an object that is called
    a maker                   a function of tools that returns a graph, a module or a function

`CustomProgram` makes a ranking of their results. docs/guide/program.md shows each form.
"""

import inspect
import os
import re
import shutil
import sysconfig
from collections.abc import Callable, Generator, Mapping, Sequence, Sized
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import dspy
import httpx  # noqa: F401  # before a run, so that requests by it are counted
import pydantic
from dspy.utils.callback import BaseCallback

from sextant.programs import DEFAULT_TOOLS
from sextant.programs.base import Program
from sextant.programs.corpus_tools import list_tools, prepare
from sextant.programs.custom_results import (
    ANSWERS,
    QUERY,
    collect,
    describe,
    extract_doc_ids,
    read_fields,
)
from sextant.programs.search_tools import (
    DESK,
    SearchTools,
    Tool,
    make_tools,
    read,
    retrieve,
    search,
    select,
)
from sextant.tools import plugins, session
from sextant.tools.errors import OwnCodeFailed, SextantError, UsageError
from sextant.tools.models import offline_rules
from sextant.tools.models.answers.checks import (
    InvalidAnswer,
    PredictorCall,
    current_call,
    update_call,
)
from sextant.tools.models.answers.fields import is_tool_calls
from sextant.tools.models.language_model import LanguageModel
from sextant.tools.models.prompting import Adapter
from sextant.tools.platform.threads import (
    REMEDY,
    EventLoop,
    lend_event_loop,
    run_coroutine,
)
from sextant.tools.records import JsonObject, Query, Snippet, Submission
from sextant.tools.session import Toolbox
from sextant.tools.text import TermStatistics

__all__ = ["make_program_class", "read", "search", "select"]

# Names of parameters that a function of a query may have.
_FUNCTIONS = (*QUERY, "objective", "search", "read", "select", "depth")
# Names of parameters that a class or a maker may have.
_MAKERS = ("search", "read", "select", "tools", "model", "depth", "toolbox", "config")
_OTHER_LOOP = re.compile("different (?:event )?loop|[Ee]vent loop is closed")
_DOCUMENTS = re.compile(r"answer|doc|ids?$|passage|rank|relevant|select")  # in the name of a field


def make_program_class(user_object: Any, name: str) -> Any:
    """Return a program's constructor for the object that `name` refers to. UsageError if it is no program."""
    if isinstance(user_object, type) and issubclass(user_object, Program):
        return user_object
    is_class = isinstance(user_object, type)
    is_object = isinstance(user_object, dspy.Module) or is_graph(user_object)
    parameters = {} if is_object or not callable(user_object) else _parameters(user_object, name)
    usable_class = is_class and (
        issubclass(user_object, dspy.Module)
        or "toolbox" in parameters
        or any("__call__" in vars(base_class) for base_class in user_object.__mro__)
    )
    if not (is_object or usable_class or (callable(user_object) and not is_class)):
        raise UsageError(
            f"{name} is {describe(user_object)}, and no program: it has to be a class over a toolbox, a "
            f"dspy.Module, "
            "a LangGraph graph, a function of a query, or a function of tools that returns one of "
            "these"
        )
    answers = not is_class and not is_object and _is_of_a_query(parameters)
    asks = _list_asked(parameters, _FUNCTIONS if answers else _MAKERS, name, first_is_query=answers)
    settings = [
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for parameter in parameters.values()
        if parameter.name not in asks
    ]
    base = inspect.signature(CustomProgram.__init__).parameters
    given = [base["toolbox"], base["depth"]]
    if "tools" in parameters and not answers:
        given.append(base["tools"])
    attributes = {
        "__init__": CustomProgram.__init__,  # a dataclass would make another one
        "__doc__": inspect.getdoc(user_object) if callable(user_object) else None,
        "__signature__": inspect.Signature([*given, *settings]),
        "source": (user_object,),  # a function by itself would be a method
        "label": plugins.display_name(name),
        "asks": asks,  # what it is given by name
        "answers": answers,  # whether it is a function of a query
    }
    return type(plugins.display_name(name).rpartition(":")[2], (CustomProgram,), attributes)


def _parameters(callable_object: Any, name: str = "") -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or a class, by name. UsageError if they are hidden."""
    is_class = isinstance(callable_object, type)  # whose own signature DSPy hides
    try:
        parameters = [
            *inspect.signature(
                callable_object.__init__ if is_class else callable_object
            ).parameters.values()
        ][is_class:]
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
    if (
        not is_class
        and len(by_name) < len(parameters)
        and _hides_parameters(callable_object, parameters)
    ):
        takes = ", ".join(str(parameter) for parameter in parameters)
        raise UsageError(
            f"{name} takes ({takes}), so what it asks for cannot be known; if a decorator made it, "
            "give its inner function @functools.wraps(function), else name its parameters"
        )
    return by_name


def _hides_parameters(callable_object: Any, parameters: Sequence[inspect.Parameter]) -> bool:
    """Return whether a callable passes its arguments on to a function whose parameters it does not show."""
    kinds = {parameter.kind for parameter in parameters}
    if kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return inspect.Parameter.VAR_POSITIONAL in kinds  # with **settings alone, it may be a maker
    if not inspect.isfunction(callable_object):
        return False
    shown = {parameter.name for parameter in parameters}
    wrapped = [
        value
        for value in inspect.getclosurevars(callable_object).nonlocals.values()
        if inspect.isfunction(value)
    ]
    return any(
        {*inspect.signature(function).parameters} & {*_FUNCTIONS} - shown for function in wrapped
    )


def _is_of_a_query(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether a function answers a query, by its parameters; else it makes a program."""
    needed = {
        parameter.name for parameter in parameters.values() if parameter.default is parameter.empty
    }
    return bool(parameters.keys() & {*QUERY} or needed - {*_MAKERS})


def _list_asked(
    parameters: Mapping[str, inspect.Parameter],
    offered: Sequence[str],
    name: str,
    *,
    first_is_query: bool,
) -> tuple[str, ...]:
    """Return the parameters that are `offered`, or have no default. UsageError if neither is true of a parameter."""
    needed = [
        parameter.name for parameter in parameters.values() if parameter.default is parameter.empty
    ]
    unknown = [needed_name for needed_name in needed if needed_name not in offered]
    if first_is_query and not parameters.keys() & {*QUERY}:
        unknown = unknown[1:]  # the first one is the query, whatever it is called
    if unknown:
        raise UsageError(
            f"{name} asks for {unknown[-1]!r}; it is given {', '.join(offered)}; give others a "
            f"default"
        )
    return tuple(asked for asked in parameters if asked in (*needed, *offered))


def is_graph(value: Any) -> bool:
    """Return whether this is a graph of LangGraph's, compiled or not."""
    return any(base_class.__module__.startswith("langgraph.") for base_class in type(value).__mro__)


class _Awaitable:
    """Mixin that makes a plain value awaitable."""

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self


class AwaitableHits(_Awaitable, list[Snippet]):
    """The hits of a search, best first."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # asyncio.gather wants one


class AwaitableText(_Awaitable, str):
    """A text; a query's has `text`, `objective` and `query_id`."""


# The offline engine's answers to a program without rules, by the names and types of fields, so that
# any program runs from end to end. A field that asks for documents gets ids that the call shows; an
# agent's next call is a search, and then its end; other texts are the heaviest words of the query.


class GuessingRules(dict[str, Any]):
    """Rules for all fields there can be."""

    def __contains__(self, name: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True

    def __missing__(self, name: str) -> Callable[..., Any]:
        return partial(_guess, name)


def _guess(name: str, inputs: Mapping[str, Any], statistics: TermStatistics) -> Any:
    call: Any = current_call().predictor_call
    annotation = call.signature.output_fields[name].annotation
    texts = {key: str(input_) for key, input_ in inputs.items()}
    query_texts = [texts[key] for key in ("description", *QUERY) if key in texts] or [
        *texts.values(),
        "",
    ]
    shown = "\n".join(texts.values())
    desk = DESK.get()
    ids = [doc_id for doc_id in (desk.best_rank if desk else ()) if doc_id in shown]
    words = offline_rules.rewrite_query({"description": query_texts[0]}, statistics)
    if name == "next_tool_name":  # of dspy.ReAct
        return "search" if "search" in get_args(annotation) and not ids else "finish"
    if name == "next_tool_args":
        return {} if ids else {"query": words}
    if is_tool_calls(annotation):
        return annotation.from_dict_list(_guess_calls(inputs, shown, ids, words))
    schema: JsonObject = {}
    with suppress(pydantic.PydanticUserError):  # a type that has none: a text
        schema = pydantic.TypeAdapter(annotation).json_schema()
    return _fill(schema, name, ids, words, schema.get("$defs", {}))


def _guess_calls(
    inputs: Mapping[str, Any], shown: str, ids: list[str], words: str
) -> list[JsonObject]:
    """Return a search, or none after it; if a graph asks for fields by its only tool, a call of that."""
    tools = inputs.get("tools")
    own = [tool["function"] for tool in tools or () if isinstance(tool, dict)]
    if len(own) == 1 and own[0]["name"] not in ("search", "read", "select"):
        schema = {"type": "object", **own[0].get("parameters", {})}
        return [
            {"name": own[0]["name"], "args": _fill(schema, "", ids, words, schema.get("$defs", {}))}
        ]
    if ids or "search" not in shown:
        return []
    return [{"name": "search", "args": {"query": words}}]


# By the type, or the format, in a schema.
_VALUES: Mapping[Any, Any] = {
    "boolean": True,
    "integer": 1,
    "number": 1.0,
    "null": None,
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00",
    "time": "00:00:00",
    "duration": "PT1S",
    "uri": "http://localhost/",
}


def _fill(
    schema: JsonObject, name: str, ids: list[str], words: str, definitions: JsonObject
) -> Any:
    """Return a value for a JSON schema, by the name of its field."""
    schema = definitions.get(str(schema.get("$ref")).rpartition("/")[2], schema)

    def fill(inner: JsonObject, inner_name: str = name) -> Any:
        return _fill(inner, inner_name, ids, words, definitions)

    if options := schema.get("anyOf") or schema.get("allOf"):
        return fill(options[0])
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    for key in (kind, schema.get("format")):
        if key in _VALUES:
            return _VALUES[key]
    if kind == "object":
        return {key: fill(inner, key) for key, inner in schema.get("properties", {}).items()}
    is_of_documents = _DOCUMENTS.search(name)
    if kind == "array":
        items = schema.get("prefixItems", [schema.get("items", {})])
        if items in ([{}], [{"type": "string"}]):
            return ids if is_of_documents else [words]
        return [fill(item) for item in items]
    if ids and is_of_documents:
        return ids[0] if name.endswith("id") else ", ".join(ids)
    return words


class CustomProgram(Program):
    """A user's own program. `make_program_class` makes a subclass for each."""

    offline: ClassVar[Mapping[str, Any]] = GuessingRules()

    def __init__(
        self,
        toolbox: Toolbox,
        *,
        depth: int = 1000,
        tools: str = DEFAULT_TOOLS,  # names, with commas between: programs/corpus_tools.py
        **parameters: Any,
    ) -> None:
        super().__init__(toolbox, depth=depth)
        self.functions = list_tools(tools)
        # Parameters of a function that a maker returned.
        self.function_asks: tuple[str, ...] = ()
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
        product = self._call_maker(
            parameters,
            make_tools(Tool if is_class else _graphs().Tool.from_function, self.functions),
        )
        if isinstance(product, dspy.Module) and not is_class:
            # With tools of DSPy's instead of LangChain's.
            product = self._call_maker(parameters, make_tools(Tool, self.functions))
        if is_graph(product):
            return self._prepare_graph(product)
        if isinstance(product, dspy.Module) or "toolbox" in self.asks:
            return product
        if not callable(product):
            raise UsageError(
                f"{self.label} returned {describe(product)}; it has to return a graph, a module or a "
                f"function"
            )
        asked_parameters = _parameters(product, self.label)
        if not _is_of_a_query(asked_parameters):
            raise UsageError(
                f"{self.label} returned a function without a query; it needs a parameter "
                f"{QUERY[0]!r}"
            )
        self.function_asks = _list_asked(
            asked_parameters, _FUNCTIONS, self.label, first_is_query=True
        )
        return product

    def _call_maker(self, parameters: Mapping[str, Any], tools: Mapping[str, Any]) -> Any:
        """Return the product of a class or of a function of tools."""
        offered = {
            "toolbox": self.toolbox,
            "depth": self.depth,
            "config": {"configurable": {}},
            **tools,
        }
        offered["tools"] = list(tools.values())
        if "model" in self.asks:
            offered["model"] = _graphs().Model()
        product = self.source[0](**{name: offered[name] for name in self.asks}, **parameters)
        if inspect.iscoroutine(product):
            return self._loop.run(product)
        if isinstance(product, dspy.Module) or is_graph(product):
            return product
        # Context managers, as LangGraph's server takes them; they stay open until the end.
        if isinstance(product, AbstractAsyncContextManager):
            self._opened = product
            return self._loop.run(product.__aenter__())
        if isinstance(product, AbstractContextManager):
            self._opened = product
            return product.__enter__()
        return product

    @property
    def _loop(self) -> EventLoop:
        """The event loop in which a maker and its product are awaited: a connection belongs to its loop."""
        if self._own_loop is None:
            self._own_loop = EventLoop()
        return self._own_loop

    def _prepare_graph(self, graph: Any) -> Any:
        self._runner = _graphs().Runner(graph, self.label, self._own_loop)
        return self._runner.graph

    def forward(self, query: Query) -> Submission:
        """Search for a query."""
        model = dspy.settings.lm
        callbacks = [*dspy.settings.callbacks, _ForeignCallCounter(model)]
        if isinstance(model, LanguageModel) and model.client.free:
            callbacks.append(_CallPublisher())
        with (
            dspy.context(
                callbacks=callbacks,
                interpreter_factory=dspy.settings.interpreter_factory or _make_interpreter,
                rm=retrieve,
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
            returned = self.inner(query=query)
            if isinstance(returned, Submission):
                return returned
            return self._hand_in(
                query, SearchTools(session.current() or self.toolbox.open(query)), returned, "done"
            )
        desk = SearchTools(self.toolbox.open(query), hops=0)
        prepare(desk, self.functions)
        DESK.set(desk)
        returned, stop_reason = self._ask(query, desk)
        if returned is None and is_graph(self.inner):
            return desk.session.submit(desk.rank_all()[: self.depth], why=stop_reason)
        return self._hand_in(query, desk, returned, stop_reason)

    def _ask(self, query: Query, desk: SearchTools) -> tuple[Any, str]:
        if is_graph(self.inner):
            state, stop_reason = self._runner.run(query)
            return _read_state(state), stop_reason
        if isinstance(self.inner, dspy.Module):
            texts = {
                name: query.objective if name == "objective" else query.text for name in self.inputs
            }
            returned = (
                self.inner(**texts)
                if hasattr(type(self.inner), "forward")
                else self.inner.acall(**texts)
            )
        else:
            returned = self._call(query, desk)
        if inspect.isasyncgen(returned):
            returned = _collect(returned)
        if inspect.iscoroutine(returned):
            returned = self._own_loop.run(returned) if self._own_loop else run_coroutine(returned)
        return collect(returned) if inspect.isgenerator(returned) else returned, "done"

    def _call(self, query: Query, desk: SearchTools) -> Any:
        text = AwaitableText(query.text)
        vars(text).update(text=query.text, objective=query.objective, query_id=query.query_id)
        tools = _Tools(desk)
        offered: dict[str, Any] = {
            "objective": query.objective,
            "search": tools.search,
            "read": tools.read,
            "select": desk.keep,
            "depth": self.depth,
        }
        arguments = {name: offered.get(name, text) for name in self.function_asks or self.asks}
        by_place = [
            parameter.name
            for parameter in _parameters(self.inner).values()
            if parameter.kind is parameter.POSITIONAL_ONLY
        ]
        in_place = [arguments.pop(name) for name in by_place if name in arguments]
        return self.inner(*in_place, **arguments)

    def _hand_in(
        self,
        query: Query,
        desk: SearchTools,
        returned: Any,
        stop_reason: str,
    ) -> Submission:
        """End the session with the documents that the program returned and can have found."""
        source = self.source[0]
        function = getattr(source, "forward", source) if isinstance(source, type) else source
        code = getattr(function, "__code__", None)
        location = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
        try:
            named = extract_doc_ids(returned)
        except TypeError as error:
            raise TypeError(f"{self.label} {error}{location}") from None
        try:
            found_ids = named if "toolbox" in self.asks else desk.known(named, query)
        except InvalidAnswer as fault:
            raise ValueError(f"{fault}{location}") from None
        return desk.hand_in(found_ids, self.depth, why=stop_reason)


class _Tools:
    """The tools of a query for a function, as records instead of texts for a model."""

    def __init__(self, desk: SearchTools) -> None:
        self._desk = desk

    def search(self, text: str, k: int = 10) -> AwaitableHits:
        """Search the collection."""
        return AwaitableHits(self._desk.find(text, k))

    def read(self, doc_id: str) -> AwaitableText:
        """Return the whole text of a document that a search returned."""
        return AwaitableText(self._desk.session.read(doc_id))


async def _collect(values: Any) -> list[Any]:
    return [value async for value in values]


def _read_state(state: Any) -> Any:
    """Return the answer in a graph's final state; None if there is none."""
    if not isinstance(state, Mapping):  # of LangGraph's functional API
        return state
    response = state.get("structured_response")  # of a prebuilt agent with a response_format
    answer = response if isinstance(response, Mapping) else read_fields(response)
    for fields in (state, answer):
        for name in ANSWERS:
            if _is_filled(fields.get(name)):
                return fields[name]
    return None


def _is_filled(value: Any) -> bool:
    """Return whether a field of a state is filled; arrays have no truth value."""
    return value is not None and (len(value) > 0 if isinstance(value, Sized) else bool(value))


def _explain(error: BaseException) -> str:
    """Return the fault in a program's use of threads or event loops; "" for other errors."""
    for cause in plugins.list_causes(error):
        words = plugins.show(cause)
        if isinstance(cause, ValueError) and words.startswith("No LM is loaded"):  # DSPy's
            return (
                f"asks the model in a thread or process that does not belong to the query: {REMEDY}"
            )
        if isinstance(cause, dspy.CodeInterpreterError) and "Deno" in words:  # DSPy's
            return (
                "runs code that its model writes, for which DSPy needs Deno 2: `pip install deno`, or "
                "give another interpreter_factory"
            )
        if isinstance(cause, RuntimeError) and _OTHER_LOOP.search(words):
            return (
                f"uses an object of another event loop ({words[:200]}); each query has a loop of "
                f"its own: "
                "make clients, locks and sessions of asyncio's in the function, not at the top of "
                "the file"
            )
    return ""


def _make_interpreter() -> dspy.PythonInterpreter:
    """Make DSPy's interpreter of code, which looks for Deno only after the model has written some."""
    # pip puts it among the scripts.
    path = f"{os.environ.get('PATH', '')}{os.pathsep}{sysconfig.get_path('scripts')}"
    if not shutil.which("deno", path=path):
        raise dspy.CodeInterpreterError("there is no Deno")
    return dspy.PythonInterpreter()


def _inputs_of(module: Any, label: str) -> list[str]:
    """Return the names of a module's inputs: for the query's text, and `objective`."""
    module_class = type(module)
    parameters = _parameters(
        module_class.forward if hasattr(module_class, "forward") else module_class.aforward
    )
    inputs = [
        name
        for name, parameter in [*parameters.items()][1:]
        if parameter.default is parameter.empty or name in (*QUERY, "objective")
    ]
    if len(parameters) == 1:  # it takes what its signature has, or its first predictor's
        signed = [part for part in (module, *module.predictors()) if hasattr(part, "signature")]
        inputs = [*signed[0].signature.input_fields] if signed else []
    texts = [name for name in inputs if name != "objective"]
    if not texts or (len(texts) > 1 and not {*texts} <= {*QUERY}):
        raise UsageError(
            f"{label} has the inputs {', '.join(inputs) or 'none'}; it is given "
            f"{', '.join(QUERY)} and objective, or the only input; give others a default"
        )
    return inputs


def _graphs() -> Any:
    from sextant.programs import custom_langgraph  # LangGraph takes seconds to import

    return custom_langgraph


class _CallPublisher(BaseCallback):
    """Shows the engine without a model the calls that other adapters than ours make: JSON, XML, two steps."""

    def on_adapter_format_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Publish a call before its prompt is made, once: an adapter may call another's method in its own."""
        if not isinstance(instance, Adapter) and "signature" in inputs:
            update_call(
                predictor_call=PredictorCall(instance, inputs["signature"], inputs["inputs"])
            )

    def on_adapter_parse_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Take it back once there is an answer."""
        if not isinstance(instance, Adapter):
            update_call(predictor_call=None)


class _ForeignCallCounter(BaseCallback):
    """A callback of DSPy's that counts a program's own calls of models other than `model`."""

    def __init__(self, model: Any) -> None:
        self._given = model
        self._foreign = set[str]()  # the ids of calls that go on

    def on_lm_start(
        self,
        call_id: str,
        instance: Any,
        inputs: dict[str, Any],
    ) -> None:
        """Count a call, and then no more of how it is sent."""
        if instance is not self._given and not isinstance(instance, LanguageModel):
            session.count_unmetered_request(instance.model)
            session.BOOKED.set(True)
            self._foreign.add(call_id)

    def on_lm_end(
        self,
        call_id: str,
        outputs: Any,
        exception: Exception | None = None,
    ) -> None:
        if call_id in self._foreign:
            self._foreign.discard(call_id)
            session.BOOKED.set(False)
