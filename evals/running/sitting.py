"""One sitting of a run: what it works with is made, pending queries are answered, and the run is scored."""

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evals import folder as run_folder
from evals.measuring.metrics import compute
from evals.measuring.scored import bounds_beside
from evals.measuring.scoring import count_looks, ranking_of, record_look, score, summarise_unfinished
from evals.running import pools, runner
from evals.running.configuration import configuration
from evals.running.events import Beginning, Report, Started
from evals.running.request import WORKERS, Common, session_limits
from evals.running.resolve import Engines, Resolved, lexical
from tools.errors import BudgetReached, DataError, ProviderRefused, RunIncomplete, SextantError
from tools.models import lm
from tools.models.gate import Gate
from tools.models.lm import Model
from tools.models.terms import QUERY_SECONDS, Budget, Patience, Terms
from tools.records import Usage, usage_from_json
from tools.retriever import RanksOnly
from tools.retrievers.bm25 import BM25
from tools.session import Toolbox

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.models.offline import Rules
    from tools.retriever import Retriever
    from tools.text import TermStatistics


_LOG = logging.getLogger("sextant")


class Mean(NamedTuple):
    """A metric's mean over the queries, with its 95 % interval; None where it is undefined."""

    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run."""

    folder: Path
    problem: SextantError | None  # why queries are pending, if any are
    _json: Mapping[str, Any] = field(repr=False)

    @property
    def metrics(self) -> dict[str, Mean]:
        """Every metric by its name; none while queries are pending."""
        return {name: Mean(*(one.get(key) for key in Mean._fields)) for name, one in self._json["metrics"].items()}

    @property
    def failed(self) -> int:
        """Queries that the program failed; they score 0."""
        return int(self._json["failed"])

    @property
    def pending(self) -> int:
        """Queries without an answer; the same request goes on with them."""
        return int(self._json["owed"])

    @property
    def usage(self) -> Usage:
        """Calls, tokens and dollars of all answered queries."""
        return usage_from_json(self._json["usage"])

    @property
    def seconds(self) -> float:
        """How long this sitting took."""
        return float(self._json["seconds"])

    def json(self) -> dict[str, Any]:
        """All of it as plain data, as `--json` prints it."""
        return dict(self._json)


def make_terms(request: Common, *, repeats: bool = False) -> Terms:
    """Return the budget, gate, prices and patience of one command; `repeats` as in Terms."""
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
    """Return how long calls are tried, where the request says it."""
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
            self.environment = pools.add_pools(self.environment, pool, parts)


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
    limits = session_limits(resolved.limits, depth)
    toolbox = Toolbox(environment.documents, retriever, others=others, limits=limits, checkpoints=path)
    system = resolved.constructor(toolbox, depth=depth, **resolved.values)
    if resolved.compiled and not resolved.isolated:
        system = resolved.compiled.assemble(system)
    return Ready(resolved, environment, engines, model, config, system)


def prepare_unsent(resolved: Resolved, environment: "Environment") -> tuple[Model, run_folder.Config]:
    """Return the model and the configuration alone, where no retriever is to be opened."""
    request = resolved.request
    model = connect(request, make_terms(request), environment, seed=request.seed)
    return model, configuration(resolved, environment, None, model)


def answer(ready: Ready, folder: run_folder.RunFolder, report: Report | None) -> SextantError | None:
    """Answer what is pending; return why some of it still is, if it is."""
    environment, count = ready.environment, len(ready.environment.queries)
    with ExitStack() as stack:
        watcher = stack.enter_context(report(_beginning(ready, folder))) if report else None

        def on_outcome(outcome: run_folder.Outcome) -> None:
            if watcher:
                watcher.add(outcome, _value(environment, outcome))

        try:
            fault = runner.run(
                ready.system,
                environment.queries,
                environment.documents,
                folder,
                ready.model,
                workers=ready.workers,
                on_outcome=on_outcome,
                on_pending=watcher.leave if watcher else lambda query_id, reason: None,
            )
        except (BudgetReached, ProviderRefused, RunIncomplete, DataError) as problem:
            return problem
        except KeyboardInterrupt:
            stack.close()  # the report's last words come first
            done = f"{len(folder.outcomes)} of {count} queries are safe in {folder.path}"
            _LOG.warning("%s; the same command answers the others", done)
            raise
        finally:
            if folder.outcomes:  # their values have been shown, also where the others are never asked
                record_look(run_folder.read_config(folder.path), folder.path)
    return RunIncomplete(f"the model's provider failed: {fault}") if fault else None


def _value(environment: "Environment", outcome: run_folder.Outcome) -> float | None:
    """Return the headline metric of an outcome."""
    query_id = outcome["query_id"]
    return compute(environment.metric, query_id, {query_id: ranking_of(outcome)}, environment)


def _beginning(ready: Ready, folder: run_folder.RunFolder) -> Beginning:
    request, environment = ready.resolved.request, ready.environment
    earlier = [_value(environment, outcome) for outcome in folder.outcomes.values()]
    started = Started(
        run=str(folder.path),
        task=environment.task,
        split=environment.split,
        program=request.program,
        retriever=str(ready.resolved.retriever),
        lm=ready.model.name,
        queries=len(environment.queries),
        done=len(folder.outcomes),
        budget={
            "usd": request.budget_usd,
            "tokens": request.budget_tokens,
            "calls": request.budget_calls,
            "seconds": request.time_limit,
        },
    )
    failed = sum(outcome["error"] is not None for outcome in folder.outcomes.values())
    return Beginning(started, earlier, failed, environment.metric, ready.model.terms.status)


def conclude(ready: Ready, folder: run_folder.RunFolder, problem: SextantError | None, started: float) -> Result:
    """Score the run; of one with pending queries, say how far it came."""
    environment, config = ready.environment, run_folder.read_config(folder.path)
    query_ids = [query.query_id for query in environment.queries]
    pending = [query_id for query_id in query_ids if query_id not in folder.outcomes]
    if pending:
        found = summarise_unfinished(config, environment, folder.outcomes)
    else:
        found = score(folder.path, environment, folder.outcomes)
        found["bounds"] = bounds_beside(folder.path)
    if books := ready.model.terms.books:
        found["ledger"] = books.json()
    seconds = round(time.monotonic() - started, 2)
    found = {"run": str(folder.path), **found, "looks": count_looks(config), "seconds": seconds}
    if not pending:
        return Result(folder.path, None, found)
    larger = " with a larger budget" if isinstance(problem, BudgetReached) and problem.larger else ""
    problem = problem or RunIncomplete("the run broke off")
    rest = f"{len(pending)} of {len(query_ids)} queries are pending; the same command{larger} goes on with them"
    return Result(folder.path, problem.saying(f"{problem}; {rest}"), found)
