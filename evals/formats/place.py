"""Where an export goes: a folder that is there whole or not at all, and never in place of what is not ours.

A folder is ours when it holds export.json and nothing that this does not list. Left out: two exports into one folder at
the same time.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tools import disk
from tools.errors import DataError, UsageError

MANIFEST = "export.json"


@contextmanager
def filling(place: Path, *, force: bool) -> Iterator[Path]:
    """An empty folder; what is in it is at `place` when the block ends without an exception.

    UsageError where something else is; with `force` it stays, but for files of the same names.
    """
    place = place.resolve()
    replaceable = _replaceable(place)
    if not replaceable and not force:
        raise UsageError(f"{place} holds something that is not an export; choose another --out, or give --force")
    if place.exists() and not place.is_dir():
        raise UsageError(f"{place} is a file; choose a folder as --out")
    if (place / "config.json").is_file() and (place / "outcomes.jsonl").is_file():  # also with --force
        raise UsageError(f"{place} is a run folder, whose files an export would replace; choose another --out")
    with ExitStack() as stack:
        try:
            disk.make_private(place.parent)
            beside = stack.enter_context(disk.drafting(place, folder=True))
        except OSError as error:
            raise UsageError(f"{place} cannot be written: {error.strerror}; choose another --out") from None
        try:
            yield beside
            for name in files_in(beside):
                (beside / name).chmod(disk.PRIVATE)
            if replaceable:
                _swap(beside, place)
            else:
                _merge(beside, place)
        except OSError as error:
            if error.filename and beside not in Path(os.fsdecode(error.filename)).parents:
                raise  # it is about another file, as one of the run that cannot be read
            why = f"{place} cannot be written: {error.strerror or error}"
            raise DataError(f"{why}; make room, or choose --out") from None


def _replaceable(place: Path) -> bool:
    """Whether there is nothing at `place`, or only an export."""
    if not place.exists():
        return True
    files = files_in(place) if place.is_dir() else [""]
    try:
        listed = json.loads((place / MANIFEST).read_bytes())["files"] if files else []
        return set(files) <= {MANIFEST, *listed}
    except (OSError, ValueError, LookupError, TypeError):
        return False


def files_in(folder: Path) -> list[str]:
    """The names of all files in a folder and below, in order."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def _swap(new: Path, place: Path) -> None:
    """Put a folder in the place of an older export, if there is one."""
    with disk.drafting(place, folder=True) as old:
        if place.exists():
            place.rename(old)
        new.rename(place)
        disk.sync(place.parent)


def _merge(new: Path, place: Path) -> None:
    """Put files among others, each in one step."""
    for name in files_in(new):
        disk.make_private((place / name).parent)
        (new / name).replace(place / name)


def manifest(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Write what a folder is and holds into it; return that."""
    row = about | {"files": files_in(folder)}
    disk.replace(folder / MANIFEST, json.dumps(row, indent=2, ensure_ascii=False) + "\n")
    return row
