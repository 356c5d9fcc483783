"""Group runs that may stand in a table, and name the systems in it.

A group is a suite's variant, over the same data, split and queries. Within it a column is a task;
its runs must have the same data fingerprint, or the difference between two of them would not be
that of the systems. A system is the same program, retriever and model in several columns; if two
runs of a column would have the same name, the differences of their configurations are added to it.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from sextant import environments
from sextant.evals.run_descriptions import printable
from sextant.evals.run_folder import Config
from sextant.evals.scoring.scored_run import ScoredRun
from sextant.evals.scoring.system_names import System, describe_systems
from sextant.tools.errors import UsageError
from sextant.tools.platform.number_format import queries

PAPERS = {
    "obliq": "OBLIQ-Bench",
    "crumb": "CRUMB",
    "birco": "BIRCO",
    "multiconir": "MultiConIR",
}
DATA = {
    "mini": "mini (bundled, invented)",
    "full": "full release",
    "folder": "a folder's data",
}
SPLITS = {
    "all": "all queries",
    "test": "test split",
    "dev": "dev split",
}


# Suite, variant, data, split and queries.
GroupKey = tuple[str, str, str, str, str]


class Group(NamedTuple):
    """Runs that may stand in a table, in the order of its rows, and the system of each."""

    suite: str
    variant: str
    # mini, full or folder.
    data: str
    split: str
    # In words; "" for all queries of the split.
    queries: str
    runs: tuple[ScoredRun, ...]
    # By run.name.
    systems: dict[str, System]
    # The model of all runs, which is then not in the systems' names; "" if they have several.
    lm: str

    @property
    def title(self) -> str:
        """The heading of its tables."""
        paper = ":".join(filter(None, [PAPERS.get(self.suite, self.suite), self.variant]))
        labels = [paper, DATA.get(self.data, self.data), SPLITS.get(self.split, self.split)]
        return printable(", ".join(filter(None, [*labels, self.queries])))

    @property
    def stem(self) -> str:
        """The beginning of its files' names."""
        return file_slug("-".join(filter(None, self[:5])))

    @property
    def whole(self) -> bool:
        """Whether these are all queries of a split of the full release.

        Only then may a paper's figure stand next to them.
        """
        return self.data == "full" and not self.queries

    @property
    def tasks(self) -> list[str]:
        """Full names, in the suite's order."""
        return sorted({str(run.config["task"]) for run in self.runs}, key=_task_order)

    def of_task(self, task: str) -> list[ScoredRun]:
        """The runs of a column."""
        return [run for run in self.runs if run.config["task"] == task]

    def system(self, run: ScoredRun) -> System:
        """The system that answered in a run."""
        return self.systems[run.name]


class GroupedRuns(NamedTuple):
    """Groups in the order of a report, and the differences of data that were forced."""

    groups: list[Group]
    forced: list[str]


def short_task_name(task: str) -> str:
    """A task without its suite and variant."""
    return printable(environments.split_name(task)[1] or task)


def file_slug(text: str) -> str:
    """A name as a part of a file's name: letters and digits, with hyphens between them."""
    slug = re.sub(r"[^\w.-]+", "-", printable(text).replace("@", ""), flags=re.ASCII)
    return slug.strip("-.") or "other"


def list_tasks(suite: str) -> list[str]:
    """The short names of a suite's tasks; none of another suite."""
    return list(environments.suite(suite).tasks) if suite in environments.SUITES else []


def _task_order(task: str) -> tuple[int, str]:
    """Return the place of a task in its suite; other tasks follow."""
    suite, name, _ = environments.split_name(task)
    return [*list_tasks(suite), name].index(name), task


def group_runs(runs: Iterable[ScoredRun], *, force: bool = False) -> GroupedRuns:
    """Group runs that may stand in a table.

    UsageError for columns of different data, unless with `force`.
    """
    members: dict[GroupKey, list[ScoredRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.name):
        config = run.config
        suite, _, variant = environments.split_name(config["task"])
        key = (suite, variant, config["data"], config["split"], _queries(config))
        members[key].append(run)
    differences = []
    # The first run of each column; the objective is part of a fingerprint.
    first: dict[tuple[Any, ...], ScoredRun] = {}
    for key, run in [(key, run) for key, group in members.items() for run in group]:
        task = run.config["task"]
        before = first.setdefault((key, task, run.config["instruction"]), run)
        fingerprints = [one.config["data_fingerprint"] for one in (before, run)]
        if len(set(fingerprints)) > 1:
            differences.append(
                f"{before.name} and {run.name} are not over the same data of {task}: their "
                f"fingerprints are {' and '.join(fingerprints)}"
            )
    if differences and not force:
        raise UsageError(f"{differences[0]}; report them apart, or give --force")
    return GroupedRuns([_group(key, members[key]) for key in sorted(members)], differences)


def _queries(config: Config) -> str:
    limit = config["asked"]["limit"]
    query_ids = config["asked"]["query_ids"]
    if query_ids:
        digest = hashlib.sha256(json.dumps(query_ids).encode()).hexdigest()[:6]
        return f"{queries(len(query_ids))} by their ids ({digest})"
    return f"the first {queries(limit)} of each task" if limit else ""


def _group(key: GroupKey, runs: list[ScoredRun]) -> Group:
    models = {run.config["lm"]["name"] for run in runs}
    systems = describe_systems(runs)

    def order(run: ScoredRun) -> tuple[Any, ...]:
        """By system, pools after everything else."""
        system = systems[run.name]
        return system.pool, system, _task_order(run.config["task"]), run.name

    model = "" if len(models) > 1 else models.pop()
    return Group(*key, tuple(sorted(runs, key=order)), systems, model)
