"""Digests by which a reader knows that what is in a run folder is what was written there, and belongs together.

The last key of a line of outcomes.jsonl is a digest over the line and its run's configuration; scores.json names the
files that it was made of. This tells edits, and files of another run, from what a run has found. It is no signature:
who means to deceive can make the digests again. What carries none, as in runs of before, fits.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HEAD = b', "digest": "'
_LENGTH = 16  # hex digits
_TAIL = len(_HEAD) + _LENGTH + len(b'"}')


def sealed(line: bytes, of: str) -> bytes:
    """A JSON object, without a line end, with a digest as its last key; `of` is its run's configuration's."""
    return line[:-1] + _HEAD + _line_digest(line, of) + b'"}'


def fits(line: bytes, of: str) -> bool:
    """Whether `sealed` made a line; ValueError where it has changed since, or was made for another run."""
    line = line.rstrip(b"\r\n")
    if not line[-_TAIL:].startswith(_HEAD):
        return False
    if sealed(line[:-_TAIL] + b"}", of) != line:
        raise ValueError("it was edited, or is of another run")
    return True


def _line_digest(line: bytes, of: str) -> bytes:
    return hashlib.sha256(b"%b\n%b" % (of.encode(), line)).hexdigest()[:_LENGTH].encode()


def made_of(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Digests of files of a run."""
    return {name: _file_digest(folder / name) for name in names}


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_LENGTH]


def check_file(path: Path, scores: Mapping[str, Any]) -> None:
    """ValueError where a file is another one than that which `scores` were made of or with; a missing one is not."""
    wanted = scores.get("made_of", {}).get(path.name)
    if wanted is not None and path.exists() and wanted != _file_digest(path):
        raise ValueError(f"{path.name} has changed since the run was scored")


def sealed_scores(scores: dict[str, Any]) -> dict[str, Any]:
    """What scores.json holds, with a digest of it."""
    plain = json.loads(json.dumps(scores))
    return scores | {"digest": _digest({key: value for key, value in plain.items() if key != "digest"})}


def check_scores(scores: dict[str, Any], of: str) -> None:
    """ValueError where scores.json has changed since it was written, or was made with another configuration."""
    if "digest" in scores and sealed_scores(scores)["digest"] != scores["digest"]:
        raise ValueError("scores.json was edited")
    if scores.get("made_of", {}).get("config", of) != of:
        raise ValueError("config.json was edited after the run was scored")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_LENGTH]
