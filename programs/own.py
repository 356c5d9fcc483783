"""A user's own program as one of ours: it gets a session, a trace, limits and books as the others do.

    a class over a Toolbox    as programs/base.py has them
    a dspy.Module             a class or an instance; inputs and outputs are found by their names
    a LangGraph graph         compiled or not (programs/own_graph.py)
    a function                answer(query, search, read) -> ids, sync or async
    a factory                 a function of tools that returns one of the last three

What comes back is made into a ranking by `Own`. docs/guide/own-program.md shows each form.
"""

import asyncio
import inspect
import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import dspy

from programs.base import Program
from programs.desk import Desk, make_tools, read, search, select
from programs.own_offline import Guesses
from tools import names, session
from tools.errors import SextantError, UsageError
from tools.models import lm
from tools.records import Query, Snippet, Submission
from tools.session import Toolbox

__all__ = ["adapt", "read", "search", "select"]

QUERY = ("query", "question", "description")  # names under which the text of a query is asked for
ANSWERS = ("doc_ids", "ranking", "documents", "document_ids", "ids")  # names under which a ranking is handed in
TOOLS = ("search", "read", "select", "tools")
_GIVEN = {
    "toolbox": ("toolbox", "depth"),
    "maker": (*TOOLS, "model", "depth"),
    "function": (*QUERY, "objective", *TOOLS[:3], "depth"),
}
_FORMS = "a class over a toolbox, a dspy.Module, a LangGraph graph, a function of a query, or one that makes these"
_KINDS = {kind.__name__: kind for kind in (bool, int, float, str)}  # of parameters that -P may set


def adapt(made: Any, name: str) -> Any:
    """Return a constructor as programs have it, for what `name` refers to; UsageError where that is no program."""
    if isinstance(made, type) and issubclass(made, Program):
        return made
    form, asked = _form_of(made, name)
    own = [one for one in asked.values() if one.name not in _GIVEN.get(form, ()) and _is_setting(one)]
    typed = [one.replace(kind=one.KEYWORD_ONLY, annotation=_kind_of(one)) for one in own]
    base = inspect.signature(Own.__init__).parameters

    class Adapted(Own):
        __init__ = Own.__init__  # a dataclass would make another one
        __doc__ = inspect.getdoc(made) if callable(made) else None
        __signature__ = inspect.Signature([base["toolbox"], base["depth"], *typed])
        source, label, form, asks = (made,), names.label(name), form, tuple(asked)

    Adapted.__name__ = Adapted.__qualname__ = names.label(name).rpartition(":")[2]
    lm.watch_requests()
    return Adapted


def _form_of(made: Any, name: str) -> tuple[str, Mapping[str, inspect.Parameter]]:
    """Return what `made` is, and what it may be given."""
    if isinstance(made, dspy.Module):
        return "module", {}
    if is_graph(made):
        return "graph", {}
    asked = _parameters(made) if callable(made) else {}
    needed = {one.name for one in asked.values() if one.default is one.empty}
    if isinstance(made, type):
        form = "toolbox" if next(iter(asked), "") == "toolbox" else "maker" if issubclass(made, dspy.Module) else ""
    elif not callable(made):
        form = ""
    else:
        form = "function" if asked.keys() & {*QUERY} or needed - {*_GIVEN["maker"]} else "maker"
    if not form:
        raise UsageError(f"{name} is {_describe(made)}, and no program: it has to be {_FORMS}")
    unknown = [one for one in needed if one not in _GIVEN[form]]
    if form == "function" and len(unknown) == 1 and not asked.keys() & {*QUERY}:
        unknown = []  # it is the query
    if unknown:
        known = ", ".join(_GIVEN[form])
        raise UsageError(f"{name} asks for {sorted(unknown)[0]!r}; it is given {known}; give others a default")
    return form, asked


