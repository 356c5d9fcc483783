"""Episodes of random actions, sensible and not, as `random_actions`; the rewards of one as `play`."""

import json

from sextant.evals.serving.episode import TOOLS


def random_actions(random, query):
    """Yield (tool, arguments) for ever, with ids out of what was shown; send what was seen."""
    words, shown = query.text.split(), []
    while True:
        ids = random.sample([*shown, "no-such-id"], k=random.randint(1, min(4, len(shown) + 1)))
        text = " ".join(random.choices(words, k=random.randint(1, 8)))
        arguments = {
            "search": {"query": text, "k": random.randint(1, 20)},
            "read": {"doc_id": ids[0]},
            "select": {"doc_ids": ids},
            "note": {"text": text},
            "submit": {"doc_ids": ids} if random.random() < 0.5 else {},
            "unknown": {"strange": 1},
        }
        tool = random.choices([*TOOLS, "unknown"], weights=(5, 3, 3, 1, 1, 1))[0]
        seen = yield tool, arguments[tool]
        found = json.loads(seen)
        shown += [one["doc_id"] for one in found] if isinstance(found, list) else []


def play(episode, random, most=12):
    """Return the rewards of an episode of random actions that is cut off after `most`."""
    actions, rewards = random_actions(random, episode.query), []
    action = next(actions)
    for _ in range(most):
        seen = episode.act(*action)
        rewards.append(seen.reward)
        if seen.done:
            return rewards
        action = actions.send(seen.text)
    return [*rewards, episode.cut()]
