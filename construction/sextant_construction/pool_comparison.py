"""A benchmark's pools, made again from all of its documents and compared with the released pools.

    sextant build check birco/relic --pools --retrievers dense

Nothing asks a model. recipes/pool.py makes the pools.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from sextant.environments.base import Environment
from sextant.evals.papers import dataset_statistics
from sextant.evals.run_descriptions import describe_task
from sextant.evals.scoring.metrics import Ranking, compute
from sextant.tools.errors import UsageError
from sextant.tools.platform.number_format import number, queries
from sextant.tools.platform.result_table import ResultTable, render_terminal
from sextant.tools.records import JsonMapping, JsonObject, Query
from sextant.tools.retrievers.base import Retriever, Search
from sextant_construction.recipes.pool import find_own, list_triplets, make_pools, relevant_ids

# Metrics of BIRCO's Table 9, and the documents that they see.
REFERENCE = ("nDCG@10", "R@5")
DEPTH = 10


def compare_pools(
    environment: Environment, retrievers: Mapping[str, Retriever]
) -> list[JsonObject]:
    """Return a row for the released pools, for pools of the retrievers, and for all documents.

    A row has

    - "pools": the name of the pools
    - "documents": their mean number
    - "overlap": the share of a released pool that is found again, without relevant documents,
      which are put in
    - "chance": the same share if documents were drawn by lot
    - "hard": the share of hard negatives, if ids tell them
    - "triplets": their number
    - by retriever, the metrics of REFERENCE, as in BIRCO's Table 9

    UsageError for a task without pools.
    """
    released = [query for query in environment.queries if query.candidates is not None]
    if not released:
        raise UsageError(f"{environment.task} has no pools that could be compared")
    own_documents = find_own(released, environment.documents)
    sizes = {query.query_id: len(_pool(query)) for query in released}
    unpooled = [
        replace(query, candidates=None, excluded=query.excluded | own_documents[query.query_id])
        for query in released
    ]
    combinations = [[name] for name in retrievers]
    if len(retrievers) > 1:
        combinations.append([*retrievers])
    variants = {"released": released}
    for names in combinations:
        searchers = [retrievers[name] for name in names]
        pools = make_pools(unpooled, environment.qrels, searchers, sizes)
        variants[" and ".join(names)] = [
            replace(query, candidates=pools[query.query_id]) for query in unpooled
        ]
    rows: list[JsonObject] = [
        {"pools": label, **_compare(environment, released, variant)}
        for label, variant in variants.items()
    ]
    rows.append({"pools": "all documents"})
    for row, variant in zip(
        rows,
        [*variants.values(), unpooled],
        strict=True,
    ):
        for name, retriever in retrievers.items():
            row |= _rank(environment, variant, name, retriever)
    return rows


def _pool(query: Query) -> frozenset[str]:
    return query.candidates or frozenset()


def _compare(
    environment: Environment,
    released: Sequence[Query],
    remade: Sequence[Query],
) -> dict[str, float | None]:
    """Return the columns of a row that are about the pools themselves."""
    overlaps = []
    chances = []
    gold = environment.qrels
    for before, after in zip(released, remade, strict=True):
        relevant = relevant_ids(gold[before.query_id])
        negatives = _pool(before) - relevant
        remade_negatives = _pool(after) - relevant
        overlaps.append(len(negatives & remade_negatives) / max(1, len(negatives)))
        chances.append(len(remade_negatives) / max(1, len(environment.documents) - len(relevant)))
    variant = replace(environment, queries=tuple(remade))
    return {
        "documents": dataset_statistics.pool_size(variant),
        "overlap": fmean(overlaps),
        "chance": fmean(chances),
        "hard": dataset_statistics.hard_negative_share(variant),
        "triplets": sum(len(list_triplets(query, gold)) for query in remade),
    }


def _rank(
    environment: Environment, variant: Sequence[Query], name: str, retriever: Retriever
) -> dict[str, float | None]:
    """Return the means of REFERENCE of a retriever that ranks the candidates of each query."""
    searches = [
        Search(
            query.text,
            query.objective,
            query.excluded,
            query.candidates,
        )
        for query in variant
    ]
    results = retriever.search_many(searches, DEPTH)
    rankings = {
        query.query_id: Ranking(hits.doc_ids)
        for query, hits in zip(
            variant,
            results,
            strict=True,
        )
    }
    means = {}
    for metric in REFERENCE:
        values = [compute(metric, query_id, rankings, environment) for query_id in rankings]
        defined = [value for value in values if value is not None]
        means[f"{name} {metric}"] = fmean(defined) if defined else None
    return means


def render_pool_comparison(environment: Environment, rows: Sequence[JsonMapping]) -> str:
    """Return the rows as a person reads them."""
    task = {key: getattr(environment, key) for key in ("task", "data", "split")}
    formats = {"documents": "{:.1f}", "triplets": "{:,}"}
    heads = [*rows[0]]
    cells = []
    for row in rows:
        figures = [
            number(
                row.get(head),
                formats.get(head, "{:.4f}"),
                "-",
            )
            for head in heads[1:]
        ]
        cells.append([row["pools"], *figures])
    heading = f"{describe_task(task)}  {queries(len(environment.queries))}"
    return render_terminal([heading, ResultTable("", heads, cells)])
