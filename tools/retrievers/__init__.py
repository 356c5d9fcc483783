"""Retrievers by their expressions: `build("fusion(bm25,dense)", corpus, home)`.

The constructor of a retriever says what its expression takes. A positional parameter is, by its
annotation, a model, an embedder, another retriever or a function that builds one. Keyword
parameters are the options, with their types and defaults.
"""

import inspect
import re
import typing
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import sextant
from sextant.tools import plugins
from sextant.tools.errors import DataError, NotApplicable, OwnCodeFailed, SextantError, UsageError
from sextant.tools.platform.installation import find_page
from sextant.tools.platform.number_format import plural
from sextant.tools.retrievers.expressions import Expression as Expression
from sextant.tools.retrievers.expressions import Expressions as Expressions
from sextant.tools.retrievers.expressions import RetrieverSpec as RetrieverSpec
from sextant.tools.retrievers.expressions import Value, format_expression
from sextant.tools.retrievers.expressions import parse as parse

if TYPE_CHECKING:  # NumPy is behind it, and a command's --help lists the names below
    from sextant.tools.corpus import Corpus
    from sextant.tools.models.run_resources import RunResources
    from sextant.tools.retrievers.base import Retriever


sextant.use_full_name(__name__)

# To add a retriever: a file with a subclass of Retriever (docs/guide/retriever.md), and its row here.
RETRIEVERS = {
    "bm25": "sextant.tools.retrievers.lexical.bm25:BM25",
    "bm25s": "sextant.tools.retrievers.lexical.bm25:BM25S",
    "rank_bm25": "sextant.tools.retrievers.lexical.rank_bm25:RankBM25",
    "pool_bm25": "sextant.tools.retrievers.lexical.rank_bm25:PoolBM25",
    "dense": "sextant.tools.retrievers.neural.dense:Dense",
    "api": "sextant.tools.retrievers.neural.api_embeddings:ApiRetriever",
    "http": "sextant.tools.retrievers.http:HttpRetriever",
    "chroma": "sextant.tools.retrievers.vectors.chroma:Chroma",
    "ann": "sextant.tools.retrievers.vectors.ann:Ann",
    "milvus": "sextant.tools.retrievers.milvus:Milvus",
    "milvus_vectors": "sextant.tools.retrievers.milvus:MilvusVectors",
    "splade": "sextant.tools.retrievers.neural.learned_sparse:LearnedSparse",
    "late": "sextant.tools.retrievers.neural.late_interaction:LateInteraction",
    "cross": "sextant.tools.retrievers.neural.cross_encoder:CrossEncoder",
    "fusion": "sextant.tools.retrievers.fusion:Fusion",
    "rerank": "sextant.tools.retrievers.fusion:Rerank",
    "lens": "sextant.tools.retrievers.lens.lens_index:LensIndex",
    "sharded": "sextant.tools.retrievers.sharded:Sharded",
}

# Sources of vectors, for retrievers that only store them. To add a source: a class that satisfies
# Embedder, and its row here.
EMBEDDERS = {
    "dense": "sextant.tools.retrievers.neural.dense:SentenceEmbedder",
    "api": "sextant.tools.retrievers.neural.api_embeddings:ApiEmbedder",
}

# Whether an index on a service is filled if it is not complete.
FILLS = ContextVar("fills", default=False)
PUSH = "`sextant retrievers push RETRIEVER --task TASK` fills it"

# Parameters of constructors that no expression has.
_GIVEN_BY_CALLER = ("corpus", "home", "resources")
# FILE.py:NAME without the folder of the file, as in outputs -> the same with the folder.
_USER_FILES = dict[str, str]()


class ServiceState(NamedTuple):
    """The state of an index on a service, or of the index that is expected there."""

    version: str
    corpus: str  # its fingerprint
    documents: int

    def __str__(self) -> str:
        return f"version {self.version}, corpus {self.corpus}, {plural(self.documents, 'document')}"


