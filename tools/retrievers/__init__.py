"""The engines behind `Session.search`: `build("fusion(bm25,dense)", corpus, home)`, and the
language of `--retriever`:

    bm25                                                  a kind
    bm25(k1=1.2,b=0.75)                                   with options
    dense:Qwen/Qwen3-Embedding-4B                         with a model, by name or by folder
    fusion(bm25,dense,weights=[1,2])                      made of other retrievers
    rerank(fusion(bm25,dense),cross:PATH,depth=50)
    http(http://host:port/v1/INDEX,dialect=anserini)      an address, with or without quotes
    splade:"a folder, with a comma"                       quotes around what has commas or brackets in it
    my.py:Overlap(prefix=5)                               a class in a file of one's own, or package.module:Overlap

What a kind takes is read off its constructor: a positional parameter is, by its annotation, a
model, an embedder, another retriever or what makes one; keyword parameters are the options, with
their types and defaults.
"""

import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tools import plugins
from tools.errors import DataError, NotApplicable, OwnCodeFailed, SextantError, UsageError
from tools.installation import find_page

if TYPE_CHECKING:  # NumPy is behind it, and a command's --help lists the names below
    from tools.corpus import Corpus
    from tools.models.run_resources import RunResources
    from tools.retriever import Retriever

T = TypeVar("T")
Value = str | int | float | bool | tuple["Value", ...]

# To add one of ours: a file with a subclass of Retriever, named here.
RETRIEVERS = {
    "bm25": "tools.retrievers.lexical.bm25:BM25",
    "bm25s": "tools.retrievers.lexical.bm25:BM25S",
    "rank_bm25": "tools.retrievers.lexical.rank_bm25:RankBM25",
    "pool_bm25": "tools.retrievers.lexical.rank_bm25:PoolBM25",
    "dense": "tools.retrievers.neural.dense:Dense",
    "api": "tools.retrievers.neural.api_embeddings:ApiRetriever",
    "http": "tools.retrievers.http:HttpRetriever",
    "chroma": "tools.retrievers.vectors.chroma:Chroma",
    "ann": "tools.retrievers.vectors.ann:Ann",
    "milvus": "tools.retrievers.milvus:Milvus",
    "milvus_vectors": "tools.retrievers.milvus:MilvusVectors",
    "splade": "tools.retrievers.neural.learned_sparse:LearnedSparse",
    "late": "tools.retrievers.neural.late_interaction:LateInteraction",
    "cross": "tools.retrievers.neural.cross_encoder:CrossEncoder",
    "fusion": "tools.retrievers.fusion:Fusion",
    "rerank": "tools.retrievers.fusion:Rerank",
    "lens": "tools.retrievers.lens.lens_index:LensIndex",
    "sharded": "tools.retrievers.sharded:Sharded",
}

# What fills vectors, for the kinds that only store them. To add one: a class that satisfies
# Embedder, named here.
EMBEDDERS = {
    "dense": "tools.retrievers.neural.dense:SentenceEmbedder",
    "api": "tools.retrievers.neural.api_embeddings:ApiEmbedder",
}

FILLS = ContextVar(
    "fills", default=False
)  # whether an index on a service is filled where it is not whole
PUSH = "`python -m tools.retrievers push RETRIEVER --task TASK` fills it"

_GIVEN = ("corpus", "home", "terms")  # parameters of constructors that no expression has
_NAME = r"[A-Za-z_]\w*"
# In a file, or a module; others are quoted
_OWN = rf'[^\s(),\[\]=":]*\.py:{_NAME}|{_NAME}(?:\.{_NAME})+:{_NAME}'
_FILES = dict[str, str]()  # FILE.py:NAME without the file's folder, as in outputs -> with it


class Expression(str):
    """The text of one retriever, as the type of a parameter that names one; "" where there is none."""


class Expressions(str):
    """The texts of several retrievers with commas between, as the type of a parameter; "" where there are none."""

    def each(self) -> list[str]:
        """Return the texts, one by one."""
        return [str(part) for part in parse(f"all({self})").parts] if self.strip() else []


class RetrieverSpec(NamedTuple):
    """One parsed expression. It prints as it is written, without blanks."""

    kind: str
    subject: str = ""  # what follows the colon: a model, or the spec of what fills vectors
    parts: tuple["RetrieverSpec", ...] = ()
    options: Mapping[str, Value] = {}  # after parsing alone, all values are strings

    def __str__(self) -> str:
        return format_expression(
            self.kind, self.subject, [str(part) for part in self.parts], self.options
        )


