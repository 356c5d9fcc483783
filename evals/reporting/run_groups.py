"""Group runs that may stand in one table, and name the systems in it.

A group is a suite's variant, over the same data, split and queries. Within it a column is a task;
its runs must have the same data fingerprint, or the difference between two of them would not be
that of the systems. A system is the same program, retriever and model in several columns; where two
runs of a column would have the same name, what differs in their configurations is added to it.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import environments
from evals.run_folder import Config
from evals.scoring.scored_run import ScoredRun
from programs import FLOOR
from tools.cli import strip_control_characters
from tools.errors import UsageError

PAPERS = {"obliq": "OBLIQ-Bench", "crumb": "CRUMB", "birco": "BIRCO", "multiconir": "MultiConIR"}
DATA = {"mini": "mini (bundled, invented)", "full": "full release", "folder": "a folder's data"}
SPLITS = {"all": "all queries", "test": "test split", "dev": "dev split"}


@dataclass(frozen=True, slots=True)
class System:
    """What answered, whatever the task; the pool apart, because a sweep goes over it."""

    name: str  # as a reader sees it, without the pool
    pool: str = ""  # "oracle" or "union"
    size: int = 0
    of: tuple[str, ...] = ()  # the retrievers of the pool, where they are not the run's own
    instruction: str = "task"

    def __str__(self) -> str:
        instruction = "" if self.instruction == "task" else f", instruction: {self.instruction}"
        by = f" by {' and '.join(self.of)}" if self.of else ""
        size = f" of {self.size}" if self.size else ""
        return f"{self.name}{f', {self.pool} pool{size}{by}' if self.pool else ''}{instruction}"

    def resized(self, size: int) -> "System":
        """The same over another size of its pool."""
        return replace(self, size=size if self.pool else 0)


class Group(NamedTuple):
    """Runs that may stand in one table, in the order of its rows, and the system of each."""

    suite: str
    variant: str
    data: str  # mini, full or folder
    split: str
    queries: str  # in words; empty for all queries of the split
    runs: tuple[ScoredRun, ...]
    systems: dict[str, System]  # by run.name
    lm: str  # where all runs have the same one: then it is not in the systems' names

    @property
    def title(self) -> str:
        """What the heading of its tables says."""
        variant = f":{self.variant}" if self.variant else ""
        parts = [DATA.get(self.data, self.data), SPLITS.get(self.split, self.split), self.queries]
        return printable(
            f"{PAPERS.get(self.suite, self.suite)}{variant}, {', '.join(filter(None, parts))}"
        )

    @property
    def stem(self) -> str:
        """The beginning of its files' names: a group that was asked other queries has another
        one.
        """
        digest = hashlib.sha256(self.queries.encode("utf-8", "replace")).hexdigest()
        part = f"-part-{digest[:6]}" if self.queries else ""
        return (
            file_slug("-".join(filter(None, [self.suite, self.variant, self.data, self.split])))
            + part
        )

    @property
    def whole(self) -> bool:
        """Whether these are all queries of a split of the full release: what a paper's figure
        may stand beside.
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
        """What answered in a run."""
        return self.systems[run.name]


def printable(text: object) -> str:
    """Text of a run as a reader may see it: no control characters, no half of a character."""
    return strip_control_characters(str(text).encode("utf-8", "replace").decode())


def short_task_name(task: str) -> str:
    """A task without its suite and variant."""
    return printable(environments.split_name(task)[1] or task)


def file_slug(text: str) -> str:
    """A name as a part of a file's name: letters, digits and what is between them."""
    return (
        re.sub(r"[^\w.-]+", "-", printable(text).replace("@", ""), flags=re.ASCII).strip("-.")
        or "other"
    )


def _task_order(task: str) -> tuple[int, int, str]:
    suite, name, _ = environments.split_name(task)
    tasks = environments.suite(suite).tasks if suite in environments.SUITES else ()
    return (_place_in(environments.SUITES, suite), _place_in(tasks, name), task)


def _place_in(known: Iterable[str], name: str) -> int:
    names = list(known)
    return names.index(name) if name in names else len(names)