def check_same_corpus(index: str, actual: ServiceState, expected: ServiceState) -> None:
    """Raise DataError unless version, corpus and number of documents are as expected."""
    if actual != expected:
        raise DataError(f"{index} has {actual}, and not {expected}; {PUSH}")


class RetrieverType(NamedTuple):
    """A class of the tables, and the expression that its constructor takes."""

    constructor: Any
    positional: tuple[inspect.Parameter, ...]
    options: dict[str, inspect.Parameter]
    # The type of its first positional parameter: "str" for a model, "Embedder", "Callable" or
    # "Retriever"; "" if it has none.
    subject: str
    model: str  # its default; "" if a name is needed, or if it has no model
    variadic: bool  # whether it is made of any number of retrievers


def lookup(name: str, *, embedder: bool = False) -> RetrieverType:
    """Look up a retriever, or an embedder, and read its constructor.

    UnknownName with the nearest names if no table and no entry point has it.
    """
    if embedder:
        return _read_type(name, plugins.load_object("embedder", name, EMBEDDERS), custom=False)
    reference = _USER_FILES.get(name, name)
    constructor = plugins.load_object("retriever", reference, RETRIEVERS, plugins.RETRIEVERS)
    return _read_type(name, constructor, custom=name not in RETRIEVERS)


@cache
def _read_type(name: str, constructor: Any, custom: bool) -> RetrieverType:
    if custom:
        _check_class(name, constructor)
    try:
        hints = typing.get_type_hints(constructor.__init__)
        parameters = inspect.signature(constructor).parameters
    except NameError as error:  # for an import that only type checkers run
        raise UsageError(
            f"{name}: {error}, which a type in its constructor names; import it"
        ) from None

    positional = []
    options = {}
    for key, parameter in parameters.items():
        if key in _GIVEN_BY_CALLER:
            continue
        typed = parameter.replace(annotation=hints.get(key, type(parameter.default)))
        if typed.kind is typed.KEYWORD_ONLY or _is_option_type(typed.annotation):
            options[key] = typed
        else:
            positional.append(typed)

    subject = positional[0].annotation.__name__ if positional else ""
    if custom:
        _check_constructor(name, "corpus" in parameters, subject, options)
    model = positional[0].default if subject == "str" else ""
    return RetrieverType(
        constructor,
        tuple(positional),
        options,
        subject,
        "" if model is inspect.Parameter.empty else model,
        any(parameter.kind is parameter.VAR_POSITIONAL for parameter in positional),
    )


def _check_class(name: str, constructor: Any) -> None:
    is_retriever = isinstance(constructor, type) and hasattr(constructor, "_search_many")
    if not is_retriever or inspect.isabstract(constructor):
        raise UsageError(
            f"{name} is no retriever; write a subclass of sextant.tools.retrievers.base.Retriever "
            "with a method _search_many(self, searches, k), as in "
            f"{find_page('docs/guide/retriever.md')}"
        )


def _check_constructor(
    name: str,
    takes_corpus: bool,
    subject: str,
    options: dict[str, inspect.Parameter],
) -> None:
    plain_options = all(
        option.default is not option.empty and _is_option_type(option.annotation, str)
        for option in options.values()
    )
    subjects = ("", "str", "Embedder", "Callable", "Retriever")
    if not (plain_options and takes_corpus and subject in subjects):
        raise UsageError(
            f"{name}: its constructor takes `corpus`, `home` if it keeps an index, and options by "
            f"keyword, with a default and a type: "
            f"str, int, float, bool, Literal, or a tuple of one of these"
        )


def _is_option_type(annotation: Any, *more_types: type) -> bool:
    if annotation in (int, float, bool, *more_types):
        return True
    return typing.get_origin(annotation) in (typing.Literal, tuple)


def canonicalize(text: str) -> RetrieverSpec:
    """Parse `text`, type its options and leave out defaults: equal for equal retrievers.

    Nothing is loaded or built. UsageError, or UnknownName with the nearest names, if no
    constructor takes it.
    """
    return _check(parse(text))


