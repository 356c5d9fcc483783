"""Every answer that a model gave to a run, on disk before the program sees it: calls.jsonl in the run folder.

A query that was cut off in the middle (a kill, a provider's outage, a spent budget) starts again from its first step
when the run is resumed; its calls are then answered from here and not paid for again. It serves that one run: two runs
never share an answer, and prompts are not kept.
"""

import hashlib
import json
import threading
from pathlib import Path
from typing import Any, NamedTuple, Self

from tools import disk
from tools.errors import DataError, RunIncomplete
from tools.records import Usage, total, usage_from_json, usage_json


class Answer(NamedTuple):
    """What a model call returned, and what it used."""

    outputs: list[Any]
    usage: Usage


Place = tuple[str, str, int]  # query_id, the request's key, how often the query had made it before


class Record(NamedTuple):
    """One call's place in a journal."""

    journal: "Journal"
    place: Place
    answer: Answer | None  # None when the call has to be made

    def write(self, answer: Answer) -> None:
        """Keep the answer that the call got."""
        self.journal.write(self.place, answer)


def key(model: str, messages: Any, settings: dict[str, Any]) -> str:
    """Sixteen hex digits over everything that shapes an answer."""
    text = json.dumps([model, messages, settings], sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Journal:
    """The answered calls of one run. Threads share it.

    A call is found by its query, its key, and how often that query had made the very same call before:
    repeated samples of one prompt stay different answers.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._answers: dict[Place, Answer] = {}
        # A torn last line is an answer that the program never saw.
        for number, line in enumerate(disk.read_lines(path, repair=True), start=1):
            try:
                row = json.loads(line)
                answer = Answer(row["outputs"], usage_from_json(row["usage"]))
                self._answers[row["query_id"], row["key"], row["repeat"]] = answer
            except (ValueError, KeyError, TypeError):
                raise DataError(
                    f"{path}, line {number} is damaged; remove the line to have the call made again"
                ) from None

    @property
    def usage(self) -> Usage:
        """What all calls of the run used so far."""
        with self._lock:
            return total(answer.usage for answer in self._answers.values())

    def record(self, query_id: str, request: str, repeat: int) -> "Record":
        """The place of this call in the journal, with its answer when an earlier sitting of the run got one."""
        place = (query_id, request, repeat)
        with self._lock:
            return Record(self, place, self._answers.get(place))

    def write(self, place: Place, answer: Answer) -> None:
        """Put an answer on disk; it is safe when this returns. RunIncomplete when the disk is full."""
        query_id, request, repeat = place
        row = {
            "query_id": query_id,
            "key": request,
            "repeat": repeat,
            "outputs": answer.outputs,
            "usage": usage_json(answer.usage),
        }
        line = json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
        with self._lock:
            try:
                disk.append_line(self._path, line)
            except OSError as error:
                raise RunIncomplete(
                    f"{self._path}: {error.strerror}; an answer for query {query_id!r} could not be written; make room"
                ) from None
            self._answers[place] = answer

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers copy the language model with the program; the books stay one.
        return self
