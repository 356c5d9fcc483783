"""What a ranking gets at best, and by chance: the rows Maximum and Random of the papers' tables,
and of a study's.

Ranked is what a query may be answered with: its pool, or the corpus but for what it excludes. Where
units are scored in place of documents, units are ranked.
"""

import math
from dataclasses import replace
from functools import cache
from statistics import fmean

from environments.base import Environment
from evals.scoring.metrics import (
    JudgedRanking,
    apply_metric,
    collapse_to_units,
    is_pairwise,
    judge_units,
)

KINDS = {"random": "Random", "maximum": "Maximum possible"}  # with the papers' words


def expected_random_score(metric: str, judged: JudgedRanking, pool: int) -> float | None:
    """Return the mean of nDCG@k or R@k over all orders of a pool of units, exactly; None for other
    metrics.

    `judged` is a ranking of all units in the pool that count.
    """
    name, _, depth = metric.partition("@")
    k = int(depth or max(pool, len(judged.ideal)))
    share = min(k, pool) / max(1, pool)
    if name == "R":
        return share * sum(judged.hits) / judged.relevant if judged.relevant else judged.nothing
    if name != "nDCG":
        return None
    weights = [1 / math.log2(rank + 1) for rank in range(1, k + 1)]
    ideal = math.fsum(gain * weight for gain, weight in zip(judged.ideal, weights, strict=False))
    return (
        math.fsum(judged.gains) / max(1, pool) * math.fsum(weights[:pool]) / ideal if ideal else 0.0
    )


def bound(kind: str, metric: str, environment: Environment) -> float | None:
    """Return the mean over queries of a metric at its "maximum", or "random"; None where that is
    not known.

    Of comparisons all can be won, and half of them are by chance, where no pool lacks some of their
    documents.
    """
    if is_pairwise(metric):
        for query in environment.queries:
            pairs = environment.comparisons.get(query.query_id, ())
            if query.candidates is not None and any(
                {pair.better, pair.worse} - query.candidates for pair in pairs
            ):
                return None
        return 0.5 if kind == "random" else None if metric == "Flip" else 1.0
    judgements = environment.judgements[environment.headline]
    values = list[float | None]()

    @cache
    def count() -> int:  # where there are units, it reads the corpus
        return len(
            set(map(judgements.unit_of, environment.documents))
            if judgements.unit_of
            else environment.documents
        )

    for query in environment.queries:
        gains = judgements.gains(query.query_id)
        relevant = judgements.recalled(query.query_id)
        known = relevant | gains
        by_gain = metric.startswith(("nDCG", "TopRR"))
        pool = (
            known.keys()
            if query.candidates is None
            else set(collapse_to_units(list(query.candidates), judgements))
        )
        order = {
            unit: (known[unit], unit in relevant)[:: 1 if by_gain else -1]
            for unit in known.keys() & pool
        }
        best = judge_units(sorted(order, key=order.__getitem__, reverse=True), gains, relevant)
        best = replace(best, nothing=0.0) if judgements.zero else best
        if kind == "maximum":
            values.append(apply_metric(metric, best))
        else:
            many = count() - len(query.excluded) if query.candidates is None else len(pool)
            values.append(expected_random_score(metric, best, many))
    defined = [value for value in values if value is not None]
    return fmean(defined) if defined else None
