"""Metrics of rankings, by ir_measures' names and with its values, and of pairwise comparisons.
Reads no files.

nDCG@k   gain is the grade itself (linear), the discount log2(rank + 1), the ideal order from all judged documents;
         grades may be fractions, which is why this is not left to trec_eval: it has whole numbers only
R@k, P@k, AP@k, RR@k   a document is relevant from grade 1 on
TopRR@k  RR of the first document at the query's highest grade, which BIRCO calls MRR
Judged@k the share of the first k documents that have a judgement, whatever their grade
Win(x)   the share of a query's comparisons of that label that are won: strictly higher score, ties lose
Win      of all its comparisons; Triplets is the label of BIRCO's dev triplets (appendix D), averaged over triplets
Flip     the share of comparisons that come out otherwise for the query's twin. Less is better, so a comparison counts
         as flipped if either wording ranks neither of its documents: a failure would otherwise have the best value

k is any whole number above 0; without @k the whole ranking counts. An undefined metric is None, and
its query is left out of the mean: recall where nothing is relevant, Win(3) where no comparison has
that label. To add a metric of a ranking, name its function in RANKING;
tests/fast/evals/scoring/test_metrics.py then holds it to ir_measures.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tools.errors import NotApplicable, UnknownName, UsageError

if TYPE_CHECKING:
    from environments.base import Comparison, Environment, Judgements

Values = dict[
    str, dict[str, float | None]
]  # metric -> query_id -> value in [0, 1], or None where it is undefined


@dataclass(frozen=True)
class Ranking:
    """What a system handed in for one query."""

    doc_ids: Sequence[str]  # best first, each at most once
    scores: Sequence[float] = ()  # one a document, where the system gave any

    @cached_property
    def _places(self) -> dict[str, int]:
        return {doc_id: place for place, doc_id in enumerate(self.doc_ids)}

    def wins(self, comparison: "Comparison") -> bool:
        """Return whether the better document is strictly above the worse one."""
        return self.prefers(comparison.better, comparison.worse)

    def ranks_either(self, comparison: "Comparison") -> bool:
        """Return whether the ranking has one of the two documents at least."""
        return comparison.better in self._places or comparison.worse in self._places

    def prefers(self, better: str, worse: str) -> bool:
        """Return whether `better` is strictly above `worse`; what is not ranked is below
        everything that is.
        """
        first = self._places.get(better)
        second = self._places.get(worse)
        if first is None or second is None:
            return first is not None
        return self.scores[first] > self.scores[second] if self.scores else first < second


def ranking_of(outcome: Mapping[str, Any]) -> Ranking:
    """Return the ranking in an outcome (evals/run_folder.py); a failed query has an empty one."""
    return Ranking(outcome["ranking"], outcome.get("scores") or ())


@dataclass(frozen=True, slots=True)
class JudgedRanking:
    """A ranking with what its query's judgements say of it."""

    gains: Sequence[float]  # of the ranked documents, best first
    ideal: Sequence[float]  # of all judged documents, highest first
    hits: Sequence[bool]  # which ranked documents are relevant
    relevant: int  # how many documents are
    judged: Sequence[bool] = ()  # which ranked documents have a judgement
    nothing: float | None = None  # the value of R and AP where nothing is relevant


def ndcg(judged: JudgedRanking, k: int) -> float | None:
    """Return normalised discounted cumulated gain (Järvelin and Kekäläinen 2002), linear; 0
    without any gain.
    """
    ideal = _discount(judged.ideal[:k])
    return _discount(judged.gains[:k]) / ideal if ideal else 0.0


def _discount(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1) if gain)


def recall(judged: JudgedRanking, k: int) -> float | None:
    """Return the share of the relevant documents that are among the first `k`."""
    return sum(judged.hits[:k]) / judged.relevant if judged.relevant else judged.nothing


def precision(judged: JudgedRanking, k: int) -> float | None:
    """Return the share of `k` places that hold a relevant document."""
    return sum(judged.hits[:k]) / k


def average_precision(judged: JudgedRanking, k: int) -> float | None:
    """Return the mean over relevant documents of the precision at their rank, 0 for those not
    among the first `k`.
    """
    ranks = [rank for rank, hit in enumerate(judged.hits[:k], start=1) if hit]
    if not judged.relevant:
        return judged.nothing
    return math.fsum(n / rank for n, rank in enumerate(ranks, start=1)) / judged.relevant


def reciprocal_rank(judged: JudgedRanking, k: int) -> float | None:
    """Return 1 / the rank of the first relevant document, 0 where none is among the first `k`."""
    return next((1 / rank for rank, hit in enumerate(judged.hits[:k], start=1) if hit), 0.0)


def top_reciprocal_rank(judged: JudgedRanking, k: int) -> float | None:
    """Return 1 / the rank of the first document with the query's highest grade, 0 where none
    is in the first `k`.
    """
    top = max(judged.ideal, default=0.0)
    return next(
        (1 / rank for rank, gain in enumerate(judged.gains[:k], start=1) if gain == top > 0), 0.0
    )


