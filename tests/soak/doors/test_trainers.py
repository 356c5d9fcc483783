"""Long runs of what trainers do: ten thousand episodes, a policy that learns, and others' trainers and evaluators.

What does not install beside us is tried where a Python of another environment is named: $SEXTANT_INSPECT_PYTHON,
$SEXTANT_VERIFIERS_PYTHON and $SEXTANT_MTEB_PYTHON, each with the package, Sextant and what that needs, and
$SEXTANT_NEMO_PYTHON, with nemo-gym.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from random_episodes import play
from rest_client import outcomes, serving
from tool_set_calls import PARAMETERS, SCHEMAS, check_steps, shape, use_each

from sextant.evals import compare, import_run
from sextant.evals.serving.episode import POTENTIALS
from sextant.evals.serving.rl_training import Turns, open_training
from sextant.programs.search_tools import SearchTools
from sextant.tools.records import Submission, Trace

EXAMPLES = Path(__file__).parents[3] / "examples" / "trainers"
sys.path.append(str(EXAMPLES))


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_rewards_sum_to_the_metric_over_10000_episodes_in_the_same_memory():
    cost, used = 0.01, []
    for number in range(10_000):
        world = open_training(
            data="mini", shaping=["", *POTENTIALS][number % 4], search_cost=cost * (number % 2)
        )
        chance = random.Random(number)
        episode = world.open(chance.choice(list(world.queries)))
        rewards = play(episode, chance)
        searches = sum(step.tool == "search" for step in episode.submission.trace.steps)
        worth = (
            world.value(episode.query.query_id, episode.submission) - cost * (number % 2) * searches
        )
        assert abs(sum(rewards) - worth) <= 1e-12, number
        used.append(resident()) if number % 1000 == 999 else None
    assert used[-1] - used[1] < 4e6, used


def test_an_action_costs_under_a_fifth_of_a_millisecond_beside_what_any_program_pays():
    world, many, took = open_training(data="mini", shaping="surfaced"), 300, {}
    queries = list(world.queries.values())
    texts = [query.text for query in queries[:8]]
    calls = [json.dumps({"name": "search", "arguments": {"query": text}}) for text in texts]

    def by_episodes(query):
        turns = Turns(world, query.query_id)
        for call in [*calls, '{"name": "submit", "arguments": {}}']:
            turns.take(call)

    def by_hand(query):
        desk = SearchTools(world.toolbox.open(query))
        for text in texts:
            desk.search(text)
        desk.hand_in(desk.rank_all(), 1000)

    for way in (by_episodes, by_hand) * 2:  # the first time is for getting warm
        start = time.process_time()
        for number in range(many):
            way(queries[number % len(queries)])
        took[way] = time.process_time() - start
    cost = (took[by_episodes] - took[by_hand]) / (many * (len(calls) + 1))
    assert cost < 0.0002, took


def test_a_policy_learns_from_its_rewards_and_not_from_shuffled_ones(command_of, tmp_path):
    import gymnasium
    from gymnasium_grpo import chances, record, train

    environment = gymnasium.make(
        "sextant.evals.serving.gym:sextant/writing-v0", data="mini", shaping="surfaced"
    )
    shuffled = np.mean(
        [chances(train(environment, 60, shuffled=True, seed=seed)) for seed in range(6)], axis=0
    )
    policies = {
        "step-0": np.zeros(4),
        "step-60": train(environment, 60),
        "shuffled": np.log(shuffled),
    }
    runs = {
        name: record(name, logits, task="writing", data="mini", runs=tmp_path).folder
        for name, logits in policies.items()
    }
    found = command_of(compare)(*runs.values(), "--metric", "nDCG@10", "--json").json["comparisons"]
    learnt, chance = found
    assert learnt["difference"] > 0.2 and learnt["p_holm"] < 0.001
    assert chance["p_holm"] > 0.05, "what rewards say about actions is all that there is to learn"


@pytest.mark.filterwarnings("ignore")
def test_trl_trains_a_model_that_calls_our_tools(tmp_path):
    pytest.importorskip("trl")
    import trl_grpo

    searches = "engineer on call, the pager was mine that night", "a colleague who nodded"
    calls = [("search", {"query": text, "k": 3}) for text in searches]
    fields = {"task": "congress", "data": "mini", "query_ids": ("MINI-q02",), "shaping": "read"}
    steps = trl_grpo.train(str(tmp_path), calls, **fields).state.log_history[:-1]
    assert len(steps) == 3
    assert all(
        step["tools/call_frequency"] > 0 and step["tools/failure_frequency"] == 0 for step in steps
    )
    assert any(step["reward"] > 0 and step["grad_norm"] > 0 for step in steps)


@pytest.mark.filterwarnings("ignore")
def test_trl_shows_a_model_each_tool_of_a_set_and_calls_it(tmp_path):
    pytest.importorskip("trl")
    import trl_grpo
    from transformers.utils import get_json_schema

    from sextant.evals.serving.trl import make_factory

    world = open_training(data="mini", parameters=PARAMETERS)
    environment = make_factory(world)()
    environment.reset(next(iter(world.queries)))
    described = {
        name: get_json_schema(getattr(environment, name))["function"] for name in world.tools
    }
    shapes = {name: shape(one["parameters"]) for name, one in described.items()}
    assert shapes == SCHEMAS

    def use(tool, arguments):
        text = getattr(environment, tool)(**arguments).splitlines()[0]
        return text, text.startswith('{"error": ')

    use_each(use)
    calls = [("grep", {"pattern": "gas", "k": 3}), ("phrase", {"text": "the bill"})]
    fields = {"data": "mini", "query_ids": ("MINI-q02",), "parameters": PARAMETERS}
    steps = trl_grpo.train(str(tmp_path), calls, **fields).state.log_history[:-1]
    assert all(
        step["tools/call_frequency"] > 0 and step["tools/failure_frequency"] == 0 for step in steps
    )


def test_skyrl_plays_an_episode_of_texts():
    pytest.importorskip("skyrl_gym")
    import skyrl_env

    (searched, submitted), said = skyrl_env.play(data="mini", shaping="surfaced", search_cost=0.25)
    assert not searched["done"] and searched["reward"] == 0.75 and submitted["done"]
    assert said == {
        "reward": pytest.approx(searched["reward"] + submitted["reward"]),
        "searches": 1,
    }
    [described, _] = skyrl_env.make_rows(open_training(data="mini"))[0]["prompt"]
    assert '"arguments": {"query": "..."}' in described["content"]


def of_another(name, package):
    """Return the interpreter that $SEXTANT_NAME_PYTHON names; skip where it has no such package."""
    python = os.environ.get(f"SEXTANT_{name}_PYTHON", sys.executable)
    if subprocess.run(
        [python, "-c", f"import {package}"], capture_output=True, check=False
    ).returncode:
        pytest.skip(f"{package} is in no environment; $SEXTANT_{name}_PYTHON names one")
    return python


def example(python, name, place, **environment):
    environ = {**os.environ, **environment}
    ran = subprocess.run(
        [python, EXAMPLES / name],
        cwd=place,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout.splitlines()[-1]


def test_a_log_of_inspect_becomes_a_run_with_the_same_scores(command_of, tmp_path):
    _, log, means = example(of_another("INSPECT", "inspect_ai"), "inspect_eval.py", tmp_path).split(
        " ", 2
    )
    words = (
        log,
        "--task",
        "congress",
        "--data",
        "mini",
        "--split",
        "dev",
        "--runs",
        tmp_path,
        "--json",
    )
    made = command_of(import_run)(*words)
    assert made.code == 0
    assert {
        name: round(made.json["metrics"][name]["mean"], 4) for name in json.loads(means)
    } == json.loads(means)
    row = json.loads((Path(made.json["run"]) / "outcomes.jsonl").read_text().splitlines()[0])
    assert [step["tool"] for step in row["trace"]["steps"]][:2] == ["search", "select"]
    assert made.json["usage"]["calls"] == 36


def test_inspect_shows_a_model_each_tool_of_a_set_and_calls_it(tmp_path):
    python, agent = (
        of_another("INSPECT", "inspect_ai"),
        Path(__file__).with_name("inspect_agent.py"),
    )
    outcome = json.loads(example(python, agent, tmp_path))
    check_steps(outcome["trace"]["steps"])


def test_verifiers_own_evaluator_gives_our_rewards(tmp_path):
    rewards = json.loads(
        example(of_another("VERIFIERS", "verifiers"), "verifiers_eval.py", tmp_path)
    )
    world = open_training(data="mini")
    assert len(rewards) == 4
    for query_id, found in rewards.items():
        episode = world.open(query_id)
        episode.act("search", {"query": world.queries[query_id].text, "k": 20})
        assert found["metric"]["score"] == episode.cut()
    assert any(found["metric"]["score"] for found in rewards.values())


def test_nemo_gym_gives_our_rewards_by_way_of_rest(tmp_path):
    python = of_another("NEMO", "nemo_gym")
    words = (
        "--task",
        "congress",
        "--data",
        "mini",
        "--split",
        "dev",
        "--http",
        "--rewards",
        "--shaping",
        "surfaced",
    )
    (tmp_path / "rows.jsonl").write_text(example(sys.executable, "nemo_rows.py", tmp_path))
    with serving(sys.executable, *words, "--runs", tmp_path / "runs") as start:
        _, port = start()
        client = Path(__file__).with_name("nemo_client.py")
        reward = float(example(python, client, tmp_path, SEXTANT_URL=f"http://127.0.0.1:{port}"))
        [(query_id, one)] = outcomes(tmp_path / "runs").items()
    world = open_training(data="mini")
    assert reward == pytest.approx(
        world.value(query_id, Submission(tuple(one["ranking"]), Trace(query_id)))
    )
    assert [step["tool"] for step in one["trace"]["steps"]][:2] == ["search", "read"]


def test_mteb_evaluates_our_programs_and_its_encoders_are_retrievers(tmp_path):
    python = of_another("MTEB", "mteb")
    assert example(python, "../mteb/models.py", tmp_path) == "MockRetrievalTask: 0.63093"
    named = f"{EXAMPLES.parent}/mteb/models.py:Mteb:mteb/baseline-random-encoder"
    subprocess.run(
        [python, "-m", "sextant.tools.retrievers", "check", named], cwd=tmp_path, check=True
    )
