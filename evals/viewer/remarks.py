"""Remarks of readers on runs, queries and steps: `remarks.jsonl` in the folder of all runs.

A line has "time", "run" (TASK/NAME), and "query_id" and "step" unless it is on all of a run or a
query. A remark on a query or step has a "label" and a "note"; a remark on a run has its "name",
"tags" and "note" on the page. The last line on a run, query or step counts, and an empty remark
removes what was there. Nothing of a run is changed.
"""

import json
import threading
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field
from typing_extensions import TypedDict

from sextant.tools import schemas
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform import files
from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.number_format import plural
from sextant.tools.records import JsonMapping, JsonObject

REMARKS = "remarks.jsonl"
# Bytes of the file, and characters of a text.
LARGEST = 1 << 28
LONGEST = 20_000
Text = Annotated[str, Field(max_length=LONGEST)]


class RemarkSchema(TypedDict, total=False):
    """A remark as the page sends it."""

    query_id: Text
    step: Annotated[int, Field(ge=0)]
    label: Text
    note: Text
    name: Text
    tags: list[Text]


class Subject(NamedTuple):
    """What a remark is on: a run, a query of it, or a step; None for the larger."""

    query_id: str | None
    step: int | None


Remarks = dict[Subject, JsonObject]


def find_file(run: Path) -> Path:
    """Return the file of the remarks on the run in the folder `run`, which may not exist."""
    return run.resolve().parent.parent / REMARKS


def name_run(run: Path) -> str:
    """Return a run as remarks name it: the last two parts of its folder."""
    return "/".join(run.resolve().parts[-2:])


def read_remarks(file: Path) -> dict[str, Remarks]:
    """Return the remarks by run, without those that are empty; a line that is damaged is left out.

    DataError for a file that cannot be read.
    """
    remarks: dict[str, Remarks] = {}
    try:
        content = files.read_input(file, LARGEST)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataError(f"{file} cannot be read: {files.describe(error)}") from None
    damaged = 0
    for line in content.splitlines():
        row = files.read_object(line.decode(errors="replace")) or {}
        try:
            schemas.validate(RemarkSchema, row)
            run = schemas.validate(str, row.get("run"))
        except ValueError:
            damaged += 1
            continue
        subject = Subject(row.get("query_id"), row.get("step"))
        of_run = remarks.setdefault(run, {})
        of_run.pop(subject, None)
        if any(row.get(key) for key in ("label", "note", "name", "tags")):
            of_run[subject] = row
    if damaged:
        _warn(
            f"{file}: {plural(damaged, 'line is no remark', 'lines are no remarks')}, and left out"
        )
    return remarks


@lru_cache
def _warn(message: str) -> None:
    """Print a message, once."""
    print_stderr(message)


class RemarkWriter:
    """Adds remarks to the file of a run's folder; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, run: Path, body: bytes) -> JsonMapping:
        """Write a remark on a run, a query or a step, and return it when it is on disk.

        UsageError for another form, DataError if it cannot be written.
        """
        try:
            sent = schemas.parse_json(RemarkSchema, body)
        except ValueError as error:
            raise UsageError(f"this is no remark: {error}") from None
        if "step" in sent and "query_id" not in sent:
            raise UsageError("a remark on a step names its query")
        remark = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": name_run(run),
            **{key: sent[key] for key in RemarkSchema.__annotations__ if key in sent},
        }
        file = find_file(run)
        line = json.dumps(remark, ensure_ascii=False)
        try:
            with self._lock:
                # A torn line would join the new line.
                list(files.iter_lines(file, repair=True))
                files.append_line(file, line.encode(errors="backslashreplace"))
        except OSError as error:
            raise DataError(f"{file} cannot be written: {files.describe(error)}") from None
        return remark
