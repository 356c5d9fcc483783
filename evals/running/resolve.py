"""Look up every name of a request (`resolve`), and fit the request to its task (`fit_to_task`); a run
that is ready to begin is a `PreparedRun`.

Checks that need no data come first (`resolve`), then those that need no index (`fit_to_task`), so
that a misspelt word is reported at once. evals/running/identity.py makes config.json of the result.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sextant.environments.base import Environment
from sextant.evals import run_folder
from sextant.evals.running import candidate_pools, runner
from sextant.evals.running.request import (
    Request,
    SharedRequest,
    apply_hints,
    find_program,
    find_retrievers,
    parse_parameters,
    query_limits,
)
from sextant.evals.scoring.metrics import compute, ranking_of
from sextant.programs.base import check_offline
from sextant.tools import plugins as names
from sextant.tools import retrievers, user_files
from sextant.tools.corpus import Corpus
from sextant.tools.errors import NotApplicable, UsageError
from sextant.tools.models import language_model
from sextant.tools.models.call_limits import unknown_price
from sextant.tools.models.model_spec import price_is_known
from sextant.tools.models.run_resources import RunResources
from sextant.tools.platform.files import sextant_home
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.waiting import announced
from sextant.tools.records import JsonMapping
from sextant.tools.retrievers.base import NullRetriever, Retriever
from sextant.tools.retrievers.expressions import RetrieverSpec
from sextant.tools.session import Toolbox

if TYPE_CHECKING:
    from sextant.programs.compiled import Compiled

_LOG = logging.getLogger("sextant")
LARGE = 10_000  # documents from which on an index may take a while to build, which is said before


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """A request with every name looked up. No data has been read yet, but by `fit_to_task`."""

    request: Request
    constructor: Any  # of the program
    values: JsonMapping  # of its parameters
    fixed: frozenset[str]  # the parameters that the request or the compiled program sets
    limits: Mapping[str, int]  # of each query, by their names in request.LIMITS
    retriever: RetrieverSpec
    pool: candidate_pools.Pool | None
    compiled: "Compiled | None" = None

    @property
    def others(self) -> dict[str, RetrieverSpec]:
        """The retrievers that parameters name, by their expressions."""
        return {name: retrievers.canonicalize(name) for name in find_retrievers(self.values)}

    @property
    def all_retrievers(self) -> tuple[RetrieverSpec, ...]:
        """The retrievers of the run, its parameters and its pool."""
        return (self.retriever, *self.others.values(), *(self.pool.parts if self.pool else ()))

    @property
    def sends(self) -> bool:
        """Whether the program or a retriever may send something to a model."""
        return any(
            model != "offline"
            for model in [
                self.request.lm,
                *(model for spec in self.all_retrievers for model in retrievers.models(spec)),
            ]
        ) or any(map(retrievers.find_api_parts, self.all_retrievers))


@dataclass(slots=True)
class PreparedRun:
    """A run that is ready to answer queries: indexes built, model connected."""

    resolved: ResolvedRequest
    environment: Environment  # with the pools of --pool once the run has begun
    model: language_model.ConnectedModel
    config: run_folder.Config
    system: runner.System
    retrievers: Sequence[tuple[RetrieverSpec, Retriever]]  # that the program may search by
    start: Any = None  # what starts a worker, where queries are answered in other processes
    whole: int = 0  # queries of the run, where this is a shard of it

    def value(self, outcome: run_folder.Outcome) -> float | None:
        """Return the headline metric of an outcome."""
        query_id = outcome["query_id"]
        return compute(
            self.environment.metric, query_id, {query_id: ranking_of(outcome)}, self.environment
        )


def resolve(request: Request, *, task_is_loaded: bool = False) -> ResolvedRequest:
    """Look up every name of a request, but for its task if that is loaded already.

    UsageError, UnknownName or DataError for unknown names.
    """
    user_files.leave_out(request.runs)
    if request.has_own_processes and request.workers not in (None, 1):
        raise UsageError(
            f"--workers {request.workers} does not go with --program {request.program}, "
            "which has processes of its own; leave it out"
        )
    request.check_names(task_is_loaded=task_is_loaded)
    compiled = _read_compiled(request)
    constructor = find_program(request.program, request.env)
    limits = query_limits(request.parameters)
    if compiled and compiled.members and limits:
        raise UsageError(
            "an ensemble has no limits of a query: each member has a session of its own; leave "
            "them out"
        )
    compiled_parameters = compiled.parameters if compiled else {}
    values = parse_parameters(
        request.program_label, constructor, request.parameters, compiled_parameters
    )
    default_retriever = compiled.retriever if compiled else "bm25"
    if request.retriever and not getattr(constructor, "needs_index", True):
        raise UsageError(f"{request.program} searches without an index; leave --retriever out")
    spec = retrievers.canonicalize(
        default_retriever if request.retriever is None else request.retriever
    )
    pool = None if request.pool is None else candidate_pools.read(request.pool, spec)
    for part in (spec, *(pool.parts if pool else ())):
        retrievers.validate(part)
    resolved = ResolvedRequest(
        request,
        constructor,
        values,
        frozenset(request.parameters) | compiled_parameters.keys(),
        limits,
        spec,
        pool,
        compiled,
    )
    check_prices(request, [request.lm], resolved.all_retrievers)
    run_folder.check_place(request.runs)
    return resolved


def check_prices(
    request: SharedRequest, models: Iterable[str], specs: Iterable[RetrieverSpec]
) -> None:
    """Raise UnknownPrice for the first of models and retrievers whose price a budget in
    dollars needs, and has not; UsageError for a file of --prices that cannot be read.
    """
    if request.prices is not None:
        from sextant.tools.models.prices import check_file  # few runs have prices of their own

        check_file(request.prices)
    if request.budget_usd is None:
        return
    specs = list(specs)
    for model in (*models, *(model for spec in specs for model in retrievers.models(spec))):
        if not price_is_known(model, request.prices):
            raise unknown_price(model)
    for api in [api for spec in specs for api in retrievers.find_api_parts(spec)]:
        from sextant.tools.retrievers.neural.api_embeddings import (
            list_price,  # few runs pay for embeddings
        )

        if list_price(api.subject, str(api.options.get("like", "")), request.prices) is None:
            raise unknown_price(api.subject)


def _read_compiled(request: Request) -> "Compiled | None":
    if request.prompts and request.compiled:
        raise UsageError(
            "--compiled and --prompts both set the prompts of the program; give one of them"
        )
    if not (file := request.prompts or request.compiled):
        return None
    from sextant.programs import compiled, prompts  # few runs need these

    if request.prompts or file.suffix == ".toml":
        return prompts.read(file, request.program_label)
    compiled_program = compiled.read(file)
    if compiled_program.program != (program := request.program_label):
        raise UsageError(
            f"{file} was compiled for --program {compiled_program.program}, not {program}"
        )
    named = (
        f"{compiled_program.parameters} {'' if request.retriever else compiled_program.retriever}"
    )
    retrievers.refuse_user_code(named, file)
    if "run_code" in named:
        raise UsageError(
            f"{file} names a model whose own Python code is to be run, which only you can allow: "
            f"read that code, and give --retriever {compiled_program.retriever!r}"
        )
    return compiled_program


def fit_to_task(resolved: ResolvedRequest, environment: Environment) -> ResolvedRequest:
    """Return `resolved` with the task's own choices; UsageError for parameters that do not fit,
    before an index is built.
    """
    request = resolved.request
    hints = environment.hints
    values = resolved.values
    if request.instruction in ("ours", "paper"):
        resolved = replace(resolved, values=apply_hints(values, resolved.fixed, hints))
    _check_pools(resolved, environment)
    program = try_construct(resolved.constructor, resolved.values)
    if request.lm == "offline":
        check_offline(request.program_label, program)
    if resolved.compiled:
        resolved.compiled.check(
            request.program_label, program, str(request.compiled or request.prompts)
        )
        resolved = replace(
            resolved,
            compiled=resolved.compiled.without_defaults(
                try_construct(resolved.constructor, values)
            ),
        )
        if not resolved.compiled:
            _LOG.info(
                "no prompt in %s is edited, so this is %s as it is",
                request.prompts or request.compiled,
                request.program_label,
            )
    return replace(
        resolved, retriever=retrievers.with_lens_attribute(resolved.retriever, _attribute(hints))
    )


def _attribute(hints: Mapping[str, str]) -> str:
    """Return the attribute that the retriever `lens` notes of documents: the name of the task's
    lens, or its own words.
    """
    return hints.get("attribute") or hints.get("lens", "")


def try_construct(constructor: Any, values: JsonMapping) -> Any:
    """Make the program over nothing, so that its constructor refuses bad parameters before an index
    is built.
    """
    with names.naming_failures("the program cannot be made"):
        return constructor(Toolbox(Corpus(()), NullRetriever()), **values)


def _check_pools(resolved: ResolvedRequest, environment: Environment) -> None:
    pool = resolved.pool
    k = resolved.request.k
    has_pools = all(query.candidates is not None for query in environment.queries)
    if pool and has_pools:
        raise NotApplicable(f"{environment.task} has candidate pools of its own; leave out --pool")
    for spec in (resolved.retriever, *resolved.others.values()):
        if retrievers.needs_pool(spec) and not has_pools:
            raise NotApplicable(
                f"{spec} ranks candidate pools, and {environment.task} has none; use another"
            )
    if pool:
        pool.check_room(environment)
        if pooled_part := next(filter(retrievers.needs_pool, pool.parts), None):
            raise UsageError(
                f"{pooled_part} needs a pool, so no pool can be made of it; use another"
            )
    largest = max((len(query.candidates or ()) for query in environment.queries), default=0)
    if k and environment.comparisons and k < largest:
        raise NotApplicable(
            f"{environment.task} compares all of a pool, up to {largest} documents; leave out --k"
        )


class RunRetrievers:
    """The retrievers of a run, each opened once. Their models are asked with the resources of the run."""

    def __init__(
        self,
        environment: Environment,
        resources: RunResources,
        built: Mapping[str, Retriever] | None = None,
    ) -> None:
        """`built` are retrievers over the same documents that ask no model, by their
        expressions.
        """
        self._documents = environment.documents
        self._resources = resources
        self.attribute = _attribute(environment.hints)
        self.built: dict[str, Retriever] = dict(built or {})

    def build(self, spec: RetrieverSpec) -> Retriever:
        """Return the retriever of an expression; a retriever that may take a while to open is named
        in the log.
        """
        spec = retrievers.with_lens_attribute(spec, self.attribute)
        if str(spec) not in self.built:
            opening = f"opening {spec} over {plural(len(self._documents), 'document')}"
            if len(self._documents) >= LARGE:
                _LOG.info(opening)
            with announced(opening):
                self.built[str(spec)] = retrievers.build(
                    spec, self._documents, sextant_home(), resources=self._resources
                )
        return self.built[str(spec)]
