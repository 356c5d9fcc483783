"""Names of systems: program and retriever, and the settings that tell their runs apart."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sextant.evals.run_descriptions import printable
from sextant.evals.scoring.scored_run import ScoredRun
from sextant.tools.platform.number_format import abbreviate
from sextant.tools.pool_kinds import read_kind

# Characters of the value of a setting in a name, and of an instruction.
VALUE_CHARS = 40
INSTRUCTION_CHARS = 60


@dataclass(frozen=True, slots=True, order=True)
class System:
    """The program, retriever and model that answered, whatever the task. The pool is apart,
    because a sweep goes over it.
    """

    # As a reader sees it, without the pool.
    name: str
    # The kind of pool (tools/pool_kinds.py), "" for none.
    pool: str = ""
    # Documents in the pool.
    size: int = 0
    # The retrievers of the pool, if they are not the run's own.
    of: tuple[str, ...] = ()
    instruction: str = "ours"

    def __str__(self) -> str:
        text = self.name
        if self.pool:
            text += f", {self.pool} pool"
            if self.size:
                text += f" of {self.size}"
            if self.of:
                text += f" by {' and '.join(self.of)}"
        if self.instruction != "ours":
            text += f", instruction: {self.instruction}"
        return text

    def resized(self, size: int) -> "System":
        """The same over another size of its pool."""
        return replace(self, size=size if self.pool else 0)


def name_systems(runs: Sequence[ScoredRun]) -> list[str]:
    """Return the name of the system of each run, as "multihop over dense, hops=2"."""
    systems = describe_systems(runs)
    return [str(systems[run.name]) for run in runs]


def describe_systems(runs: Iterable[ScoredRun]) -> dict[str, System]:
    """Return by run.name the system of each run.

    Its name has the model if the runs have several, and the settings that tell it from others of its
    program, retriever, model and pool.
    """
    runs = list(runs)
    settings = name_settings(runs)
    several_models = len({run.config["lm"]["name"] for run in runs}) > 1
    systems = {}
    for run in runs:
        system = _describe_system(run)
        words = [system.name, run.config["lm"]["name"] if several_models else ""]
        words += ["imported" if run.config.get("imported") else "", settings[run.name]]
        systems[run.name] = replace(system, name=printable(", ".join(filter(None, words))))
    return systems


def name_settings(runs: Iterable[ScoredRun]) -> dict[str, str]:
    """Return by run.name the settings that tell runs of one system apart, as "hops=2"; "" for a
    run that its program, retriever, model and pool tell apart from all others.
    """
    alike: dict[tuple[System, str], dict[str, ScoredRun]] = defaultdict(dict)
    for run in runs:
        # A run may be named twice.
        alike[_describe_system(run), run.config["lm"]["name"]][run.name] = run
    settings = dict[str, str]()
    for members in alike.values():
        settings |= _tell_apart(list(members.values()))
    return settings


def _describe_system(run: ScoredRun) -> System:
    config = run.config
    pool = config.get("pool") or {}
    retrievers = pool.get("of", ())
    if all(name in run.retriever for name in retrievers):
        retrievers = ()
    name = f"{config['program']} over {config['retriever']['name']}"
    if compiled := config.get("compiled"):
        optimizer = compiled.get("optimizer") or "an unknown optimizer"
        name += ", prompts by hand" if optimizer == "hand" else f", compiled with {optimizer}"
    instruction = " ".join(config["instruction"].split())
    if len(instruction) > INSTRUCTION_CHARS:
        digest = hashlib.sha256(instruction.encode("utf-8", "replace")).hexdigest()
        instruction = f"{abbreviate(instruction, INSTRUCTION_CHARS)} ({digest[:4]})"
    return System(
        name=name,
        pool=read_kind(config),
        size=int(pool.get("size", 0)),
        of=tuple(map(printable, retrievers)),
        instruction=printable(instruction),
    )


# The keys of a configuration that may tell runs of one name apart: first those that a reader wants
# to know, then the seeds of repeats, then those that are there to be exact.
_LEVELS = (
    (
        "name",
        "parameters",
        "compiled",
        "lm",
        "retriever",
        "files",
        "depth",
        "max_p",
        "judgements",
        "relevant_from",
    ),
    ("seed",),
    ("versions",),
    ("code",),
)


def _tell_apart(runs: Sequence[ScoredRun]) -> dict[str, str]:
    """Return by run.name the settings in which runs of a task differ, "" for none; the folders if the
    same configuration is in several.
    """
    flat = {run.name: _flatten(run) for run in runs}
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for run in runs:
        for key in sorted({key for settings in flat.values() for key in settings}):
            values[key, run.config["task"]].add(flat[run.name].get(key, "none"))
    differing = dict.fromkeys(key for (key, _), known in values.items() if len(known) > 1)
    keys = list[str]()
    # At first nothing is added.
    for level in ((), *_LEVELS):
        keys += [key for key in differing if key.partition(".")[0] in level]
        settings = {name: _describe_settings(own, keys) for name, own in flat.items()}
        if len({(run.config["task"], settings[run.name]) for run in runs}) == len(runs):
            return settings
    folders = [run.path.name for run in runs]
    is_unique = len(set(folders)) == len(folders)
    return {run.name: run.path.name if is_unique else run.name for run in runs}


def _describe_settings(flat: Mapping[str, str], keys: Sequence[str]) -> str:
    """Return "hops=2, ..."; the key of a setting without a name of its own."""
    described = []
    for key in keys:
        value = abbreviate(flat.get(key, "none"), VALUE_CHARS)
        described.append(f"{key.partition('.')[2] or key}={value}")
    return ", ".join(described)


def _flatten(run: ScoredRun) -> dict[str, str]:
    compiled = run.config.get("compiled") or {}
    config = dict[str, Any](run.config)
    config |= {key: run.scores[key] for key in ("judgements", "relevant_from")}
    config["compiled"] = compiled.get("digest")
    flat = dict[str, str]()
    for key, value in config.items():
        for name, setting in (value if isinstance(value, dict) else {"": value}).items():
            place = f"{key}.{name}".rstrip(".")
            if name == "seed":
                place = "seed.seed" if key == "lm" else "seed.program seed"
            flat[place] = str(setting)
    return flat
