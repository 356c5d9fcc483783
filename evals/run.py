"""`python -m evals.run --program multihop --task congress`: run a search system on a task, score it, print it.

The composition root: the one place where a task, a retriever, a program and a model meet. It has no logic of its
own beyond checking that the arguments fit together.
"""

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# Nothing below may phone home or spin idle cores; said before the libraries that look here are imported. LiteLLM's own
# switch is in tools/models/lm.py. NumPy's threads are off; those of the encoders are counted where they work, and
# $OMP_NUM_THREADS bounds them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import environments
from environments.base import INSTRUCTIONS, SPLITS
from evals import folder as run_folder
from evals.running import listing, parameters, pools, provenance, resolve
from evals.running.engines import Engines
from tools import retrievers
from tools.console.command import Parser, positive, put_out, run_and_leave, say
from tools.errors import BudgetReached, DataError, ProviderRefused, RunIncomplete, SextantError
from tools.models import lm
from tools.retrievers import RETRIEVERS

if TYPE_CHECKING:
    from environments.base import Environment
    from evals.folder import Config, RunFolder
    from evals.running.events import Events, Started
    from tools.models.answers import Books
    from tools.models.lm import Model
    from tools.retriever import Retriever


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.run", description="Run a search system on a task and score it.")
    add = made.add_argument
    add("--program", required=True, metavar="NAME", help=f"list, or one of {', '.join(sorted(resolve.SYSTEMS))}")
    add("--task", metavar="TASK", help="a task, e.g. congress or obliq/congress")
    add("--data", metavar="WHAT", help="mini, full or a folder; full where it is fetched, else mini")
    add("--split", default="test", metavar="SPLIT", help=f"which queries: {', '.join(SPLITS)}")
    add("--qrels", default="", metavar="NAME", help="which judgements lead, e.g. gold or pooled; all are reported")
    add(
        "--instruction",
        default="task",
        metavar="KIND",
        help=f"what a query says of its task: {', '.join(INSTRUCTIONS)}",
    )
    add(
        "--retriever",
        metavar="SPEC",
        help=f"bm25 where none is named; one of {', '.join(RETRIEVERS)}, or made of them, e.g. fusion(bm25,dense); "
        "python -m tools.retrievers",
    )
    add(
        "--pool",
        metavar="POOL",
        help="rank pools: union:300 of what the retriever finds, or oracle:300 with gold in it",
    )
    add(
        "--lm",
        default=os.environ.get("SEXTANT_LM") or "offline",
        metavar="SPEC",
        help="offline, provider/model or MODEL@http://host:port/v1; also $SEXTANT_LM",
    )
    add("--limit", type=positive, metavar="N", help="ask only the first N queries")
    add("--query-id", action="append", default=[], metavar="ID", help="ask only this query; repeatable")
    add("--compiled", type=Path, metavar="FILE", help="a compiled program: what python -m optimizers.compile made")
    add(
        "-P",
        dest="parameters",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"a parameter of the program, or a limit of each query: {', '.join(parameters.LIMITS)}",
    )
    add("--k", type=positive, metavar="N", help="documents in a ranking; the task's own number, mostly 1000")
    add("--seed", type=int, metavar="N", help="the model's sampling seed, where it takes one")
    resolve.add_model_options(made)
    add(
        "--cassette",
        type=Path,
        metavar="FILE",
        help="answer every model call from FILE, without a key; where there is none, record it",
    )
    add(
        "--again", choices=("failed",), metavar="WHICH", help="failed: ask the queries again whose outcome is a failure"
    )
    add("--isolated", action="store_true", help="run the program in a process of its own; docs/decisions/isolation.md")
    add("--dry-run", action="store_true", help="say what it will cost and how long it will take; nothing is sent")
    add("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where run folders go")
    add = made.add_mutually_exclusive_group().add_argument
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--json-events", action="store_true", help="print one JSON object a line as things happen")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Run what is owed, score, print. Exit code 7 when queries failed or are still owed."""
    from evals.running.events import Events

    with Events(put_out if arguments.json_events else None) as events, resolve.children(arguments):
        events.code = _command(arguments, events)
    return events.code


