"""Can ranks alone give away which documents were put into a pool? `python -m benchmarks.pools
--task congress`.

Each row is nDCG@10 over `oracle:K` or `hidden:K` for an order that reads no document: the retriever's own; its
own from some rank on, with the others behind; the same by ranks in the whole corpus, which a search
in a pool does not show; its own reversed; and random. The best rank is taken with hindsight, so a
program that has to guess cannot do better. If such an order beats the retriever's own, ranks give
away which documents were put in.
"""

import argparse
import random
from collections.abc import Callable
from statistics import fmean

from sextant import environments
from sextant.environments.base import SPLITS, Environment
from sextant.evals.running import candidate_pools
from sextant.evals.scoring.metrics import Ranking, compute
from sextant.tools import retrievers
from sextant.tools.platform.cli import CommandParser, print_stdout, run_and_leave
from sextant.tools.platform.files import sextant_home
from sextant.tools.pool_kinds import WITH_RELEVANT
from sextant.tools.retrievers.base import PoolRetriever, Retriever, Search

METRIC = "nDCG@10"
LOTS = 20  # orders by chance of each query
Order = Callable[
    [int], list[str]
]  # of the documents of a query's pool, for a number: a place, or a lot


def parser() -> CommandParser:
    """The command line."""
    made = CommandParser(
        prog="python -m benchmarks.pools", description="What ranks tell of what was put into pools."
    )
    add = made.add_argument
    add("--task", default="congress", metavar="TASK", help="a task")
    add(
        "--data", metavar="WHAT", help="mini, full or a folder; full where it is fetched, else mini"
    )
    add("--split", default="all", metavar="SPLIT", help=f"which queries: {', '.join(SPLITS)}")
    add(
        "--retriever",
        default="bm25",
        metavar="SPEC",
        help="the retriever of the pools, and of the orders",
    )
    add(
        "--size",
        type=int,
        action="append",
        default=[],
        metavar="K",
        help="documents of a pool; repeatable",
    )
    return made


def command(arguments: argparse.Namespace) -> int:
    """Measure and print a table in Markdown."""
    spec = retrievers.canonicalize(arguments.retriever)
    environment = environments.load(arguments.task, arguments.data, arguments.split)
    retriever = retrievers.build(spec, environment.documents, sextant_home())
    pools = [f"{kind}:{size}" for kind in WITH_RELEVANT for size in arguments.size or [100, 300]]
    columns = [measured(environment, retriever, candidate_pools.read(pool, spec)) for pool in pools]
    rows = [[METRIC, *pools]]
    rows += [[name, *(f"{column[name]:.4f}" for column in columns)] for name in columns[0]]
    lines = ["| " + " | ".join(row) + " |\n" for row in rows]
    print_stdout("".join([lines[0], "|---|" + "--:|" * len(pools) + "\n", *lines[1:]]))
    return 0


def measured(
    environment: Environment, retriever: Retriever, pool: candidate_pools.Pool
) -> dict[str, float]:
    """The mean of every order over the pools of a task, by its name."""
    made = pool.add_to(environment, [retriever])
    places = range(0, pool.size, max(1, pool.size // 20))
    values: dict[str, list[dict[int, float]]] = {}
    for query in made.queries:
        search = Search(query.text, query.objective, query.excluded, query.candidates)
        depth = len(environment.documents)
        [ranked] = PoolRetriever(retriever).search_many([search], depth)
        own = ranked.doc_ids
        [head] = retriever.search_many([search._replace(among=None)], pool.size)
        below = [doc_id for doc_id in own if doc_id not in set(head.doc_ids)]
        drawn = random.Random(query.query_id)
        orders: dict[str, list[list[str]]] = {
            "the retriever's own": [own],
            "its own from some place of the pool on": [
                own[place:] + own[:place] for place in places
            ],
            "its own, below K in the whole corpus first": [list(dict.fromkeys([*below, *own]))],
            "its own reversed": [own[::-1]],
            "by chance": [drawn.sample(own, len(own)) for _ in range(LOTS)],
        }
        for name, of in orders.items():
            found = {
                number: compute(
                    METRIC, query.query_id, {query.query_id: Ranking(order)}, environment
                )
                or 0.0
                for number, order in enumerate(of)
            }
            values.setdefault(name, []).append(found)
    means = {
        name: [fmean(row[number] for row in rows) for number in rows[0]]
        for name, rows in values.items()
    }
    return {name: fmean(of) if name == "by chance" else max(of) for name, of in means.items()}


if __name__ == "__main__":
    run_and_leave(parser(), command)