def _parameters(made: Any) -> dict[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(made).parameters.values()
    except (ValueError, TypeError):  # of something built in
        return {}
    return {one.name: one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}


def _is_setting(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.default, bool | int | float | str)


def _kind_of(parameter: inspect.Parameter) -> type:
    annotated = getattr(parameter.annotation, "__name__", parameter.annotation)  # text under `annotations`
    return _KINDS.get(str(annotated), type(parameter.default))


def is_graph(made: Any) -> bool:
    """Return whether this is a graph of LangGraph's, compiled or not."""
    return any(one.__module__.startswith("langgraph.") for one in type(made).__mro__)


class _There:
    """Something that is there already, and that `await` returns as well."""

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self

    __hash__ = object.__hash__  # asyncio.gather wants one


class Hits(_There, list[Snippet]):
    """What a search returned, best first."""


class Text(_There, str):
    """A text; a query's has `text`, `objective` and `query_id`."""

    query_id: str
    objective: str

    @property
    def text(self) -> str:
        """The text itself."""
        return str(self)


class Own(Program):
    """A user's own program. Subclasses say which."""

    offline: ClassVar[Mapping[str, Any]] = Guesses()
    source: ClassVar[tuple[Any, ...]] = ()  # what the user's name refers to: a function here would be a method
    label: ClassVar[str] = ""
    form: ClassVar[str] = ""
    asks: ClassVar[tuple[str, ...]] = ()

    def __init__(self, toolbox: Toolbox, *, depth: int = 1000, **parameters: Any) -> None:
        super().__init__(toolbox, depth=depth)
        try:
            self.inner = self._make(parameters)
        except SextantError:
            raise
        except Exception as error:  # a user's constructor may raise anything
            raise UsageError(f"{self.label} cannot be made: {names.describe(error)}") from error
        if isinstance(self.inner, dspy.Module) and self.form != "toolbox":
            self.inputs = _inputs_of(self.inner, self.label)

    def _make(self, parameters: dict[str, Any]) -> Any:
        [made] = self.source
        if self.form == "module":
            return made.deepcopy()
        if self.form == "function":
            return partial(made, **parameters)
        if self.form == "maker":
            made = self._call(made, parameters)
        elif self.form == "toolbox":
            given = {"toolbox": self.toolbox, "depth": self.depth}
            made = made(**{name: one for name, one in given.items() if name in self.asks}, **parameters)
        if is_graph(made):
            return _graphs().prepare(made, self.label)
        if not callable(made):
            raise UsageError(f"{self.label} returned {_describe(made)}; it has to return a module, graph or function")
        return made

    def _call(self, maker: Callable[..., Any], parameters: dict[str, Any]) -> Any:
        """Call what makes a program with the tools that it asks for: DSPy's for a module, LangChain's for a graph."""
        asked = {*self.asks} & {*_GIVEN["maker"]}
        ours: dict[str, Any] = {"depth": self.depth}

        def make(tools: Mapping[str, Any]) -> Any:
            given = {**ours, **tools, "tools": list(tools.values())}
            return maker(**{name: given[name] for name in asked}, **parameters)

        if isinstance(maker, type) or not asked - {"depth"}:
            return make(make_tools())
        ours["model"] = _graphs().Model()
        made = make(_graphs().make_tools())
        return make(make_tools()) if isinstance(made, dspy.Module) else made

    def forward(self, query: Query) -> Submission:
        """Search for one query."""
        with dspy.context(callbacks=[*dspy.settings.callbacks, lm.Watch(dspy.settings.lm)]):
            if self.form == "toolbox":
                found, desk, why = self.inner(query=query), Desk(session.current() or self.toolbox.open(query)), "done"
                for step in desk.session.trace.steps if not isinstance(found, Submission) else ():
                    desk.best_rank |= dict.fromkeys(step.doc_ids, 1) if step.tool == "search" else {}
            else:
                desk = Desk(self.toolbox.open(query), hops=0)
                with desk.at_work():
                    found, why = self._ask(query, desk)
        if isinstance(found, Submission):
            return found
        if found is None and self.form in ("graph", "maker"):  # a graph that names none
            return desk.session.submit(desk.rank_all()[: self.depth], why=why)
        return self._hand_in(query, desk, found, why)

    def _ask(self, query: Query, desk: Desk) -> tuple[Any, str]:
        """Return what the program returns, and why it ended."""
        if is_graph(self.inner):
            state, why = _graphs().run(self.inner, query)
            return next((state[name] for name in ANSWERS if state.get(name)), None), why
        if isinstance(self.inner, dspy.Module):
            texts = {name: query.objective if name == "objective" else query.text for name in self.inputs}
            found = self.inner(**texts) if hasattr(self.inner, "forward") else self.inner.acall(**texts)
        else:
            found = self._ask_function(query, desk)
        return asyncio.run(found) if inspect.iscoroutine(found) else found, "done"

    def _ask_function(self, query: Query, desk: Desk) -> Any:
        text = Text(query.text)
        text.query_id, text.objective = query.query_id, query.objective

        def search(text: str, k: int = 10) -> Hits:
            return Hits(desk.find(text, k))

        def read(doc_id: str) -> Text:
            return Text(desk.session.read(doc_id))

        def select(doc_ids: Iterable[str]) -> list[str]:
            return desk.keep(doc_ids)

        given = {"objective": query.objective, "search": search, "read": read, "select": select, "depth": self.depth}
        asked = _parameters(self.inner)
        named = {name: given.get(name, text) for name, one in asked.items() if one.default is one.empty}
        named |= {name: given.get(name, text) for name in asked if name in _GIVEN["function"]}
        return self.inner(**named)

    def _hand_in(self, query: Query, desk: Desk, found: Any, why: str) -> Submission:
        """End the session with the documents that the program returned, of those that it can have found."""
        try:
            named = list(dict.fromkeys(list_ids(found)))
        except TypeError as error:
            raise TypeError(f"{self.label} {error}{_place(self.source[0])}") from None
        there = desk.best_rank.keys() | ((query.candidates or frozenset()) - query.excluded)
        known, unknown = [one for one in named if one in there], [one for one in named if one not in there]
        if unknown:
            desk.session.count_invented(unknown)
            said = f"of {len(named)} ids that {self.label} returned, no search brought {len(unknown)}: {unknown[0]!r}"
            if not known:
                raise ValueError(f"{said}{_place(self.source[0])}")
            desk.session.note(f"{said}; left out")
        ranking = known[: self.depth]
        if not desk.selected:
            desk.session.select(ranking, among=desk.best_rank.keys())
        desk.session.rank(ranking)
        return desk.session.submit(ranking, why=why)


def list_ids(found: Any) -> list[str]:
    """Return the ids in what a program returned, in their order. TypeError, as the end of a sentence, for none."""
    if isinstance(found, dspy.Prediction):
        found = _pick(dict(found.items()))
    elif isinstance(found, Mapping):
        found = next((found[name] for name in ANSWERS if name in found), found)
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise TypeError(f"returned {_describe(found)}; a list of document ids is expected")
    ids = []
    for one in found:
        keyed = one if isinstance(one, Mapping) else {name: getattr(one, name, None) for name in ("doc_id", "id")}
        value = one if isinstance(one, str | int) else keyed.get("doc_id") or keyed.get("id")
        if value is None and isinstance(one, list | tuple) and len(one) == 2:  # with its score
            value = one[0]
        if not isinstance(value, str | int):
            raise TypeError(f"returned a list with {_describe(one)}; a list of document ids is expected")
        ids.append(str(value))
    return ids


def _pick(outputs: dict[str, Any]) -> Any:
    """Return the documents of a prediction: by the name of the field, or else the only list, or the only field."""
    outputs = {name: one for name, one in outputs.items() if name not in ("trajectory", "reasoning", "rationale")}
    lists = [one for one in outputs.values() if isinstance(one, list | tuple)]
    named = [outputs[name] for name in ANSWERS if name in outputs]
    found = next(iter(named or lists or outputs.values()), None)
    if not named and len(lists or outputs) != 1:
        raise TypeError(f"predicted {', '.join(outputs) or 'nothing'}; a field doc_ids is expected")
    if not isinstance(found, str):
        return found
    lines = re.split(r"\n" if "\n" in found.strip() else r"[,;\s]+", found.strip(" []\n"))  # a list in words
    return [one for line in lines if (one := re.sub(r"^(?:[-*\u2022]|\d+[.)])\s+", "", line.strip()).strip("\"'`, "))]


def _inputs_of(module: Any, label: str) -> list[str]:
    """Return the inputs of a module that are given to it: of the query's text, and `objective`."""
    asked = _parameters(getattr(module, "forward", None) or module.aforward)
    needed = [name for name, one in asked.items() if one.default is one.empty]
    if not asked:  # it takes what its signature has
        signed = [one.signature for one in (module, *module.predictors()) if hasattr(one, "signature")]
        needed = list(signed[0].input_fields) if signed else []
        asked = dict.fromkeys(needed)  # type: ignore[arg-type]
    given = [name for name in asked if name in (*QUERY, "objective")]
    rest = [name for name in needed if name not in given]
    if len(rest) == 1 and not {*QUERY} & {*given}:  # it is the query
        return [*given, *rest]
    if rest or not given:
        raise UsageError(
            f"{label} has the inputs {', '.join(asked) or 'none'}; it is given query, question or description, "
            "and objective; give others a default"
        )
    return given


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with keys {', '.join(map(str, value)) or 'none'}"
    return "None" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"


def _place(made: Any) -> str:
    code = getattr(inspect.unwrap(getattr(made, "forward", made)), "__code__", None)
    return f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""


def _graphs() -> Any:
    from programs import own_graph  # LangGraph takes a second to import

    return own_graph