def check_same_corpus(where: str, found: tuple[str, str, int], whole: tuple[str, str, int]) -> None:
    """Raise DataError unless a service's version, and an index's corpus and number of
    documents, are as expected.
    """
    if found != whole:
        said = ("version {}, corpus {}, {:,} documents".format(*one) for one in (found, whole))
        raise DataError("{} has {}, and not {}; {}".format(where, *said, PUSH))


def format_expression(
    kind: str,
    subject: str = "",
    parts: Sequence[str] = (),
    options: Mapping[str, Value] | None = None,
) -> str:
    """Write an expression as `parse` reads it."""
    inside = [*parts, *(f"{name}={_write(value)}" for name, value in (options or {}).items())]
    written = kind if re.fullmatch(rf"{_OWN}|{_NAME}", kind) else f'"{kind}"'
    return (
        written
        + (f":{_write(subject)}" if subject else "")
        + (f"({','.join(inside)})" if inside else "")
    )


def _write(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(_write, value))}]"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f'"{text}"' if re.search(r"[(),\[\]=]|^\s|\s$", text) or not text else text


def parse(text: str) -> RetrieverSpec:
    """Read the expression `text`; UsageError, with the place, when it has no such form."""
    reader = _ExpressionParser(text)
    spec = reader.spec()
    if reader.rest():
        raise reader.error("the end")
    return spec


class _ExpressionParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rest(self) -> str:
        return self._text[self._at :].strip()

    def error(self, expected: str) -> UsageError:
        found = f"{self.rest()!r}" if self.rest() else "nothing"
        form = "KIND, KIND:MODEL, FILE.py:CLASS or KIND(PART,...,option=value)"
        return UsageError(
            f"the retriever {self._text!r} has {found} where {expected} is expected; the form is "
            f"{form}"
        )

    def spec(self) -> RetrieverSpec:
        kind = self._take(_OWN) or self._take(_NAME) or (self._take(r'"[^"]+"') or "").strip('"')
        if not kind:
            raise self.error("the name of a retriever")
        subject = self._word(r"[^\s(),](?:[^(),]*[^\s(),])?", "a model") if self._take(":") else ""
        parts = list[RetrieverSpec]()
        options = dict[str, Value]()
        for name, value in (
            self._list(r"\)", "a closing bracket", self._argument) if self._take(r"\(") else ()
        ):
            if isinstance(value, RetrieverSpec):
                parts.append(value)
            elif name in options:
                raise UsageError(f"the retriever {self._text!r} gives {name} twice")
            else:
                options[name] = value
        return RetrieverSpec(kind, subject, tuple(parts), options)

    def _argument(self) -> tuple[str, RetrieverSpec | Value]:
        if option := self._take(r"\w+\s*=(?!=)"):
            return option.rstrip("= \t\n"), self._value()
        return "", self.spec()

    def _value(self) -> Value:
        if self._take(r"\["):
            return tuple(self._list(r"\]", "]", self._value))
        return self._word(r"[^\s(),\[\]](?:[^(),\[\]]*[^\s(),\[\]])?", "a value")

    def _list(self, end: str, end_name: str, item: Callable[[], T]) -> list[T]:
        items = list[T]()
        self._depth += 1
        if self._depth > 50:  # Python's own limit is a thousand calls
            raise UsageError(f"the retriever {self._text[:100]!r}... is nested more than 50 deep")
        while not self._take(end):
            if items and not self._take(","):
                raise self.error(f"a comma or {end_name}")
            items.append(item())
        self._depth -= 1
        return items

    def _word(self, plain: str, what: str) -> str:
        quoted = self._take(r'"[^"]*"')
        word = quoted[1:-1] if quoted is not None else self._take(plain)
        if not word:
            raise self.error(what)
        return word

    def _take(self, pattern: str) -> str | None:
        match = re.compile(rf"\s*({pattern})\s*").match(self._text, self._at)
        if not match:
            return None
        self._at = match.end()
        return match[1]


class RetrieverType(NamedTuple):
    """A class of one of the tables, and what an expression says to its constructor."""

    made: Any
    positional: tuple[inspect.Parameter, ...]
    options: dict[str, inspect.Parameter]
    # The type of its first positional parameter: "str" for a model, "Embedder", "Callable" or
    # "Retriever"
    subject: str
    model: str  # the one that it has where none is named; "" where it needs a name, or has no model
    many: bool  # whether it is made of any number of retrievers


