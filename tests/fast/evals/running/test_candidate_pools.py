"""`--pool`: unions of what retrievers find, with and without gold, against a union made by hand."""

import dataclasses
import random
from pathlib import Path

import pytest

import environments
from evals import score
from evals.run_folder import read_outcomes
from evals.running import candidate_pools
from tools import retrievers
from tools.errors import UsageError

RUN = ("--program", "retrieve", "--task", "congress", "--split", "dev")


@pytest.fixture(scope="module")
def mini():
    return environments.load("congress", "mini", "dev")


def engines(mini, *names):
    return [retrievers.build(name, mini.documents) for name in names]


def made(mini, text, *names):
    pool = candidate_pools.read(text, retrievers.canonicalize("bm25"))
    return pool.add_to(mini, engines(mini, *names))


def test_a_union_takes_the_rankings_rank_by_rank_until_it_is_full(mini):
    lexical, other = engines(mini, "bm25", "rank_bm25")
    for query in made(mini, "union:30(bm25,rank_bm25)", "bm25", "rank_bm25").queries:
        a, b = (
            [hit.doc_id for hit in engine.search(query.text, 200)] for engine in (lexical, other)
        )
        expected = []
        for rank in range(200):
            for ranking in (a, b):
                if rank < len(ranking) and ranking[rank] not in expected and len(expected) < 30:
                    expected.append(ranking[rank])
        assert query.candidates == set(expected) and len(query.candidates) == 30


def test_an_oracle_has_every_gold_document_and_as_many_as_a_union_which_has_those_that_were_found(
    mini,
):
    union, oracle = made(mini, "union:20", "bm25").queries, made(mini, "oracle:20", "bm25").queries
    missing = 0
    for found, infused in zip(union, oracle, strict=True):
        gold = {doc_id for doc_id, grade in mini.qrels[found.query_id].items() if grade > 0}
        assert gold <= infused.candidates and len(infused.candidates) == len(found.candidates) == 20
        missing += len(gold - found.candidates)
    assert missing, "else this would say nothing"


def test_no_order_by_ranks_tells_the_documents_that_were_put_in_from_the_others(mini):
    """Of gold anywhere below the pool's head, an order that reads nothing makes no more than twice what chance does."""
    from benchmarks.pools import measured

    [bm25], queries, qrels, lots = engines(mini, "bm25"), [], {}, random.Random(5)
    for query in mini.queries:
        below = [hit.doc_id for hit in bm25.search(query.text, len(mini.documents))][20:]
        for number in range(12):
            queries.append(dataclasses.replace(query, query_id=f"{query.query_id} {number}"))
            qrels[queries[-1].query_id] = dict.fromkeys(lots.sample(below, 1 + number % 3), 1.0)
    judged = mini.judgements["gold"]._replace(qrels=qrels, binary=None)
    placed = dataclasses.replace(mini, queries=tuple(queries), judgements={"gold": judged})
    values = measured(
        placed, bm25, candidate_pools.read("oracle:40", retrievers.canonicalize("bm25"))
    )
    assert max(values.values()) < 2.2 * values["by chance"] < 0.5


def test_what_is_excluded_is_in_no_pool(mini):
    first = mini.queries[0]
    best = retrievers.build("bm25", mini.documents).search(first.text, 1)[0].doc_id
    masked = dataclasses.replace(
        mini, queries=(dataclasses.replace(first, excluded=frozenset({best})),)
    )
    [query] = made(masked, "union:5", "bm25").queries
    assert best not in query.candidates and len(query.candidates) == 5


def test_where_parents_are_judged_the_best_passage_of_each_is_put_in():
    task = environments.load("crumb/clinical_trial", "mini", "dev")
    bm25 = retrievers.build("bm25", task.documents)
    oracle = candidate_pools.read("oracle:5", retrievers.canonicalize("bm25")).add_to(task, [bm25])
    for query in oracle.queries:
        ranking = [hit.doc_id for hit in bm25.search(query.text, 5000)]
        for parent, grade in task.qrels[query.query_id].items():
            passages = [doc_id for doc_id in ranking if task.documents[doc_id].parent == parent]
            if grade > 0 and passages:
                assert passages[0] in query.candidates


@pytest.mark.parametrize(
    "text",
    [
        "oracle",
        "oracle:",
        "oracle:0",
        "oracle:-3",
        "oracle:many",
        "oracle:" + "9" * 4301,
        "mine:300",
        "union:3(k=2)",
    ],
)
def test_what_is_no_pool_is_refused_with_the_form(text):
    with pytest.raises(UsageError, match=r"oracle:SIZE or union:SIZE|the form is"):
        candidate_pools.read(text, retrievers.canonicalize("bm25"))


def test_a_pool_is_made_of_the_runs_retriever_of_the_parts_of_a_fusion_or_of_those_named():
    assert str(candidate_pools.read("union:9", retrievers.canonicalize("bm25"))) == "union:9(bm25)"
    assert (
        str(candidate_pools.read("oracle:9", retrievers.canonicalize("fusion(bm25,rank_bm25)")))
        == "oracle:9(bm25,rank_bm25)"
    )
    assert (
        str(candidate_pools.read("oracle:9(dense)", retrievers.canonicalize("bm25")))
        == "oracle:9(dense)"
    )


def test_a_run_over_pools_says_so_and_is_another_run(run, command_of):
    plain, union, oracle = (
        run(*RUN, *more, "--json").json
        for more in ((), ("--pool", "union:20"), ("--pool", "oracle:20"))
    )
    assert len({result["run"] for result in (plain, union, oracle)}) == 3
    assert (
        plain["pool"] is None
        and oracle["pool"]["kind"] == "oracle"
        and oracle["pool"]["size"] == 20
    )
    recall = [result["metrics"]["R@100"]["mean"] for result in (union, oracle)]
    assert recall[0] < recall[1] == 1.0
    assert "with every relevant document put in: a ceiling" in run(*RUN, "--pool", "oracle:20").out
    again = command_of(score)(oracle["run"], "--json").json
    assert again["metrics"] == oracle["metrics"] and again["pool"] == oracle["pool"]
    for outcome in read_outcomes(Path(oracle["run"])).values():  # scores say no more than ranks do
        assert outcome["scores"] == [1 / rank for rank in range(1, 1 + len(outcome["ranking"]))]


def test_oracles_of_other_judgements_are_other_runs(run):
    task = (
        "--program",
        "retrieve",
        "--task",
        "twitter",
        "--split",
        "dev",
        "--pool",
        "oracle:40",
        "--json",
        "--qrels",
    )
    gold, pooled = (run(*task, qrels).json for qrels in ("gold", "pooled"))
    assert gold["run"] != pooled["run"] and gold["pool"]["gold"] != pooled["pool"]["gold"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--task", "relic", "--pool", "oracle:20"), "candidate pools of its own"),
        (("--task", "congress", "--pool", "oracle:20(pool_bm25)"), "no pool can be made of it"),
        (("--task", "congress", "--pool", "oracle:20(bn25)"), "bm25"),
        (("--task", "twitter", "--pool", "oracle:2"), "no room for the"),
    ],
)
def test_a_pool_that_cannot_be_is_refused_in_one_line(arguments, words, run):
    result = run("--program", "retrieve", *arguments)
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1
