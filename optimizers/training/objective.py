"""What an optimizer maximises: a metric of the run, query by query, with a tie-breaker and a price on tokens.

    value = metric + TIE x tie-breaker - price x tokens / 1000

The metric is one of the task's own (evals/measuring/metrics.py), by its headline judgements; nDCG@10 where none is
named. A query that failed has the metric of an empty ranking, and pays for the tokens that it used. Left out: metrics
over a query and its twin (Flip), because an optimizer scores one query at a time.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from environments.base import Environment
from evals.measuring.metrics import Judged, Ranking, collapse, is_pairwise, judge, ranking_metric, share, won
from tools.errors import UnknownName, UsageError
from tools.records import Query, Usage

PREFERRED = "nDCG@10"
# What a full point of the tie-breaker is worth. dspy.Evaluate rounds a mean to four digits, so much less would vanish
# there; much more would let recall outweigh the metric. It is a weight: a gain of less than a hundredth in the metric
# can be outweighed by recall.
TIE = 0.01
_TIE_BREAKER_CUTOFF = 100  # documents; recall further down says little of what a reader will see
_SAME = 1e-12  # two values nearer than that are one


@dataclass(frozen=True, slots=True)
class Scored:
    """The worth of one query's ranking."""

    value: float  # what is maximised
    metrics: Mapping[str, float | None]  # all metrics of the task that one query has; None is undefined
    tokens: int  # input and output


@dataclass(frozen=True)
class Objective:
    """What an optimizer maximises over the queries of `environment`; `objective` makes one that is checked."""

    environment: Environment = field(repr=False)
    metric: str
    tie_breaker: str = "R@100"  # "" is none
    price: float = 0.0  # what a thousand tokens of a query take off its value, which is from 0 to 1 without it

    def __str__(self) -> str:
        ties = f" + {TIE:g} {self.tie_breaker}" if self.tie_breaker else ""
        price = f" - {self.price:g} a thousand tokens" if self.price else ""
        return f"{self.metric}{ties}{price}"

    def of(self, query: Query, ranking: Ranking, usage: Usage, failed: bool = False) -> Scored:
        """Score `ranking` for `query`, one of the environment's: ValueError for another one."""
        self._known(query)
        metrics = self._metrics(query, Ranking(()) if failed else ranking)
        tokens = usage.input_tokens + usage.output_tokens
        ties = TIE * (metrics.get(self.tie_breaker) or 0.0)
        return Scored((metrics[self.metric] or 0.0) + ties - self.price * tokens / 1000, metrics, tokens)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the metrics of the task that can be computed from one query."""
        return tuple(name for name in self.environment.metrics if name != "Flip")

    def usable(self, queries: Iterable[Query]) -> list[Query]:
        """Return those of the queries that can guide an optimizer.

        The metric is defined for them (something is relevant, or compared), and depends on the ranking.
        """
        return [query for query in queries if self._varies(query)]

    def check_spread(self, values: Sequence[float]) -> str:
        """Return a warning where a plain program's `values` of the metric, one a query, are all the same; else ""."""
        if len(values) < 2 or max(values) - min(values) > _SAME:
            return ""
        same = f"every query scores {values[0]:.4f} in {self.metric} with the plain program"
        if values[0] >= 1 - _SAME:
            return f"{same}; there is nothing left to gain"
        return f"{same}; it guides only once a candidate changes that: take a metric that looks deeper, or more queries"

    def _known(self, query: Query) -> None:
        if query.query_id not in self._asked:
            raise ValueError(f"query {query.query_id!r} is none of those that are compiled on")

    @cached_property
    def _asked(self) -> frozenset[str]:
        return frozenset(query.query_id for query in self.environment.queries)

    def _metrics(self, query: Query, ranking: Ranking) -> dict[str, float | None]:
        judgements = self.environment.judgements[self.environment.headline]
        judged = judge(ranking.doc_ids, judgements, query.query_id)
        comparisons = self.environment.comparisons.get(query.query_id, ())

        def wins(name: str) -> float | None:
            return share(won([one for one in comparisons if name in ("Win", one.label)], ranking))

        return {name: wins(name) if is_pairwise(name) else ranking_metric(name, judged) for name in self.names}

    def _varies(self, query: Query) -> bool:
        self._known(query)
        if is_pairwise(self.metric):
            return self._metrics(query, Ranking(()))[self.metric] is not None
        judgements = self.environment.judgements[self.environment.headline]
        judged = judge((), judgements, query.query_id)
        best = dataclasses.replace(judged, gains=judged.ideal, hits=[True] * judged.relevant)
        high, low = ranking_metric(self.metric, best), 0.0
        if query.candidates is not None:  # a ranking of a pool has all of it
            places = len(collapse(sorted(query.candidates - query.excluded), judgements))
            low = ranking_metric(self.metric, _reversed(best, places)) or 0.0
        return high is not None and high - low > _SAME


def _reversed(best: Judged, places: int) -> Judged:
    """Return the worst ranking of `places` documents: the ideal one from behind, after all that is not judged."""
    gains = sorted([*best.ideal, *[0.0] * (places - len(best.ideal))])
    return dataclasses.replace(best, gains=gains, hits=[False] * (places - best.relevant) + [True] * best.relevant)


def objective(environment: Environment, metric: str = "", price: float = 0.0) -> Objective:
    """Make the objective for the task of `environment`, whose queries are those to compile on.

    `metric` is one of the task's; "" is nDCG@10 where the task has it, else the task's own headline. UsageError, before
    anything is paid for, when no optimizer could be guided by it.
    """
    name = metric or (PREFERRED if PREFERRED in environment.metrics else environment.metric)
    if name not in environment.metrics:
        raise UnknownName(f"metric of {environment.task}", name, environment.metrics)
    if not (math.isfinite(price) and price >= 0):
        raise UsageError(f"the price of a thousand tokens is {price}; it is a number from 0 on")
    if name == "Flip":
        raise UsageError(
            f"Flip compares two queries, and an optimizer scores one at a time; give {environment.task} --metric Win"
        )
    made = Objective(environment, name, _tie_breaker(environment, name), price)
    if environment.queries and not made.usable(environment.queries):
        raise UsageError(_why_none(environment, name))
    return made


def _tie_breaker(environment: Environment, metric: str) -> str:
    """The task's recall with the largest cutoff up to 100; "" where it has none, or that is the metric itself."""
    cutoffs = [int(match[1]) for name in environment.metrics if (match := re.fullmatch(r"R@(\d+)", name))]
    cutoff = max((cutoff for cutoff in cutoffs if cutoff <= _TIE_BREAKER_CUTOFF), default=0)
    return f"R@{cutoff}" if cutoff and f"R@{cutoff}" != metric else ""


def _why_none(environment: Environment, metric: str) -> str:
    pools = [len(query.candidates - query.excluded) for query in environment.queries if query.candidates is not None]
    largest = f", or it counts all of a pool of {max(pools)} documents at most" if pools else ""
    return (
        f"{metric} is the same for any ranking of the {len(environment.queries)} queries of {environment.task}: "
        f"nothing is relevant by it{largest}; choose another --metric"
    )