def judged_share(judged: JudgedRanking, k: int) -> float | None:
    """Return the share of the first `k` documents that have a judgement; 0 for an empty ranking."""
    return sum(judged.judged[:k]) / max(1, len(judged.judged[:k]))


# To add one: its name before the @, and a function of a judged ranking and a depth.
RANKING: dict[str, Callable[[JudgedRanking, int], float | None]] = {
    "nDCG": ndcg,
    "R": recall,
    "P": precision,
    "AP": average_precision,
    "RR": reciprocal_rank,
    "TopRR": top_reciprocal_rank,
    "Judged": judged_share,
}
PAIRWISE = ("Win", "Flip", "Triplets")
LOWER_IS_BETTER = ("Flip",)
WEIGHTED = ("Triplets",)  # a run's mean counts a query as often as it has comparisons
LANGUAGE = (
    f"metrics are {', '.join(RANKING)}, each at any depth (nDCG@10), {', '.join(PAIRWISE)} and "
    f"Win(LABEL)"
)
UNORDERED = ("R", "P", "Judged")  # the order of the first k documents does not matter
_WHOLE = 1_000_000_000  # the depth where none is named: the whole of any ranking


def check_metric(name: str) -> None:
    """UnknownName for a metric that is not in the language; UsageError for P without a depth."""
    pattern = rf"({'|'.join(RANKING)})(@[1-9]\d{{0,8}})?|Flip|Triplets|Win(\(\w+\))?"
    if not re.fullmatch(pattern, name):
        raise UnknownName("metric", name, RANKING).saying(
            f"no metric is called {name!r}; {LANGUAGE}"
        )
    if name == "P":
        raise UsageError("'P' is a share of a number of places, so it needs a depth, e.g. P@10")


def add_metrics(environment: "Environment", names: Sequence[str]) -> "Environment":
    """Return the environment with the metrics in `names` added; UsageError for one that the
    task cannot have.
    """
    labels = {
        comparison.label for every in environment.comparisons.values() for comparison in every
    }
    for name in names:
        check_metric(name)
        possible = (
            environment.twins if name == "Flip" else labels if name == "Win" else name in labels
        )
        if is_pairwise(name) and not possible:
            what = (
                "no queries told in two ways" if name == "Flip" else "no comparisons of that kind"
            )
            raise NotApplicable(
                f"{environment.task} has {what}, so {name!r} cannot be computed for it; {LANGUAGE}"
            )
    return dataclasses.replace(
        environment, metrics=tuple(dict.fromkeys([*environment.metrics, *names]))
    )


def compute_metrics(
    query_id: str, rankings: Mapping[str, Ranking], environment: "Environment"
) -> dict[str, float | None]:
    """Compute every metric of `environment` for one query, by other judgements under
    "<metric> [<judgements>]".
    """
    found: dict[str, float | None] = {}
    ranked = rankings.get(query_id, Ranking(())).doc_ids
    for judgements in sorted(environment.judgements, key=lambda name: name != environment.headline):
        judged = judge_ranking(ranked, environment.judgements[judgements], query_id)
        leads = judgements == environment.headline
        for name in environment.metrics:
            if not is_pairwise(name):
                found[name if leads else f"{name} [{judgements}]"] = apply_metric(name, judged)
            elif leads:
                found[name] = _compare(name, query_id, rankings, environment)
    return found


def compute(
    name: str, query_id: str, rankings: Mapping[str, Ranking], environment: "Environment"
) -> float | None:
    """Compute one metric for one query, by the headline judgements; None where it is
    undefined, or not known yet.
    """
    if is_pairwise(name):
        twin = environment.twins.get(query_id, query_id)
        return _compare(name, query_id, rankings, environment) if twin in rankings else None
    judgements = environment.judgements[environment.headline]
    return apply_metric(name, judge_ranking(rankings[query_id].doc_ids, judgements, query_id))


def is_pairwise(name: str) -> bool:
    """Return whether a metric is counted over comparisons, without judgements."""
    return name.partition("(")[0] in PAIRWISE


def metric_family(name: str) -> str:
    """Return the name of a metric without its depth, label and judgements: `nDCG` of `nDCG@10
    [pooled]`.

    Only values of one family have a mean over tasks.
    """
    return re.split(r"[@( ]", name, maxsplit=1)[0]


def is_lower_better(name: str) -> bool:
    """Return whether less of a metric is better."""
    return metric_family(name) in LOWER_IS_BETTER


def is_weighted(name: str) -> bool:
    """Return whether a run's own mean of the metric counts comparisons and not queries."""
    return metric_family(name) in WEIGHTED


def unordered_depth(name: str) -> int | None:
    """Return the depth of a metric that only counts which documents are within it; None for
    any other metric.
    """
    if metric_family(name) not in UNORDERED:
        return None
    depth = name.partition(" ")[0].partition("@")[2]
    return int(depth or _WHOLE)