def check_kinds(text: str) -> None:
    """Raise UsageError if `text` has no such form, UnknownName for a kind in no table. Nothing is imported."""
    todo = [parse(text)]
    for spec in todo:
        if spec.kind not in EMBEDDERS:
            plugins.resolve(
                "retriever", _USER_FILES.get(spec.kind, spec.kind), RETRIEVERS, plugins.RETRIEVERS
            )
        todo += spec.parts


def build(
    spec: str | RetrieverSpec,
    corpus: "Corpus",
    home: Path | None = None,
    *,
    resources: "RunResources | None" = None,
) -> "Retriever":
    """Build the retriever that `spec` describes over `corpus`.

    Indexes are kept under `home`; if it is None, they are not kept. A lens needs the
    resources with which a run asks models.
    """
    spec = canonicalize(spec) if isinstance(spec, str) else spec
    validate(spec)
    if resources is None and (lenses := find_lenses(spec)):
        raise UsageError(
            f"{lenses[0]} needs a model that annotates, which sextant run connects; "
            f"take another retriever here"
        )
    return typing.cast("Retriever", _construct(spec, corpus, home, resources))


def refuse_user_code(text: str, source: object) -> None:
    """Raise UsageError if `text` names Python code in some folder.

    `text` is from the file `source`: only the user may allow its code to run.
    """
    if match := re.search(r"[^\s(,]*/[^/]*\.py:\w+", text):
        raise UsageError(
            f"{source} would have {match[0]} run, which only you can allow: read it, and give "
            f"--retriever"
        )


def iter_classes(spec: RetrieverSpec) -> Iterator[tuple[RetrieverSpec, Any]]:
    """Yield the classes of `spec` and its parts, each with its expression; outer ones first.

    Embedders are among them.
    """
    retriever_type = lookup(spec.kind)
    yield spec, retriever_type.constructor
    if retriever_type.subject == "Embedder":
        embedder = _embedder_of(spec)
        yield embedder, lookup(embedder.kind, embedder=True).constructor
    else:
        for part in spec.parts:
            yield from iter_classes(part)


def find_lenses(spec: RetrieverSpec) -> list[RetrieverSpec]:
    """Return every lens in `spec`, the outer lenses first."""
    return [part for part, constructor in iter_classes(spec) if constructor.needs_lens]


def models(spec: RetrieverSpec) -> list[str]:
    """Return the language models that the lenses in `spec` ask."""
    named = [lens.options.get("model", "offline") for lens in find_lenses(spec)]
    return [str(model) for model in named if model != "offline"]


def find_api_parts(spec: RetrieverSpec) -> list[RetrieverSpec]:
    """Return the parts of `spec` that send texts to an API, such as `api:MODEL`.

    Embedders of vector stores are among them.
    """
    return [part for part, constructor in iter_classes(spec) if constructor.sends]


def sources(spec: RetrieverSpec) -> set[str]:
    """Return the services and models that answer for `spec` outside of this process.

    They are named as in errors: `ProviderRefused.source`.
    """
    services = {
        f"{part.kind}:{part.subject}"
        for part, constructor in iter_classes(spec)
        if constructor.sends or part.kind == "http"
    }
    return services | set(models(spec))


def with_lens_attribute(spec: RetrieverSpec, attribute: str) -> RetrieverSpec:
    """Give `attribute` to every lens in `spec` that names none.

    NotApplicable if `attribute` is empty, too.
    """
    options = dict(spec.options)
    if lookup(spec.kind).constructor.needs_lens and not options.get("attribute"):
        if not attribute:
            raise NotApplicable(
                f"{spec} needs attribute=..., because the task has no lens of its own; "
                f"{find_page('docs/decisions/lens.md')}"
            )
        options = {"attribute": attribute, **options}
    parts = tuple(with_lens_attribute(part, attribute) for part in spec.parts)
    return spec._replace(parts=parts, options=options)


