"""What the list of runs says of them together: which were asked the same, and what tells runs of
one system apart.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from evals.reporting.run_groups import name_settings
from evals.running.run_status import read_sittings
from evals.scoring.scored_run import ScoredRun, contract_differences

# Of a contract, what the head of a group says in any case.
_SAID = {"task", "split", "queries"}


def describe_groups(runs: Sequence[ScoredRun]) -> dict[str, dict[str, str]]:
    """Return by run.name its "setting", which tells it from runs of the same system that were asked
    the same, and "asked": how its questions differ from those of the largest group on its task.
    """
    groups: dict[str, list[ScoredRun]] = defaultdict(list)
    for run in runs:
        groups[json.dumps([run.contract, run.metric], sort_keys=True)].append(run)
    largest: dict[str, ScoredRun] = {}
    for members in sorted(groups.values(), key=len, reverse=True):
        largest.setdefault(_said_of(members[0]), members[0])
    described: dict[str, dict[str, str]] = {}
    for members in groups.values():
        settings = name_settings(members)
        usual = largest[_said_of(members[0])]
        asked = "" if usual in members else _describe_difference(usual, members[0])
        for run in members:
            described[run.name] = {"setting": settings[run.name], "asked": asked}
    return described


def _said_of(run: ScoredRun) -> str:
    key = [run.config["task"], run.scores["data"], run.config["split"], len(run.query_ids)]
    return json.dumps([*key, run.metric])


def _describe_difference(usual: ScoredRun, run: ScoredRun) -> str:
    differences = [key for key in contract_differences(usual, run) if key not in _SAID]
    return ", ".join(f"{key.replace('_', ' ')} {_short(run.contract, key)}" for key in differences)


def _short(contract: Mapping[str, Any], key: str) -> str:
    value = contract.get(key)
    if isinstance(value, dict) and "kind" in value:
        return f"{value['kind']}:{value['size']}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."


def describe_time(path: Path) -> dict[str, Any]:
    """Return the "date" of a run's last answer, in seconds since 1970, and the "seconds" of all its
    sittings; None if they are not known.
    """
    date = None
    seconds = None
    with suppress(OSError):
        date = (path / "outcomes.jsonl").stat().st_mtime
    sittings = read_sittings(path)
    if sittings:
        seconds = sum(sitting["seconds"] for sitting in sittings)
        with suppress(ValueError, KeyError, TypeError):
            date = datetime.fromisoformat(sittings[-1]["ended"]).timestamp()
    return {"date": date, "seconds": seconds}
