"""A run's model calls in one file, to be shown to somebody without a key: `--cassette FILE`.

Where there is no such file, the run is recorded into it once it is complete; where there is one, every call is answered
from it and nothing is sent: calls of programs and of lenses, and the embeddings of queries. The same command over the
same data then gives the same rankings and scores, byte for byte. It is JSON Lines, each with the key of a request,
which stands for everything that shapes an answer: another prompt, model or setting is another key. Lines are in the
order of their keys. `python -m programs.lm cache export` writes them, too.

Left out: indexes that a model writes (embeddings of documents, annotations of a lens), which are kept apart under
$SEXTANT_HOME/indexes: a replay elsewhere needs them, and says so.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools import disk, forms
from tools.console import say
from tools.errors import DataError, UsageError
from tools.records import usage_from_json, usage_json

if TYPE_CHECKING:
    from tools.models.answers import Answer
    from tools.models.terms import Terms

HEAD = {"cassette": 1}  # the first line; the number is the format's


class Cassette:
    """A file to replay a run from, or to record it into."""

    def __init__(self, path: Path, terms: "Terms", *, sends: bool) -> None:
        """For a run on these terms, that sends something or not. UsageError, or DataError, when there can be none."""
        if not sends:
            raise UsageError("--cassette is for runs with a model; offline needs none, nor does the retriever")
        self._path, self._terms = path, terms
        if not _to_be_recorded(path):
            terms.replay(dict(read(path)), str(path))

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
    """Return one answer as a line."""
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
    """Read the keys and answers of a cassette. DataError when the file is something else."""
    from tools.models.answers import Answer  # SQLite and pydantic are behind these
    from tools.models.forms import CassetteLine  # as above

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
