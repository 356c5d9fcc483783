"""Ranking metrics, by ir_measures' names and with its values. Reads no files and averages nothing.

Gain is the grade itself (linear), the discount log2(rank + 1), as trec_eval has it; a document is relevant from
grade 1 on. tests/test_metrics.py compares every metric with pytrec_eval.
"""

from collections.abc import Mapping, Sequence

import ir_measures

# To add one: its name as ir_measures parses it. The order is that of tables.
METRICS = ("nDCG@10", "nDCG@50", "R@10", "R@50", "R@100", "R@1000", "RR@10")


def per_query(
    rankings: Mapping[str, Sequence[str]],
    qrels: Mapping[str, Mapping[str, int]],
    metrics: Sequence[str] = METRICS,
) -> dict[str, dict[str, float]]:
    """Value in [0, 1] by metric and query, for every query of `qrels`; 0 where the ranking is empty or absent.

    `rankings` has doc ids best first, each at most once. Unjudged documents count as grade 0.
    """
    run = {
        query_id: {doc_id: float(len(ranking) - place) for place, doc_id in enumerate(ranking)}
        for query_id, ranking in rankings.items()
    }
    measures = [ir_measures.parse_measure(name) for name in metrics]
    values: dict[str, dict[str, float]] = {name: dict.fromkeys(qrels, 0.0) for name in metrics}
    grades = {query_id: dict(judged) for query_id, judged in qrels.items()}
    for value in ir_measures.iter_calc(measures, grades, run):
        values[str(value.measure)][value.query_id] = float(value.value)
    return values