def lookup(name: str, *, embedder: bool = False) -> RetrieverType:
    """Look up a retriever, or an embedder, and read its constructor; UnknownName, with the
    nearest names.
    """
    if embedder:
        return _read(name, plugins.load_object("embedder", name, EMBEDDERS), own=False)
    made = plugins.load_object("retriever", _FILES.get(name, name), RETRIEVERS, plugins.RETRIEVERS)
    return _read(name, made, own=name not in RETRIEVERS)


@cache
def _read(name: str, made: Any, own: bool) -> RetrieverType:
    if own and (
        not (isinstance(made, type) and hasattr(made, "_search_many")) or inspect.isabstract(made)
    ):
        needs = (
            "a subclass of tools.retriever.Retriever with a method _search_many(self, searches, k)"
        )
        example = find_page("docs/guide/retriever.md")
        raise UsageError(f"{name} is no retriever; write {needs}, as in {example}")
    try:
        hints = typing.get_type_hints(made.__init__)
        parameters = inspect.signature(made).parameters
    except NameError as error:  # what a module imports for type checkers alone
        raise UsageError(
            f"{name}: {error}, which a type in its constructor names; import it"
        ) from None
    asked = [parameter for key, parameter in parameters.items() if key not in _GIVEN]
    typed = [one.replace(annotation=hints.get(one.name, type(one.default))) for one in asked]
    options = {
        one.name: one for one in typed if one.kind is one.KEYWORD_ONLY or _is_plain(one.annotation)
    }
    positional = tuple(one for one in typed if one.name not in options)
    subject = positional[0].annotation.__name__ if positional else ""
    simple = all(
        option.default is not option.empty and _is_plain(option.annotation, str)
        for option in options.values()
    )
    if own and not (
        simple
        and "corpus" in parameters
        and subject in ("", "str", "Embedder", "Callable", "Retriever")
    ):
        what = (
            "`corpus`, `home` if it keeps an index, and options by keyword, with a default and a "
            "type"
        )
        types = "str, int, float, bool, Literal, or a tuple of one of these"
        raise UsageError(f"{name}: its constructor takes {what}: {types}")
    default = positional[0].default if subject == "str" else ""
    many = any(one.kind is one.VAR_POSITIONAL for one in positional)
    return RetrieverType(
        made,
        positional,
        options,
        subject,
        "" if default is inspect.Parameter.empty else default,
        many,
    )


def _is_plain(kind: Any, *others: type) -> bool:
    return kind in (int, float, bool, *others) or typing.get_origin(kind) in (typing.Literal, tuple)


def canonicalize(text: str) -> RetrieverSpec:
    """Parse `text`, type its options and leave out defaults: equal for equal retrievers. Nothing is
    loaded or built.

    UsageError, or UnknownName with the nearest names, for what no constructor takes.
    """
    return _check(parse(text))


def build(
    spec: str | RetrieverSpec,
    corpus: "Corpus",
    home: Path | None = None,
    *,
    terms: "RunResources | None" = None,
) -> "Retriever":
    """Build the retriever that `spec` describes over `corpus`. Indexes are kept under `home`, or
    not kept when None.

    A lens needs the `terms` on which a run asks models.
    """
    spec = canonicalize(spec) if isinstance(spec, str) else spec
    validate(spec)
    if terms is None and (needy := find_lenses(spec)):
        needs = "a model that annotates, which evals.run connects"
        raise UsageError(f"{needy[0]} needs {needs}; take another retriever here")
    return typing.cast("Retriever", _make(spec, corpus, home, terms))


def refuse_user_code(text: str, where: object) -> None:
    """Raise UsageError where `text`, which is from a file, names Python code in some folder:
    that is for you to do.
    """
    if found := re.search(r"[^\s(,]*/[^/]*\.py:\w+", text):
        raise UsageError(
            f"{where} would have {found[0]} run, which only you can allow: read it, and give "
            f"--retriever"
        )


def iter_classes(spec: RetrieverSpec) -> Iterator[tuple[RetrieverSpec, Any]]:
    """Yield the classes that `spec` is built of, each with its own expression: the outer ones
    first, embedders too.
    """
    kind = lookup(spec.kind)
    yield spec, kind.made
    if kind.subject == "Embedder":
        yield (inner := _embedder_of(spec)), lookup(inner.kind, embedder=True).made
    else:
        for part in spec.parts:
            yield from iter_classes(part)


