"""The engines behind `Session.search`: `build("fusion(bm25,dense)", corpus, home)`.

A retriever is named by an expression (tools/retrievers/spec.py). What may stand in one is read off the constructors of
the classes below: the annotation of a positional parameter says whether it is a model, an embedder, another retriever
or what makes one, and keyword parameters are the options, with their types and defaults. Nothing is declared twice.
"""

import inspect
import typing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.corpus import Corpus
from tools.errors import UsageError
from tools.retrievers.spec import Spec, Value, parse
from tools.table import pick

if TYPE_CHECKING:  # NumPy is behind it, and a command's --help lists the names below
    from tools.models.terms import Terms
    from tools.retriever import Retriever

# To add one: a file with a subclass of Retriever, named here.
RETRIEVERS = {
    "bm25": "tools.retrievers.lexical.bm25:BM25",
    "bm25s": "tools.retrievers.lexical.bm25:BM25S",
    "rank_bm25": "tools.retrievers.lexical.rank_bm25:RankBM25",
    "pool_bm25": "tools.retrievers.lexical.pool_bm25:PoolBM25",
    "dense": "tools.retrievers.neural.dense:Dense",
    "api": "tools.retrievers.neural.api:Api",
    "chroma": "tools.retrievers.vectors.chroma:Chroma",
    "splade": "tools.retrievers.neural.sparse:Sparse",
    "late": "tools.retrievers.neural.late_interaction:LateInteraction",
    "cross": "tools.retrievers.neural.cross:CrossEncoder",
    "fusion": "tools.retrievers.fusion:Fusion",
    "rerank": "tools.retrievers.rerank:Rerank",
    "lens": "tools.retrievers.lens.index:LensIndex",
}

# What fills vectors, for the kinds that only store them. To add one: a class that satisfies Embedder, named here.
EMBEDDERS = {
    "dense": "tools.retrievers.neural.dense:SentenceEmbedder",
    "api": "tools.retrievers.neural.api:ApiEmbedder",
}

