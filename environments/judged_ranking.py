"""The input of a metric of rankings: a query's ranking together with its judgements.

`judge_ranking` in evals/scoring/metrics.py makes it of doc ids.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JudgedRanking:
    """A ranking with its query's judgements: the input of a metric."""

    gains: Sequence[float]  # grades of the ranked documents, best place first; 0.0 without any
    ideal: Sequence[float]  # grades above 0 of all judged documents, highest first
    hits: Sequence[bool]  # for each ranked document whether it is relevant
    relevant: int  # number of relevant documents, ranked or not
    judged: Sequence[bool] = ()  # for each ranked document whether it has a judgement
    nothing: float | None = None  # the value of R and AP if nothing is relevant


# Its second argument is a depth, at least 1.
RankingMetric = Callable[[JudgedRanking, int], float | None]
