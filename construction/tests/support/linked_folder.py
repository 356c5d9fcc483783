"""A folder with every kind of link, as somebody else may have filled it."""

import os
from pathlib import Path

from sextant_construction.folders import (
    NO_FILE,
    OTHER_LINK,
    OUTSIDE,
)

SECRET = "root:x:0:0:the secret of this machine"
REASONS = {
    "notes.txt": OUTSIDE,
    "up.txt": OUTSIDE,
    "chain.txt": OUTSIDE,
    "own/folder": OUTSIDE,
    "own/again": OTHER_LINK,
    "own/deeper/loop": OTHER_LINK,
    "circle.txt": OTHER_LINK,
    "gone.txt": OTHER_LINK,
    "hidden.txt": OTHER_LINK,
    "pipe.txt": NO_FILE,
}


def make_linked_folder(tmp_path: Path) -> Path:
    """A folder of texts with every kind of link, beside a folder with a secret."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "corpus"
    (elsewhere / "deep").mkdir(parents=True)
    (folder / "own" / "deeper").mkdir(parents=True)
    (folder / ".git").mkdir()
    (elsewhere / "secret.txt").write_text(SECRET)
    (elsewhere / "deep" / "more.txt").write_text(f"more of {SECRET}")
    (folder / "a.txt").write_text("the tides of the harbour")
    (folder / "own" / "deeper" / "b.txt").write_text("the bells of the town")
    (folder / ".git" / "config.txt").write_text(SECRET)
    (folder / "notes.txt").symlink_to(elsewhere / "secret.txt")
    (folder / "up.txt").symlink_to("../elsewhere/secret.txt")
    (folder / "chain.txt").symlink_to("notes.txt")
    (folder / "own" / "folder").symlink_to(elsewhere)
    (folder / "own" / "again").symlink_to(folder / "own" / "deeper")
    (folder / "own" / "deeper" / "loop").symlink_to("..")
    (folder / "circle.txt").symlink_to("circle.txt")
    (folder / "gone.txt").symlink_to("nowhere.txt")
    (folder / "inner.txt").symlink_to("own/deeper/b.txt")
    (folder / "hidden.txt").symlink_to(".git/config.txt")
    os.mkfifo(folder / "pipe.txt")
    return folder