def validate(spec: RetrieverSpec) -> None:
    """Refuse a `spec` that its classes could not build, before any part of it is built."""
    retriever_type = lookup(spec.kind)
    if retriever_type.subject == "Embedder":
        _construct_embedder(spec)
    else:
        for part in spec.parts:
            validate(part)
    model = spec.subject or retriever_type.model
    options = _complete_options(spec, retriever_type)
    retriever_type.constructor.require(model, len(spec.parts), options)


def _complete_options(spec: RetrieverSpec, retriever_type: RetrieverType) -> dict[str, Value]:
    return {
        name: spec.options.get(name, parameter.default)
        for name, parameter in retriever_type.options.items()
    }


def needs_pool(spec: RetrieverSpec) -> bool:
    """Return whether the retriever is only for tasks that rank candidate pools."""
    constructor = lookup(spec.kind).constructor
    parts = spec.parts[:1] if constructor.gives_pool else spec.parts
    return constructor.needs_pool or any(map(needs_pool, parts))


def _display_name(reference: str) -> str:
    """Return a name as outputs have it: without the folder of its file, which is remembered.

    UsageError if files in two folders would have the same name.
    """
    file, _, class_name = reference.rpartition(":")
    if reference in _USER_FILES or not file.endswith(".py"):
        return reference
    full_reference = f"{plugins.resolve_file(file)}:{class_name}"
    label = plugins.display_name(reference)
    if _USER_FILES.setdefault(label, full_reference) != full_reference:
        raise UsageError(
            f"{reference} and {_USER_FILES[label]} would have the same name in outputs; rename one "
            f"of the files"
        )
    return label


def _check(spec: RetrieverSpec, *, embedder: bool = False) -> RetrieverSpec:
    spec = spec._replace(kind=_display_name(spec.kind))
    retriever_type = lookup(spec.kind, embedder=embedder)
    match retriever_type.subject:
        case "str":
            spec = _check_model(spec, retriever_type)
        case "Embedder":
            spec = _check_embedder(spec)
        case _:
            if spec.subject:
                raise UsageError(
                    f"{spec.kind} takes no model; write {spec.kind} without {spec.subject!r}"
                )
            spec = spec._replace(parts=tuple(map(_check, spec.parts)))
            count = len(spec.parts)
            needed = 2 if retriever_type.variadic else len(retriever_type.positional)
            if count < needed or (count > needed and not retriever_type.variadic):
                number = f"{needed} or more" if retriever_type.variadic else needed
                raise UsageError(
                    f"{spec} has {count} retrievers in it; {spec.kind} is made of {number}"
                )
    return spec._replace(options=_read_options(spec, retriever_type))


def _check_model(spec: RetrieverSpec, retriever_type: RetrieverType) -> RetrieverSpec:
    subject = spec.subject
    parts = spec.parts
    is_address = len(parts) == 1 and "//" in parts[0].kind + parts[0].subject
    if is_address and not subject:
        subject = f"{parts[0].kind}:{parts[0].subject}".rstrip(":")
        parts = ()
    if parts:
        raise UsageError(
            f"{spec.kind} takes a model, as in {spec.kind}:MODEL, and no other retriever"
        )
    if not subject and not retriever_type.model:
        raise UsageError(f"{spec.kind} needs a model: {spec.kind}:MODEL, by name or by folder")
    return spec._replace(subject="" if subject == retriever_type.model else subject, parts=())


def _check_embedder(spec: RetrieverSpec) -> RetrieverSpec:
    if bool(spec.subject) + len(spec.parts) != 1:
        raise UsageError(
            f"{spec.kind} stores the vectors of one of {', '.join(EMBEDDERS)}: {spec.kind}:dense"
        )
    embedder = _embedder_of(spec)
    if embedder.options:
        return spec._replace(subject="", parts=(embedder,))
    return spec._replace(subject=str(embedder), parts=())