def apply_metric(name: str, judged: JudgedRanking) -> float | None:
    """Compute one metric of one ranking, its name as `check_metric` takes it."""
    kind, _, depth = name.partition("@")
    return RANKING[kind](judged, int(depth or _WHOLE))


def metric_from_attribution(
    name: str, ranking: Sequence[str], row: Mapping[str, Any]
) -> float | None:
    """Compute a metric of a ranking of documents; `row` is the query's line of
    attribution.jsonl.
    """
    units = row.get("units", {})
    collapsed = list(dict.fromkeys(units.get(doc_id, doc_id) for doc_id in ranking))
    judged = judge_units(collapsed, row["grades"], {one["unit"] for one in row["relevant"]})
    return apply_metric(name, dataclasses.replace(judged, nothing=row.get("nothing")))


def judge_ranking(ranking: Sequence[str], judgements: "Judgements", query_id: str) -> JudgedRanking:
    """Judge a ranking; unjudged documents count as grade 0, and so do negative grades."""
    known = judgements.by_unit(judgements.qrels.get(query_id, {}))
    gains = judgements.gains(query_id)
    judged = judge_units(
        collapse_to_units(ranking, judgements), gains, judgements.recalled(query_id), known
    )
    return dataclasses.replace(judged, nothing=0.0) if judgements.zero else judged


def judge_units(
    units: Sequence[str],
    grades: Mapping[str, float],
    relevant: Collection[str],
    known: Collection[str] = (),
) -> JudgedRanking:
    """Judge units by what nDCG gains from (grades above 0), what recall counts, and what is
    judged at all.
    """
    return JudgedRanking(
        gains=[grades.get(unit, 0.0) for unit in units],
        ideal=sorted(grades.values(), reverse=True),
        hits=[unit in relevant for unit in units],
        relevant=len(relevant),
        judged=[unit in known for unit in units],
    )


def measure_unjudged(
    names: Iterable[str], judgements: "Judgements", rankings: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Return each metric's mean, how much of its depth is judged, and its mean if the rest of that
    were relevant.

    Metrics of comparisons are left out.
    """
    found = {}
    for name in (name for name in names if not is_pairwise(name)):
        depth = int(name.partition("@")[2] or _WHOLE)
        rows = []
        for query_id, ranking in rankings.items():
            judged = judge_ranking(ranking, judgements, query_id)
            known = list(judged.judged[:depth])
            top = max(judged.ideal, default=0.0) or 1.0
            more = known.count(False)
            right = dataclasses.replace(
                judged,
                gains=[
                    gain if one else top for gain, one in zip(judged.gains, known, strict=False)
                ],
                ideal=[*[top] * more, *judged.ideal],
                hits=[hit or not one for hit, one in zip(judged.hits, known, strict=False)],
                relevant=judged.relevant + more,
            )
            rows.append(
                [
                    apply_metric(name, judged),
                    judged_share(judged, depth),
                    apply_metric(name, right),
                ]
            )
        columns = [
            [value for value in column if value is not None] for column in zip(*rows, strict=True)
        ]
        found[name] = {
            key: fmean(one or [0])
            for key, one in zip(("mean", "judged", "right"), columns, strict=True)
        }
    return found


def collapse_to_units(ranking: Sequence[str], judgements: "Judgements") -> list[str]:
    """Return the ranking of scored units: each where its best placed document is (MaxP, Dai
    and Callan 2019).
    """
    return list(dict.fromkeys(map(judgements.unit_of, ranking)) if judgements.unit_of else ranking)


def _compare(
    name: str, query_id: str, rankings: Mapping[str, Ranking], environment: "Environment"
) -> float | None:
    comparisons = environment.comparisons.get(query_id, ())
    nothing = Ranking(())
    ranking = rankings.get(query_id, nothing)
    if name != "Flip":
        return fraction_true(
            comparisons_won(
                [comparison for comparison in comparisons if name in ("Win", comparison.label)],
                ranking,
            )
        )
    twin = environment.twins.get(query_id)
    if twin is None or not comparisons:
        return None
    twin_ranking = rankings.get(twin, nothing)
    twin_comparisons = environment.comparisons[twin]
    flipped = []
    for here, there in zip(comparisons, twin_comparisons, strict=True):
        if ranking.ranks_either(here) and twin_ranking.ranks_either(there):
            flipped.append(ranking.wins(here) != twin_ranking.wins(there))
        else:
            flipped.append(True)
    return fraction_true(flipped)


def comparisons_won(comparisons: Iterable["Comparison"], ranking: Ranking) -> list[bool]:
    """Return which comparisons a ranking wins."""
    return [ranking.wins(comparison) for comparison in comparisons]


def fraction_true(outcomes: Sequence[bool]) -> float | None:
    """Return the share of true ones; None of none."""
    return sum(outcomes) / len(outcomes) if outcomes else None
