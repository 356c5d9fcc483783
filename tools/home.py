"""Where Sextant keeps what it fetched and built. Nothing is made here."""

import os
from pathlib import Path

from tools.errors import UsageError


def home() -> Path:
    """Where fetched data and built indexes are kept: $SEXTANT_HOME, or ~/.cache/sextant."""
    return expanded(os.environ.get("SEXTANT_HOME") or "~/.cache/sextant")


def expanded(text: str) -> Path:
    """A folder as somebody typed it. UsageError when it is empty, or its ~ means nobody."""
    if not text.strip():
        raise UsageError("the name of a folder is empty")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"{text!r} starts with a home directory that is not known; write the whole path") from None
