"""A run's model calls in one file, to be shown to somebody without a key: `--cassette FILE`.

Where there is no such file, the run is recorded into it once it is complete; where there is one, every call of programs
and lenses and every embedding of a query is answered from it, and nothing is sent. It is JSON Lines, each with the key
of a request, which stands for everything that shapes an answer, in the order of the keys. Left out: indexes that a
model writes, which are kept under $SEXTANT_HOME/indexes.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tools import disk, forms
from tools.console import say
from tools.errors import DataError, UsageError
from tools.models.answers import Answer
from tools.models.forms import CassetteLine
from tools.models.terms import Terms
from tools.records import usage_from_json, usage_json

HEAD = {"cassette": 1}  # the first line; the number is the format's


class Cassette:
    """A file to replay a run from, or to record it into."""

    def __init__(self, path: Path, terms: Terms, *, sends: bool) -> None:
        """For a run on these terms, that sends something or not. UsageError, or DataError, when there can be none."""
        if not sends:
            raise UsageError("--cassette is for runs with a model; offline needs none, nor does the retriever")
        self._path, self._terms = path, terms
        folder = path.absolute().parent
        if path.is_dir():
            raise UsageError(f"--cassette {path} is a folder; name a file")
        if path.exists():
            terms.replay(dict(read(path)), str(path))
        elif not folder.is_dir():
            raise UsageError(f"--cassette {path}: there is no folder {path.parent}")
        elif not os.access(folder, os.W_OK):
            raise UsageError(f"--cassette {path}: nothing can be written there; choose another place")

    def record(self, *, complete: bool) -> None:
        """Write what the run has used; when it is complete, and not replayed."""
        ledger = self._terms.ledger
        if ledger is None or self._terms.replays:
            return
        if not complete:
            say(f"{self._path} is written when the run is complete")
            return
        count = write(self._path, ledger.answers.of_run(ledger.run))
        say(f"{count} answers are in {self._path}")


def write(path: Path, answers: Iterable[tuple[str, Answer]]) -> int:
    """Write answers, and return how many there were. The file is there when all of it is."""
    count = 0
    with disk.replacing(path) as file:
        file.write(json.dumps(HEAD) + "\n")
        for key, answer in answers:
            row = {"key": key, "outputs": answer.outputs, "usage": usage_json(answer.usage)}
            file.write(json.dumps(row | {"finish": answer.finish, "seconds": answer.seconds}) + "\n")
            count += 1
    return count


def read(path: Path) -> Iterator[tuple[str, Answer]]:
    """Read the keys and answers of a cassette. DataError when the file is something else."""
    size = number = 0
    for number, text in enumerate(disk.lines(path), start=1):
        size += len(text)
        try:
            row = forms.read(dict[str, Any] if number == 1 else CassetteLine, text)
        except ValueError as error:
            raise _damaged(path, number, str(error)) from None
        if number > 1:
            yield row["key"], Answer(row["outputs"], usage_from_json(row["usage"]), row["finish"], row["seconds"])
        elif row != HEAD:
            raise _damaged(path, number, f"it begins with {json.dumps(HEAD)}")
    if not number or size < path.stat().st_size:
        raise _damaged(path, number + 1, "it has no end")


def _damaged(path: Path, number: int, why: str) -> DataError:
    return DataError(f"{path}, line {number} is no line of a cassette ({why}); record it again, under another name")
