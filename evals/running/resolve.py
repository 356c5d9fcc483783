"""What a run and a compilation have in common: names become a task, retrievers, a program and a model.

Every check that needs no data comes first, every check that needs no index second, so that a misspelt word does not
wait for a corpus, nor a wrong value for an index.
"""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import environments
from agents import AGENTS
from evals import folder as run_folder
from evals.running import parameters, pools
from evals.running.engines import lexical
from programs import PROGRAMS
from tools import retrievers
from tools.console.command import Parser, clock, dollars, positive, temperature
from tools.errors import UsageError
from tools.home import home
from tools.models import lm
from tools.table import pick

if TYPE_CHECKING:
    from environments.base import Environment
    from programs.parts.compiled import Compiled
    from tools.models.budget import Budget
    from tools.models.call import Patience
    from tools.models.lm import Model
    from tools.models.sending.gate import Gate
    from tools.retriever import Retriever
    from tools.retrievers.spec import Spec
    from tools.text import TermStatistics

SYSTEMS = PROGRAMS | AGENTS
WORKERS = 8  # queries at a time with a real model; the offline engine is bound by this process, and gets 1


def add_model_options(made: Parser) -> None:
    """What the command line says of a model's settings, its price and what may be spent on it."""
    add = made.add_argument
    add("--temperature", type=temperature, metavar="X", help="from 0 to 2; 0 where the model takes one")
    add("--reasoning-effort", choices=lm.EFFORTS, metavar="HOW", help=f"one of {', '.join(lm.EFFORTS)}")
    add("--api", choices=lm.APIS, default="chat", metavar="API", help="which of OpenAI's protocols: chat or responses")
    add("--context", type=positive, metavar="N", help="tokens that the model takes, where the price table does not say")
    add("--prices", type=Path, metavar="FILE", help="prices of your own, in TOML; docs/decisions/paying.md")
    add("--max-concurrent", type=positive, metavar="N", help=f"queries at a time; {WORKERS}, or 1 offline")
    add("--budget-usd", type=dollars, metavar="X", help="stop before the call after X dollars are spent")
    add("--budget-tokens", type=positive, metavar="N", help="stop before the call after N tokens are spent")
    add("--budget-calls", type=positive, metavar="N", help="stop before model call N+1")
    add("--time-limit", type=clock, metavar="TIME", help="send nothing after it: 90s, 30m, 2h")
    add("--query-timeout", type=clock, metavar="TIME", help="give a query up for this time after it; 1h")
    add("--call-timeout", type=clock, metavar="TIME", help="cut a model call off after it; 10m")
    add("--patience", type=clock, metavar="TIME", help="try a call that fails again for so long; 30s")


def budget_of(arguments: argparse.Namespace) -> "Budget":
    """What the run may use, as the arguments have it."""
    from tools.models.budget import Budget

    return Budget(
        calls=arguments.budget_calls,
        usd=arguments.budget_usd,
        tokens=arguments.budget_tokens,
        seconds=arguments.time_limit,
    )


@dataclass(slots=True)
class Wanted:
    """What the arguments name, once it is known that there is such a thing."""

    constructor: Any  # of the program
    values: dict[str, Any]  # of its parameters
    given: frozenset[str]  # those of the parameters that the command line or the compiled program sets
    retriever: "Spec"
    pool: pools.Pool | None
    compiled: "Compiled | None" = None

    @property
    def isolated(self) -> str | None:
        """What a program in a process of its own is kept from; None for one in this process."""
        return getattr(self.constructor, "told", None)

    @property
    def others(self) -> list[str]:
        """The retrievers that parameters name."""
        return parameters.named_retrievers(self.values)

    @property
    def retrievers(self) -> "tuple[Spec, ...]":
        """All that the program may search with: the run's own first."""
        return (self.retriever, *map(retrievers.check, self.others))


