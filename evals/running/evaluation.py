"""Evaluate a search system on a task, from Python: `evaluate`, or `run` with a request and a report.

    result = evaluate(program="multihop", task="congress", split="dev")
    print(result.metrics["nDCG@10"].mean, result.folder)

Here a task, a retriever, a program and a model meet. Nothing is printed; a report is told what happens.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

# Nothing may phone home or spin idle cores; said before the libraries that look here are imported. LiteLLM's own
# switch is in tools/models/lm.py. NumPy's threads are off; those of the encoders are counted where they work, and
# $OMP_NUM_THREADS bounds them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import environments
from evals import folder as run_folder
from evals.measuring.metrics import add_metrics, compute
from evals.running.engines import sends
from evals.running.request import Request
from evals.running.resolve import Resolved, fitted, resolve
from tools.console import options
from tools.errors import BudgetReached, DataError, ProviderRefused, RunIncomplete, SextantError, UsageError
from tools.models import lm
from tools.models.cassette import Cassette
from tools.records import Usage, usage_from_json

if TYPE_CHECKING:
    from environments.base import Environment
    from evals.running.events import Started
    from evals.running.forecast import Estimate
    from evals.running.setup import Ready
    from tools.models.status import Status

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


class Watcher(Protocol):
    """What follows a run while its queries are answered."""

    def add(self, outcome: run_folder.Outcome, value: float | None) -> None:
        """One more query is answered, with this value of the headline metric."""

    def owed(self, query_id: str, reason: str) -> None:
        """One more query was begun and is left without an answer, for this reason."""


class Beginning(NamedTuple):
    """A run that is about to ask its queries."""

    started: "Started"
    earlier: list[float | None]  # values of the headline metric of queries answered before
    failed: int  # of those
    metric: str  # the headline metric
    status: "Callable[[], Status]"  # what the model's calls are doing


Report = Callable[[Beginning], AbstractContextManager[Watcher]]


def evaluate(*, program: str, task: str, **fields: Any) -> Result:
    """Run a program on a task and score it; `fields` are those of evals.running.request.Request.

    What was answered before, in the same run folder, is not asked again. SextantError, of the kind that says what to
    do, where the request is wrong or queries are left pending; `run` gives back a result for these, too.
    """
    result = run(options.make(Request, {"program": program, "task": task, **fields}))
    if result.problem:
        raise result.problem
    return result


def run(request: Request, report: Report | None = None) -> Result:
    """Answer what is pending of a request's run, and score it. Queries may be pending afterwards: see `problem`."""
    started = time.monotonic()
    with _children(request):
        resolved, environment = _checked(request)
        from evals.running.setup import prepare, terms_of  # takes a second; a misspelt name is refused before

        terms = terms_of(request)
        cassette = Cassette(request.cassette, terms, sends=_sends(resolved)) if request.cassette else None
        ready = prepare(resolved, environment, terms)
        place = run_folder.place(request.runs, ready.config)
        if not (place / "outcomes.jsonl").exists() and not terms.replays:
            lm.check_key(request.lm)
        with run_folder.claim(place, ready.config) as folder:
            ready.begin(folder)
            problem = _answer(ready, folder, report)
            if cassette:
                cassette.record(complete=len(folder.outcomes) == len(ready.environment.queries))
            return _conclude(ready, folder, problem, started)


def _sends(resolved: Resolved) -> bool:
    """Whether the run may send something to a model."""
    searched = (*resolved.retrievers, *(resolved.pool.parts if resolved.pool else ()))
    return resolved.request.lm != "offline" or any(map(sends, searched))


def forecast(request: Request) -> "Estimate":
    """What the run of a request would ask of its model, and what that would cost; nothing is sent."""
    if request.isolated:
        raise UsageError("--dry-run asks no program of somebody else's; leave out --isolated")
    resolved, environment = _checked(request)
    from evals.running import forecast, setup  # take a second; a misspelt name is refused before

    model, config = setup.unsent(resolved, environment)
    return forecast.estimate(resolved, environment, model, config)


def _children(request: Request) -> AbstractContextManager[None]:
    """Around all of a run: the processes of an isolated program end with it."""
    if not request.isolated:
        return nullcontext()
    from programs.isolation.parent import reaping  # imports DSPy; few runs need it

    return reaping()


def _checked(request: Request) -> "tuple[Resolved, Environment]":
    """The request with its names looked up, and its task, which it fits."""
    lm.read_keys()
    resolved = resolve(request)
    environment = environments.load(
        request.task, request.data, request.split, qrels=request.qrels, instruction=request.instruction
    ).asking(limit=request.limit, query_ids=request.query_ids)
    return fitted(resolved, environment), add_metrics(environment, request.metrics)


def _answer(ready: "Ready", folder: run_folder.RunFolder, report: Report | None) -> SextantError | None:
    """Answer what is pending; why some of it still is, if it is."""
    from evals.measuring import split_uses
    from evals.running.runner import run as answer_all

    environment, count = ready.environment, len(ready.environment.queries)
    with ExitStack() as stack:
        watcher = stack.enter_context(report(_beginning(ready, folder))) if report else None

        def on_outcome(outcome: run_folder.Outcome) -> None:
            if watcher:
                watcher.add(outcome, _value(environment, outcome))

        try:
            fault = answer_all(
                ready.system,
                environment.queries,
                environment.documents,
                folder,
                ready.model,
                workers=ready.workers,
                on_outcome=on_outcome,
                on_owed=watcher.owed if watcher else lambda query_id, reason: None,
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
                split_uses.record(run_folder.read_config(folder.path), folder.path)
    return RunIncomplete(f"the model's provider failed: {fault}") if fault else None


def _value(environment: "Environment", outcome: run_folder.Outcome) -> float | None:
    """The headline metric of an outcome."""
    from evals.measuring.scoring import ranking_of

    query_id = outcome["query_id"]
    return compute(environment.metric, query_id, {query_id: ranking_of(outcome)}, environment)


def _beginning(ready: "Ready", folder: run_folder.RunFolder) -> Beginning:
    from evals.running.events import Started

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


def _conclude(ready: "Ready", folder: run_folder.RunFolder, problem: SextantError | None, started: float) -> Result:
    """Score the run; of one with pending queries, say how far it came."""
    from evals.measuring import split_uses
    from evals.measuring.bounds import beside
    from evals.measuring.scoring import score, score_partly
    from evals.measuring.tally import summarise

    environment, config = ready.environment, run_folder.read_config(folder.path)
    query_ids = [query.query_id for query in environment.queries]
    pending = [query_id for query_id in query_ids if query_id not in folder.outcomes]
    if pending:
        found = summarise(config, folder.outcomes, query_ids)
        found["partial"] = score_partly(environment, folder.outcomes)
    else:
        found = score(folder.path, environment, folder.outcomes)
        found["bounds"] = beside(folder.path).json()
    uses = split_uses.count(config["task"], split_uses.data_of(config), config["program"])
    if books := ready.model.terms.books:
        found["ledger"] = books.json()
    seconds = round(time.monotonic() - started, 2)
    found = {"run": str(folder.path), **found, "looks": uses, "seconds": seconds}
    if not pending:
        return Result(folder.path, None, found)
    larger = " with a larger budget" if isinstance(problem, BudgetReached) and problem.larger else ""
    problem = problem or RunIncomplete("the run broke off")
    rest = f"{len(pending)} of {len(query_ids)} queries are pending; the same command{larger} goes on with them"
    return Result(folder.path, problem.saying(f"{problem}; {rest}"), found)
