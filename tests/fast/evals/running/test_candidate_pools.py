"""`--pool`: unions of what retrievers find, with and without gold, against a union made by hand."""

import dataclasses
import random
from functools import partial
from pathlib import Path

import pytest

from sextant import environments
from sextant.evals import score
from sextant.evals.run_folder import digest, read_config, read_outcomes
from sextant.evals.running import candidate_pools
from sextant.tools import retrievers
from sextant.tools.errors import UsageError
from sextant.tools.pool_kinds import describe_signs, read_kind
from sextant.tools.retrievers.base import PoolRetriever

RUN = ("--program", "retrieve", "--task", "congress", "--split", "dev")


@pytest.fixture(scope="module")
def mini():
    return environments.load("congress", "mini", "dev")


def build_retrievers(mini, *names):
    return [retrievers.build(name, mini.documents) for name in names]


def made(mini, text, *names):
    pool = candidate_pools.read(text, retrievers.canonicalize("bm25"))
    return pool.add_to(mini, build_retrievers(mini, *names))


def test_a_union_takes_the_rankings_rank_by_rank_until_it_is_full(mini):
    lexical, other = build_retrievers(mini, "bm25", "rank_bm25")
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


def relevant(mini, query):
    return {doc_id for doc_id, grade in mini.qrels[query.query_id].items() if grade > 0}


def test_an_oracle_is_a_union_and_the_gold_documents_that_it_lacks(mini):
    unions, oracles = made(mini, "union:20", "bm25"), made(mini, "oracle:20", "bm25")
    missing = 0
    for union, oracle in zip(unions.queries, oracles.queries, strict=True):
        assert oracle.candidates == union.candidates | relevant(mini, union)
        missing += len(oracle.candidates) - len(union.candidates)
    assert missing, "else this would say nothing"


def test_a_search_ranks_a_pool_to_its_end_and_last_what_shares_no_word_with_it():
    task = environments.load("twitter", "mini")
    [bm25] = build_retrievers(task, "bm25")
    pool = candidate_pools.read("oracle:20", retrievers.canonicalize("bm25"))
    unfound = 0
    for query in pool.add_to(task, [bm25]).queries:
        search = partial(PoolRetriever(bm25).search, query.text, among=query.candidates)
        found = bm25.search(query.text, 1000, among=query.candidates).doc_ids
        ranked = search(1000).doc_ids
        assert ranked[: len(found)] == found and set(ranked) == query.candidates
        assert len(ranked) == len(set(ranked)) and search(7).doc_ids == ranked[:7]
        assert search(1000, excluded={ranked[-1]}).doc_ids == ranked[:-1]
        unfound += len(ranked) - len(found)
    assert unfound, "else this would say nothing"


def test_a_hidden_pool_has_every_gold_document_and_as_many_documents_as_a_union(mini):
    for query in made(mini, "hidden:20", "bm25").queries:
        assert relevant(mini, query) <= query.candidates and len(query.candidates) == 20


def test_no_order_by_ranks_tells_the_documents_that_were_put_in_from_the_others(mini):
    """Of gold anywhere below the pool's head, an order that reads nothing makes no more than twice what chance does."""
    from benchmarks.pools import measured

    [bm25], queries, qrels, lots = build_retrievers(mini, "bm25"), [], {}, random.Random(5)
    for query in mini.queries:
        below = [hit.doc_id for hit in bm25.search(query.text, len(mini.documents))][20:]
        for number in range(12):
            queries.append(dataclasses.replace(query, query_id=f"{query.query_id} {number}"))
            qrels[queries[-1].query_id] = dict.fromkeys(lots.sample(below, 1 + number % 3), 1.0)
    judged = mini.judgements["gold"]._replace(qrels=qrels, binary=None)
    placed = dataclasses.replace(mini, queries=tuple(queries), judgements={"gold": judged})
    values = measured(
        placed, bm25, candidate_pools.read("hidden:40", retrievers.canonicalize("bm25"))
    )
    assert max(values.values()) < 2.2 * values["by chance"] < 0.5
    readable = measured(
        placed, bm25, candidate_pools.read("oracle:40", retrievers.canonicalize("bm25"))
    )
    assert readable["its own reversed"] > 3 * readable["by chance"], "the last ranks do tell"