def wanted(arguments: argparse.Namespace) -> Wanted:
    """Names first: a misspelt one must not wait for a corpus to be read."""
    from tools.retrievers.lens import annotate

    if arguments.task is None:
        raise UsageError("--task is missing; python -m environments list has the tasks")
    compiled = _compiled(arguments)
    isolated = getattr(arguments, "isolated", False)
    constructor = _isolated(arguments, compiled) if isolated else pick("program", arguments.program, SYSTEMS)
    kept = compiled.parameters if compiled else {}
    if compiled and compiled.members and parameters.limits(arguments.parameters):
        raise UsageError("an ensemble has no limits of a query: each member has a session of its own; leave them out")
    if compiled and "run_code" in f"{kept} {'' if arguments.retriever else compiled.retriever}":
        raise UsageError(
            f"{arguments.compiled} names a model whose own Python code is to be run, which only you can allow: "
            f"read that code, and give --retriever {compiled.retriever!r}"
        )
    values = parameters.parse(arguments.program, constructor, arguments.parameters, kept)
    given = frozenset(parameters.given(arguments.parameters)) | kept.keys()
    if arguments.retriever is None:
        arguments.retriever = compiled.retriever if compiled else "bm25"
    spec = retrievers.check(arguments.retriever)
    pool = None if arguments.pool is None else pools.read(arguments.pool, spec)
    for one in (spec, *(pool.parts if pool else ())):
        retrievers.require(one)
        for lens in retrievers.lenses(one):
            annotate.check(str(lens.options.get("model", "offline")), str(lens.options.get("attribute", "")))
    environments.resolve(arguments.task)
    lm.check(arguments.lm)
    made = Wanted(constructor, values, given, spec, pool, compiled)
    if arguments.budget_usd is not None:
        _check_prices(arguments, made)
    run_folder.check_place(arguments.runs)
    return made


