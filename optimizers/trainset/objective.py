"""The value that an optimizer maximises: a metric of the run, query by query, with a tie-breaker and
a price on tokens.

    value = metric + TIE x tie-breaker - price x tokens / 1000

The metric is a metric of the task, by its headline judgements; by default nDCG@10. A query that
failed has the metric of an empty ranking, and pays for its tokens. Left out: Flip, which is over a
query and its twin, and alone would reward a system that loses everything in both wordings.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sextant.environments.base import Environment
from sextant.evals.scoring.metrics import (
    Ranking,
    apply_metric,
    canonicalize_metric,
    collapse_to_units,
    compute_metrics,
    is_pairwise,
    judge_ranking,
)
from sextant.tools.errors import UnknownName, UsageError
from sextant.tools.platform.number_format import queries
from sextant.tools.records import Query, Usage

PREFERRED = "nDCG@10"
# The worth of a full point of the tie-breaker. dspy.Evaluate rounds a mean to four digits, so much
# less would vanish there; recall can outweigh a gain of less than a hundredth in the metric.
TIE = 0.01
_EPSILON = 1e-12  # values that differ by less are equal


@dataclass(frozen=True)
class Objective:
    """The value to maximise over the queries of `environment`; `make_objective` makes and checks it."""

    environment: Environment = field(repr=False)
    metric: str
    tie_breaker: str = "R@100"  # "" is none
    # Subtracted for a thousand tokens of a query; without it the value is from 0 to 1.
    price: float = 0.0

    def __str__(self) -> str:
        ties = f" + {TIE:g} {self.tie_breaker}" if self.tie_breaker else ""
        price = f" - {self.price:g} a thousand tokens" if self.price else ""
        return f"{self.metric}{ties}{price}"

    def score(self, query: Query, ranking: Ranking, usage: Usage) -> float:
        """Return the worth of `ranking` for `query`. ValueError for a query of another environment."""
        metrics = self._compute(query, ranking)
        tokens = usage.input_tokens + usage.output_tokens
        value = (metrics[self.metric] or 0.0) + TIE * (metrics.get(self.tie_breaker) or 0.0)
        return value - self.price * tokens / 1000

    def usable(self, queries: Iterable[Query]) -> list[Query]:
        """Return the queries for which the metric is defined and depends on the ranking."""
        return [query for query in queries if self._varies(query)]

    def _compute(self, query: Query, ranking: Ranking) -> dict[str, float | None]:
        if query.query_id not in {each.query_id for each in self.environment.queries}:
            raise ValueError(f"query {query.query_id!r} is none of those that are compiled on")
        return compute_metrics(query.query_id, {query.query_id: ranking}, self.environment)

    def _varies(self, query: Query) -> bool:
        of_nothing = self._compute(query, Ranking(()))[self.metric]
        if is_pairwise(self.metric):
            return of_nothing is not None
        judgements = self.environment.judgements[self.environment.headline]
        judged = judge_ranking((), judgements, query.query_id)
        gains = list(judged.ideal)
        hits = [True] * judged.relevant
        high = apply_metric(self.metric, replace(judged, gains=gains, hits=hits))
        low = of_nothing
        if query.candidates is not None:
            # A ranking has all of the pool: the worst is the ideal ranking from behind.
            size = len(collapse_to_units(sorted(query.candidates - query.excluded), judgements))
            gains = [0.0] * (size - len(gains)) + gains[::-1]
            hits = [False] * (size - judged.relevant) + hits
            low = apply_metric(self.metric, replace(judged, gains=gains, hits=hits))
        return high is not None and high - (low or 0.0) > _EPSILON


def make_objective(environment: Environment, metric: str = "", price: float = 0.0) -> Objective:
    """Make the objective for the task of `environment`, whose queries are those to compile on.

    `metric` is a metric of the task; "" is nDCG@10 if the task has it, else the task's headline metric. UsageError,
    before anything is paid for, if no optimizer could be guided by it.
    """
    name = canonicalize_metric(metric) or (
        PREFERRED if PREFERRED in environment.metrics else environment.metric
    )
    if name not in environment.metrics:
        raise UnknownName(f"metric of {environment.task}", name, environment.metrics)
    if name == "Flip":
        raise UsageError("Flip is over a query and its twin, and is not compiled by; choose Win")
    if not (math.isfinite(price) and price >= 0):
        raise UsageError(f"the price of a thousand tokens is {price}; it is a number from 0 on")
    recalls = [each for each in environment.metrics if re.fullmatch(r"R@([1-9]\d?|100)", each)]
    # Recall further down says little of what a reader will see.
    tie_breaker = max(recalls, key=lambda recall: int(recall[2:]), default="")
    objective = Objective(environment, name, "" if tie_breaker == name else tie_breaker, price)
    if environment.queries and not objective.usable(environment.queries):
        raise UsageError(
            f"{name} is the same for any ranking of the {queries(len(environment.queries))} of "
            f"{environment.task}: nothing is relevant by it, or it counts all of a pool; choose "
            f"another --metric"
        )
    return objective
