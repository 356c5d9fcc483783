"""What a run's outcomes add up to: failures, calls, tokens, and how much of its documents never reached a prompt."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evals import folder as run_folder
from evals.measuring.scored import READ, describe_cuts
from tools.records import Usage, usage_json


def summarise(
    config: run_folder.Config, outcomes: Mapping[str, run_folder.Outcome], asked: list[str]
) -> dict[str, Any]:
    """What is known of a run that may have unanswered queries: what it is, how far it came, what it used."""
    tally = Tally()
    for query_id in asked:
        if query_id in outcomes:
            tally.add(outcomes[query_id])
    return tally.summary(config, asked)


class Tally:
    """Counts over the outcomes of a run, added one after the other."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.unusable: Counter[str] = Counter()
        self.failures: dict[str, dict[str, Any]] = {}  # the first of each kind, and how many
        self.read: Counter[str] = Counter()
        self.usage = Usage()

    def add(self, outcome: run_folder.Outcome) -> None:
        """Count one more outcome."""
        trace, error = outcome["trace"], outcome["error"]
        if error is not None:
            first = {"error": error.strip().partition("\n")[0][:300], "queries": 0, "at": _raised_at(outcome)}
            self.failures.setdefault(run_folder.generalize(error), first)["queries"] += 1
        self.counts["answered"] += 1
        self.counts["failed"] += error is not None
        self.counts["invented_ids"] += trace["invented_ids"]
        self.counts["followed"] += len(trace.get("followed", ()))
        self.counts["shortened"] += sum(step["tool"] == "shorten" for step in trace["steps"])
        self.counts["searches_cut"] += sum("cut" in step for step in trace["steps"])
        self.unusable.update(trace.get("unusable", {}))
        self.read.update(_count_read(trace["steps"]))
        self.usage += run_folder.usage(outcome)

    def summary(self, config: run_folder.Config, asked: list[str]) -> dict[str, Any]:
        """What scores.json says of a run beside its metrics."""
        usage = usage_json(self.usage)
        if (config.get("imported") or {}).get("usage") is False:  # nobody knows, and 0 would be a claim
            usage = dict.fromkeys(usage)
        about = {
            "task": config["task"],
            "data": config[run_folder.PROVENANCE]["data"],
            "split": config["split"],
            "instruction": config["instruction"],
            "program": config["program"],
            "pool": config.get("pool"),
            "compiled": config.get("compiled"),
            "retriever": config["retriever"]["name"],
            "lm": config["lm"]["name"],
            "isolated": config[run_folder.PROVENANCE].get("isolated"),
            "queries": len(asked),
            "failed": self.counts["failed"],
            "failure": max(self.failures.values(), key=lambda kind: kind["queries"], default=None),  # the commonest
            "owed": len(asked) - self.counts["answered"],
            "invented_ids": self.counts["invented_ids"],
            "unusable": dict(sorted(self.unusable.items())),
            "followed": self.counts["followed"],
            "shortened": self.counts["shortened"],
            "searches_cut": self.counts["searches_cut"],
            "read": {name: self.read[name] for name in READ},
            "metrics": {},
            "usage": usage,
        }
        return about | {"notes": describe_cuts(about)}


def _count_read(steps: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many documents of a query were put into prompts, and how much of them was cut off where that was most."""
    least: dict[str, tuple[int, int]] = {}  # doc_id -> characters shown, of how many
    for step in steps:
        if step["tool"] in ("judge", "read"):
            for doc_id, *reading in zip(step["doc_ids"], step.get("shown", ()), step.get("lengths", ()), strict=False):
                shown, length = reading
                if shown:  # what was to be shown when a limit came is 0
                    least[doc_id] = min(least.get(doc_id, (shown, length)), (shown, length))
    left_out = [max(0, length - shown) for shown, length in least.values()]
    characters = sum(length for _, length in least.values())
    return dict(zip(READ, (len(least), sum(map(bool, left_out)), characters, sum(left_out)), strict=True))


def _raised_at(outcome: run_folder.Outcome) -> str:
    """File and line of an outcome's error: the last of its traceback that is in no library; "" where there is none."""
    frames = re.findall(r'^  File "([^"<]+)", line (\d+)', outcome.get("traceback") or "", re.MULTILINE)
    own = [f"{file}:{line}" for file, line in frames if "site-packages" not in file]
    return own[-1].removeprefix(f"{Path.cwd()}/") if own else ""
