"""Names of systems, told apart by the settings in which their runs differ."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf, isfinite
from typing import Any

from sextant.evals.run_descriptions import printable
from sextant.evals.run_folder import CONFIG_FILE, Config
from sextant.evals.scoring.scored_run import ScoredRun
from sextant.programs import FLOOR
from sextant.tools.platform.number_format import abbreviate
from sextant.tools.pool_kinds import read_kind

# Characters of the value of a setting in a name.
VALUE_CHARS = 40


@dataclass(frozen=True, slots=True)
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
    """Return a short name for the system of each run, as "multihop over dense hops=2".

    It is the program, with retriever, model and optimizer if the systems differ in them, and with
    the settings that tell it from a system of the same name. Systems that nothing tells apart are
    numbered.
    """
    programs = [str(run.config["program"]) for run in runs]
    retrievers = [f"over {run.config['retriever']['name']}" for run in runs]
    # The floor has no model, and so does not differ in it.
    models = [
        "" if program == FLOOR else f"with {run.config['lm']['name']}"
        for run, program in zip(runs, programs, strict=True)
    ]
    columns = [words for words in (retrievers, models) if len(set(filter(None, words))) > 1]
    # A run may be compared with itself.
    settings = name_settings({run.name: run for run in runs}.values())
    names = list[str]()
    for place, run in enumerate(runs):
        words = [programs[place], *(column[place] for column in columns)]
        words += [_describe_compiled(run.config), settings[run.name]]
        names.append(printable(" ".join(filter(None, words))))
    numbered = list[str]()
    for place, name in enumerate(names):
        number = f" ({names[:place].count(name) + 1})" if names.count(name) > 1 else ""
        numbered.append(f"{name}{number}")
    return numbered


def name_settings(runs: Iterable[ScoredRun]) -> dict[str, str]:
    """Return by run.name the settings that tell runs of one system apart, as "hops=2"; "" for a
    run that its program, retriever, model and pool tell apart from all others.
    """
    alike: dict[System, list[ScoredRun]] = defaultdict(list)
    for run in runs:
        alike[describe_run_system(run, with_model=True)].append(run)
    settings = dict[str, str]()
    for members in alike.values():
        settings |= _tell_apart(members)
    return settings


def describe_run_system(run: ScoredRun, *, with_model: bool) -> System:
    """Return the system that answered in a run; its name has the model if wanted."""
    config = run.config
    pool = config.get("pool") or {}
    retrievers = pool.get("of", ())
    if all(name in run.retriever for name in retrievers):
        retrievers = ()
    name = f"{config['program']} over {config['retriever']['name']}"
    if compiled := _describe_compiled(config):
        name += f", {compiled}"
    if with_model:
        name += f", {config['lm']['name']}"
    if config.get("imported"):
        name += ", imported"
    instruction = " ".join(config["instruction"].split())
    if len(instruction) > 60:
        digest = hashlib.sha256(
            config["instruction"].encode(
                "utf-8",
                "replace",
            )
        ).hexdigest()
        instruction = f"{instruction[:50]} ... ({digest[:4]})"
    return System(
        name=printable(name),
        pool=read_kind(config),
        size=int(pool.get("size", 0)),
        of=tuple(map(printable, retrievers)),
        instruction=printable(instruction),
    )


def _describe_compiled(config: Config) -> str:
    compiled = config.get("compiled")
    if not compiled:
        return ""
    optimizer = compiled.get("optimizer")
    if optimizer == "hand":
        return "prompts by hand"
    return f"compiled with {optimizer}" if optimizer else "compiled"


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
    """Return by run.name the words that are added to the system's name, "" for none."""
    by_task: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        by_task[run.config["task"]].append(run.name)
    columns = [names for names in by_task.values() if len(names) > 1]
    settings = {run.name: _flatten(run) for run in runs}
    dates = _date_code(runs)
    for run in runs:
        settings[run.name]["code"] = dates[run.config["code"]]
    all_keys = sorted({key for flat in settings.values() for key in flat})
    keys = list[str]()
    # At first nothing is added.
    for level in ((), *_LEVELS):
        for key in all_keys:
            values = [{settings[name].get(key) for name in column} for column in columns]
            if (
                key.split(".")[0] in level
                and max(
                    map(len, values),
                    default=1,
                )
                > 1
            ):
                keys.append(key)
        suffixes = {name: _describe_settings(flat, keys) for name, flat in settings.items()}
        if all(len({suffixes[name] for name in column}) == len(column) for column in columns):
            return suffixes
    # The same configuration is in several folders.
    return {run.name: run.path.name for run in runs}


def _describe_settings(flat: Mapping[str, str], keys: Sequence[str]) -> str:
    """Return "hops=2, ..."; the key of a setting without a name of its own."""
    described = list[str]()
    for key in keys:
        value = abbreviate(flat.get(key, "none"), VALUE_CHARS)
        described.append(value if key == "code" else f"{key.partition('.')[2] or key}={value}")
    return ", ".join(described)


def _date_code(runs: Iterable[ScoredRun]) -> dict[str, str]:
    """Return by digest of the program's code when the first run with it began, as
    "code of 26 Nov 14:02", with the digest if that is the same for two.
    """
    began = dict[str, float]()
    for run in runs:
        digest = run.config["code"]
        time = began.get(digest, inf)
        # A folder that cannot be read any more has been read before.
        with suppress(OSError):
            time = min(
                time,
                (run.path / CONFIG_FILE).stat().st_mtime,
            )
        began[digest] = time
    words = dict[str, str]()
    for digest, time in began.items():
        words[digest] = f"code {digest}"
        if isfinite(time):
            words[digest] = f"code of {datetime.fromtimestamp(time):%-d %b %H:%M}"
    texts = list(words.values())
    return {
        digest: f"{text} ({digest})" if texts.count(text) > 1 else text
        for digest, text in words.items()
    }


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