def children(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """Around all that a command does: the processes of --isolated end with it."""
    if not arguments.isolated:
        return nullcontext()
    from evals.running.isolated import reaping

    return reaping()


def _isolated(arguments: argparse.Namespace, compiled: "Compiled | None") -> Any:
    """The program in a process of its own, which is not to read data, home and runs."""
    from evals.running.isolated import Isolated

    if arguments.dry_run:
        raise UsageError("--dry-run asks no program of somebody else's; leave out --isolated")
    folder = [] if arguments.data in (None, "mini", "full") else [Path(arguments.data)]
    return Isolated(arguments.program, SYSTEMS, [home(), arguments.runs, *folder], compiled)


def _check_prices(arguments: argparse.Namespace, wanted: Wanted) -> None:
    """UsageError where a budget in dollars cannot be kept, because nobody knows what the model or an API takes."""
    unknown = [] if lm.price_is_known(arguments.lm, arguments.prices) else [arguments.lm]
    named = (*wanted.retrievers, *(wanted.pool.parts if wanted.pool else ()))
    for api in [api for spec in named for api in retrievers.apis(spec)]:
        from tools.models.account import RunAccount
        from tools.models.budget import Budget
        from tools.retrievers.neural.api import list_price

        account = RunAccount(Budget(), arguments.prices)  # it knows what the user says of prices
        if list_price(api.subject, str(api.options.get("like", "")), account) is None:
            unknown.append(api.subject)
    if unknown:
        raise UsageError(
            f"the price of {unknown[0]} is not known, so --budget-usd cannot be kept; "
            "use --budget-calls, or write it into a file for --prices"
        )


def _compiled(arguments: argparse.Namespace) -> "Compiled | None":
    """The compiled program that is asked for, if one is; DataError or UsageError when it cannot be taken up."""
    if arguments.compiled is None:
        return None
    from programs.parts.compiled import read

    compiled = read(arguments.compiled)
    if compiled.program != arguments.program:
        raise UsageError(f"{arguments.compiled} was compiled for --program {compiled.program}, not {arguments.program}")
    return compiled


def fit(arguments: argparse.Namespace, environment: "Environment", wanted: Wanted) -> None:
    """Fill in what `wanted` leaves to the task; UsageError for what does not fit it, before an index is built."""
    if arguments.instruction == "task":
        wanted.values = parameters.hinted(wanted.values, wanted.given, environment.hints)
    _check_pools(arguments, environment, wanted)
    program = trial(wanted.constructor, wanted.values)
    if wanted.compiled and not wanted.isolated:  # its process has seen to that
        from programs.parts.compiled import check

        check(wanted.compiled, arguments.program, program, str(arguments.compiled))
    wanted.retriever = retrievers.with_attribute(wanted.retriever, environment.hints.get("lens", ""))
    arguments.retriever = str(wanted.retriever)  # two spellings of one retriever are one run


def trial(constructor: Any, values: dict[str, Any]) -> Any:
    """The program over nothing: what its constructor refuses is refused before an index is built or paid for."""
    from tools.corpus import Corpus
    from tools.retriever import NoRetriever
    from tools.session import Toolbox

    return constructor(Toolbox(Corpus(()), NoRetriever()), **values)


def _check_pools(arguments: argparse.Namespace, environment: "Environment", wanted: Wanted) -> None:
    """UsageError for retrievers, a pool or a depth that do not fit the task's pools, before any index is built."""
    own = all(query.candidates is not None for query in environment.queries)
    if wanted.pool and own:
        raise UsageError(f"{environment.task} has candidate pools of its own; leave out --pool")
    if wanted.pool:
        pools.check_room(environment, wanted.pool)
    for spec in wanted.retrievers:
        if retrievers.needs_pool(spec) and not own:
            raise UsageError(f"{spec} ranks candidate pools, and {environment.task} has none; use another")
    for part in wanted.pool.parts if wanted.pool else ():
        if retrievers.needs_pool(part):
            raise UsageError(f"{part} needs a pool, so no pool can be made of it; use another")
    largest = max((len(query.candidates or ()) for query in environment.queries), default=0)
    if arguments.k and environment.comparisons and arguments.k < largest:
        raise UsageError(f"{environment.task} compares all of a pool, up to {largest} documents; leave out --k")


def gate_of(arguments: argparse.Namespace) -> "Gate":
    """The one gate for all calls of a run."""
    from tools.models.sending.gate import Gate

    return Gate(arguments.max_concurrent or WORKERS)


def patience_of(arguments: argparse.Namespace) -> "Patience | None":
    """How long calls are tried, where the arguments say it."""
    from tools.models.call import Patience

    patience = Patience()
    if arguments.patience is not None:
        patience = replace(patience, before=arguments.patience, after=arguments.patience)
    if arguments.call_timeout is not None:
        patience = replace(patience, call=arguments.call_timeout)
    return patience if patience != Patience() else None


def for_lenses(arguments: argparse.Namespace, budget: "Budget", gate: "Gate") -> "Callable[[str, int], Model]":
    """What connects the models of lenses: by the run's gate, with its prices and patience."""

    def connected(model: str, window: int) -> "Model":
        settings = lm.Settings(context=window or None, prices=arguments.prices)
        return lm.connect(
            model,
            budget=budget,
            settings=settings,
            gate=gate,
            patience=patience_of(arguments),
            query_seconds=arguments.query_timeout or lm.QUERY_SECONDS,
        )

    return connected


def connect(
    arguments: argparse.Namespace,
    environment: "Environment",
    retriever: "Retriever | None",
    budget: "Budget",
    *,
    spec: str = "",
    seed: int | None = None,
    gate: "Gate | None" = None,
    **options: Any,
) -> "Model":
    """The model that the arguments name, or `spec` with their settings; the `options` are tools.models.lm.connect's."""
    from tools.retrievers.lexical.bm25 import BM25

    def statistics() -> "TermStatistics":
        index = retriever if isinstance(retriever, BM25) else lexical(environment)
        return index.statistics()

    spec = spec or arguments.lm
    return lm.connect(
        spec,
        statistics=statistics,
        budget=budget,
        settings=lm.Settings(
            seed=seed,
            temperature=arguments.temperature,
            effort=arguments.reasoning_effort,
            api=arguments.api,
            context=arguments.context if spec == arguments.lm else None,
            prices=arguments.prices,
        ),
        gate=gate or gate_of(arguments),
        patience=patience_of(arguments),
        query_seconds=arguments.query_timeout or lm.QUERY_SECONDS,
        **options,
    )
