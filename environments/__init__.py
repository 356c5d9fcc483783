"""Benchmarks as environments: `load("congress")` is OBLIQ-Bench's Congress task, ready to be
searched.

`load("my_data")` is a folder with data of a user's own, and `of` makes a task in Python:
environments/custom.py.
"""

import fnmatch
import importlib
import json
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import sextant
from sextant.environments.base import (
    INSTRUCTIONS,
    SPLITS,
    Environment,
    LoadRequest,
    Release,
    Suite,
    validate_environment,
)
from sextant.environments.opaque_ids import hide_ids
from sextant.tools.errors import DataError, NotApplicable, UnknownForTask, UnknownName, UsageError
from sextant.tools.platform.files import expand_user_path, read_toml, sextant_home
from sextant.tools.plugins import load_object

sextant.use_full_name(__name__)

# To add one: environments/<name>.py with a SUITE, named here with its tasks, and its miniature
# under environments/mini/<name> (docs/guide/task.md). A command that names a task imports its suite
# alone.
SUITES = {
    "obliq": ("sextant.environments.obliq:SUITE", "twitter wildchat math writing congress"),
    "crumb": (
        "sextant.environments.crumb:SUITE",
        "tip_of_the_tongue stack_exchange paper_retrieval set_ops clinical_trial legal_qa "
        "theorem_retrieval "
        "code_retrieval",
    ),
    "birco": (
        "sextant.environments.birco:SUITE",
        "doris_mae arguana whatsthatbook clinical_trial relic",
    ),
    "multiconir": (
        "sextant.environments.multiconir:SUITE",
        "books movies people medical_case legal_document",
    ),
    # Folders and files of a user's own, by their places
    "own": ("sextant.environments.custom:SUITE", ""),
}

_LOG = logging.getLogger("sextant")
# Warnings that were printed: a command loads a task for each split, and a study many times.
_warned = set[str]()

MINI = Path(__file__).parent / "mini"  # the bundled miniatures


def suite(name: str) -> Suite:
    """Return the suite called `name`."""
    suite: Suite = load_object(
        "suite", name, {suite_name: reference for suite_name, (reference, _) in SUITES.items()}
    )
    return suite


def tasks() -> list[str]:
    """Return every task's full name, e.g. "obliq/congress"."""
    return [f"{name}/{task}" for name, (_, names) in SUITES.items() for task in names.split()]


def _own() -> Any:
    # The module by its name in the table: a run of a task of the tables neither loads it nor
    # depends on its source.
    return importlib.import_module(SUITES["own"][0].partition(":")[0])


def of(
    documents: Any, queries: Mapping[str, str], qrels: Any, *, name: str, **settings: Any
) -> Environment:
    """Return a task made in Python: `sextant.environments.custom.of`, for files that are run as `--task
    FILE.py:NAME`.
    """
    environment: Environment = _own().of(documents, queries, qrels, name=name, **settings)
    return environment


def expand_tasks(names: str) -> list[str]:
    """Return the tasks that "congress,multiconir/*:format" names, each once.

    UnknownName for a * that finds none.
    """
    suites = tasks()
    expanded: dict[str, None] = {}
    for name in map(str.strip, names.split(",")):
        plain, colon, variant = name.partition(":")
        matches = fnmatch.filter(suites, plain) if "*" in plain else [plain]
        if not matches:
            raise UnknownName("task", name, suites)
        expanded |= dict.fromkeys(f"{task}{colon}{variant}" for task in matches)
    return list(expanded)


def resolve(name: str) -> str:
    """Return the full name of a task, as `locate_task` does."""
    return locate_task(name)[0]


