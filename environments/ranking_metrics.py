"""The metrics of rankings that a task can name, by ir_measures' names and with its values.

nDCG@k   gain is the grade itself (linear), the discount log2(rank + 1), the ideal order from all judged documents;
         grades may be fractions, which is why this is not left to trec_eval: it has whole numbers only
R@k, P@k, AP@k, RR@k   a document is relevant from grade 1 on
TopRR@k  RR of the first document at the query's highest grade, which BIRCO calls MRR
Judged@k the share of the first k documents that have a judgement, whatever their grade

Parsing of names, metrics of comparisons and a user's own are in evals/scoring/metrics.py.
"""

import math
from collections.abc import Sequence

from environments.judged_ranking import JudgedRanking, RankingMetric


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
    ranks = [rank for rank, hit in enumerate(judged.hits[:k], start=1) if hit]
    precisions = [count / rank for count, rank in enumerate(ranks, start=1)]
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


# To add a metric: its name before the @, and a function of a judged ranking and a depth, here or in
# a file of its own. If ir_measures has the name, tests/fast/evals/scoring/test_metrics.py holds the
# function to its values; `benchmark.toml` and `--metric` take the name.
RANKING: dict[str, RankingMetric] = {
    "nDCG": ndcg,
    "R": recall,
    "P": precision,
    "AP": average_precision,
    "RR": reciprocal_rank,
    "TopRR": top_reciprocal_rank,
    "Judged": judged_share,
}
UNORDERED = ("R", "P", "Judged")  # the order of the first k documents does not matter
NEEDS_DEPTH = ("P",)  # its value is a share of k places
PAIRWISE = ("Win", "Flip", "Triplets")  # metrics of comparisons: evals/scoring/metrics.py
