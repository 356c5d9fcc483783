"""The searches of a stored run, issued again on another retriever or to another depth. No model is called.

Each distinct search is issued once, with the text, instruction, exclusions and pool that it had; for every relevant
document it is told in which search it came back first, then and now. Left out: what a searcher would have done with
other results. Searches that only ordered what had surfaced cannot surface anything, and are not issued again.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments.base import Environment, Judgements
from evals.measuring import scored
from evals.measuring.stats import paired
from evals.running import pools
from evals.running.configuration import load_environment
from evals.running.resolve import Engines
from tools import retrievers
from tools.errors import UsageError
from tools.models.terms import Budget, Terms
from tools.records import Query
from tools.retriever import Retriever, Search
from tools.retrievers import Spec

Result = dict[str, Any]  # what `replay` returns and --json prints
Row = Mapping[str, Any]  # a step as it is on disk (tools/records.py)
CHUNK = 64  # queries whose searches are issued together, so that models encode in batches


def replay(path: Path, retriever: str = "", depth: int | None = None) -> Result:
    """Issue the searches of the run in `path` on `retriever`, or each on its own where none is named.

    `depth` is documents a search; None is as many as then. DataError where the task's data is not at hand, or not the
    same; UsageError for a retriever that does not fit it.
    """
    run = scored.read(path)
    environment = load_environment(run.config)
    searcher = _Searcher(run.config, environment, retriever, depth)
    judgements = environment.judgements[environment.headline]
    tally = _Tally()
    for start in range(0, len(searcher.queries), CHUNK):
        queries = searcher.queries[start : start + CHUNK]
        then = [searches(run.outcomes[query.query_id]) for query in queries]
        for query, steps, now in zip(queries, then, searcher.search(queries, then), strict=True):
            tally.add(query, steps, now, judgements)
    if not tally.searches:
        raise UsageError(f"{path} has no search in its trajectories, so there is nothing to issue again")
    return {
        "run": run.name,
        **{key: run.scores[key] for key in ("task", "data", "split", "judgements", "program", "retriever", "lm")},
        "compiled": run.scores.get("compiled"),
        "replayed": {"retriever": searcher.name, "depth": depth, "distinct": searcher.distinct},
        **tally.json(),
    }


def searches(outcome: Mapping[str, Any]) -> list[Row]:
    """Return the steps of an outcome that can have surfaced something."""
    steps = outcome["trace"]["steps"]
    return [step for step in steps if step["tool"] == "search" and not step.get("refused") and not step.get("among")]


class _Searcher:
    """Issues the searches of a run again."""

    def __init__(self, config: Mapping[str, Any], environment: Environment, retriever: str, depth: int | None) -> None:
        spec = retrievers.check(retriever) if retriever else None
        if spec:
            _check_retriever(spec, environment, pool=bool(config.get("pool")))
        # No budget, no call: a lens that needs a model is refused before.
        self._engines, self._spec, self._depth = Engines(environment, Terms(budget=Budget(calls=0))), spec, depth
        others = config["retriever"].get("others") or {}
        self._expressions = {config["retriever"].get("with", ""): config["retriever"]["name"]}  # by complete name
        self._expressions |= {name: expression for expression, name in others.items()}
        self.queries = (_pool(config, environment, self._engines) if config.get("pool") else environment).queries
        self.name = self._engines.build(spec).name if spec else ""
        self.distinct = 0

    def search(self, queries: Sequence[Query], steps: Sequence[Sequence[Row]]) -> list[list[list[str]]]:
        """Return what each search of each query brings now, best first."""
        keys = [[self._key(query, step) for step in of] for query, of in zip(queries, steps, strict=True)]
        found: dict[tuple[str, int], dict[Search, list[str]]] = {}
        for name, k, search in (key for of in keys for key in of):
            found.setdefault((name, k), {})[search] = []
        for (name, k), results in found.items():
            hits = self._engine(name).search_many(list(results), k)
            results.update(zip(results, ([hit.doc_id for hit in each] for each in hits), strict=True))
            self.distinct += len(results)
        return [[found[name, k][search] for name, k, search in of] for of in keys]

    def _key(self, query: Query, step: Row) -> tuple[str, int, Search]:
        """(retriever, depth, search) of a step of a query."""
        k = self._depth or step.get("k") or len(step["doc_ids"])
        name = "" if self._spec else step.get("retriever", "")
        instruction = step.get("instruction") or query.objective
        return name, k, Search(step["argument"], instruction, query.excluded, query.candidates)

    def _engine(self, name: str) -> Retriever:
        if self._spec:
            return self._engines.build(self._spec)
        try:
            spec = retrievers.check(self._expressions.get(name, ""))
        except UsageError:  # another program's, or one that this installation does not have
            what = name or "a retriever without a name"
            raise UsageError(f"the run searched with {what}, which cannot be made here; give --retriever") from None
        engine = self._engines.build(spec)
        if engine.name != name:
            raise UsageError(f"the run searched with {name}, and {spec} now is {engine.name}; give --retriever")
        return engine


def _check_retriever(spec: Spec, environment: Environment, *, pool: bool) -> None:
    """Raise UsageError for a retriever that needs a model, or pools that the task has not."""
    for lens in retrievers.lenses(spec):
        if lens.options.get("model", "offline") != "offline":
            raise UsageError(f"{lens} asks a model about every search, and a replay asks none; name another retriever")
    pools = pool or all(query.candidates is not None for query in environment.queries)
    if retrievers.needs_pool(spec) and not pools:
        raise UsageError(f"{spec} ranks candidate pools, and {environment.task} has none; name another retriever")


def _pool(config: Mapping[str, Any], environment: Environment, engines: Engines) -> Environment:
    """Return the environment with the pools of the run's `--pool`. UsageError where they cannot be made again."""
    kept, own = config["pool"], retrievers.check(config["retriever"]["name"])
    what, names = f"{kept['kind']}:{kept['size']}", ",".join(kept["of"])
    for text in (what, f"{what}({names})"):
        try:
            pool = pools.read(text, own)
        except UsageError:  # a complete name is not always an expression
            continue
        parts = [engines.build(part) for part in pool.parts]
        if pool.config([part.name for part in parts], environment) == kept:
            return pool.add_to(environment, parts)
    raise UsageError(
        f"the run's pools were made with {', '.join(kept['of'])}, which cannot be told apart from here, "
        "or by an earlier version; replay another run"
    )


