"""Every metric against pytrec_eval, the reference implementation behind trec_eval."""

import numpy as np
import pytest
import pytrec_eval

from evals.folder import trec
from evals.metrics import METRICS, per_query
from evals.stats import bootstrap_mean

# RR@10 has no name there: it is recip_rank over the first ten.
TREC_EVAL = {
    "nDCG@10": "ndcg_cut_10",
    "nDCG@50": "ndcg_cut_50",
    "R@10": "recall_10",
    "R@50": "recall_50",
    "R@100": "recall_100",
    "R@1000": "recall_1000",
    "RR@10": "recip_rank",
}


def reference(run_file: str, qrels, metric: str) -> dict[str, float]:
    run: dict[str, dict[str, float]] = {}
    for line in run_file.splitlines():
        query_id, _, doc_id, rank, score, _ = line.split("\t")
        if metric != "RR@10" or int(rank) <= 10:
            run.setdefault(query_id, {})[doc_id] = float(score)
    name = TREC_EVAL[metric]
    results = pytrec_eval.RelevanceEvaluator(qrels, {name.replace("_cut_", "_cut.").replace("recall_", "recall.")})
    return {query_id: values[name] for query_id, values in results.evaluate(run).items()}


def random_case(seed: int):
    """Rankings cut out of tied scores, with unjudged documents, graded judgements and judged zeros."""
    generator = np.random.default_rng(seed)
    rankings, qrels = {}, {}
    for number in range(6):
        documents = [f"d{n}" for n in generator.permutation(1500)]
        scores = generator.integers(0, 5, size=1500)  # five values for 1,500 documents: ties everywhere
        order = np.lexsort((documents, -scores))[: generator.integers(1, 1200)]
        rankings[f"q{number}"] = [documents[place] for place in order]
        judged = generator.choice(1500, size=40, replace=False)
        qrels[f"q{number}"] = {f"d{n}": int(generator.integers(0, 4)) for n in judged} | {"d0": 1}
    return rankings, qrels


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("seed", range(8))
def test_a_metric_is_what_pytrec_eval_makes_of_the_run_file(metric, seed):
    rankings, qrels = random_case(seed)
    ours = per_query(rankings, qrels)[metric]
    theirs = reference(trec(rankings, "tag"), qrels, metric)
    assert ours == pytest.approx(theirs, abs=1e-9)


def test_a_query_without_a_ranking_counts_as_zero_and_stays_in_the_average():
    qrels = {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 1}}
    values = per_query({"q1": ["a"], "q2": []}, qrels)
    assert values["nDCG@10"] == {"q1": 1.0, "q2": 0.0, "q3": 0.0}


def test_gain_is_linear_in_the_grade():
    # With grades 2 and 1 in the wrong order: (1 + 2 / log2(3)) / (2 + 1 / log2(3)).
    assert per_query({"q": ["b", "a"]}, {"q": {"a": 2, "b": 1}})["nDCG@10"]["q"] == pytest.approx(0.8597, abs=1e-4)


def test_blanks_in_ids_do_not_shift_the_columns_of_a_run_file():
    line = trec({"a query": ["doc 1"]}, "tag")
    assert line.split() == ["a%20query", "Q0", "doc%201", "1", "1", "tag"]


def test_the_interval_agrees_with_scipys_bootstrap():
    from scipy.stats import bootstrap

    values = np.random.default_rng(3).beta(0.3, 1.0, size=80)
    ours = bootstrap_mean(values.tolist())
    theirs = bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", rng=1).confidence_interval
    assert ours.mean == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_one_query_has_a_mean_and_no_interval():
    assert bootstrap_mean([0.5]) == (0.5, None, None)