def _read_options(spec: RetrieverSpec, retriever_type: RetrieverType) -> dict[str, Value]:
    parameters = retriever_type.options
    for name in spec.options:
        if name not in parameters:
            available = f"it has {', '.join(parameters)}" if parameters else "it has none"
            raise UsageError(f"{spec.kind} has no option {name!r}; {available}")
    options = {}
    for name, parameter in parameters.items():
        if name in spec.options:
            value = _read_value(f"{spec.kind}: {name}", spec.options[name], parameter.annotation)
            if value != parameter.default:
                options[name] = value
    return options


def _read_value(label: str, value: Value, annotation: Any) -> Value:
    """Read an option as its annotation says: str, int, float, bool, a choice, a tuple of these."""
    from sextant.tools.schemas import validate  # Pydantic, which --help does without

    if typing.get_origin(annotation) is tuple and not isinstance(value, tuple):
        value = (value,)
    try:
        typed_value: Value = validate(annotation, value, strict=False)
    except ValueError as error:
        raise UsageError(f"{label} is {value!r}; it {error}") from None
    if isinstance(typed_value, float) and not isfinite(typed_value):
        raise UsageError(f"{label} is {value!r}, which is not a finite number")
    return typed_value


def _construct(
    spec: RetrieverSpec,
    corpus: "Corpus",
    home: Path | None,
    resources: "RunResources | None",
) -> Any:
    retriever_type = lookup(spec.kind)
    constructor = retriever_type.constructor
    location = _accepted(
        constructor,
        corpus=corpus,
        home=home,
    )
    arguments = [spec.subject] if spec.subject else list[Any]()
    match retriever_type.subject:
        case "Embedder":
            arguments = [_construct_embedder(spec, home, resources)]
        case "Callable":
            arguments = [
                partial(
                    _construct,
                    spec.parts[0],
                    home=home,
                    resources=resources,
                )
            ]
        case "Retriever":
            arguments = [_construct(part, corpus, home, resources) for part in spec.parts]
    keywords = {**_accepted(constructor, resources=resources), **spec.options}
    try:
        with plugins.contained():
            retriever = constructor(*location.values(), *arguments, **keywords)
    except Exception as error:
        line = plugins.user_code_line(error)
        if not line or isinstance(error, OwnCodeFailed):
            raise
        if isinstance(error, UsageError):
            raise OwnCodeFailed(f"{spec} cannot be built: {error}{line}") from error
        if isinstance(error, SextantError):
            raise
        raise OwnCodeFailed(
            f"{spec} cannot be built: {plugins.describe_exception(error)}"
        ) from error
    if spec.kind not in RETRIEVERS:
        retriever.known = corpus
    if not hasattr(retriever, "name"):  # a class of a user need not set it
        model = spec.subject or retriever_type.model
        parts = [part.name for part in retriever.parts]
        retriever.name = format_expression(
            spec.kind, model, parts, _complete_options(spec, retriever_type)
        )
    return retriever


def _construct_embedder(
    spec: RetrieverSpec, home: Path | None = None, resources: "RunResources | None" = None
) -> Any:
    embedder = _embedder_of(spec)
    constructor = lookup(embedder.kind, embedder=True).constructor
    model = [embedder.subject] if embedder.subject else []
    return constructor(
        *model,
        **embedder.options,
        **_accepted(
            constructor,
            home=home,
            resources=resources,
        ),
    )


def _embedder_of(spec: RetrieverSpec) -> RetrieverSpec:
    embedder = spec.parts[0] if spec.parts else parse(spec.subject)
    return _check(embedder, embedder=True)


def _accepted(constructor: Any, **arguments: Any) -> dict[str, Any]:
    """Return the arguments that the constructor has parameters for."""
    parameters = inspect.signature(constructor).parameters
    return {name: value for name, value in arguments.items() if name in parameters}