def _first_places(steps: Sequence[Row], found: Iterable[Sequence[str]], judgements: Judgements, units: Any) -> Result:
    """Each of `units` that came back -> where first: hop, rank, search and document. `found` is what steps brought."""
    unit_of, first = judgements.unit_of or str, Result()
    for step, doc_ids in zip(steps, found, strict=True):
        for rank, doc_id in enumerate(doc_ids, start=1):
            if (unit := unit_of(doc_id)) in units:
                place = {"hop": step.get("hop", 0), "rank": rank, "search": step["argument"], "doc_id": doc_id}
                first.setdefault(unit, place)
    return first


@dataclass(slots=True)
class _Tally:
    """What the queries of a run come to."""

    searches: int = 0
    same: int = 0  # searches that brought the same documents in the same order
    relevant: list[Result] = field(default_factory=list)  # a row for each relevant document
    recall: dict[str, list[float]] = field(default_factory=lambda: {"then": [], "now": []})
    hops: Counter[int] = field(default_factory=Counter)  # hop -> its searches

    def add(self, query: Query, steps: Sequence[Row], found: Sequence[list[str]], judgements: Judgements) -> None:
        """Add a query, with its searches and what they bring now."""
        stored = [list(step["doc_ids"]) for step in steps]
        self.searches += len(steps)
        self.same += sum(before == now for before, now in zip(stored, found, strict=True))
        self.hops.update(step.get("hop", 0) for step in steps)
        grades = judgements.recalled(query.query_id)
        if not grades:
            return  # recall is undefined
        then, now = (_first_places(steps, each, judgements, grades) for each in (stored, found))
        for unit, grade in sorted(grades.items(), key=lambda one: (-one[1], one[0])):
            about = {"query_id": query.query_id, "unit": unit, "grade": grade, "of": len(grades)}
            self.relevant.append(about | {"then": then.get(unit), "now": now.get(unit)})
        self.recall["then"].append(len(then) / len(grades))
        self.recall["now"].append(len(now) / len(grades))

    def json(self) -> Result:
        """Return all of it as plain data."""
        surfaced = Counter((bool(row["then"]), bool(row["now"])) for row in self.relevant)
        kinds = {"both": (True, True), "only_then": (True, False), "only_now": (False, True), "neither": (False, False)}
        many = len(self.recall["then"])
        means = {name: math.fsum(values) / many if many else None for name, values in self.recall.items()}
        difference = paired(self.recall["then"], self.recall["now"])._asdict() if many else None
        return {
            "searches": self.searches,
            "same": self.same,
            "documents": {name: surfaced[kind] for name, kind in kinds.items()},
            "recall": means | {"paired": difference},
            "hops": [self._hop(hop, many) for hop in sorted(self.hops)],
            "relevant": self.relevant,
        }

    def _hop(self, hop: int, many: int) -> Result:
        """What came back first in a hop, then and now, and the recall of all up to it."""
        row: Result = {"hop": hop, "searches": self.hops[hop]}
        for when in ("then", "now"):
            places = [(one[when]["hop"], one["of"]) for one in self.relevant if one[when]]
            shares = [1 / of for at, of in places if at <= hop]
            row[when] = {
                "first": sum(at == hop for at, _ in places),
                "recall": math.fsum(shares) / many if many else None,
            }
        return row
