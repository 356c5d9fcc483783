"""The best possible score of a ranking, and the expected score of a random ranking: the rows
Maximum and Random of the papers' tables, and of a study's.

A query may be answered with its pool, or with the corpus without the documents that it excludes. If
units are scored in place of documents, units are ranked.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import fmean

from sextant.environments.base import Environment, Judgements
from sextant.environments.judged_ranking import JudgedRanking
from sextant.evals.scoring.metrics import (
    apply_metric,
    collapse_to_units,
    is_custom,
    is_pairwise,
    judge_units,
)
from sextant.tools.records import Query

KINDS = {"random": "Random", "maximum": "Maximum possible"}  # with the papers' words


def expected_random_score(metric: str, judged: JudgedRanking, pool: int) -> float | None:
    """Return the exact mean of nDCG@k or R@k over all orders of a pool.

    `judged` is a ranking of all units in the pool that count. None for other metrics.
    """
    name, _, depth = metric.partition("@")
    k = int(depth or max(pool, len(judged.ideal)))
    if name == "R":
        if not judged.relevant:
            return judged.nothing
        share = min(k, pool) / max(1, pool)
        return share * sum(judged.hits) / judged.relevant
    if name != "nDCG":
        return None
    weights = [1 / math.log2(rank + 1) for rank in range(1, k + 1)]
    ideal = math.fsum(gain * weight for gain, weight in zip(judged.ideal, weights, strict=False))
    if not ideal:
        return 0.0
    return math.fsum(judged.gains) / max(1, pool) * math.fsum(weights[:pool]) / ideal


def bound(bound_type: str, metric: str, environment: Environment) -> float | None:
    """Return the mean over queries of a metric at its "maximum", or "random"; None if unknown.

    All comparisons can be won, and half of them are won by chance, unless a pool lacks some of
    their documents. Of a user's own metric nothing is known.
    """
    if is_custom(metric):
        return None
    if is_pairwise(metric):
        return _bound_comparisons(bound_type, metric, environment)
    judgements = environment.judgements[environment.headline]
    values = []

    @cache
    def count_units() -> int:  # if units are scored, it reads the corpus
        if judgements.unit_of is None:
            return len(environment.documents)
        return len(set(map(judgements.unit_of, environment.documents)))

    for query in environment.queries:
        by_grade, by_relevance = _rank_best(query, judgements)
        if bound_type == "maximum":
            scores = [apply_metric(metric, ranking) for ranking in (by_grade, by_relevance)]
            value = max((score for score in scores if score is not None), default=None)
        elif query.candidates is None:
            pool_size = count_units() - len(query.excluded)
            value = expected_random_score(metric, by_grade, pool_size)
        else:
            pool_size = len(collapse_to_units(list(query.candidates), judgements))
            value = expected_random_score(metric, by_grade, pool_size)
        if value is not None:
            values.append(value)
    return fmean(values) if values else None


def _bound_comparisons(bound_type: str, metric: str, environment: Environment) -> float | None:
    for query in environment.queries:
        if query.candidates is None:
            continue
        for comparison in environment.comparisons.get(query.query_id, ()):
            if not {comparison.better, comparison.worse} <= query.candidates:
                return None
    if bound_type == "random":
        return 0.5
    return None if metric == "Flip" else 1.0


def _rank_best(query: Query, judgements: Judgements) -> tuple[JudgedRanking, JudgedRanking]:
    """Rank the judged units of the query's pool by grade, and by relevance.

    Metrics of grades are highest for the first, metrics of relevance for the second.
    """
    gains = judgements.gains(query.query_id)
    relevant = judgements.recalled(query.query_id)
    grades = {**relevant, **gains}
    units = set(grades)
    if query.candidates is not None:
        units &= set(collapse_to_units(list(query.candidates), judgements))

    def rank(worth: Callable[[str], tuple[float, float]]) -> JudgedRanking:
        best = judge_units(sorted(units, key=worth, reverse=True), gains, relevant)
        return replace(best, nothing=0.0) if judgements.zero else best

    return (
        rank(lambda unit: (grades[unit], unit in relevant)),
        rank(lambda unit: (unit in relevant, grades[unit])),
    )
