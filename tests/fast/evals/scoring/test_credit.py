"""The credit of searches: sums, planted trajectories, and the closed form beside enumeration."""

import json
import random
from itertools import permutations
from statistics import fmean

import pytest
import run_folders

from sextant.environments.base import Judgements
from sextant.evals import credit as module
from sextant.evals.scoring.attribution import attribute, attribution_json
from sextant.evals.scoring.credit import (
    ORDERS,
    QueryCredit,
    compare_credit,
    credit_query,
    sample_shapley,
    shapley,
    share_equally,
)

PAID = {"repairs": 0, "input_tokens": 10, "output_tokens": 5, "paid_usd": 0.0, "list_usd": 0.01}


def search(argument, doc_ids, **more):
    step = {"tool": "search", "argument": argument, "doc_ids": list(doc_ids), "hop": 1}
    return step | {"usage": PAID | {"calls": 1}} | more


def lines_of(steps, ranking, relevant):
    judgements = Judgements({"q0": dict.fromkeys(relevant, 1)})
    outcome = {
        "query_id": "q0",
        "ranking": ranking,
        "answer": "",
        "trace": {"steps": steps, "notes": [], "invented_ids": 0, "unusable": {}, "followed": {}},
        "usage": PAID | {"calls": len(steps)},
        "error": None,
    }
    fates = attribute("q0", outcome, ranking, judgements)
    return outcome, attribution_json("?", fates, outcome, judgements)


def credited(steps, ranking, relevant, metric="surfaced"):
    lines = lines_of(steps, ranking, relevant)
    return credit_query(*lines, metric, 100, random.Random(1))


def credits_of(query: QueryCredit):
    return [search.credit for search in query.searches]


def in_all_orders(players, value):
    """The definition: the mean over all orders of what each player adds to those before it."""
    added = {player: [] for player in range(players)}
    for order in permutations(range(players)):
        for place, player in enumerate(order):
            before = value(frozenset(order[:place]))
            added[player].append(value(frozenset(order[: place + 1])) - before)
    return [fmean(added[player]) for player in range(players)]


def random_steps(generator, searches):
    documents = [f"d{number}" for number in range(12)]
    steps = []
    for _ in range(searches):
        steps.append(search("fish", generator.sample(documents, generator.randint(0, 4))))
        known = sorted({doc_id for step in steps for doc_id in step["doc_ids"]})
        if known and generator.random() < 0.5:
            chosen = generator.sample(known, generator.randint(1, len(known)))
            tool = generator.choice(["select", "drop", "rank"])
            steps.append({"tool": tool, "argument": "", "doc_ids": chosen, "hop": 1})
    return steps, generator.sample(documents, 3)


def test_a_document_is_divided_among_the_searches_that_returned_it():
    steps = [search("fish", ["a", "x"]), search("boat", ["b", "a"]), search("sea", ["x"])]
    query = credited(steps, ["a", "b"], ["a", "b", "c", "d"])
    assert credits_of(query) == [0.125, 0.375, 0.0]
    assert [search.ordered for search in query.searches] == [0.25, 0.25, 0.0]
    assert (query.score, query.surfaced) == (0.5, 2)


def test_refused_searches_and_searches_of_what_was_found_have_no_part():
    steps = [
        search("fish", ["a"]),
        search("b", [], refused="limit"),
        search("c", ["a"], among=True),
    ]
    assert credits_of(credited(steps, ["a"], ["a"])) == [1.0]


@pytest.mark.parametrize("seed", range(40))
def test_the_closed_form_is_the_mean_over_all_orders(seed):
    generator = random.Random(seed)
    found = [set(generator.sample("abcd", generator.randint(0, 4))) for _ in range(5)]
    exact = in_all_orders(5, lambda made: len(set().union(*(found[one] for one in made))) / 4)
    assert share_equally(found, 4) == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_shapley_values_are_the_mean_over_all_orders(seed):
    generator = random.Random(seed)
    values = {frozenset(): 0.0}

    def value(made):
        return values.setdefault(made, generator.uniform(-1, 1))

    assert shapley(4, value) == pytest.approx(in_all_orders(4, value), abs=1e-12)


@pytest.mark.parametrize("metric", ["surfaced", "nDCG@10", "R@2"])
def test_credits_of_random_trajectories_sum_to_the_score(metric):
    generator = random.Random(metric)
    for searches in [1, 2, 5] * 30:
        steps, relevant = random_steps(generator, searches)
        query = credited(steps, generator.sample(["d0", "d1", "d2"], 2), relevant, metric)
        total = sum(credits_of(query)) + query.base + query.rest
        assert total == pytest.approx(query.score, abs=1e-12)
        ordered = sum(search.ordered for search in query.searches) + query.base + query.rest
        assert ordered == pytest.approx(query.score, abs=1e-12)


def test_a_search_that_pushes_a_relevant_document_down_has_negative_credit():
    steps = [search("fish", ["a"]), search("boat", ["x", "y", "z"]), search("sea", ["x", "y", "z"])]
    first, *others = credits_of(credited(steps, ["x", "y", "z", "a"], ["a"], "RR@10"))
    assert first > 0
    assert max(others) < 0


def test_many_searches_are_estimated_with_their_error():
    found = [{"a"}, {"a", "b"}, *[set()] * 10, {"a"}, {"a", "b"}, {"b"}]

    def value(made):
        return len(set().union(*(found[one] for one in made))) / 2

    credits, error = sample_shapley(len(found), value, random.Random(0))
    assert sum(credits) == pytest.approx(1, abs=1e-12)
    assert 0 < error < 1 / ORDERS**0.5
    for estimate, exact in zip(credits, share_equally(found, 2), strict=True):
        assert abs(estimate - exact) < 4 * error


def test_the_cost_of_a_search_goes_to_the_next(tmp_path, capsys):
    judge = {
        "tool": "judge",
        "argument": "",
        "doc_ids": ["a"],
        "hop": 1,
        "shown": [3],
        "lengths": [3],
    }
    steps = [
        search("red fish", ["a"]),
        judge | {"usage": PAID | {"calls": 2}},
        search("red boat", ["x"], hop=2),
        search("red boat", ["x"], hop=2, tool="more"),
    ]
    outcome, row = lines_of(steps, ["a"], ["a", "b"])
    place = run_folders.make(
        tmp_path / "run", {"nDCG@10": [0.5]}, losses={"cutoff": 10, "at": {"10": {}}}
    )
    for file, line in (("outcomes", outcome), ("attribution", row)):
        (place / f"{file}.jsonl").write_text(json.dumps(line) + "\n")
    [run] = compare_credit([place])["runs"]
    assert (run["score"], run["surfaced"], run["shown"]) == (0.5, 1, 1)
    assert [run["groups"]["hop"][hop]["calls"] for hop in ("1", "2")] == [3, 2]
    assert {name: group["idle"] for name, group in run["groups"]["kind"].items()} == {
        "again": 1,
        "first": 0,
        "old words": 1,
    }
    assert run["all"]["idle_usd"] == pytest.approx(0.02)
    assert module.command(module.parser().parse_args([str(place)])) == 0
    assert "a relevant document that was shown: 5.0 calls" in capsys.readouterr().out
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"imported": {"usage": False}}))
    assert module.command(module.parser().parse_args([str(place)])) == 0
    out = capsys.readouterr().out
    assert "what it used is not known" in out
    assert "calls," not in out
