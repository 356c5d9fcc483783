"""What the list of runs says of them together: which were asked the same, and what tells runs of
one system apart.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sextant.evals.run_folder import OUTCOMES_FILE
from sextant.evals.run_sittings import read_sittings
from sextant.evals.scoring.scored_run import ScoredRun, contract_differences
from sextant.evals.scoring.system_names import name_settings
from sextant.tools.platform.number_format import abbreviate
from sextant.tools.records import JsonObject

# Of a contract, what the head of a group says in any case.
_SAID = {"task", "split", "queries"}
# Characters of a value in the head of a group.
LONGEST = 40


def describe_groups(runs: Sequence[ScoredRun]) -> dict[str, dict[str, str]]:
    """Return by run.name its "over" and "setting", which tell it from runs of its program and of its
    system that were asked the same, and "asked": how its questions differ from those of the largest
    group on its task.
    """
    groups = defaultdict(list)
    for run in runs:
        groups[json.dumps([run.contract, run.metric], sort_keys=True)].append(run)
    largest: dict[str, ScoredRun] = {}
    for members in sorted(groups.values(), key=len, reverse=True):
        largest.setdefault(_said_of(members[0]), members[0])
    described = {}
    for members in groups.values():
        told = _tell_apart(members)
        usual = largest[_said_of(members[0])]
        asked = ""
        if usual not in members:
            asked = _describe_difference(usual, members[0])
        for run in members:
            described[run.name] = told[run.name] | {"asked": asked}
    return described


def _tell_apart(runs: Sequence[ScoredRun]) -> dict[str, dict[str, str]]:
    """Return by run.name the retriever and the model, each if runs of its program differ in it, as
    "over", and the "setting" in which runs of its system differ.
    """
    programs = defaultdict(list)
    for run in runs:
        programs[run.config["program"], bool(run.config.get("compiled"))].append(run)
    settings = name_settings(runs)
    told = {}
    for members in programs.values():
        differing = [
            key
            for key in ("retriever", "lm")
            if len({run.config[key]["name"] for run in members}) > 1
        ]
        for run in members:
            names = (abbreviate(run.config[key]["name"], LONGEST) for key in differing)
            told[run.name] = {"over": ", ".join(names), "setting": settings[run.name]}
    return told


def describe_setting(run: ScoredRun, others: Sequence[ScoredRun]) -> dict[str, str]:
    """Return what tells a run without scores from others, as `describe_groups` does.

    Runs that were asked otherwise, and judgements, do not count.
    """
    judged = {key: run.scores[key] for key in ("judgements", "relevant_from")}
    alike = [
        replace(other, scores=other.scores | judged)
        for other in others
        if all(other.config[key] == run.config[key] for key in ("task", "split", "asked"))
    ]
    return _tell_apart([run, *alike])[run.name]


def _said_of(run: ScoredRun) -> str:
    """Return what the head of a group says of its runs, as a key."""
    return json.dumps(
        [
            run.config["task"],
            run.scores["data"],
            run.config["split"],
            len(run.query_ids),
            run.metric,
        ]
    )


def _describe_difference(usual: ScoredRun, run: ScoredRun) -> str:
    described = []
    for key in contract_differences(usual, run):
        if key in _SAID:
            continue
        name = key.replace("_", " ")
        value = _shorten(run.contract.get(key))
        described.append(f"{name} {value}")
    return ", ".join(described)


def _shorten(value: Any) -> str:
    if isinstance(value, dict) and "kind" in value:
        return f"{value['kind']}:{value['size']}"
    return abbreviate(value, LONGEST)


def describe_time(path: Path) -> JsonObject:
    """Return the "date" of a run's last answer, in seconds since 1970, and the "seconds" of all its
    sittings; None if they are not known.
    """
    date = None
    with suppress(OSError):
        date = (path / OUTCOMES_FILE).stat().st_mtime
    sittings = read_sittings(path)
    with suppress(ValueError, LookupError, TypeError):
        date = datetime.fromisoformat(sittings[-1]["ended"]).timestamp()
    seconds = sum(sitting["seconds"] for sitting in sittings) if sittings else None
    return {"date": date, "seconds": seconds}
