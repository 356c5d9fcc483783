"""The metrics of rankings that a task can name, by ir_measures' names and with its values.

nDCG@k   gain is the grade itself (linear), the discount log2(rank + 1), the ideal order from all judged documents;
         grades may be fractions, which is why this is not left to trec_eval: it has whole numbers only
R@k, P@k, AP@k, RR@k   of relevant documents (base.Judgements); R(rel=2)@k and so on: from grade 2 on
TopRR@k  RR of the first document at the query's highest grade, which BIRCO calls MRR
Judged@k the share of the first k documents that have a judgement, whatever their grade

Names with depths are parsed, and metrics of comparisons and a user's own are computed, in
evals/scoring/metrics.py.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from sextant.environments.judged_ranking import JudgedRanking, RankingMetric


def ndcg(judged: JudgedRanking, k: int) -> float | None:
    """Return normalised discounted cumulated gain (Järvelin and Kekäläinen 2002), in [0, 1].

    Gains are linear; the value is 0 without any gain.
    """
    ideal = _discount(judged.ideal[:k])
    return _discount(judged.gains[:k]) / ideal if ideal else 0.0


def _discount(gains: Sequence[float]) -> float:
    discounted = [gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1) if gain]
    return math.fsum(discounted)


def recall(judged: JudgedRanking, k: int) -> float | None:
    """Return the share of the relevant documents that are among the first `k`."""
    if not judged.relevant:
        return judged.nothing
    return sum(judged.hits[:k]) / judged.relevant


def precision(judged: JudgedRanking, k: int) -> float | None:
    """Return the share of `k` places that hold a relevant document."""
    return sum(judged.hits[:k]) / k


def average_precision(judged: JudgedRanking, k: int) -> float | None:
    """Return the mean over relevant documents of the precision at their rank.

    A document that is not among the first `k` counts as 0.
    """
    if not judged.relevant:
        return judged.nothing
    precisions = [
        count / rank
        for count, rank in enumerate(
            [rank for rank, hit in enumerate(judged.hits[:k], start=1) if hit], start=1
        )
    ]
    return math.fsum(precisions) / judged.relevant


def reciprocal_rank(judged: JudgedRanking, k: int) -> float | None:
    """Return 1 / the rank of the first relevant document, 0 if none is among the first `k`."""
    for rank, hit in enumerate(judged.hits[:k], start=1):
        if hit:
            return 1 / rank
    return 0.0


def top_reciprocal_rank(judged: JudgedRanking, k: int) -> float | None:
    """Return 1 / the rank of the first document with the query's highest grade.

    The value is 0 if no such document is among the first `k`.
    """
    top = max(judged.ideal, default=0.0)
    for rank, gain in enumerate(judged.gains[:k], start=1):
        if gain == top > 0:
            return 1 / rank
    return 0.0


def judged_share(judged: JudgedRanking, k: int) -> float | None:
    """Return the share of the first `k` documents that have a judgement; 0 for an empty ranking."""
    judged_documents = judged.judged[:k]
    return sum(judged_documents) / max(1, len(judged_documents))


class BuiltInMetric(NamedTuple):
    """A metric of rankings."""

    compute: RankingMetric
    is_ordered: bool = True  # False if the order of the documents above the depth does not matter
    needs_depth: bool = False  # True if its value is a share of a number of places
    takes_level: bool = False  # True if its name may have a level of its own: RR(rel=2)@10


# To add a metric: a row with its name before the @, and a function of a judged ranking and a depth,
# here or in a file of its own. If ir_measures has the name, tests/fast/evals/scoring/test_metrics.py
# holds the function to its values; `benchmark.toml` and `--metric` take the name.
RANKING = {
    "nDCG": BuiltInMetric(ndcg),
    "R": BuiltInMetric(recall, is_ordered=False, takes_level=True),
    "P": BuiltInMetric(precision, is_ordered=False, needs_depth=True, takes_level=True),
    "AP": BuiltInMetric(average_precision, takes_level=True),
    "RR": BuiltInMetric(reciprocal_rank, takes_level=True),
    "TopRR": BuiltInMetric(top_reciprocal_rank),
    "Judged": BuiltInMetric(judged_share, is_ordered=False),
}


class PairwiseMetric(NamedTuple):
    """A metric of comparisons, which evals/scoring/metrics.py computes."""

    takes_label: bool = False  # True if its name may have a label: Win(LABEL)
    is_lower_better: bool = False
    is_weighted: bool = False  # True if a run's mean counts a query as often as it has comparisons


PAIRWISE = {
    "Win": PairwiseMetric(takes_label=True),
    "Flip": PairwiseMetric(is_lower_better=True),
    "Triplets": PairwiseMetric(is_weighted=True),
}


def _name_patterns() -> list[str]:
    """Return a regular expression for each metric in the tables, with its depth or label."""
    depth = r"(@[1-9]\d{0,8})"
    level = r"(\(rel=[1-9]\d{0,8}\))?"
    rankings = [
        f"{name}{level * row.takes_level}{depth}{'?' * (not row.needs_depth)}"
        for name, row in RANKING.items()
    ]
    label = r"(\(\w+\))?"
    pairwise = [f"{name}{label if row.takes_label else ''}" for name, row in PAIRWISE.items()]
    return rankings + pairwise


METRIC_NAME = f"^({'|'.join(_name_patterns())})$"

# What other tools call a metric of the table, in small letters -> its name here. trec_eval has
# map_cut_10 (map_cut.10 where it is asked for), BEIR and MTEB map_at_10, ranx map@10. Without a
# depth, ndcg_cut, map_cut and recall are several metrics of trec_eval's.
OTHER_NAMES = {
    "ndcg": "nDCG",
    "map": "AP",
    "mrr": "RR",
    "recip_rank": "RR",
}
OTHER_NAMES_WITH_DEPTH = OTHER_NAMES | {
    "ndcg_cut": "nDCG",
    "map_cut": "AP",
    "recall": "R",
    "p": "P",
    "precision": "P",
}
_OTHER_NAME = re.compile(r"([a-z_]+?)(?:(?:_at_|[@_.])([1-9]\d{0,8}))?", re.IGNORECASE)


def translate_metric(name: str) -> str:
    """Return the name here of a metric that another tool's name stands for; other names unchanged."""
    match = _OTHER_NAME.fullmatch(name)
    if match is None or re.fullmatch(METRIC_NAME, name):
        return name
    word = match[1].lower()
    depth = match[2]
    if depth:
        return f"{OTHER_NAMES_WITH_DEPTH[word]}@{depth}" if word in OTHER_NAMES_WITH_DEPTH else name
    return OTHER_NAMES.get(word, name)