def locate_task(name: str, data: str | None = None) -> tuple[str, str | None]:
    """Return (full name, data) of a task given by its full or short name, with its variant unless
    that is the default.

    The place of a task of a user's own stands for its name; it is returned for `data`, as it is
    found from any folder. UsageError when several suites have the short name; UnknownName, which
    offers the nearest, when there is none.
    """
    plain, _, variant = name.partition(":")
    suites = tasks()
    matches = [task for task in suites if plain in (task, task.partition("/")[2])]
    if len(matches) > 1:
        raise UsageError(f"{plain!r} is a task of several suites; say {' or '.join(matches)}")
    if not matches:
        moved = data if name.startswith("own/") else None
        if folder := _own().locate_custom_task(moved or name):
            if data and not moved:
                raise UsageError(f"{name} is itself the place of its data; leave out --data {data}")
            return (name, folder[1]) if moved else folder
        if name.startswith("own/"):
            no_folder = f", and {data!r} is no folder" if data else ""
            raise UsageError(
                f"{name} is data of your own{no_folder}; give its folder as --task or as --data"
            )
        known = suites if "/" in plain else {task.partition("/")[2] for task in suites}
        raise UnknownName("task", plain, known, ", nor is it a folder with data of your own")
    variants = suite(matches[0].partition("/")[0]).variants
    if variant and variant not in variants:
        if variants == ("",):
            raise UsageError(f"{matches[0]} has no variants; leave out ':{variant}'")
        raise UnknownName(f"variant of {matches[0]}", variant, variants)
    return matches[0] if variant in ("", variants[0]) else f"{matches[0]}:{variant}", data


def is_place(task: str) -> bool:
    """Return whether a task is named by the place of its data."""
    try:
        full_name, _ = locate_task(task)
    except (DataError, UsageError):
        return False
    return full_name.startswith("own/") and not task.startswith("own/")


def choose_data(task: str, data: str | None, tasks: Collection[str]) -> str | None:
    """Return the data of one of `tasks`: `data`, which among several is not for one that is
    the place of its own.
    """
    return None if data and len(tasks) > 1 and is_place(task) else data


def split_name(full_name: str) -> tuple[str, str, str]:
    """Split a full name into (suite, task, variant); the variant is "" for the default one."""
    plain, _, variant = full_name.partition(":")
    suite_name, _, name = plain.partition("/")
    return suite_name, name, variant


def fetch_marker(full_name: str) -> Path:
    """Return the file that a fetch of the task writes last; it proves that the task's files
    are complete.
    """
    suite_name, name, _ = split_name(full_name)
    return sextant_home() / "data" / suite_name / f"{name}.complete.json"


def is_fetched_from(marker: Path, release: Release) -> bool:
    """Return whether a complete fetch was of this release, at this revision."""
    try:
        mark = json.loads(marker.read_bytes())
        return (mark["repository"], mark["revision"]) == (release.repository, release.revision)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def data_folder(task: str, data: str | None) -> tuple[str, Path]:
    """Return ("mini", "full" or the folder as given; the path of the files) for a task's full
    name.
    """
    suite_name = split_name(task)[0]
    if suite_name == "own" and data:
        return data, Path(data)
    complete = fetch_marker(task)
    data = data or ("full" if complete.exists() else "mini")
    remedy = f"`sextant tasks fetch {task}` gets the release, --data FOLDER takes a copy of it"
    if data == "mini":
        if not (MINI / suite_name).is_dir():
            raise DataError(f"{suite_name} has no miniature; {remedy}")
        return data, MINI / suite_name
    if data == "full":
        release = suite(suite_name).release
        if not is_fetched_from(complete, release):
            raise DataError(
                f"{complete} is not there, or of another revision ({release}); {remedy}, or use --data mini"
            )
        return data, complete.parent
    folder = expand_user_path(data)
    if not folder.is_dir():
        raise DataError(f"--data {data!r} is not a folder; give mini, full or a folder that exists")
    return data, folder