def group_runs(runs: Iterable[ScoredRun], *, force: bool = False) -> tuple[list[Group], list[str]]:
    """(the groups in the order of a report, what was forced).

    UsageError for columns of different data.
    """
    members: dict[tuple[str, ...], list[ScoredRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.name):
        suite, _, variant = environments.split_name(run.config["task"])
        members[
            suite, variant, run.config["data"], run.config["split"], _queries(run.config)
        ].append(run)
    forced = []
    first: dict[
        tuple[Any, ...], ScoredRun
    ] = {}  # of each column; the objective is part of a fingerprint
    for key, run in [(group, one) for group, grouped in members.items() for one in grouped]:
        known = first.setdefault((key, run.config["task"], run.config["instruction"]), run)
        one = known.config["data_fingerprint"]
        other = run.config["data_fingerprint"]
        if one != other:
            what = f"{known.name} and {run.name} are not over the same data of {run.config['task']}"
            forced.append(f"{what}: their fingerprints are {one} and {other}")
    if forced and not force:
        raise UsageError(f"{forced[0]}; report them apart, or give --force")

    def order(key: tuple[str, ...]) -> tuple[Any, ...]:
        suite, variant, data, *_ = key
        variants = environments.suite(suite).variants if suite in environments.SUITES else ()
        places = _place_in(environments.SUITES, suite), _place_in(("full", "folder", "mini"), data)
        return (*places, _place_in(variants, variant) if variant else 0, key)

    return [_group(key, members[key]) for key in sorted(members, key=order)], forced


def _queries(config: Config) -> str:
    limit = config["asked"]["limit"]
    named = config["asked"]["query_ids"]
    if named:
        text = f"the queries {', '.join(named)}"
        digest = hashlib.sha256(json.dumps(named).encode()).hexdigest()[:6]
        return text if len(text) <= 80 else f"{text[:66]} ... ({digest})"
    return f"the first {limit} queries of each task" if limit else ""


def _group(key: tuple[str, ...], runs: list[ScoredRun]) -> Group:
    models = {run.config["lm"]["name"] for run in runs}
    systems = _systems(runs, name_models=len(models) > 1)

    def order(
        run: ScoredRun,
    ) -> tuple[Any, ...]:  # bare retrievers first, pools by size after everything else
        one = systems[run.name]
        searching = run.config["program"] != FLOOR
        instruction = _place_in(("task", "generic", "none"), one.instruction), one.instruction
        return (
            one.pool,
            searching,
            one.name,
            one.of,
            one.size,
            instruction,
            _task_order(run.config["task"]),
            run.name,
        )

    suite, variant, data, split, queries = key
    model = "" if len(models) > 1 else models.pop()
    return Group(
        suite, variant, data, split, queries, tuple(sorted(runs, key=order)), systems, model
    )


def _systems(runs: Sequence[ScoredRun], *, name_models: bool) -> dict[str, System]:
    alike: dict[System, list[ScoredRun]] = defaultdict(list)
    for run in runs:
        alike[_system(run, with_model=True)].append(run)
    systems = {}
    for members in alike.values():
        extras = _tell_apart(members)
        for run in members:
            system = _system(run, with_model=name_models)
            extra = extras[run.name]
            systems[run.name] = (
                replace(system, name=printable(f"{system.name} ({extra})")) if extra else system
            )
    return systems


def _system(run: ScoredRun, *, with_model: bool) -> System:
    config = run.config
    pool = run.config.get("pool") or {}
    name = f"{config['program']} over {config['retriever']['name']}"
    if compiled := config.get("compiled"):
        by = compiled.get("optimizer")
        name += (
            ", prompts by hand" if by == "hand" else f", compiled with {by}" if by else ", compiled"
        )
    name += f", {config['lm']['name']}" if with_model else ""
    name += ", imported" if config.get("imported") else ""
    kind = str(pool.get("kind", ""))
    size = int(pool.get("size", 0))
    parts = pool.get("of", ())
    of = tuple(map(printable, parts)) if any(part not in run.retriever for part in parts) else ()
    return System(printable(name), kind, size, of, printable(_shorten(config["instruction"])))


def _shorten(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:4]
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:50]} ... ({digest})"


# What tells runs of one name apart, from what a reader wants to know to what is only there to be
# exact.
_LEVELS = (
    ("parameters", "compiled", "lm", "retriever", "files", "depth", "max_p", "judgements"),
    ("code", "versions"),
)


def _tell_apart(
    runs: Sequence[ScoredRun],
) -> dict[str, str]:  # run.name -> what is added to the name, or ""
    by_task: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        by_task[run.config["task"]].append(run.name)
    several = [column for column in by_task.values() if len(column) > 1]
    flat = {run.name: _flatten(run) for run in runs}
    keys = list[str]()
    for level in ((), *_LEVELS):  # with nothing added, at first
        known = sorted({key for one in flat.values() for key in one if key.split(".")[0] in level})
        keys += [
            key
            for key in known
            if any(len({flat[name].get(key) for name in column}) > 1 for column in several)
        ]
        named = {
            key: key.partition(".")[2] or key for key in keys
        }  # "hops"; of what is there to be exact, its key
        extra = {
            name: ", ".join(f"{named[key]}={one.get(key, 'none')}" for key in keys)
            for name, one in flat.items()
        }
        if all(len({extra[name] for name in column}) == len(column) for column in several):
            return extra
    return {run.name: run.path.name for run in runs}  # the same configuration in several folders


def _flatten(run: ScoredRun) -> dict[str, str]:
    flat = dict[str, str]()
    compiled = run.config.get("compiled") or {}
    more = {"judgements": run.scores["judgements"], "compiled": compiled.get("digest")}
    for key, value in (run.config | more).items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".rstrip("."): str(one) for name, one in inner.items()}
    return flat
