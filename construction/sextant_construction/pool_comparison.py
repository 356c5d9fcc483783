"""A benchmark's pools, made again from all of its documents and compared with the released pools.

    sextant build check birco/relic --pools --retrievers dense

Nothing asks a model. recipes/pool.py makes the pools.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from sextant.environments.base import Environment
from sextant.evals.papers.dataset_statistics import pool_size
from sextant.evals.run_descriptions import describe_task
from sextant.evals.scoring.metrics import measure_unjudged
from sextant.tools.errors import UsageError
from sextant.tools.platform.number_format import queries
from sextant.tools.platform.result_table import figure_cell, render_terminal, tabulate
from sextant.tools.records import JsonMapping, JsonObject, Query
from sextant.tools.retrievers.base import Retriever, Search
from sextant_construction.recipes.pool import find_own, make_pools, relevant_ids

# Metrics of BIRCO's Table 9, and the documents that they see.
REFERENCE = ("nDCG@10", "R@5")
DEPTH = 10


def compare_pools(
    environment: Environment, retrievers: Mapping[str, Retriever]
) -> list[JsonObject]:
    """Return a row for the released pools, for those that the retrievers make together, and for all
    documents.

    A row has

    - "pools": the name of the pools
    - "documents": their mean number
    - "overlap": the share of a released pool that is found again, without relevant documents,
      which are put in
    - "chance": the same share if documents were drawn by lot
    - by retriever, the means of REFERENCE, as in BIRCO's Table 9

    UsageError for a task without pools.
    """
    released = [query for query in environment.queries if query.candidates is not None]
    if not released:
        raise UsageError(f"{environment.task} has no pools that could be compared")
    gold = environment.qrels
    own_documents = find_own(released, environment.documents)
    unpooled = [
        replace(query, candidates=None, excluded=query.excluded | own_documents[query.query_id])
        for query in released
    ]
    sizes = {query.query_id: len(query.candidates or ()) for query in released}
    pools = make_pools(unpooled, gold, [*retrievers.values()], sizes)
    remade = [replace(query, candidates=pools[query.query_id]) for query in unpooled]
    rows: list[JsonObject] = [
        {"pools": "released", **_compare(environment, released, released)},
        {"pools": " and ".join(retrievers), **_compare(environment, released, remade)},
        {"pools": "all documents"},
    ]
    for row, variant in zip(rows, (released, remade, unpooled), strict=True):
        for name, retriever in retrievers.items():
            searches = [
                Search(query.text, query.objective, query.excluded, query.candidates)
                for query in variant
            ]
            results = retriever.search_many(searches, DEPTH)
            rankings = {
                query.query_id: hits.doc_ids for query, hits in zip(variant, results, strict=True)
            }
            judgements = environment.judgements[environment.headline]
            measured = measure_unjudged(REFERENCE, judgements, rankings)
            row |= {f"{name} {metric}": measured[metric]["mean"] for metric in REFERENCE}
    return rows


def _compare(
    environment: Environment, released: Sequence[Query], remade: Sequence[Query]
) -> dict[str, float]:
    """Return the columns of a row that are about the pools themselves."""
    overlaps = []
    chances = []
    for before, after in zip(released, remade, strict=True):
        relevant = relevant_ids(environment.qrels[before.query_id])
        negatives = (before.candidates or frozenset()) - relevant
        found = (after.candidates or frozenset()) - relevant
        overlaps.append(len(negatives & found) / max(1, len(negatives)))
        chances.append(len(found) / max(1, len(environment.documents) - len(relevant)))
    return {
        "documents": pool_size(replace(environment, queries=tuple(remade))),
        "overlap": fmean(overlaps),
        "chance": fmean(chances),
    }


def render_pool_comparison(environment: Environment, rows: Sequence[JsonMapping]) -> str:
    """Return the rows as a person reads them."""
    task = {key: getattr(environment, key) for key in ("task", "data", "split")}
    name, *figures = rows[0]
    cells = [
        {name: row[name], **{head: figure_cell(row.get(head)) for head in figures}} for row in rows
    ]
    heading = f"{describe_task(task)}  {queries(len(environment.queries))}"
    return render_terminal([heading, tabulate("", cells)])