# What a constructor takes that no expression says: the corpus, where indexes are kept, how models may be asked.
_GIVEN = ("corpus", "home", "terms")


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of one of the tables, and what an expression says to its constructor."""

    made: Any
    positional: tuple[inspect.Parameter, ...]
    options: dict[str, inspect.Parameter]

    @property
    def subject(self) -> str:
        """The type of its first positional parameter: "str" for a model, "Embedder", "Builder" or "Retriever"."""
        return self.positional[0].annotation.__name__ if self.positional else ""

    @property
    def model(self) -> str:
        """The model that it has where none is named; "" where it needs a name, or has no model."""
        named = self.subject == "str" and self.positional[0].default is not inspect.Parameter.empty
        return str(self.positional[0].default) if named else ""

    @property
    def many(self) -> bool:
        """Whether it is made of any number of retrievers."""
        return any(parameter.kind is parameter.VAR_POSITIONAL for parameter in self.positional)


@cache
def kind_of(name: str, *, embedder: bool = False) -> Kind:
    """Look up a retriever, or an embedder, and read its constructor; UnknownName, with the nearest names."""
    made = pick("embedder", name, EMBEDDERS) if embedder else pick("retriever", name, RETRIEVERS)
    hints, parameters = typing.get_type_hints(made.__init__), inspect.signature(made).parameters
    typed = [parameter.replace(annotation=hints[key]) for key, parameter in parameters.items() if key not in _GIVEN]
    return Kind(
        made,
        tuple(parameter for parameter in typed if parameter.kind is not parameter.KEYWORD_ONLY),
        {parameter.name: parameter for parameter in typed if parameter.kind is parameter.KEYWORD_ONLY},
    )


def check(text: str) -> Spec:
    """Parse the expression `text`, type its options and leave out defaults: equal for equal retrievers.

    UsageError, or UnknownName with the nearest names, for what no constructor takes. Nothing is loaded or built.
    """
    return _check(parse(text))


def build(
    spec: str | Spec,
    corpus: Corpus,
    home: Path | None = None,
    *,
    terms: "Terms | None" = None,
) -> "Retriever":
    """Build the retriever that `spec` describes over `corpus`. Indexes are kept under `home`, or not kept when None.

    Models are asked on the `terms` of a run; a lens needs them.
    """
    if isinstance(spec, str):
        spec = check(spec)
    require(spec)
    if terms is None and (found := lenses(spec)):
        raise UsageError(
            f"{found[0]} needs a model that annotates, which evals.run connects; take another retriever here"
        )
    retriever: Retriever = _make(spec, corpus, home, terms)
    return retriever


def classes(spec: Spec) -> Iterator[tuple[Spec, Any]]:
    """Yield the classes that `spec` is built of, each with its own expression: the outer ones first, embedders too."""
    kind = kind_of(spec.kind)
    yield spec, kind.made
    if kind.subject == "Embedder":
        yield (inner := _embedder_of(spec)), kind_of(inner.kind, embedder=True).made
    else:
        for part in spec.parts:
            yield from classes(part)


def lenses(spec: Spec) -> list[Spec]:
    """Return every lens in `spec`, the outer ones first."""
    return [one for one, made in classes(spec) if made.needs_lens]


def apis(spec: Spec) -> list[Spec]:
    """Return the parts of `spec` that send texts to an API, such as `api:MODEL`, embedders of stores included."""
    return [one for one, made in classes(spec) if made.sends]


def words_only(spec: Spec) -> bool:
    """Tell whether `spec` sends nothing and loads no weights."""
    return not any(made.sends or made.loads_weights or made.needs_lens for _, made in classes(spec))


def references(spec: Spec) -> set[str]:
    """Return where the classes are that `spec` is built of: "module:class"."""
    return {f"{made.__module__}:{made.__name__}" for _, made in classes(spec)}


def with_attribute(spec: Spec, attribute: str) -> Spec:
    """Give `attribute` to every lens in `spec` that names none. UsageError when that is empty, too."""
    options = dict(spec.options)
    if kind_of(spec.kind).made.needs_lens and not options.get("attribute"):
        if not attribute:
            raise UsageError(
                f"{spec} needs attribute=..., because the task has no lens of its own; docs/decisions/lens-retriever.md"
            )
        options = {"attribute": attribute, **options}
    return replace(spec, parts=tuple(with_attribute(part, attribute) for part in spec.parts), options=options)


def require(spec: Spec) -> None:
    """Refuse what could not be built, as its class does, before any part of it is: UsageError, DataError, ..."""
    kind = kind_of(spec.kind)
    if kind.subject == "Embedder":
        _make_embedder(spec)
    else:
        for part in spec.parts:
            require(part)
    given = {name: spec.options.get(name, parameter.default) for name, parameter in kind.options.items()}
    kind.made.require(spec.subject or kind.model, len(spec.parts), given)


def needs_pool(spec: Spec) -> bool:
    """Tell whether the retriever is only for tasks that rank candidate pools."""
    made: type[Retriever] = kind_of(spec.kind).made
    return made.pool_needed([needs_pool(part) for part in spec.parts])


def _check(spec: Spec, *, embedder: bool = False) -> Spec:
    kind, subject, parts = kind_of(spec.kind, embedder=embedder), spec.subject, spec.parts
    match kind.subject:
        case "str":
            if parts:
                raise UsageError(f"{spec.kind} takes a model, as in {spec.kind}:MODEL, and no other retriever")
            if not subject and not kind.model:
                raise UsageError(f"{spec.kind} needs a model: {spec.kind}:MODEL, by name or by folder")
            subject = "" if subject == kind.model else subject
        case "Embedder":
            if bool(subject) + len(parts) != 1:
                raise UsageError(f"{spec.kind} stores the vectors of one of {', '.join(EMBEDDERS)}: {spec.kind}:dense")
            part = _embedder_of(spec)
            subject, parts = ("", (part,)) if part.options else (str(part), ())
        case _:
            if subject:
                raise UsageError(f"{spec.kind} takes no model; write {spec.kind} without {subject!r}")
            parts = tuple(map(_check, parts))
            _check_number(spec, kind)
    for name in spec.options:
        if name not in kind.options:
            known = f"it has {', '.join(kind.options)}" if kind.options else "it has none"
            raise UsageError(f"{spec.kind} has no option {name!r}; {known}")
    typed = {
        name: _read_value(f"{spec.kind}: {name}", spec.options[name], parameter.annotation)
        for name, parameter in kind.options.items()
        if name in spec.options
    }
    kept = {name: value for name, value in typed.items() if value != kind.options[name].default}
    return Spec(spec.kind, subject, parts, kept)


def _check_number(spec: Spec, kind: Kind) -> None:
    """UsageError when `spec` is made of too few or too many retrievers."""
    found, needed = len(spec.parts), len(kind.positional)
    if not needed and found:
        raise UsageError(f"{spec.kind} is not made of other retrievers; {spec.parts[0]} does not belong in it")
    if found < 2 if kind.many else found != needed:
        number = "two or more retrievers" if kind.many else f"{needed} retrievers"
        number, example = ("one retriever", "bm25") if needed == 1 and not kind.many else (number, "bm25,dense")
        raise UsageError(f"{spec.kind} is made of {number}, as in {spec.kind}({example}); {spec} has {found}")


def _read_value(what: str, value: Value, kind: Any) -> Value:
    """Read the text `value` as the type of an option: str, int, float, bool, a choice, or a tuple of numbers."""
    if typing.get_origin(kind) is typing.Literal:
        if value not in (choices := typing.get_args(kind)):
            raise UsageError(f"{what} is {value!r}; it is one of {', '.join(choices)}")
        return value
    if typing.get_origin(kind) is tuple:
        values = value if isinstance(value, tuple) else (value,)
        return tuple(_read_value(what, one, typing.get_args(kind)[0]) for one in values)
    if isinstance(value, tuple):
        raise UsageError(f"{what} is one value, not a list")
    if kind is bool:
        if str(value).lower() not in ("true", "false"):
            raise UsageError(f"{what} is {value!r}; it is true or false")
        return str(value).lower() == "true"
    try:
        read: Value = kind(value)
    except ValueError:
        number = {int: "a whole number", float: "a number"}[kind]
        raise UsageError(f"{what} is {value!r}, which is not {number}") from None
    if isinstance(read, float) and not isfinite(read):
        raise UsageError(f"{what} is {value!r}, which is not a finite number")
    return read


def _make(spec: Spec, corpus: Corpus, home: Path | None, terms: "Terms | None") -> Any:
    kind, arguments = kind_of(spec.kind), list[Any]()
    match kind.subject:
        case "str":
            arguments = [spec.subject] if spec.subject else []
        case "Embedder":
            arguments = [_make_embedder(spec, home, terms)]
        case "Builder":
            arguments = [lambda corpus: _make(spec.parts[0], corpus, home, terms)]
        case _:
            arguments = [_make(part, corpus, home, terms) for part in spec.parts]
    return kind.made(corpus, home, *arguments, **_select(kind.made, terms=terms), **spec.options)


def _make_embedder(spec: Spec, home: Path | None = None, terms: "Terms | None" = None) -> Any:
    """Make the embedder of a retriever that stores vectors. It loads nothing until it is given a text."""
    inner = _embedder_of(spec)
    made = kind_of(inner.kind, embedder=True).made
    model = [inner.subject] if inner.subject else []
    return made(*model, **inner.options, **_select(made, home=home, terms=terms))


def _embedder_of(spec: Spec) -> Spec:
    """Return the expression of the embedder that fills the vectors of `spec`."""
    return _check(spec.parts[0] if spec.parts else parse(spec.subject), embedder=True)


def _select(made: Any, **given: Any) -> dict[str, Any]:
    """Return those of `given` that a constructor takes."""
    parameters = inspect.signature(made).parameters
    return {name: value for name, value in given.items() if name in parameters}