def read_instruction(instruction: str, full_name: str) -> str:
    """Return one of INSTRUCTIONS, or the text that is given: itself, or for the task in a TOML
    file: congress = "...".

    Of one ASCII word that is no file it is not known whether it is meant: UnknownName.
    """
    if instruction in INSTRUCTIONS:
        return instruction
    # os.path.isfile takes a text of any length.
    is_file = os.path.isfile(expand_user_path(instruction))  # noqa: PTH113
    if instruction.strip() and (instruction.endswith(".toml") or is_file):
        return _read_instruction_file(instruction, full_name)
    if instruction.isascii() and len(instruction.split()) < 2:
        raise UnknownName("instruction", instruction, INSTRUCTIONS)
    return instruction


def find_paper_instruction(full_name: str) -> str:
    """Return what the models of a task's paper were told of it; "" if the paper prints nothing."""
    plain = full_name.partition(":")[0]
    texts = read_toml(Path(__file__).with_name("paper_instructions.toml"))
    return str(texts.get(plain) or texts.get(plain.partition("/")[0], ""))


def _read_instruction_file(file: str, full_name: str) -> str:
    """Return the text that a TOML file has for a task. UsageError if it has none."""
    try:
        texts = read_toml(expand_user_path(file))
    except (OSError, ValueError) as error:
        raise UsageError(f"--instruction {file} cannot be read as TOML: {error}") from None
    plain = full_name.partition(":")[0]
    instruction = next(
        (texts[key] for key in (full_name, plain, plain.partition("/")[2]) if key in texts), ""
    )
    if not isinstance(instruction, str) or not instruction.strip():
        raise UsageError(
            f'--instruction {file} has no text for {plain}; give it a line "{plain}" = "..."'
        )
    return instruction


def load(
    task: str,
    data: str | None = None,
    split: str = "test",
    *,
    qrels: str = "",
    instruction: str = "ours",
    columns: Mapping[str, str] | None = None,
    relevant_from: float | None = None,
) -> Environment:
    """Load a task's environment.

    `data` is "mini" (bundled), "full" (fetched), or a folder in the release's layout; None is full
    if that is fetched, else mini. `qrels` names the headline judgements if a task has several;
    `instruction` is as `read_instruction` has it; `columns` are names in a user's own files;
    `relevant_from` is the lowest grade of a relevant document, 0 for all above 0, None for the task's.
    UsageError for a wrong argument, DataError for wrong data.
    """
    full_name, data = locate_task(task, data)
    suite_name, name, variant = split_name(full_name)
    chosen = suite(suite_name)
    if columns and suite_name != "own":
        raise NotApplicable(
            f"--column is for data of your own, and {full_name} has its benchmark's form; leave "
            f"it out"
        )
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    if qrels and chosen.judgements and qrels not in chosen.judgements:
        raise UnknownForTask(f"judgements of {full_name}", qrels, chosen.judgements)
    data, folder = data_folder(full_name, data)
    instruction = read_instruction(instruction, full_name)
    if instruction == "paper" and not (instruction := find_paper_instruction(full_name)):
        raise NotApplicable(
            f"no paper prints what its models were told of {full_name}; leave out --instruction "
            f"paper"
        )
    request = LoadRequest(
        full_name,
        name,
        variant or chosen.variants[0],
        data,
        folder,
        split,
        sextant_home(),
        qrels,
        instruction,
        columns or {},
    )
    environment = chosen.load(request)
    if suite_name != "own":  # whose quirks are counted
        validate_environment(environment)
    is_opaque = environment.opaque_ids or name in chosen.opaque_ids
    if is_opaque and not environment.released:
        environment = hide_ids(environment)
    if relevant_from is not None:
        environment = environment.count_from(relevant_from)
    judged = environment.judgements[environment.headline]
    if not any(judged.relevant(query.query_id) for query in environment.queries):
        raise DataError(
            f"{full_name}, {split} split: no document is {judged.level}, so nothing can be found; "
            f"--relevant-from sets the level, and --column grade=NAME says which column has grades"
        )
    for warning in environment.warnings:
        if warning not in _warned:
            _LOG.warning("warning: %s", warning)
    _warned.update(environment.warnings)
    return environment
