"""What a ranking of a query's pool gets at best, and by chance: the rows Maximum and Random of the papers' tables.

Chance is the expected value over all orders of the pool, exactly. Documents that a pool has no judgement of are ranked
like the others, and gain nothing.
"""

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from evals.measuring.metrics import Judged, judge, ranking_metric

if TYPE_CHECKING:
    from environments.base import Environment


def expect_ndcg(judged: Judged, pool: int, k: int) -> float:
    """Return the mean gain at each of the first k places, discounted, over the ideal."""
    mean, places = math.fsum(judged.ideal) / pool, range(1, min(k, pool) + 1)
    ideal = math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(judged.ideal[:k], start=1))
    return math.fsum(mean / math.log2(rank + 1) for rank in places) / ideal if ideal else 0.0


def expect_recall(judged: Judged, pool: int, k: int) -> float | None:
    """Return the share of the pool that the first k are."""
    return min(k, pool) / pool if judged.relevant else judged.nothing


# To add one: what `ranking_metric` gives on average over all orders of a pool of that size.
CHANCE: Mapping[str, Callable[[Judged, int, int], float | None]] = {"nDCG": expect_ndcg, "R": expect_recall}


def bound(kind: str, metric: str, environment: "Environment") -> float | None:
    """Return the mean over queries of a metric at its "maximum", or "random"; None where that has no formula here."""
    name, _, depth = metric.partition("@")
    judgements, values = environment.judgements[environment.headline], list[float | None]()
    for query in environment.queries:
        gains = judgements.gains(query.query_id)
        judged = judge(sorted(gains, key=gains.__getitem__, reverse=True), judgements, query.query_id)
        if kind == "maximum":
            values.append(ranking_metric(metric, judged))
        elif name in CHANCE and query.candidates:
            values.append(CHANCE[name](judged, len(query.candidates), int(depth)))
    defined = [value for value in values if value is not None]
    return fmean(defined) if defined else None
