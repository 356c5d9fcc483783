"""The searches of a stored run, issued again on another retriever or to another depth. No model is
called.

Each distinct search is issued once, with the text, instruction, exclusions and pool that it had.
Left out: what a searcher would have done with other results, and searches that only ordered what
had surfaced.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments.base import Environment, Judgements
from evals.run_folder import load_environment
from evals.running import candidate_pools
from evals.running.resolve import RunRetrievers
from evals.scoring import scored_run
from evals.scoring.statistics import paired
from tools import retrievers
from tools.errors import UsageError
from tools.models.run_resources import Budget, RunResources
from tools.records import Query
from tools.retrievers.base import Retriever, Search

Result = dict[str, Any]  # what `replay` returns and --json prints
Row = Mapping[str, Any]  # a step as it is on disk (tools/records.py)
CHUNK = 64  # queries whose searches are issued together, so that models encode in batches


def replay(path: Path, retriever: str = "", depth: int | None = None) -> Result:
    """Issue the searches of the run in `path` on `retriever`, or each on its own, `depth` documents
    each or as many.

    DataError where the task's data is missing or another, UsageError for a retriever that does not
    fit it.
    """
    run = scored_run.read_scored_run(path)
    environment = load_environment(run.config)
    searcher = _SearchReplay(run.config, environment, retriever, depth)
    judgements = environment.judgements[environment.headline]
    same = 0
    hops = Counter[int]()
    relevant = list[Result]()
    for start in range(0, len(searcher.queries), CHUNK):
        queries = searcher.queries[start : start + CHUNK]
        steps_of = [searches(run.outcomes[query.query_id]) for query in queries]
        for query, steps, now in zip(
            queries, steps_of, searcher.search(queries, steps_of), strict=True
        ):
            then = [list(step["doc_ids"]) for step in steps]
            same += sum(before == after for before, after in zip(then, now, strict=True))
            hops.update(step.get("hop", 0) for step in steps)
            relevant += _compare_documents(query.query_id, steps, then, now, judgements)
    if not hops:
        raise UsageError(
            f"{path} has no search in its trajectories, so there is nothing to issue again"
        )
    return {
        "run": run.name,
        **{key: run.scores[key] for key in (*scored_run.ABOUT, *scored_run.NAMED)},
        "compiled": run.scores.get("compiled"),
        "replayed": {"retriever": searcher.name, "depth": depth, "distinct": searcher.distinct},
        "searches": hops.total(),
        "same": same,
        **_add_up(relevant, hops),
        "relevant": relevant,
    }


def searches(outcome: Mapping[str, Any]) -> list[Row]:
    """Return the steps of an outcome that can have surfaced something."""
    steps = outcome["trace"]["steps"]
    return [
        step
        for step in steps
        if step["tool"] == "search" and not step.get("refused") and not step.get("among")
    ]


def _compare_documents(
    query_id: str,
    steps: Sequence[Row],
    then: Sequence[list[str]],
    now: Sequence[list[str]],
    judgements: Judgements,
) -> list[Result]:
    unit_of = judgements.unit_of or str
    grades = judgements.recalled(query_id)
    rows: dict[str, Result] = {}
    for unit, grade in sorted(grades.items(), key=lambda one: (-one[1], one[0])):
        rows[unit] = {
            "query_id": query_id,
            "unit": unit,
            "grade": grade,
            "of": len(grades),
            "then": None,
            "now": None,
        }
    for when, found in (("then", then), ("now", now)):
        for step, doc_ids in zip(steps, found, strict=True):
            for rank, doc_id in enumerate(doc_ids, start=1):
                row = rows.get(unit_of(doc_id))
                if row is not None and row[when] is None:
                    row[when] = {
                        "hop": step.get("hop", 0),
                        "rank": rank,
                        "search": step["argument"],
                        "doc_id": doc_id,
                    }
    return list(rows.values())


def _add_up(relevant: Sequence[Result], hops: Mapping[int, int]) -> Result:
    kinds = {
        "both": (True, True),
        "only_then": (True, False),
        "only_now": (False, True),
        "neither": (False, False),
    }
    surfaced = Counter((bool(row["then"]), bool(row["now"])) for row in relevant)
    of = {row["query_id"]: row["of"] for row in relevant}
    found = [Counter(row["query_id"] for row in relevant if row[when]) for when in ("then", "now")]
    then, now = ([hits[query_id] / many for query_id, many in of.items()] for hits in found)
    many = len(then)
    rows = []
    for hop in sorted(hops):
        row: Result = {"hop": hop, "searches": hops[hop]}
        for when in ("then", "now"):
            places = [(one[when]["hop"], one["of"]) for one in relevant if one[when]]
            share = math.fsum(1 / wanted for at, wanted in places if at <= hop)
            row[when] = {
                "first": sum(at == hop for at, _ in places),
                "recall": share / many if many else None,
            }
        rows.append(row)
    return {
        "documents": {name: surfaced[kind] for name, kind in kinds.items()},
        "recall": {
            "then": math.fsum(then) / many if many else None,
            "now": math.fsum(now) / many if many else None,
            "paired": paired(then, now)._asdict() if many else None,
        },
        "hops": rows,
    }


class _SearchReplay:
    def __init__(
        self, config: Mapping[str, Any], environment: Environment, retriever: str, depth: int | None
    ) -> None:
        spec = retrievers.canonicalize(retriever) if retriever else None
        for lens in retrievers.find_lenses(spec) if spec else ():
            if lens.options.get("model", "offline") != "offline":
                why = "asks a model about every search, and a replay asks none"
                raise UsageError(f"{lens} {why}; name another retriever")
        pooled = bool(config.get("pool")) or all(
            query.candidates is not None for query in environment.queries
        )
        if spec and retrievers.needs_pool(spec) and not pooled:
            raise UsageError(
                f"{spec} ranks candidate pools, and {environment.task} has none; name another "
                f"retriever"
            )
        retrievers.refuse_user_code(f"{config['retriever']} {config.get('pool')}", "the run")
        self._spec = spec
        self._depth = depth
        self._engines = RunRetrievers(
            environment, RunResources(budget=Budget(calls=0))
        )  # a lens that needs a model is refused
        others = config["retriever"].get("others") or {}
        self._expressions = {
            config["retriever"].get("with", ""): config["retriever"]["name"]
        }  # by complete name
        self._expressions |= {name: expression for expression, name in others.items()}
        self.queries = (
            _pool(config, environment, self._engines) if config.get("pool") else environment
        ).queries
        self.name = self._engines.build(spec).name if spec else ""
        self.distinct = 0

    def search(
        self, queries: Sequence[Query], steps: Sequence[Sequence[Row]]
    ) -> list[list[list[str]]]:
        keys = [
            [self._key(query, step) for step in of]
            for query, of in zip(queries, steps, strict=True)
        ]
        found: dict[tuple[str, int], dict[Search, list[str]]] = {}
        for name, k, search in (key for of in keys for key in of):
            found.setdefault((name, k), {})[search] = []
        for (name, k), results in found.items():
            hits = self._engine(name).search_many(list(results), k)
            results.update(
                zip(results, ([hit.doc_id for hit in each] for each in hits), strict=True)
            )
            self.distinct += len(results)
        return [[found[name, k][search] for name, k, search in of] for of in keys]

    def _key(self, query: Query, step: Row) -> tuple[str, int, Search]:
        k = self._depth or step.get("k") or len(step["doc_ids"])
        name = "" if self._spec else step.get("retriever", "")
        instruction = step.get("instruction") or query.objective
        return name, k, Search(step["argument"], instruction, query.excluded, query.candidates)

    def _engine(self, name: str) -> Retriever:
        if self._spec:
            return self._engines.build(self._spec)
        try:
            spec = retrievers.canonicalize(self._expressions.get(name, ""))
        except UsageError:  # another program's, or one that this installation does not have
            what = name or "a retriever without a name"
            raise UsageError(
                f"the run searched with {what}, which cannot be made here; give --retriever"
            ) from None
        engine = self._engines.build(spec)
        if engine.name != name:
            raise UsageError(
                f"the run searched with {name}, and {spec} now is {engine.name}; give --retriever"
            )
        return engine


def _pool(
    config: Mapping[str, Any], environment: Environment, engines: RunRetrievers
) -> Environment:
    """Return the environment with the pools of the run's `--pool`.

    UsageError where they cannot be made again.
    """
    kept = config["pool"]
    own = retrievers.canonicalize(config["retriever"]["name"])
    what = f"{kept['kind']}:{kept['size']}"
    names = ",".join(kept["of"])
    for text in (what, f"{what}({names})"):
        try:
            pool = candidate_pools.read(text, own)
        except UsageError:  # a complete name is not always an expression
            continue
        parts = [engines.build(part) for part in pool.parts]
        if pool.config([part.name for part in parts], environment) == kept:
            return pool.add_to(environment, parts)
    made = (
        f"the run's pools were made with {', '.join(kept['of'])}, which cannot be told apart from "
        f"here"
    )
    raise UsageError(f"{made}, or by an earlier version; replay another run")
