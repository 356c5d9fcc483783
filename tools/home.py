"""The folder for fetched data and built indexes. Nothing is created here."""

import os
from pathlib import Path

from tools.errors import UsageError


def home() -> Path:
    """Return the folder for fetched data and built indexes: $SEXTANT_HOME, or ~/.cache/sextant."""
    return expanded(os.environ.get("SEXTANT_HOME") or "~/.cache/sextant")


def expanded(text: str) -> Path:
    """Expand the ~ of a path as a user typed it. UsageError when it is empty, or ~NAME is unknown."""
    if not text.strip():
        raise UsageError("the name of a folder is empty")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"{text!r} starts with a home directory that is not known; write the whole path") from None