def test_what_is_excluded_is_in_no_pool(mini):
    first = mini.queries[0]
    best = retrievers.build("bm25", mini.documents).search(first.text, 1)[0].doc_id
    masked = dataclasses.replace(
        mini, queries=(dataclasses.replace(first, excluded=frozenset({best})),)
    )
    [query] = made(masked, "union:5", "bm25").queries
    assert best not in query.candidates and len(query.candidates) == 5


@pytest.mark.parametrize("kind", ["oracle", "hidden"])
def test_where_parents_are_judged_the_best_passage_of_each_is_put_in(kind):
    task = environments.load("crumb/clinical_trial", "mini", "dev")
    bm25 = retrievers.build("bm25", task.documents)
    pool = candidate_pools.read(f"{kind}:5", retrievers.canonicalize("bm25"))
    added = 0
    for query in pool.add_to(task, [bm25]).queries:
        ranking = [hit.doc_id for hit in bm25.search(query.text, 5000)]
        for parent, grade in task.qrels[query.query_id].items():
            passages = [doc_id for doc_id in ranking if task.documents[doc_id].parent == parent]
            if grade > 0 and passages:
                assert passages[0] in query.candidates
                added += passages[0] not in ranking[:5]
        if kind == "oracle":
            assert set(ranking[:5]) <= query.candidates
    assert added, "else this would say nothing"


@pytest.mark.parametrize(
    "text",
    [
        "oracle",
        "oracle:",
        "oracle:0",
        "oracle:-3",
        "oracle:many",
        "orakel:20",
        "oracle:" + "9" * 4301,
        "mine:300",
        "union:3(k=2)",
    ],
)
def test_what_is_no_pool_is_refused_with_the_form(text):
    with pytest.raises(UsageError, match=r"oracle:SIZE, hidden:SIZE or union:SIZE|the form is"):
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
    plain, union, oracle, hidden = (
        run(*RUN, *more, "--json").json
        for more in ((), *(("--pool", f"{kind}:20") for kind in ("union", "oracle", "hidden")))
    )
    assert len({result["run"] for result in (plain, union, oracle, hidden)}) == 4
    assert (
        plain["pool"] is None
        and oracle["pool"]["kind"] == "oracle"
        and oracle["pool"]["size"] == 20
    )
    recall = [result["metrics"]["R@100"]["mean"] for result in (union, oracle)]
    assert recall[0] < recall[1] == 1.0
    told = run(*RUN, "--pool", "oracle:20").out
    assert "pools of 20 and every relevant document that they lack: a ceiling" in told
    sign = "a program could tell what was put into an oracle pool"
    assert sign in told and any(sign in note for note in oracle["notes"])
    assert not any(sign in note for note in hidden["notes"] + union["notes"])
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
        (("--task", "twitter", "--pool", "hidden:2"), "no room for the"),
    ],
)
def test_a_pool_that_cannot_be_is_refused_in_one_line(arguments, words, run):
    result = run("--program", "retrieve", *arguments)
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1


def test_an_oracle_pool_of_an_earlier_version_is_read_as_the_hidden_pool_that_it_was(run):
    result = run(*RUN, "--pool", "oracle:20", "--json").json
    folder = Path(result["run"])
    config = read_config(folder)
    made_now = config | {"pool": dict(config["pool"])}
    made_before = config | {"pool": {"kind": "oracle", "size": 20, "of": ["bm25"], "gold": "x"}}
    hidden = config | {"pool": {"kind": "hidden", "size": 20, "of": ["bm25"], "gold": "x"}}
    assert [read_kind(one) for one in (made_now, made_before, hidden)] == [
        "oracle",
        "hidden",
        "hidden",
    ]
    made_now["pool"] |= {"of": ["bm25"], "gold": "x"}
    assert len({digest(one) for one in (made_now, made_before, hidden)}) == 3
    assert not describe_signs(made_before) and describe_signs(made_now)
