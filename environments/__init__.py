"""Benchmarks as environments: `load("congress")` is OBLIQ-Bench's Congress task, ready to be searched."""

import os
from pathlib import Path

from environments.base import SPLITS, Environment, Suite
from tools.errors import DataError, UnknownName, UsageError
from tools.table import pick

# To add one: environments/<name>.py with a SUITE, named here, and its miniature under environments/mini/<name>.
SUITES = {
    "obliq": "environments.obliq:SUITE",
}

_MINI = Path(__file__).parent / "mini"


def home() -> Path:
    """Where fetched data and built indexes are kept: $SEXTANT_HOME, or ~/.cache/sextant."""
    return _path(os.environ.get("SEXTANT_HOME") or "~/.cache/sextant")


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"{text!r} starts with a home directory that is not known; write the whole path") from None


def suite(name: str) -> Suite:
    """The suite called `name`."""
    found: Suite = pick("suite", name, SUITES)
    return found


def tasks() -> list[str]:
    """Every task's full name, e.g. "obliq/congress"."""
    return [f"{name}/{task}" for name in SUITES for task in suite(name).tasks]


def resolve(name: str) -> str:
    """The full name of a task given by its full or its short name.

    A short name works while one suite has it. UsageError names both when two have; UnknownName offers
    the nearest names when none has.
    """
    known = tasks()
    if name in known:
        return name
    matches = [task for task in known if task.partition("/")[2] == name]
    if len(matches) > 1:
        raise UsageError(f"{name!r} is a task of several suites; say {' or '.join(matches)}")
    if not matches:
        short = {task.partition("/")[2] for task in known}
        raise UnknownName("task", name, known if "/" in name else short)
    return matches[0]


def load(task: str, data: str | None = None, split: str = "test") -> Environment:
    """A task's environment.

    `data` is "mini" (bundled), "full" (fetched), or a folder in the release's layout; without it, full if
    it has been fetched, else mini. UsageError or UnknownName for a wrong argument, DataError for data
    that is missing or damaged.
    """
    full_name = resolve(task)
    suite_name, _, name = full_name.partition("/")
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    fetched = home() / "data" / suite_name
    complete = fetched / f"{name}.complete.json"  # written last by a fetch, so that it proves the task's files whole
    if data is None:
        data = "full" if complete.exists() else "mini"
    if data == "mini":
        folder = _MINI / suite_name
    elif data == "full":
        folder = fetched
        if not complete.exists():
            raise DataError(
                f"the full release of {full_name} is not in {folder}; "
                "use --data mini, or --data FOLDER with a copy of the release"
            )
    else:
        folder = _path(data)
        if not folder.is_dir():
            raise DataError(f"--data {data!r} is not a folder; give mini, full or a folder that exists")
    return suite(suite_name).load(name, data, folder, split)
