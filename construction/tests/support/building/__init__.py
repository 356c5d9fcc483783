"""Builds for tests: a recipe in a folder, run against a server that knows the groups, and what came of it."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from sextant.environments.base import Environment
from sextant.evals.running.cost_estimate import MESSAGE
from sextant.evals.running.request import SharedRequest
from sextant.tools.models.tokens import count_tokens
from sextant.tools.plugins import load_object
from sextant_construction import recipe, run_recipe
from sextant_construction.ingest import load_source

PROGRAM = {"program": "sextant_construction.stages.stage_program:StageProgram", "task": "build"}


def prepare(folder: Path, name: str, corpus: str, /, **sections: Mapping[str, Any]) -> Path:
    """A folder with the recipe, with other values in some sections."""
    made = load_object("recipe", name, recipe.RECIPES)()
    sections = {"corpus": {}, **sections}
    sections["corpus"] = {"path": corpus, **sections["corpus"]}
    made = replace(
        made, **{key: replace(getattr(made, key), **values) for key, values in sections.items()}
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / recipe.FILE).write_text(recipe.write_toml(name, made), encoding="utf-8")
    return folder


def build(folder: Path, lm: str = "offline", **more: Any) -> dict[str, Any]:
    """Run the recipe; `more` are options of the request, or of sextant_construction.run_recipe.run."""
    names = ("until", "dry_run", "limit")
    own = {name: more.pop(name) for name in names if name in more}
    found = run_recipe.run(folder, SharedRequest(**PROGRAM, lm=lm, **more), **own)
    if "folder" in found:
        check_dropped(Path(found["folder"]), found["stages"])
    return found


# Stages in which every unit that does not come out is left out, and named: each unit is a document, group or query.
_ONE_BY_ONE = (
    "ingest",
    "screen",
    "extract",
    "select",
    "write",
    "distinct",
    "choose",
    "aspects",
    "split",
)
_ONE_BY_ONE += ("recollect", "authors", "distractors", "scrub", "conditions")


def check_forecast(
    ahead: Mapping[str, Any],
    stages: Sequence[Mapping[str, Any]],
    requests: Sequence[Mapping[str, Any]],
    before: Mapping[str, Any] = {},
) -> None:
    """Every stage takes what a dry run said: its calls, its prompts as they were sent, and its answers.

    `before` has the usage of each stage before the dry run; `requests` are those after it.
    """
    sent = iter(requests)
    for stage in stages:
        if not stage["usage"]:
            continue
        name = stage["stage"]
        earlier = Counter(before.get(name) or {})
        calls, answers = (stage["usage"][key] - earlier[key] for key in ("calls", "output_tokens"))
        texts = [one["content"] for body in islice(sent, calls) for one in body["messages"]]
        prompts = sum(MESSAGE + count_tokens(text) for text in texts)
        # Of more than REHEARSED units, some stand for all; nobody knows how long answers will be.
        slack = {"calls": 1, "input_tokens": 1.002, "output_tokens": 2}
        for (figure, factor), used in zip(slack.items(), (calls, prompts, answers), strict=True):
            low, _, high = ahead[name][figure]
            assert low / factor <= used <= high * factor, (name, figure)
    assert not list(sent)


def check_dropped(folder: Path, stages: Any) -> None:
    """dropped.jsonl has a line for each drop that the funnel counts, and nothing else; nothing goes without a line."""
    lines = Counter[tuple[str, str]]()
    for line in (folder / "dropped.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        assert row["id"] and row["why"]
        lines[row["stage"], row["why"]] += 1
    counted = {(row["stage"], why): many for row in stages for why, many in row["dropped"].items()}
    named = {row["stage"] for row in stages}
    assert {key: many for key, many in lines.items() if key[0] in named} == counted
    for row in stages:
        if row["stage"] in _ONE_BY_ONE:
            gone = sum(row["dropped"].values())
            assert row["went_in"] - row["came_out"] == gone, row
        elif row["stage"] == "validate":  # it may make two groups of one
            assert row["went_in"] - row["came_out"] <= sum(row["dropped"].values()), row


def load(folder: Path) -> Environment:
    """The release, in the ids of its files."""
    return load_source(str(folder / "release"), "")


def relevant(environment: Environment, name: str = "gold") -> dict[str, frozenset[str]]:
    """What is relevant for each query."""
    qrels = environment.judgements[name].qrels
    return {
        one.query_id: frozenset(d for d, g in qrels[one.query_id].items() if g > 0)
        for one in environment.queries
    }


def bcubed(
    ours: Mapping[str, frozenset[str]], theirs: Mapping[str, frozenset[str]]
) -> tuple[float, float, float]:
    """Extended BCubed precision, recall and F1 of overlapping groups (Amigo et al. 2009), over what theirs have."""

    def side(first: Mapping[str, frozenset[str]], second: Mapping[str, frozenset[str]]) -> float:
        values = []
        for one in sorted(frozenset().union(*theirs.values())):
            of = [group for group in first.values() if one in group]
            others = frozenset().union(*of) if of else frozenset()
            shares = []
            for other in others:
                a = sum(one in group and other in group for group in first.values())
                b = sum(one in group and other in group for group in second.values())
                shares.append(min(a, b) / a)
            values.append(sum(shares) / len(shares) if shares else 0.0)
        return sum(values) / len(values)

    precision, recall = side(ours, theirs), side(theirs, ours)
    return precision, recall, 2 * precision * recall / (precision + recall)
