"""A benchmark's pools, made again from all of its documents and laid beside those that were
released.

    python -m evals.build check birco/relic --pools --retrievers dense

Nothing asks a model. How pools are made is in evals/build/recipes/pool.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from environments.base import Environment
from evals.build.recipes.pool import find_own, list_triplets, make_pools, relevant_ids
from evals.papers import dataset_statistics
from evals.scoring.metrics import Ranking, compute
from evals.text_tables import TextTable, describe_task, render_terminal
from tools.errors import UsageError
from tools.number_format import number, queries
from tools.records import Query
from tools.retrievers.base import Retriever, Search

# metrics of BIRCO's Table 9, and the documents that they see
REFERENCE = ("nDCG@10", "R@5")
DEPTH = 10


def compare_pools(
    environment: Environment, retrievers: Mapping[str, Retriever]
) -> list[dict[str, Any]]:
    """Return a row for the released pools, for those that retrievers make again, and for all documents.

    A row is {"pools", "documents" (mean), "overlap" (share of a released pool that is found again, without what is
    relevant, which is put in), "chance" (of that, by lot), "hard" (share of hard negatives, where ids tell them),
    "triplets"}, and metrics of REFERENCE by retriever, as in BIRCO's Table 9. UsageError for a task without pools.
    """
    released = [query for query in environment.queries if query.candidates is not None]
    gold = environment.qrels
    if not released:
        raise UsageError(f"{environment.task} has no pools that could be compared")
    own = find_own(released, environment.documents)
    sizes = {one.query_id: len(_pool(one)) for one in released}
    free = [
        replace(one, candidates=None, excluded=one.excluded | own[one.query_id]) for one in released
    ]
    ways = {"released": released}
    for names in [[name] for name in retrievers] + [[*retrievers]] * (len(retrievers) > 1):
        pools = make_pools(free, gold, [retrievers[name] for name in names], sizes)
        ways[" and ".join(names)] = [replace(one, candidates=pools[one.query_id]) for one in free]
    rows = list[dict[str, Any]]()
    for way, asked in {**ways, "all documents": free}.items():
        rows.append(
            {"pools": way} | (_compare(environment, released, asked) if way in ways else {})
        )
        for of, retriever in retrievers.items():
            rows[-1] |= {
                f"{of} {name}": mean for name, mean in _rank(environment, asked, retriever).items()
            }
    return rows


def _pool(query: Query) -> frozenset[str]:
    return query.candidates or frozenset()


def _compare(
    environment: Environment, released: Sequence[Query], made: Sequence[Query]
) -> dict[str, float | None]:
    shares = list[float]()
    lots = list[float]()
    gold = environment.qrels
    for one, other in zip(released, made, strict=True):
        right = relevant_ids(gold[one.query_id])
        shares.append(len(_pool(one) & _pool(other) - right) / max(1, len(_pool(one) - right)))
        lots.append(len(_pool(other) - right) / max(1, len(environment.documents) - len(right)))
    again = replace(environment, queries=tuple(made))
    row = {
        "documents": dataset_statistics.pool_size(again),
        "overlap": fmean(shares),
        "chance": fmean(lots),
    }
    triplets = sum(len(list_triplets(one, gold)) for one in made)
    return {**row, "hard": dataset_statistics.hard_negative_share(again), "triplets": triplets}


def _rank(
    environment: Environment, asked: Sequence[Query], retriever: Retriever
) -> dict[str, float | None]:
    """Return the means of REFERENCE of a retriever that ranks the candidates of each query."""
    searches = [Search(one.text, one.objective, one.excluded, one.candidates) for one in asked]
    found = zip(asked, retriever.search_many(searches, DEPTH), strict=True)
    rankings = {one.query_id: Ranking([hit.doc_id for hit in hits]) for one, hits in found}
    values = {
        name: [compute(name, ranking, rankings, environment) for ranking in rankings]
        for name in REFERENCE
    }
    known = {name: [value for value in of if value is not None] for name, of in values.items()}
    return {name: fmean(of) if of else None for name, of in known.items()}


def render_pool_comparison(environment: Environment, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a person reads them."""
    about = {key: getattr(environment, key) for key in ("task", "data", "split")}
    forms = {"documents": "{:.1f}", "triplets": "{:,}"}
    heads = [*rows[0]]
    values = (
        [number(one.get(head), forms.get(head, "{:.4f}"), "-") for head in heads[1:]]
        for one in rows
    )
    cells = [[one["pools"], *row] for one, row in zip(rows, values, strict=True)]
    return render_terminal(
        [
            f"{describe_task(about)}  {queries(len(environment.queries))}",
            TextTable("", heads, cells),
        ]
    )