def find_lenses(spec: RetrieverSpec) -> list[RetrieverSpec]:
    """Return every lens in `spec`, the outer ones first."""
    return [one for one, made in iter_classes(spec) if made.needs_lens]


def models(spec: RetrieverSpec) -> list[str]:
    """Return the language models that the lenses in `spec` ask."""
    return [
        str(lens.options["model"])
        for lens in find_lenses(spec)
        if lens.options.get("model", "offline") != "offline"
    ]


def find_api_parts(spec: RetrieverSpec) -> list[RetrieverSpec]:
    """Return the parts of `spec` that send texts to an API, such as `api:MODEL`, embedders of
    stores included.
    """
    return [one for one, made in iter_classes(spec) if made.sends]


def sources(spec: RetrieverSpec) -> set[str]:
    """Return what `spec` is answered by outside of this process, as errors name it:
    `ProviderRefused.source`.
    """
    parts = {
        f"{one.kind}:{one.subject}"
        for one, made in iter_classes(spec)
        if made.sends or one.kind == "http"
    }
    return parts | set(models(spec))


def with_lens_attribute(spec: RetrieverSpec, attribute: str) -> RetrieverSpec:
    """Give `attribute` to every lens in `spec` that names none.

    NotApplicable when that is empty, too.
    """
    options = dict(spec.options)
    if lookup(spec.kind).made.needs_lens and not options.get("attribute"):
        if not attribute:
            why = (
                f"because the task has no lens of its own; "
                f"{find_page('docs/decisions/lens-retriever.md')}"
            )
            raise NotApplicable(f"{spec} needs attribute=..., {why}")
        options = {"attribute": attribute, **options}
    return spec._replace(
        parts=tuple(with_lens_attribute(part, attribute) for part in spec.parts), options=options
    )


def validate(spec: RetrieverSpec) -> None:
    """Refuse, as its class does, what could not be built, before any part of it is."""
    kind = lookup(spec.kind)
    if kind.subject == "Embedder":
        _make_embedder(spec)
    else:
        for part in spec.parts:
            validate(part)
    given = {
        name: spec.options.get(name, parameter.default) for name, parameter in kind.options.items()
    }
    kind.made.require(spec.subject or kind.model, len(spec.parts), given)


def needs_pool(spec: RetrieverSpec) -> bool:
    """Tell whether the retriever is only for tasks that rank candidate pools."""
    made = lookup(spec.kind).made
    return made.needs_pool or any(
        map(needs_pool, spec.parts[:1] if made.gives_pool else spec.parts)
    )


def _place(
    kind: str,
) -> str:  # as in outputs: a file without its folder, which is remembered; of each name one
    source, _, name = kind.rpartition(":")
    if kind in _FILES or not source.endswith(".py"):
        return kind
    reference = f"{plugins.resolve_file(source)}:{name}"
    label = plugins.display_name(kind)
    if _FILES.setdefault(label, reference) != reference:
        raise UsageError(
            f"{kind} and {_FILES[label]} would have the same name in outputs; rename one of the "
            f"files"
        )
    return label


def _check(spec: RetrieverSpec, *, embedder: bool = False) -> RetrieverSpec:
    spec = spec._replace(kind=_place(spec.kind))
    kind = lookup(spec.kind, embedder=embedder)
    subject = spec.subject
    parts = spec.parts
    match kind.subject:
        case "str":
            if (
                not subject and len(parts) == 1 and "//" in parts[0].kind + parts[0].subject
            ):  # an address
                subject = f"{parts[0].kind}:{parts[0].subject}".rstrip(":")
                parts = ()
            if parts:
                raise UsageError(
                    f"{spec.kind} takes a model, as in {spec.kind}:MODEL, and no other retriever"
                )
            if not subject and not kind.model:
                raise UsageError(
                    f"{spec.kind} needs a model: {spec.kind}:MODEL, by name or by folder"
                )
            subject = "" if subject == kind.model else subject
        case "Embedder":
            if bool(subject) + len(parts) != 1:
                raise UsageError(
                    f"{spec.kind} stores the vectors of one of {', '.join(EMBEDDERS)}: "
                    f"{spec.kind}:dense"
                )
            part = _embedder_of(spec)
            subject, parts = ("", (part,)) if part.options else (str(part), ())
        case _:
            if subject:
                raise UsageError(
                    f"{spec.kind} takes no model; write {spec.kind} without {subject!r}"
                )
            parts = tuple(map(_check, parts))
            _check_number(spec, kind)
    for name in spec.options:
        if name not in kind.options:
            known = f"it has {', '.join(kind.options)}" if kind.options else "it has none"
            raise UsageError(f"{spec.kind} has no option {name!r}; {known}")
    options = dict[str, Value]()
    for name, parameter in kind.options.items():
        if name in spec.options:
            value = _read_value(f"{spec.kind}: {name}", spec.options[name], parameter.annotation)
            options |= {name: value} if value != parameter.default else {}
    return RetrieverSpec(spec.kind, subject, parts, options)


