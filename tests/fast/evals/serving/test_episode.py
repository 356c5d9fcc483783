"""Episodes: what rewards sum to, what a cut-off hands in, and what Gymnasium makes of them."""

import json
import random

import pytest
from random_episodes import play

from sextant.evals.run_folder import RunFolder
from sextant.evals.running.request import Request
from sextant.evals.scoring.metrics import compute_metrics, ranking_of
from sextant.evals.serving.episode import POTENTIALS
from sextant.evals.serving.episode_server import serve_episodes
from sextant.evals.serving.rl_training import open_training
from sextant.tools.errors import RunIncomplete, UsageError


def mini(**fields):
    return open_training(data="mini", **fields)


def value(episode, metric):
    outcome = {"ranking": episode.submission.ranking, "scores": episode.submission.scores}
    environment, query_id = episode.world.environment, episode.query.query_id
    return compute_metrics(query_id, {query_id: ranking_of(outcome)}, environment)[metric]


def call(name, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize("potential", ["", *POTENTIALS])
def test_rewards_sum_to_the_metric_less_the_costs_whatever_shapes_them(potential):
    shaped, plain = mini(shaping=potential, search_cost=0.03), mini(reward="R@10")
    for seed in range(60):
        query_id = random.Random(seed).choice(list(plain.queries))
        one, other = shaped.open(query_id), plain.open(query_id)
        rewards = play(one, random.Random(seed)), play(other, random.Random(seed))
        searches = sum(step.tool == "search" for step in one.submission.trace.steps)
        assert sum(rewards[0]) == pytest.approx(value(one, "nDCG@10") - 0.03 * searches, abs=1e-12)
        assert sum(rewards[1]) == pytest.approx(value(other, "R@10"), abs=1e-12)
        assert not any(rewards[1][:-1]), "without a potential the last step has it all"
        assert one.submission.ranking == other.submission.ranking


def test_a_potential_rewards_the_step_that_finds_something_and_the_last_step_takes_it_back():
    world = mini(shaping="surfaced")
    relevant = {
        query_id: world.environment.judgements["gold"].recalled(query_id)
        for query_id in world.queries
    }
    query_id = next(query_id for query_id in world.queries if len(relevant[query_id]) == 1)
    episode, words = (
        world.open(query_id),
        world.environment.documents[next(iter(relevant[query_id]))].text,
    )
    assert episode.act("search", {"query": words[:300]}).reward == 1
    assert episode.act("search", {"query": words[:300]}).reward == 0
    found = next(step.doc_ids for step in episode.desk.session.trace.steps)
    wrong = next(doc_id for doc_id in found if doc_id not in relevant[query_id])
    assert episode.act("submit", {"doc_ids": [wrong]}).reward == -1


def test_a_repeated_search_costs_nothing_shows_nothing_and_leaves_its_own_step():
    episode = mini(search_cost=0.1).open()
    words = "a shop in the night"
    found = json.loads(episode.act("search", {"query": words, "k": 5}).text)
    reading = {"doc_id": found[0]["doc_id"]}
    texts = [json.loads(episode.act("read", reading).text) for _ in range(2)]
    assert texts[0]["text"] and texts[1] == texts[0], "a script may have lost it"
    repeated = episode.act("search", {"query": f"{words.title()}!", "k": 3})
    rows = json.loads(repeated.text)
    assert repeated.reward == 0
    assert [row["doc_id"] for row in rows] == [row["doc_id"] for row in found]
    assert [row["state"] for row in rows] == ["read", *["only seen"] * 4]
    assert not any(row["text"] in found[number]["text"] for number, row in enumerate(rows))
    assert "submit" in rows[0]["text"], "these were two repeats in a row"
    other = json.loads(episode.act("search", {"query": "night shop", "k": 1}).text)
    assert other[0] in found, "another search shows its texts, although they were shown before"
    more = json.loads(episode.act("search", {"query": words, "k": 20}).text)
    assert len(more) > 5, "a longer list is another search"
    tools = [step["tool"] for step in episode.state()["steps"]]
    assert tools == ["search", "read", "repeat", "repeat", "search", "search"]


def test_an_episode_that_is_cut_off_hands_in_what_its_trace_has():
    def played():
        episode = mini().open()
        found = json.loads(episode.act("search", {"query": "a shop in the night"}).text)
        episode.act("select", {"doc_ids": [found[3]["doc_id"]]})
        return episode, [one["doc_id"] for one in found]

    (cut, found), (submitted, _) = played(), played()
    last = cut.cut()
    assert cut.submission.ranking == (found[3], *found[:3], *found[4:])
    assert cut.submission.trace.steps[-1].argument == "budget"
    assert last == submitted.act("submit", {"doc_ids": None}).reward == value(cut, "nDCG@10")
    assert cut.cut() == 0 and cut.act("search", {"query": "more"}).done


def test_queries_outside_dev_are_rewarded_where_that_is_allowed_at_the_end_alone():
    with pytest.raises(UsageError, match="how good answers to test queries are"):
        mini(split="test")
    world = mini(split="test", allow_test=True, shaping="surfaced", search_cost=0.01)
    for seed in range(20):
        *others, last = play(episode := world.open(), random.Random(seed))
        searches = sum(step.tool == "search" for step in episode.submission.trace.steps)
        assert not any(others)
        assert last == pytest.approx(value(episode, "nDCG@10") - 0.01 * searches, abs=1e-12)


def test_gymnasium_takes_our_environments_alone_and_several_at_a_time():
    gymnasium = pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    name, fields = (
        "sextant.evals.serving.gym:sextant/congress-v0",
        {"data": "mini", "shaping": "surfaced", "max_turns": 2},
    )
    environment = gymnasium.make(name, **fields)
    check_env(environment.unwrapped, skip_render_check=True)
    seen, _ = environment.reset(seed=7)
    assert environment.reset(seed=7)[0] == seen
    query = json.loads(seen)
    environment.reset(options={"query_id": query["query_id"]})
    _, first, terminated, truncated, info = environment.step(call("search", query=query["query"]))
    assert not terminated and not truncated and not info["refused"]
    seen, second, terminated, truncated, info = environment.step("no call of a tool")
    assert truncated and not terminated
    assert info["refused"] and "there are search, read" in json.loads(seen)["error"]
    episode = environment.unwrapped._turns.episode
    assert first + second == pytest.approx(value(episode, "nDCG@10"), abs=1e-12)
    several = gymnasium.make_vec(name, num_envs=3, vectorization_mode="sync", **fields)
    assert len({json.loads(text)["query_id"] for text in several.reset(seed=1)[0]}) > 1
    assert several.step([call("submit")] * 3)[2].all()
    assert len({id(one.unwrapped.world) for one in several.envs}) == 1, "the index is there once"


def test_a_query_whose_outcome_could_not_be_written_is_handed_out_again(tmp_path, monkeypatch):
    written, full = RunFolder.append, ["No space left on device"]

    def append(folder, outcome):
        if full:
            raise RunIncomplete(full.pop())
        written(folder, outcome)

    def answer(host):
        while not host.done:
            episode = host.open()
            try:
                host.act(episode, "submit", {})
            except RunIncomplete:
                asked.append(episode.query.query_id)

    asked = list[str]()
    monkeypatch.setattr(RunFolder, "append", append)
    fields = {"task": "congress", "data": "mini", "split": "dev", "limit": 2, "runs": tmp_path}
    assert (
        serve_episodes(Request(program="served:x", **fields), answer).pending == 0
        and len(asked) == 1
    )
