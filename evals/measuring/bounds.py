"""What a ranking of a query's pool gets at best, and by chance: the rows Maximum and Random of the papers' tables."""

import math
from statistics import fmean
from typing import TYPE_CHECKING

from evals.measuring.metrics import Judged, judge, ranking_metric

if TYPE_CHECKING:
    from environments.base import Environment


def expect(metric: str, judged: Judged, pool: int) -> float | None:
    """Return the mean of nDCG@k or R@k over all orders of a pool, exactly; None for other metrics."""
    name, _, depth = metric.partition("@")
    first = min(int(depth or pool), pool)
    if name == "R":
        return first / pool if judged.relevant else judged.nothing
    if name != "nDCG":
        return None
    weights = [1 / math.log2(rank + 1) for rank in range(1, first + 1)]
    ideal = math.fsum(gain * weight for gain, weight in zip(judged.ideal, weights, strict=False))
    return math.fsum(judged.ideal) / pool * math.fsum(weights) / ideal if ideal else 0.0


def bound(kind: str, metric: str, environment: "Environment") -> float | None:
    """Return the mean over queries of a metric at its "maximum", or "random"."""
    judgements, values = environment.judgements[environment.headline], list[float | None]()
    for query in environment.queries:
        gains = judgements.gains(query.query_id)
        best = judge(sorted(gains, key=gains.__getitem__, reverse=True), judgements, query.query_id)
        pool = len(query.candidates or environment.documents)
        values.append(ranking_metric(metric, best) if kind == "maximum" else expect(metric, best, pool))
    defined = [value for value in values if value is not None]
    return fmean(defined) if defined else None
