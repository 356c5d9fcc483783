"""What an optimizer maximises: pytrec_eval's values, and the rest by hand."""

import foreign_runs
import numpy as np
import pytest
import pytrec_eval

from sextant import environments
from sextant.environments.base import Comparison, Environment, Judgements
from sextant.evals.scoring.metrics import Ranking
from sextant.optimizers.trainset.objective import make_objective
from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError
from sextant.tools.records import Document, Query, Usage

FREE = Usage()


def world(
    qrels, metrics=("nDCG@10", "R@10", "R@100", "R@1000"), *, pools=None, metric="", **more
) -> Environment:
    named = sorted({doc_id for grades in qrels.values() for doc_id in grades} | {"x", "y", "z"})
    return foreign_runs.world(
        documents=Corpus(Document(doc_id, f"text of {doc_id}") for doc_id in named),
        queries=tuple(
            Query(query_id, "?", candidates=(pools or {}).get(query_id)) for query_id in qrels
        ),
        judgements={"gold": Judgements(qrels)},
        metrics=metrics,
        metric=metric or metrics[0],
        **more,
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_value_is_pytrec_evals_metric_with_a_hundredth_of_recall(seed):
    generator = np.random.default_rng(seed)
    documents = [f"d{n}" for n in range(300)]
    qrels = {"q": {doc_id: int(generator.integers(0, 3)) for doc_id in documents[:40]} | {"d0": 1}}
    ranking = [
        str(doc_id) for doc_id in generator.permutation(documents)[: generator.integers(1, 200)]
    ]
    run = {"q": {doc_id: -float(place) for place, doc_id in enumerate(ranking)}}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.100"}).evaluate(run)["q"]
    made = make_objective(environment := world(qrels))
    scored = made.score(environment.queries[0], Ranking(ranking), FREE)
    assert scored == pytest.approx(theirs["ndcg_cut_10"] + 0.01 * theirs["recall_100"], abs=1e-12)


def test_a_query_that_failed_has_nothing_and_pays_all_the_same():
    made = make_objective(environment := world({"q": {"a": 1}}), price=0.1)
    scored = made.score(
        environment.queries[0], Ranking(()), Usage(input_tokens=300, output_tokens=200)
    )
    assert scored == pytest.approx(-0.05)


def test_an_unnamed_metric_is_ndcg_else_the_tasks_own():
    made = make_objective(world({"q": {"a": 1}}))
    assert (made.metric, made.tie_breaker) == ("nDCG@10", "R@100")
    made = make_objective(
        world({"q": {"a": 1}}, ("P@5", "RR@10", "R@20", "R@5", "R@1000"), metric="RR@10")
    )
    assert (made.metric, made.tie_breaker) == ("RR@10", "R@20")
    assert make_objective(world({"q": {"a": 1}}, ("RR@10", "R@1000"))).tie_breaker == ""
    assert make_objective(world({"q": {"a": 1}}), "R@100").tie_breaker == "", (
        "it would break ties with itself"
    )


@pytest.mark.parametrize(
    "task", ["congress", "crumb/clinical_trial", "set_ops", "doris_mae", "relic", "books"]
)
def test_a_task_of_every_kind_has_an_objective_that_a_ranking_changes(task):
    environment = environments.load(task, "mini", "dev")
    made = make_objective(environment)
    assert made.metric == "nDCG@10" and made.tie_breaker in ("R@100", "R@20")
    [query, *_] = made.usable(environment.queries)
    judged, unit_of = (
        environment.qrels[query.query_id],
        environment.judgements[environment.headline].unit_of or str,
    )
    best = sorted(environment.documents, key=lambda doc_id: -judged.get(unit_of(doc_id), 0.0))
    assert made.score(query, Ranking(best), FREE) > made.score(query, Ranking(()), FREE) == 0.0


PAIRS = {
    "list": (Comparison("Win(1)", "a", "b"), Comparison("Win(2)", "b", "c")),
    "prose": (Comparison("Win(1)", "a", "b"), Comparison("Win(2)", "b", "c")),
}
LADDER = {"list": {"a": 2.0, "b": 1.0, "c": 0.0}, "prose": {"a": 2.0, "b": 1.0, "c": 0.0}}


def compared(metrics) -> Environment:
    return world(LADDER, metrics, comparisons=PAIRS, twins={"prose": "list"})


def test_wins_count_for_a_query_alone_though_it_has_a_twin():
    made = make_objective(
        environment := compared(("Flip", "Win", "Win(1)", "Win(2)", "Win(3)")), "Win"
    )
    prose = environment.queries[1]
    scored = made.score(prose, Ranking(["a", "b", "c"], [1.0, 0.5, 0.5]), FREE)
    assert scored == 0.5, "no recall, no tie-breaker"
    assert made.score(prose, Ranking(()), FREE) == 0.0
    assert len(made.usable(environment.queries)) == 2


def test_flip_which_is_over_two_queries_is_refused():
    with pytest.raises(UsageError, match="Flip is over a query and its twin"):
        make_objective(compared(("Flip", "Win")))


def test_queries_for_which_the_metric_is_undefined_are_left_out():
    environment = world({"good": {"a": 1}, "weak": {"b": 0.5}, "none": {"c": 0}}).count_from(1)
    for name, ids in {
        "R@10": ["good"],
        "": ["good", "weak"],
    }.items():  # nDCG gains fractions, recall wants a 1
        assert [
            query.query_id
            for query in make_objective(environment, name).usable(environment.queries)
        ] == ids
    with pytest.raises(UsageError, match=r"nothing is relevant by it, .* choose another --metric"):
        make_objective(world({"q": {"a": 0.5}}).count_from(1), "R@10")


def test_recall_of_a_whole_pool_is_refused_before_anything_is_paid_for():
    qrels = {"q1": {"a": 1, "b": 0, "c": 0}, "q2": {"b": 1, "c": 0}}
    pools = {query_id: frozenset(grades) for query_id, grades in qrels.items()}
    with pytest.raises(UsageError, match=r"R@10 is .* it counts all of a pool"):
        make_objective(world(qrels, pools=pools), "R@10")
    environment = world(qrels, ("R@2", "nDCG@10"), pools=pools)
    assert [
        query.query_id for query in make_objective(environment, "R@2").usable(environment.queries)
    ] == ["q1"]
    assert len(make_objective(environment).usable(environment.queries)) == 2


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("metric", ["nDCG@2", "R@2", "P@2", "RR@2"])
def test_a_query_is_usable_when_two_orders_of_its_pool_differ(seed, metric):
    from itertools import permutations

    generator = np.random.default_rng(seed)
    pool = ["a", "b", "c", "d"][: generator.integers(1, 5)]
    grades = {doc_id: float(generator.integers(0, 3)) for doc_id in pool} | {"other": 1.0}
    qrels = {
        "q": {doc_id: grade for doc_id, grade in grades.items() if doc_id in pool},
        "open": {"x": 1.0},
    }
    environment = world(qrels, (metric,), pools={"q": frozenset(pool)})
    made, [query, _] = make_objective(environment), environment.queries
    values = {made.score(query, Ranking(order), FREE) for order in permutations(pool)}
    assert (query in made.usable([query])) == (len(values) > 1)


def test_a_query_of_another_split_is_refused():
    made = make_objective(world({"q": {"a": 1}}))
    with pytest.raises(ValueError, match="'test-1' is none of those"):
        made.score(Query("test-1", "?"), Ranking(["a"]), FREE)
    with pytest.raises(ValueError, match="'test-1' is none of those"):
        made.usable([Query("test-1", "?")])