def _check_number(spec: RetrieverSpec, kind: RetrieverType) -> None:
    found = len(spec.parts)
    needed = len(kind.positional)
    if not needed and found:
        raise UsageError(
            f"{spec.kind} is not made of other retrievers; {spec.parts[0]} does not belong in it"
        )
    if found < 2 if kind.many else found != needed:
        one = needed == 1 and not kind.many
        number = (
            "one retriever"
            if one
            else "two or more retrievers"
            if kind.many
            else f"{needed} retrievers"
        )
        example = "bm25" if one else "bm25,dense"
        raise UsageError(
            f"{spec.kind} is made of {number}, as in {spec.kind}({example}); {spec} has {found}"
        )


def _read_value(
    what: str, value: Value, kind: Any
) -> Value:  # str, int, float, bool, a choice, a tuple of these
    choices = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return tuple(
            _read_value(what, one, choices[0])
            for one in (value if isinstance(value, tuple) else (value,))
        )
    if isinstance(value, tuple):
        raise UsageError(f"{what} is one value, not a list")
    if choices and value not in choices:
        raise UsageError(f"{what} is {value!r}; it is one of {', '.join(choices)}")
    if kind is bool and str(value).lower() not in ("true", "false"):
        raise UsageError(f"{what} is {value!r}; it is true or false")
    if choices or kind is bool:
        return value if choices else str(value).lower() == "true"
    try:
        read: Value = kind(value)
    except ValueError:
        number = {int: "a whole number", float: "a number"}[kind]
        raise UsageError(f"{what} is {value!r}, which is not {number}") from None
    if isinstance(read, float) and not isfinite(read):
        raise UsageError(f"{what} is {value!r}, which is not a finite number")
    return read


def _make(
    spec: RetrieverSpec, corpus: "Corpus", home: Path | None, terms: "RunResources | None"
) -> Any:
    kind = lookup(spec.kind)
    arguments = [spec.subject] if spec.subject else list[Any]()
    place = _select(kind.made, corpus=corpus, home=home)
    match kind.subject:
        case "Embedder":
            arguments = [_make_embedder(spec, home, terms)]
        case "Callable":
            arguments = [partial(_make, spec.parts[0], home=home, terms=terms)]
        case "Retriever":
            arguments = [_make(part, corpus, home, terms) for part in spec.parts]
    try:
        with plugins.contained():
            made = kind.made(
                *place.values(), *arguments, **_select(kind.made, terms=terms), **spec.options
            )
    except Exception as error:
        line = plugins.user_code_line(error)
        if not line or isinstance(error, OwnCodeFailed):
            raise
        if isinstance(error, UsageError):
            raise OwnCodeFailed(f"{spec} cannot be built: {error}{line}") from error
        if isinstance(error, SextantError):
            raise
        raise OwnCodeFailed(
            f"{spec} cannot be built: {type(error).__name__}: {plugins.show(error)}{line}"
        ) from error
    if not hasattr(made, "name"):  # a user's class may leave it to us
        given = {
            name: spec.options.get(name, option.default) for name, option in kind.options.items()
        }
        made.name = format_expression(
            spec.kind, spec.subject or kind.model, [part.name for part in made.parts], given
        )
    return made


def _make_embedder(
    spec: RetrieverSpec, home: Path | None = None, terms: "RunResources | None" = None
) -> Any:
    inner = _embedder_of(spec)
    made = lookup(inner.kind, embedder=True).made
    model = [inner.subject] if inner.subject else []
    return made(*model, **inner.options, **_select(made, home=home, terms=terms))


def _embedder_of(spec: RetrieverSpec) -> RetrieverSpec:
    return _check(spec.parts[0] if spec.parts else parse(spec.subject), embedder=True)


def _select(made: Any, **given: Any) -> dict[str, Any]:
    return {
        name: value for name, value in given.items() if name in inspect.signature(made).parameters
    }