def _command(arguments: argparse.Namespace, events: "Events") -> int:
    started = time.monotonic()
    if arguments.program == "list":
        listing.show(as_json=arguments.json)
        return 0
    lm.read_keys()
    wanted = resolve.wanted(arguments)
    environment = environments.load(
        arguments.task, arguments.data, arguments.split, qrels=arguments.qrels, instruction=arguments.instruction
    ).asking(limit=arguments.limit, query_ids=arguments.query_id)
    resolve.fit(arguments, environment, wanted)
    if arguments.dry_run:
        return _foretold(arguments, environment, wanted)

    from tools.models.cassette import Cassette

    cassette = Cassette(arguments.cassette, arguments.lm) if arguments.cassette else None
    ready = _prepared(arguments, environment, wanted)
    model = ready.model
    place = run_folder.place(arguments.runs, ready.config)
    if not (place / "outcomes.jsonl").exists() and not (cassette and cassette.replays):
        lm.check_key(arguments.lm)
    with run_folder.claim(place, ready.config) as folder:
        ready.engines.keep(folder.path, arguments.runs)
        if arguments.again:
            model.lm.anew = folder.ask_failed_again()
        model.begin(folder.path, folder.usage)
        asked = _pooled(environment, wanted, ready.engines)
        if cassette:
            cassette.begin(model.lm.ledger)
        problem = _run(arguments, asked, folder, model, ready.system, events)
        if cassette:
            cassette.keep(complete=len(folder.outcomes) == len(asked.queries))
        books = model.books or ready.engines.account.books
        return _conclude(arguments, asked, folder, books, problem, started, events)


def _foretold(arguments: argparse.Namespace, environment: "Environment", wanted: resolve.Wanted) -> int:
    """Print what the run will cost."""
    from evals.running import forecast

    model = resolve.connect(arguments, environment, None, resolve.budget_of(arguments), seed=arguments.seed)
    config = configuration(arguments, environment, None, model, wanted)
    forecast.show(forecast.estimate(arguments, environment, wanted, model, config), as_json=arguments.json)
    return 0


def _pooled(environment: "Environment", wanted: resolve.Wanted, engines: Engines) -> "Environment":
    """The task with the pools of --pool, if there is one; what the searches for them cost is in the books."""
    if not wanted.pool:
        return environment
    return pools.pooled(environment, wanted.pool, [engines.build(part) for part in wanted.pool.parts])


class _Prepared(NamedTuple):
    """What a run needs, once indexes are there. Nothing has been sent but for them."""

    engines: Engines
    model: "Model"
    config: "Config"
    system: Any


def _prepared(arguments: argparse.Namespace, environment: "Environment", wanted: resolve.Wanted) -> _Prepared:
    from tools.retriever import RanksOnly
    from tools.session import Toolbox

    budget = resolve.budget_of(arguments)
    gate = resolve.gate_of(arguments)
    engines = Engines(arguments, environment, budget, resolve.for_lenses(arguments, budget, gate))
    retriever = engines.build(wanted.retriever)
    others = {name: engines.build(retrievers.check(name)) for name in wanted.others}
    model = resolve.connect(arguments, environment, retriever, budget, seed=arguments.seed, gate=gate)
    config = configuration(arguments, environment, retriever, model, wanted)
    config["retriever"]["others"] = {name: other.name for name, other in others.items()}
    if wanted.pool:
        parts = [engines.build(part).name for part in wanted.pool.parts]
        config["pool"] = wanted.pool.config(parts, environment)
        retriever, others = RanksOnly(retriever), {name: RanksOnly(other) for name, other in others.items()}
    depth, path = config["depth"], run_folder.place(arguments.runs, config)
    limits = parameters.session_limits(parameters.limits(arguments.parameters), depth)
    toolbox = Toolbox(environment.documents, retriever, others=others, limits=limits, checkpoints=path)
    system = wanted.constructor(toolbox, depth=depth, **wanted.values)
    if wanted.compiled and not wanted.isolated:
        from programs.parts.ensembles import assembled

        system = assembled(wanted.compiled, system)
    return _Prepared(engines, model, config, system)


def configuration(
    arguments: argparse.Namespace,
    environment: "Environment",
    retriever: "Retriever | None",
    model: "Model",
    wanted: resolve.Wanted,
) -> "Config":
    """Everything that determines a run's numbers; what does not is under "provenance". No retriever: only its name."""
    values, compiled = wanted.values, wanted.compiled
    return {
        "task": environment.task,
        "data": environment.data if environment.data in ("mini", "full") else "folder",
        "compiled": compiled
        and {"digest": compiled.digest(), **{key: compiled.origin.get(key, "") for key in ("optimizer", "task")}},
        "pool": None,
        "max_p": environment.max_p,
        "instruction": arguments.instruction,
        "data_fingerprint": environment.fingerprint,  # texts, queries, judgements, exclusions, pools
        "split": environment.split,
        "asked": {"limit": arguments.limit, "query_ids": list(dict.fromkeys(arguments.query_id))},
        "program": arguments.program,
        "parameters": values,
        "limits": parameters.limits(arguments.parameters),
        "files": parameters.digests(values),
        "depth": arguments.k or environment.depth,
        "retriever": {"name": arguments.retriever, "with": retriever.name if retriever else arguments.retriever},
        "lm": {"name": model.name, **model.settings},
        "code": provenance.code_digest(),
        "versions": provenance.versions(),
        run_folder.PROVENANCE: {
            "judgements": environment.headline,  # all are scored; rankings do not depend on which ones lead
            "data": environment.data,
            "folder": None if environment.data in ("mini", "full") else str(Path(environment.data).resolve()),
            "source": environment.source,
            "compiled": arguments.compiled and str(arguments.compiled),
            "price": model.price and model.price.provenance,
            "isolated": wanted.isolated,
            **provenance.origin(),
        },
    }


