"""The searches of a stored run, issued again on another retriever or to another depth. No model is
called.

Each distinct search is issued once, with the text, instruction, exclusions and pool that it had.
Left out: a searcher's reactions to other results, and searches that only ordered what had surfaced.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from sextant.environments.base import Environment, Judgements
from sextant.evals.run_folder import load_environment
from sextant.evals.running import candidate_pools
from sextant.evals.running.resolve import RunRetrievers
from sextant.evals.scoring import scored_run
from sextant.evals.scoring.statistics import paired
from sextant.tools import pool_kinds, retrievers
from sextant.tools.errors import UsageError
from sextant.tools.models.call_limits import Budget
from sextant.tools.models.run_resources import RunResources
from sextant.tools.records import JsonMapping, JsonObject, Query
from sextant.tools.retrievers.base import Retriever, Search

Result = JsonObject  # what `replay` returns and --json prints
Row = JsonMapping  # a step as it is on disk (tools/records.py)
RANK_DEPTH = 1000  # documents among which a rank is looked for
CHUNK = 64  # queries whose searches are issued together, so that models encode in batches


def replay(path: Path, retriever: str = "", depth: int | None = None) -> Result:
    """Issue the searches of the run in `path` on `retriever`, or each on its own, `depth` documents
    each or as many.

    DataError if the task's data is missing or another, UsageError for a retriever that does not
    fit it.
    """
    run = scored_run.read_scored_run(path)
    environment = load_environment(run.config)
    searcher = _SearchReplay(run.config, environment, retriever, depth)
    judgements = environment.judgements[environment.headline]
    unchanged = 0
    hops = Counter[int]()
    relevant = []
    for start in range(0, len(searcher.queries), CHUNK):
        queries = searcher.queries[start : start + CHUNK]
        steps_of = [searches(run.outcomes[query.query_id]) for query in queries]
        for query, steps, new_results in zip(
            queries, steps_of, searcher.search(queries, steps_of), strict=True
        ):
            unchanged += sum(
                list(step["doc_ids"]) == doc_ids
                for step, doc_ids in zip(steps, new_results, strict=True)
            )
            hops.update(step.get("hop", 0) for step in steps)
            relevant += _compare_documents(query.query_id, steps, new_results, judgements)
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
        "same": unchanged,
        **_add_up(relevant, hops),
        "relevant": relevant,
    }


class SearchRanks:
    """The ranks of documents under the searches of a run, each issued again to another depth.

    DataError or UsageError where the retrievers of the run cannot be made here.
    """

    def __init__(
        self, config: JsonMapping, environment: Environment, depth: int = RANK_DEPTH
    ) -> None:
        self.depth = depth
        self._replay = _SearchReplay(config, environment, "", depth)
        self._queries = {query.query_id: query for query in self._replay.queries}
        self._unit_of = environment.judgements[environment.headline].unit_of or str

    def rank(self, outcome: JsonMapping, units: Sequence[str]) -> dict[str, list[int | None]]:
        """Return for each of the `units` its rank under each search of `searches(outcome)`, from 1;
        None below the depth.
        """
        [results] = self._replay.search([self._queries[outcome["query_id"]]], [searches(outcome)])
        ranks: dict[str, list[int | None]] = {unit: [] for unit in units}
        for doc_ids in results:
            places: dict[str, int] = {}
            for place, doc_id in enumerate(doc_ids, start=1):
                places.setdefault(self._unit_of(doc_id), place)
            for unit in units:
                ranks[unit].append(places.get(unit))
        return ranks


def searches(outcome: JsonMapping) -> list[Row]:
    """Return the steps of an outcome that can have surfaced something."""
    return [
        step
        for step in outcome["trace"]["steps"]
        if step["tool"] == "search" and not step.get("refused") and not step.get("among")
    ]


def _compare_documents(
    query_id: str,
    steps: Sequence[Row],
    new_results: Sequence[list[str]],
    judgements: Judgements,
) -> list[Result]:
    unit_of = judgements.unit_of or str
    grades = judgements.recalled(query_id)
    blank = {"query_id": query_id, "of": len(grades), "then": None, "now": None}
    rows = {
        unit: {"unit": unit, "grade": grades[unit], **blank}
        for unit in sorted(grades, key=lambda unit: (-grades[unit], unit))
    }
    for when, results in (("then", [step["doc_ids"] for step in steps]), ("now", new_results)):
        for step, doc_ids in zip(steps, results, strict=True):
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
    surfaced = Counter((bool(row["then"]), bool(row["now"])) for row in relevant)
    old_recall = _recall_by_query(relevant, "then")
    new_recall = _recall_by_query(relevant, "now")
    queries = len(old_recall)
    rows = []
    for hop in sorted(hops):
        row: Result = {"hop": hop, "searches": hops[hop]}
        for when in ("then", "now"):
            earlier = [
                document for document in relevant if document[when] and document[when]["hop"] <= hop
            ]
            recall = math.fsum(1 / document["of"] for document in earlier)
            row[when] = {
                "first": sum(document[when]["hop"] == hop for document in earlier),
                "recall": recall / queries if queries else None,
            }
        rows.append(row)
    return {
        "documents": {
            "both": surfaced[True, True],
            "only_then": surfaced[True, False],
            "only_now": surfaced[False, True],
            "neither": surfaced[False, False],
        },
        "recall": {
            "then": math.fsum(old_recall) / queries if queries else None,
            "now": math.fsum(new_recall) / queries if queries else None,
            "paired": paired(old_recall, new_recall)._asdict() if queries else None,
        },
        "hops": rows,
    }


def _recall_by_query(relevant: Sequence[Result], when: str) -> list[float]:
    """Return the share of each query's relevant documents that surfaced "then" or "now"."""
    relevant_counts = {row["query_id"]: row["of"] for row in relevant}
    surfaced = Counter(row["query_id"] for row in relevant if row[when])
    return [surfaced[query_id] / count for query_id, count in relevant_counts.items()]


