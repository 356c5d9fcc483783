"""Answers of a run in a file of their own, from which another run is answered without sending anything.

The answers that every run of a folder shares are in ledger.py.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sextant.tools import schemas
from sextant.tools.errors import DataError, UsageError
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.storage.ledger import ModelResponse
from sextant.tools.models.storage.request_store import CassetteLine
from sextant.tools.platform import files
from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.number_format import plural
from sextant.tools.records import usage_from_json, usage_json


class Cassette:
    """All model calls of a run in a file, to be shown to somebody without a key: `--cassette FILE`.

    If there is no such file, the run is recorded into it once it is complete; if there is one,
    every call of programs and lenses and every embedding of a query is answered from it, and
    nothing is sent. The file is JSON Lines, in the order of the keys, each of which stands for
    everything that shapes an answer. Left out: indexes that a model writes, which are kept under
    $SEXTANT_HOME/indexes.
    """

    def __init__(self, path: Path, resources: RunResources, *, sends: bool) -> None:
        """Replay the file at `path`, if any. UsageError if a run `sends` nothing or no file can be
        made.
        """
        if not sends:
            raise UsageError(
                "--cassette is for runs with a model; offline needs none, nor does the retriever"
            )
        self._path = path
        self._resources = resources
        if path.is_dir():
            raise UsageError(f"--cassette {path} is a folder; name a file")
        if path.exists():
            resources.cassette = dict(read_cassette(path)), str(path)
            resources.servers = json.loads(next(iter(files.iter_lines(path)))).get("servers", {})
        elif not path.parent.is_dir():
            raise UsageError(f"--cassette {path}: there is no folder {path.parent}")
        elif not os.access(path.parent, os.W_OK):
            raise UsageError(
                f"--cassette {path}: nothing can be written there; choose another place"
            )

    def record(self, *, complete: bool) -> None:
        """Write the run's usage, if it is complete and not replayed."""
        ledger = self._resources.ledger
        if ledger is None or self._resources.cassette:
            return
        if not complete:
            print_stderr(f"{self._path} is written when the run is complete")
            return
        answers = ledger.answers.of_run(ledger.run)
        print_stderr(
            f"{self._path} has "
            f"{plural(write_cassette(self._path, answers, self._resources.servers), 'answer')}"
        )


_HEAD = {"cassette": 1}  # the first line; the number is the format's


def write_cassette(
    path: Path,
    answers: Iterable[tuple[str, ModelResponse]],
    servers: Mapping[str, Any] | None = None,
) -> int:
    """Write answers by key, and return how many there were. The file appears when all of it is written.

    The detected `servers` shape prompts, so it is in the first line.
    """
    count = 0
    found = {model: server for model, server in (servers or {}).items() if any(server.values())}
    with files.replacing(path) as file:
        file.write(json.dumps(_HEAD | ({"servers": found} if found else {})) + "\n")
        for key, answer in answers:
            row: dict[str, Any] = {
                "key": key,
                "outputs": answer.outputs,
                "usage": usage_json(answer.usage),
                "finish": answer.finish,
                "seconds": answer.seconds,
            }
            if answer.reasoning:
                row["reasoning"] = answer.reasoning
            file.write(json.dumps(row) + "\n")
            count += 1
    return count


def read_cassette(path: Path) -> Iterator[tuple[str, ModelResponse]]:
    """Yield the keys and answers of a cassette. DataError when the file is something else."""

    def damaged(why: str) -> DataError:
        return DataError(
            f"{path}, line {number} is no line of a cassette ({why}); record it again, under "
            f"another name"
        )

    size = number = 0
    for number, text in enumerate(files.iter_lines(path), start=1):
        size += len(text)
        try:
            row = schemas.parse_json(dict[str, Any] if number == 1 else CassetteLine, text)
        except ValueError as error:
            raise damaged(str(error)) from None
        if number > 1:
            usage = usage_from_json(row["usage"])
            thought = row.get("reasoning", "")
            yield (
                row["key"],
                ModelResponse(row["outputs"], usage, row["finish"], row["seconds"], thought),
            )
        elif {**row, "servers": 0} != {**_HEAD, "servers": 0}:
            raise damaged(f"it begins with {json.dumps(_HEAD)}")
    if not number or size < path.stat().st_size:
        number += 1
        raise damaged("it has no end")
