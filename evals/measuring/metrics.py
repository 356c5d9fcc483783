"""Metrics of rankings, by ir_measures' names and with its values, and of pairwise comparisons. Reads no files.

nDCG@k  gain is the grade itself (linear), the discount log2(rank + 1), the ideal order from all judged
        documents; grades may be fractions, which is why this is not left to trec_eval: it has whole numbers only
R@k, P@k, RR@k   a document is relevant from grade 1 on; without @k the whole ranking counts
Win(x)  the share of a query's comparisons of that label that are won: strictly higher score, ties lose
Win     of all its comparisons; Triplets is the label of BIRCO's dev triplets (appendix D), averaged over triplets
Flip    the share of comparisons that come out otherwise for the query's twin

A metric can be undefined for a query: recall where nothing is relevant, Win(3) where no comparison has that label. Such
a query is left out of that metric's mean. tests/fast/measuring/test_metrics.py checks each against pytrec_eval or a
count by hand.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tools.errors import UnknownName

if TYPE_CHECKING:
    from environments.base import Comparison, Environment, Judgements

Values = dict[str, dict[str, float | None]]  # metric -> query_id -> value in [0, 1], or None where it is undefined


@dataclass(frozen=True)
class Ranking:
    """What a system handed in for one query."""

    doc_ids: Sequence[str]  # best first, each at most once
    scores: Sequence[float] = ()  # one a document, where the system gave any

    @cached_property
    def _places(self) -> dict[str, int]:
        return {doc_id: place for place, doc_id in enumerate(self.doc_ids)}

    def prefers(self, better: str, worse: str) -> bool:
        """Whether `better` is strictly above `worse`; what is not ranked is below everything that is."""
        first, second = self._places.get(better), self._places.get(worse)
        if first is None or second is None:
            return first is not None
        return self.scores[first] > self.scores[second] if self.scores else first < second


@dataclass(frozen=True, slots=True)
class Judged:
    """A ranking with what its query's judgements say of it."""

    gains: Sequence[float]  # of the ranked documents, best first
    ideal: Sequence[float]  # of all judged documents, highest first
    hits: Sequence[bool]  # which ranked documents are relevant
    relevant: int  # how many documents are


def ndcg(judged: Judged, k: int) -> float | None:
    """Normalised discounted cumulated gain (Järvelin and Kekäläinen 2002), linear; 0 where nothing can be gained."""
    ideal = _discounted(judged.ideal[:k])
    return _discounted(judged.gains[:k]) / ideal if ideal else 0.0


def _discounted(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1) if gain)


def recall(judged: Judged, k: int) -> float | None:
    """The share of the relevant documents that are among the first `k`; undefined where nothing is relevant."""
    return sum(judged.hits[:k]) / judged.relevant if judged.relevant else None


def precision(judged: Judged, k: int) -> float | None:
    """The share of `k` places that hold a relevant document."""
    return sum(judged.hits[:k]) / k


def reciprocal_rank(judged: Judged, k: int) -> float | None:
    """1 / the rank of the first relevant document, 0 where none is among the first `k`."""
    return next((1 / rank for rank, hit in enumerate(judged.hits[:k], start=1) if hit), 0.0)


# To add one: its name before the @, and a function of a judged ranking and a cutoff.
RANKING: dict[str, Callable[[Judged, int], float | None]] = {
    "nDCG": ndcg,
    "R": recall,
    "P": precision,
    "RR": reciprocal_rank,
}
_NAME = re.compile(r"(?P<kind>[A-Za-z]+)(@(?P<cutoff>[1-9]\d*))?")
PAIRWISE = ("Win", "Flip", "Triplets")


def per_query(rankings: Mapping[str, Ranking], environment: "Environment", judgements: str = "") -> Values:
    """Every metric of `environment` for each of its queries, by its headline judgements or the ones named."""
    values: Values = {name: {} for name in environment.metrics}
    for query in environment.queries:
        for name, value in one_query(query.query_id, rankings, environment, judgements).items():
            values[name][query.query_id] = value
    return values


def one_query(
    query_id: str, rankings: Mapping[str, Ranking], environment: "Environment", judgements: str = ""
) -> dict[str, float | None]:
    """Every metric of `environment` for one query; a ranking that is missing is an empty one."""
    chosen = environment.judgements[judgements or environment.headline]
    judged = judge(rankings.get(query_id, Ranking(())).doc_ids, chosen, query_id)
    return {
        name: _pairwise(name, query_id, rankings, environment) if is_pairwise(name) else ranking_metric(name, judged)
        for name in environment.metrics
    }


def of_query(name: str, query_id: str, rankings: Mapping[str, Ranking], environment: "Environment") -> float | None:
    """One metric for one query, by the headline judgements; None where it is undefined, or not known yet."""
    if is_pairwise(name):
        twin = environment.twins.get(query_id, query_id)
        return _pairwise(name, query_id, rankings, environment) if twin in rankings else None
    judgements = environment.judgements[environment.headline]
    return ranking_metric(name, judge(rankings[query_id].doc_ids, judgements, query_id))


def is_pairwise(name: str) -> bool:
    """Whether a metric is counted over comparisons; such a one has nothing to do with judgements."""
    return name.partition("(")[0] in PAIRWISE


def ranking_metric(name: str, judged: Judged) -> float | None:
    """One metric of one ranking. UnknownName for a name that is none."""
    match = _NAME.fullmatch(name)
    if not match or match["kind"] not in RANKING:
        raise UnknownName("metric", name, RANKING)
    # Without a cutoff, the whole of any ranking.
    return RANKING[match["kind"]](judged, int(match["cutoff"] or 1_000_000_000))


def judge(ranking: Sequence[str], judgements: "Judgements", query_id: str) -> Judged:
    """What the judgements say of a ranking; unjudged documents count as grade 0, and so do negative grades."""
    return judged(collapsed(ranking, judgements), judgements.gains(query_id), judgements.recalled(query_id))


def judged(units: Sequence[str], grades: Mapping[str, float], relevant: Collection[str]) -> Judged:
    """A ranking of units with what nDCG gains from (grades above 0) and what recall counts."""
    return Judged(
        gains=[grades.get(unit, 0.0) for unit in units],
        ideal=sorted(grades.values(), reverse=True),
        hits=[unit in relevant for unit in units],
        relevant=len(relevant),
    )


def collapsed(ranking: Sequence[str], judgements: "Judgements") -> list[str]:
    """The ranking in the units that are scored: each where its best placed document is (MaxP, Dai and Callan 2019)."""
    if judgements.unit_of is None:
        return list(ranking)
    return list(dict.fromkeys(map(judgements.unit_of, ranking)))


def _pairwise(name: str, query_id: str, rankings: Mapping[str, Ranking], environment: "Environment") -> float | None:
    comparisons = environment.comparisons.get(query_id, ())
    ranking = rankings.get(query_id, Ranking(()))
    if name == "Flip":
        if query_id not in environment.twins:
            return None
        twin = environment.twins[query_id]
        here, there = won(comparisons, ranking), won(environment.comparisons[twin], rankings.get(twin, Ranking(())))
        return share(a != b for a, b in zip(here, there, strict=True))
    return share(won([c for c in comparisons if name in ("Win", c.label)], ranking))


def won(comparisons: Iterable["Comparison"], ranking: Ranking) -> list[bool]:
    """Which comparisons a ranking wins."""
    return [ranking.prefers(comparison.better, comparison.worse) for comparison in comparisons]


def share(outcomes: Iterable[bool]) -> float | None:
    """The share of true ones; None of none."""
    counted = list(outcomes)
    return sum(counted) / len(counted) if counted else None