def _run(
    arguments: argparse.Namespace,
    environment: "Environment",
    folder: "RunFolder",
    model: "Model",
    system: Any,
    events: "Events",
) -> SextantError | None:
    """Answer what is owed; return why some of it still is, if it is."""
    from evals.measuring import split_uses
    from evals.measuring.metrics import compute
    from evals.measuring.scoring import ranking_of
    from evals.running.runner import run
    from evals.running.watch import Watch
    from evals.showing.terminal import queries

    metric = environment.metric

    def value(outcome: run_folder.Outcome) -> float | None:
        query_id = outcome["query_id"]
        return compute(metric, query_id, {query_id: ranking_of(outcome)}, environment)

    earlier = [value(outcome) for outcome in folder.outcomes.values()]
    events.tell(_started(arguments, environment, folder, model))
    quiet = arguments.json or events.heard
    if not quiet:
        resumed = f", {len(earlier)} answered before" if earlier else ""
        say(f"{environment.task}: {queries(len(environment.queries))}{resumed}")
    failed = sum(outcome["error"] is not None for outcome in folder.outcomes.values())
    watch = Watch(len(environment.queries), earlier, metric, model.status, failed=failed, quiet=quiet, events=events)

    def report(outcome: run_folder.Outcome) -> None:
        watch.add(outcome, value(outcome))

    workers = arguments.max_concurrent or (1 if model.name == "offline" else resolve.WORKERS)
    try:
        with watch:
            fault = run(
                system,
                environment.queries,
                environment.documents,
                folder,
                model,
                workers=workers,
                on_outcome=report,
                on_owed=watch.owed,
            )
    except (BudgetReached, ProviderRefused, RunIncomplete, DataError) as problem:
        return problem
    except KeyboardInterrupt:
        done = f"{len(folder.outcomes)} of {len(environment.queries)} queries are safe in {folder.path}"
        say(f"{done}; the same command answers the others")
        raise
    finally:
        if folder.outcomes:  # their values have been shown, also where the others are never asked
            split_uses.record(run_folder.read_config(folder.path), folder.path)
    return RunIncomplete(f"the model's provider failed: {fault}") if fault else None


def _started(
    arguments: argparse.Namespace, environment: "Environment", folder: "RunFolder", model: "Model"
) -> "Started":
    from evals.running.events import Started

    return Started(
        run=str(folder.path),
        task=environment.task,
        split=environment.split,
        program=arguments.program,
        retriever=arguments.retriever,
        lm=model.name,
        queries=len(environment.queries),
        done=len(folder.outcomes),
        budget={
            "usd": arguments.budget_usd,
            "tokens": arguments.budget_tokens,
            "calls": arguments.budget_calls,
            "seconds": arguments.time_limit,
        },
    )


def _conclude(
    arguments: argparse.Namespace,
    environment: "Environment",
    folder: "RunFolder",
    books: "Books | None",
    problem: SextantError | None,
    started: float,
    events: "Events",
) -> int:
    from evals.measuring import split_uses
    from evals.measuring.bounds import beside
    from evals.measuring.scoring import score, score_partly
    from evals.measuring.tally import summarise
    from evals.showing.terminal import show

    config = run_folder.read_config(folder.path)
    asked = [query.query_id for query in environment.queries]
    owed = [query_id for query_id in asked if query_id not in folder.outcomes]
    if owed:
        result = summarise(config, folder.outcomes, asked)
        result["partial"] = score_partly(environment, folder.outcomes)
    else:
        result = score(folder.path, environment, folder.outcomes)
        result["bounds"] = beside(folder.path).json()
    seen = split_uses.count(config["task"], split_uses.data_of(config), config["program"])
    if books:
        result["ledger"] = books.json()
    result = {"run": str(folder.path), **result, "looks": seen, "seconds": round(time.monotonic() - started, 2)}
    if events.heard:
        events.result = result
    else:
        show(result, as_json=arguments.json)
    if owed:
        larger = " with a larger budget" if isinstance(problem, BudgetReached) and problem.larger else ""
        problem = problem or RunIncomplete("the run broke off")
        rest = f"the same command{larger} goes on with what is owed: {len(owed)} of {len(asked)} queries"
        raise problem.saying(f"{problem}; {rest}")
    return 7 if result["failed"] else 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
