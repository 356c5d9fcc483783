"""The engines behind `Session.search`: `build("fusion(bm25,dense)", corpus, home)`.

A retriever is named by an expression (tools/retrievers/spec.py). What may stand in one is read off the constructors of
the classes below: the annotation of a positional parameter says whether it is a model, an embedder, another retriever
or what makes one, and keyword parameters are the options, with their types and defaults. Nothing is declared twice.
"""

import inspect
import typing
from collections.abc import Iterator, Mapping
from dataclasses import replace
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


def check(text: str) -> Spec:
    """Parse the expression `text`, type its options and leave out defaults: equal for equal retrievers.

    UsageError, or UnknownName with the nearest names, for what no constructor takes. Nothing is loaded or built.
    """
    return _checked(parse(text), RETRIEVERS, "retriever")


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
    retriever: Retriever = _made(spec, corpus, home, terms)
    return retriever


def classes(spec: Spec) -> Iterator[tuple[Spec, Any]]:
    """The classes that `spec` is built of, each with its own expression: the outer ones first, embedders too."""
    yield spec, pick("retriever", spec.kind, RETRIEVERS)
    if _embeds(spec.kind):
        yield (inner := _filler(spec)), pick("embedder", inner.kind, EMBEDDERS)
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


def with_attribute(spec: Spec, attribute: str) -> Spec:
    """Give `attribute` to every lens in `spec` that names none. UsageError when that is empty, too."""
    options = dict(spec.options)
    if pick("retriever", spec.kind, RETRIEVERS).needs_lens and not options.get("attribute"):
        if not attribute:
            raise UsageError(
                f"{spec} needs attribute=..., because the task has no lens of its own; docs/decisions/lens-retriever.md"
            )
        options = {"attribute": attribute, **options}
    return replace(spec, parts=tuple(with_attribute(part, attribute) for part in spec.parts), options=options)


def require(spec: Spec) -> None:
    """Refuse what could not be built, as its class does, before any part of it is: UsageError, DataError, ..."""
    positional, options = takes(spec.kind)
    if _embeds(spec.kind):
        _embedder(spec)
    else:
        for part in spec.parts:
            require(part)
    [model] = [parameter.default for parameter in positional.values() if parameter.annotation is str] or [""]
    given = {name: spec.options.get(name, parameter.default) for name, parameter in options.items()}
    pick("retriever", spec.kind, RETRIEVERS).require(spec.subject or model, len(spec.parts), given)


def needs_pool(spec: Spec) -> bool:
    """Tell whether the retriever is only for tasks that rank candidate pools."""
    retriever: type[Retriever] = pick("retriever", spec.kind, RETRIEVERS)
    return retriever.pool_needed([needs_pool(part) for part in spec.parts])


def references(spec: Spec) -> set[str]:
    """Where the classes are that `spec` is built of: "module:class"."""
    return {f"{made.__module__}:{made.__name__}" for _, made in classes(spec)}


def takes(kind: str, table: Mapping[str, str] = RETRIEVERS) -> tuple[dict[str, Any], dict[str, inspect.Parameter]]:
    """Return the positional parameters and the options of the constructor of `kind`, with their types."""
    made = pick("retriever", kind, table)
    hints = typing.get_type_hints(made.__init__)
    positional, options = dict[str, Any](), dict[str, inspect.Parameter]()
    for name, parameter in inspect.signature(made).parameters.items():
        typed = parameter.replace(annotation=hints[name])
        if name in _GIVEN:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            options[name] = typed
        else:
            positional[name] = typed
    return positional, options