class _SearchReplay:
    def __init__(
        self,
        config: JsonMapping,
        environment: Environment,
        retriever: str,
        depth: int | None,
    ) -> None:
        spec = retrievers.canonicalize(retriever) if retriever else None
        for lens in retrievers.find_lenses(spec) if spec else ():
            if lens.options.get("model", "offline") != "offline":
                raise UsageError(
                    f"{lens} asks a model about every search, and a replay asks none; "
                    "name another retriever"
                )
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
        self._run_retrievers = RunRetrievers(
            environment, RunResources(budget=Budget(calls=0))
        )  # a lens that needs a model is refused
        own = config["retriever"]
        named_retrievers = own.get("others") or {}
        self._expressions = {  # by complete name
            own.get("with", ""): own["name"],
            **{name: expression for expression, name in named_retrievers.items()},
        }
        if config.get("pool"):
            environment = restore_pool(config, environment, self._run_retrievers)
        self.queries = environment.queries
        self.name = self._run_retrievers.build(spec).name if spec else ""
        self.distinct = 0

    def search(
        self, queries: Sequence[Query], steps: Sequence[Sequence[Row]]
    ) -> list[list[list[str]]]:
        keys = [
            [self._key(query, step) for step in steps_of_query]
            for query, steps_of_query in zip(queries, steps, strict=True)
        ]
        results_by_retriever: dict[tuple[str, int], dict[Search, list[str]]] = {}
        for name, k, search in (key for keys_of_query in keys for key in keys_of_query):
            results_by_retriever.setdefault((name, k), {})[search] = []
        for (name, k), results in results_by_retriever.items():
            hits = self._find_retriever(name).search_many(list(results), k)
            results.update(zip(results, (each.doc_ids for each in hits), strict=True))
            self.distinct += len(results)
        return [
            [results_by_retriever[name, k][search] for name, k, search in keys_of_query]
            for keys_of_query in keys
        ]

    def _key(self, query: Query, step: Row) -> tuple[str, int, Search]:
        k = self._depth or step.get("k") or len(step["doc_ids"])
        name = "" if self._spec else step.get("retriever", "")
        return (
            name,
            k,
            Search(
                step["argument"],
                step.get("instruction") or query.objective,
                query.excluded,
                query.candidates,
            ),
        )

    def _find_retriever(self, name: str) -> Retriever:
        if self._spec:
            return self._run_retrievers.build(self._spec)
        try:
            spec = retrievers.canonicalize(self._expressions.get(name, ""))
        except UsageError:  # another program's, or one that this installation does not have
            searcher = name or "a retriever without a name"
            raise UsageError(
                f"the run searched with {searcher}, which cannot be made here; give --retriever"
            ) from None
        retriever = self._run_retrievers.build(spec)
        if retriever.name != name:
            raise UsageError(
                f"the run searched with {name}, and {spec} now is {retriever.name}; give --retriever"
            )
        return retriever


def restore_pool(
    config: JsonMapping, environment: Environment, run_retrievers: RunRetrievers
) -> Environment:
    """Return the environment with the pools of the run's `--pool`.

    UsageError if they cannot be made again.
    """
    pool_config = config["pool"]
    run_retriever = retrievers.canonicalize(config["retriever"]["name"])
    size_text = f"{pool_kinds.read_kind(config)}:{pool_config['size']}"
    names = ",".join(pool_config["of"])
    for text in (size_text, f"{size_text}({names})"):
        try:
            pool = candidate_pools.read(text, run_retriever)
        except UsageError:  # a complete name is not always an expression
            continue
        parts = [run_retrievers.build(spec) for spec in pool.parts]
        made = pool.config([retriever.name for retriever in parts], environment)
        if made | {"kind": pool_config["kind"]} == pool_config:
            return pool.add_to(environment, parts)
    raise UsageError(
        f"the run's pools were made with {', '.join(pool_config['of'])}, which cannot be told apart from "
        f"here, "
        "or by an earlier version; replay another run"
    )
