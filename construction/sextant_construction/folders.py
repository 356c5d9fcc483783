"""The files of a folder that somebody else may have filled: nothing that a link brings in from
outside of it.

A link in a folder of texts may lead anywhere, as to /etc/passwd, and its target would be
published with the texts. Hidden files and folders are left out without a word; everything else that
is left out is named, with the reason.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sextant.tools.errors import DataError

OUTSIDE = "links out of the folder"
OTHER_LINK = "links to nothing, to hidden files, or to folders that are read anyway"
NO_FILE = "neither files nor folders"


class LeftOut(NamedTuple):
    """A file or folder that is not read."""

    name: str  # its path in the folder
    reason: str
    evidence: str = ""


class Listing(NamedTuple):
    """The files that are read of a folder, in the order of their names, and the others."""

    files: Sequence[Path]
    left_out: Sequence[LeftOut] = ()


def list_folder(folder: Path, *, follow_links: bool = False) -> Listing:
    """Return the files in a folder and below. DataError if a folder cannot be read.

    Links to files of the folder are files like others. Links out of it are left out unless
    `follow_links`; a folder is then read once, however many links lead to it.
    """
    root = folder.resolve()
    files = []
    left_out = []
    opened = {root}
    waiting = [folder]
    while waiting:
        for path in _list_entries(waiting.pop()):
            reason = _refuse_link(path, root, follow_links=follow_links)
            if not reason and path.is_dir():
                target = path.resolve()
                if target not in opened:
                    opened.add(target)
                    waiting.append(path)
                    continue
                reason = OTHER_LINK
            elif not reason and not path.is_file():  # a pipe would be waited for without end
                reason = NO_FILE
            if reason:
                evidence = str(path.readlink()) if path.is_symlink() else ""
                left_out.append(LeftOut(path.relative_to(folder).as_posix(), reason, evidence))
            else:
                files.append(path)
    return Listing(sorted(files), sorted(left_out))


def _list_entries(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{str(folder)[:200]} cannot be read: {error.strerror or error}") from None


def _refuse_link(path: Path, root: Path, *, follow_links: bool) -> str:
    """Return why a link is left out; "" if it is not, and for what is no link."""
    if not path.is_symlink():
        return ""
    if not path.exists():
        return OTHER_LINK
    target = path.resolve()
    if not target.is_relative_to(root):
        return "" if follow_links else OUTSIDE
    hidden = any(component.startswith(".") for component in target.relative_to(root).parts)
    return OTHER_LINK if hidden or target.is_dir() else ""
