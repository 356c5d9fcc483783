"""Teach a policy which of four behaviours finds most, by group-relative rewards, in Gymnasium and NumPy:

    pip install '.[gymnasium]' && python examples/trainers/gymnasium_grpo.py

It is trained on dev queries. A policy before and after training is recorded as a run over test queries, so that
`sextant compare` says whether it learnt.
"""

import json

import gymnasium
import numpy as np

from sextant.evals import Request
from sextant.evals.serving.episode_server import serve_episodes
from sextant.evals.serving.gym import SearchEnv

# What a behaviour searches for, given the words of the query; the last one searches for nothing.
BEHAVIOURS = (
    lambda words: words,
    lambda words: words[:4],
    lambda words: words[-1:],
    lambda words: [],
)


def call(name, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


def play(environment, behaviour, **options):
    """Return the sum of the rewards of an episode."""
    seen, _ = environment.reset(options=options)
    total = 0.0
    if words := behaviour(json.loads(seen)["query"].split()):
        total += environment.step(call("search", query=" ".join(words), k=20))[1]
    return total + environment.step(call("submit"))[1]


def chances(logits):
    return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()


def train(environment, steps, *, shuffled=False, seed=0, group=8, rate=0.3):
    """Return the logits of the behaviours after `steps` of a group of episodes of one query each."""
    random, logits = np.random.default_rng(seed), np.zeros(len(BEHAVIOURS))
    query_ids = sorted(environment.unwrapped.world.queries)
    for _ in range(steps):
        query_id = random.choice(query_ids)
        chosen = random.choice(len(logits), size=group, p=chances(logits))
        rewards = np.array(
            [play(environment, BEHAVIOURS[one], query_id=query_id) for one in chosen]
        )
        if shuffled:
            rewards = random.permutation(rewards)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for one, advantage in zip(chosen, advantages, strict=True):
            logits += rate / group * advantage * (np.eye(len(logits))[one] - chances(logits))
    return logits


def record(name, logits, seed=0, **fields):
    """Answer test queries with a policy; return the result of the run served:NAME."""
    random = np.random.default_rng(seed)

    def answer(host):
        environment = SearchEnv(host)
        while not host.done:
            play(environment, BEHAVIOURS[random.choice(len(logits), p=chances(logits))])

    return serve_episodes(Request(program=f"served:{name}", split="test", **fields), answer)


if __name__ == "__main__":
    task = {"task": "writing", "data": "mini"}
    environment = gymnasium.make(
        "sextant.evals.serving.gym:sextant/writing-v0", data="mini", shaping="surfaced"
    )
    before, after = np.zeros(len(BEHAVIOURS)), train(environment, steps=60)
    for name, logits in (("step-0", before), ("step-60", after)):
        result = record(name, logits, **task)
        print(name, chances(logits).round(2), result.metrics["nDCG@10"], result.folder)