def _checked(spec: Spec, table: Mapping[str, str], what: str) -> Spec:
    pick(what, spec.kind, table)  # UnknownName
    positional, options = takes(spec.kind, table)
    subject, parts = spec.subject, spec.parts
    wanted = [parameter.annotation.__name__ for parameter in positional.values()]
    match wanted:
        case ["str"]:
            [model] = positional.values()
            if parts:
                raise UsageError(f"{spec.kind} takes a model, as in {spec.kind}:MODEL, and no other retriever")
            if not subject and model.default is inspect.Parameter.empty:
                raise UsageError(f"{spec.kind} needs a model: {spec.kind}:MODEL, by name or by folder")
            subject = "" if subject == model.default else subject
        case ["Embedder"]:
            if bool(subject) + len(parts) != 1:
                raise UsageError(f"{spec.kind} stores the vectors of one of {', '.join(EMBEDDERS)}: {spec.kind}:dense")
            part = _checked(parts[0] if parts else parse(subject), EMBEDDERS, "embedder")
            plain = not part.options
            subject, parts = (str(part), ()) if plain else ("", (part,))
        case _:
            if subject:
                raise UsageError(f"{spec.kind} takes no model; write {spec.kind} without {subject!r}")
            parts = tuple(_checked(part, table, what) for part in parts)
            many = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in positional.values())
            if not wanted and parts:
                raise UsageError(f"{spec.kind} is not made of other retrievers; {parts[0]} does not belong in it")
            if len(parts) < 2 if many else len(parts) != len(wanted):
                number = "two or more retrievers" if many else f"{len(wanted)} retrievers"
                number, example = ("one retriever", "bm25") if len(wanted) == 1 and not many else (number, "bm25,dense")
                raise UsageError(
                    f"{spec.kind} is made of {number}, as in {spec.kind}({example}); {spec} has {len(parts)}"
                )
    typed = dict[str, Value]()
    for name, value in spec.options.items():
        if name not in options:
            known = f"it has {', '.join(options)}" if options else "it has none"
            raise UsageError(f"{spec.kind} has no option {name!r}; {known}")
        typed[name] = _typed(f"{spec.kind}: {name}", value, options[name].annotation)
    kept = {name: typed[name] for name in options if name in typed and typed[name] != options[name].default}
    return Spec(spec.kind, subject, parts, kept)


def _typed(what: str, value: Value, wanted: Any) -> Value:
    """The text `value` as the type of an option: str, int, float, bool, a choice, or a tuple of numbers."""
    if typing.get_origin(wanted) is typing.Literal:
        choices = typing.get_args(wanted)
        if value not in choices:
            raise UsageError(f"{what} is {value!r}; it is one of {', '.join(choices)}")
        return value
    if typing.get_origin(wanted) is tuple:
        values = value if isinstance(value, tuple) else (value,)
        return tuple(_typed(what, one, typing.get_args(wanted)[0]) for one in values)
    if isinstance(value, tuple):
        raise UsageError(f"{what} is one value, not a list")
    if wanted is bool:
        if str(value).lower() not in ("true", "false"):
            raise UsageError(f"{what} is {value!r}; it is true or false")
        return str(value).lower() == "true"
    try:
        number: Value = wanted(value)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}[wanted]
        raise UsageError(f"{what} is {value!r}, which is not {kind}") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise UsageError(f"{what} is {value!r}, which is not a finite number")
    return number


def _made(spec: Spec, corpus: Corpus, home: Path | None, terms: "Terms | None") -> Any:
    positional, _ = takes(spec.kind)
    arguments: list[Any]
    match [parameter.annotation.__name__ for parameter in positional.values()]:
        case ["str"]:
            arguments = [spec.subject] if spec.subject else []
        case ["Embedder"]:
            arguments = [_embedder(spec, home, terms)]
        case ["Builder"]:
            arguments = [lambda corpus: _made(spec.parts[0], corpus, home, terms)]
        case _:
            arguments = [_made(part, corpus, home, terms) for part in spec.parts]
    made = pick("retriever", spec.kind, RETRIEVERS)
    return made(corpus, home, *arguments, **_taken(made, terms=terms), **spec.options)


def _embedder(spec: Spec, home: Path | None = None, terms: "Terms | None" = None) -> Any:
    """Make the embedder of a retriever that stores vectors. It loads nothing until it is given a text."""
    inner = _filler(spec)
    embedder = pick("embedder", inner.kind, EMBEDDERS)
    model = [inner.subject] if inner.subject else []
    return embedder(*model, **inner.options, **_taken(embedder, home=home, terms=terms))


def _embeds(kind: str) -> bool:
    """Tell whether the retriever stores the vectors of an embedder."""
    positional, _ = takes(kind)
    return any(parameter.annotation.__name__ == "Embedder" for parameter in positional.values())


def _filler(spec: Spec) -> Spec:
    """The expression of the embedder that fills the vectors of `spec`."""
    return spec.parts[0] if spec.parts else _checked(parse(spec.subject), EMBEDDERS, "embedder")


def _taken(made: Any, **given: Any) -> dict[str, Any]:
    """Return those of `given` that a constructor takes."""
    taken = inspect.signature(made).parameters
    return {name: value for name, value in given.items() if name in taken}
