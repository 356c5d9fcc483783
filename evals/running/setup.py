"""What a run works with: models, retrievers, program and configuration, made of a resolved request."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evals import folder as run_folder
from evals.running import parameters, pools
from evals.running.configuration import configuration
from evals.running.engines import Engines, lexical
from evals.running.request import WORKERS, Common
from evals.running.resolve import Resolved
from programs.parts.ensembles import assembled
from tools.models import lm
from tools.models.budget import Budget
from tools.models.lm import Model
from tools.models.sending.gate import Gate
from tools.models.terms import QUERY_SECONDS, Patience, Terms
from tools.retriever import RanksOnly
from tools.retrievers.lexical.bm25 import BM25
from tools.session import Toolbox

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.models.offline.rules import Rules
    from tools.retriever import Retriever
    from tools.text import TermStatistics


def terms_of(request: Common, *, repeats: bool = False) -> Terms:
    """The budget, gate, prices and patience of one command; `repeats` as in Terms."""
    return Terms(
        budget=Budget(
            calls=request.budget_calls,
            usd=request.budget_usd,
            tokens=request.budget_tokens,
            seconds=request.time_limit,
        ),
        gate=Gate(request.max_concurrent or WORKERS),
        patience=_patience_of(request),
        prices=request.prices,
        query_seconds=request.query_timeout or QUERY_SECONDS,
        repeats=repeats,
    )


def _patience_of(request: Common) -> Patience | None:
    """How long calls are tried, where the request says it."""
    patience = Patience()
    if request.patience is not None:
        patience = replace(patience, before=request.patience, after=request.patience)
    if request.call_timeout is not None:
        patience = replace(patience, call=request.call_timeout)
    return patience if patience != Patience() else None


def connect(
    request: Common,
    terms: Terms,
    environment: "Environment",
    retriever: "Retriever | None" = None,
    *,
    spec: str = "",
    seed: int | None = None,
    rules: "Rules | None" = None,
) -> lm.Model:
    """The model of the request, or `spec` with its settings; the offline engine fills the fields that `rules` has.

    Where the program searches with a `retriever` that knows the words of the corpus, it is not read twice.
    """

    def statistics() -> "TermStatistics":
        return (retriever if isinstance(retriever, BM25) else lexical(environment)).statistics()

    spec = spec or request.lm
    settings = lm.Settings(
        seed=seed,
        temperature=request.temperature,
        effort=request.reasoning_effort,
        api=request.api,
        context=request.context if spec == request.lm else None,
    )
    return lm.connect(spec, terms, statistics=statistics, settings=settings, rules=rules)


@dataclass(slots=True)
class Ready:
    """What a run needs, once its indexes are there. But for them nothing has been sent."""

    resolved: Resolved
    environment: "Environment"  # with the pools of --pool once the run has begun
    engines: Engines
    model: Model
    config: run_folder.Config
    system: Any

    @property
    def workers(self) -> int:
        """Queries at a time."""
        return self.resolved.request.workers

    def begin(self, folder: run_folder.RunFolder) -> None:
        """Take up the books of the run in `folder`, and make its pools: what the searches for them cost is in these."""
        request, pool = self.resolved.request, self.resolved.pool
        if request.again:
            self.model.lm.anew = folder.ask_failed_again()
        self.model.begin(folder.path, folder.usage)
        if pool:
            parts = [self.engines.build(part) for part in pool.parts]
            self.environment = pools.pooled(self.environment, pool, parts)


def prepare(resolved: Resolved, environment: "Environment", terms: Terms) -> Ready:
    """Open the retrievers, connect the model and make the program; indexes that are not there are built."""
    request, engines = resolved.request, Engines(environment, terms)
    retriever = engines.build(resolved.retriever)
    others = {name: engines.build(spec) for name, spec in resolved.others.items()}
    model = connect(request, terms, environment, retriever, seed=request.seed)
    config = configuration(resolved, environment, retriever, model)
    config["retriever"]["others"] = {name: other.name for name, other in others.items()}
    if resolved.pool:
        parts = [engines.build(part).name for part in resolved.pool.parts]
        config["pool"] = resolved.pool.config(parts, environment)
        retriever, others = RanksOnly(retriever), {name: RanksOnly(other) for name, other in others.items()}
    depth, path = config["depth"], run_folder.place(request.runs, config)
    limits = parameters.session_limits(resolved.limits, depth)
    toolbox = Toolbox(environment.documents, retriever, others=others, limits=limits, checkpoints=path)
    system = resolved.constructor(toolbox, depth=depth, **resolved.values)
    if resolved.compiled and not resolved.isolated:
        system = assembled(resolved.compiled, system)
    return Ready(resolved, environment, engines, model, config, system)


def unsent(resolved: Resolved, environment: "Environment") -> tuple[Model, run_folder.Config]:
    """The model and the configuration alone, where no retriever is to be opened."""
    request = resolved.request
    model = connect(request, terms_of(request), environment, seed=request.seed)
    return model, configuration(resolved, environment, None, model)
