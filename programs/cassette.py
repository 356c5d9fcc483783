"""A run's model calls in one file, to be shown to somebody without a key: `--cassette FILE`.

Where there is no such file, the run is recorded into it once it is complete; where there is one, every call is answered
from it and nothing is sent. The same command over the same data then gives the same rankings and scores, byte for byte.
It is JSON Lines, each with the key of a request, which stands for everything that shapes an answer: another prompt,
model or setting is another key. Lines are in the order of their keys. `python -m programs.lm cache export` writes them,
too.

Left out: indexes that a model writes (lens), which are kept apart, and embeddings.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools import disk
from tools.command import say
from tools.errors import DataError, UsageError
from tools.records import Usage, usage_from_json, usage_json

if TYPE_CHECKING:
    from programs.answers import Answer, Ledger

_KEY = re.compile("[0-9a-f]{16}")
HEAD = {"cassette": 1}  # the first line; the number is the format's


class Cassette:
    """One file, to be replayed or to be recorded."""

    def __init__(self, path: Path, spec: str) -> None:
        """For the model `spec`. UsageError, or DataError, when there is none and can be none in `path`."""
        if spec == "offline":
            raise UsageError("--cassette is for runs with a model; offline needs none")
        self._path = path
        self._answers = None if _to_be_recorded(path) else dict(read(path))
        self._ledger: Ledger | None = None

    @property
    def replays(self) -> bool:
        """Whether every call is answered from the file."""
        return self._answers is not None

    def begin(self, ledger: "Ledger | None") -> None:
        """Record the run with this ledger, or answer its calls."""
        self._ledger = ledger
        if ledger and self._answers is not None:
            ledger.replay(self._answers, str(self._path))

    def keep(self, *, complete: bool) -> None:
        """Write what the run has used; when it is complete, and not replayed."""
        if self._ledger is None or self._answers is not None:
            return
        if not complete:
            say(f"{self._path} is written when the run is complete")
            return
        count = write(self._path, self._ledger.answers.of_run(self._ledger.run))
        say(f"{count} answers are in {self._path}")


def _to_be_recorded(path: Path) -> bool:
    """Whether there is no file yet; UsageError where there can be none."""
    if path.is_dir():
        raise UsageError(f"--cassette {path} is a folder; name a file")
    if path.exists():
        return False
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--cassette {path}: there is no folder {path.parent}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"--cassette {path}: nothing can be written there; choose another place")
    return True


def line(key: str, answer: "Answer") -> str:
    """One answer as a line."""
    row: dict[str, Any] = {"key": key, "outputs": answer.outputs, "usage": usage_json(answer.usage)}
    return json.dumps(row | {"finish": answer.finish, "seconds": answer.seconds})


def write(path: Path, answers: "Iterable[tuple[str, Answer]]") -> int:
    """Write answers; how many there were. The file is there when all of it is."""
    count = 0
    with disk.replacing(path) as file:
        file.write(json.dumps(HEAD) + "\n")
        for count, (key, answer) in enumerate(answers, start=1):  # noqa: B007  # the last one counts
            file.write(line(key, answer) + "\n")
    return count


def read(path: Path) -> "Iterator[tuple[str, Answer]]":
    """What `write` wrote. DataError when it is something else."""
    from programs.answers import Answer, checked

    size = number = 0
    for number, text in enumerate(disk.lines(path), start=1):
        size += len(text)
        try:
            row = json.loads(text)
            if number == 1:
                if row != HEAD:
                    raise ValueError("head")
                continue
            if not _KEY.fullmatch(row["key"]) or not isinstance(row["finish"], str):
                raise TypeError("key or finish")
            seconds = _number(row["seconds"])
            yield row["key"], Answer(checked(row["outputs"]), _usage(row["usage"]), row["finish"], seconds)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise _damaged(path, number) from None
    if not number or size < path.stat().st_size:  # nothing, or a last line without its end
        raise _damaged(path, number + 1)


def _usage(row: dict[str, Any]) -> Usage:
    """What an answer used; ValueError or TypeError for what is no number of tokens or dollars."""
    usage = usage_from_json(row)
    for name in Usage.__slots__:
        value = getattr(usage, name)
        if name in ("paid_usd", "list_usd"):
            _number(0 if value is None else value)
        elif _number(value) != int(value):
            raise ValueError(name)
    return usage


def _number(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError("a number")
    return float(value)


def _damaged(path: Path, number: int) -> DataError:
    return DataError(f"{path}, line {number} is no line of a cassette; record it again, under another name")
