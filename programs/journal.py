"""Every answer that a model gave to a run, on disk before the program sees it: calls.jsonl in the run folder.

A query that was cut off in the middle (a kill, a provider's outage, a spent budget) starts again from its first step
when the run is resumed; its calls are then answered from here and not paid for again. It serves that one run: two runs
never share an answer, and prompts are not kept.
"""

import hashlib
import json
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from tools import disk
from tools.errors import DataError, RunIncomplete
from tools.records import Usage, usage_from_json, usage_json


class Answer(NamedTuple):
    """What a model call returned, and what it used."""

    outputs: list[Any]
    usage: Usage
    finish: str = "stop"  # or why the answer ended otherwise


def digest(model: str, messages: Any, settings: dict[str, Any]) -> str:
    """Sixteen hex digits over everything that shapes an answer."""
    made = hashlib.blake2b(digest_size=8)
    for part in [model, settings, *(messages if isinstance(messages, list) else [messages])]:
        # A plain message is most of what is hashed, and writing it as JSON takes longer than hashing it.
        plain = isinstance(part, dict) and part.keys() == {"role", "content"} and isinstance(part["content"], str)
        text = f"{part['role']}\0{part['content']}" if plain else json.dumps(part, sort_keys=True, default=repr)
        content = text.encode("utf-8", "surrogatepass")
        made.update(b"%d\0%s" % (len(content), content))
    return made.hexdigest()


def _outputs(outputs: Any) -> list[Any]:
    """What a call returned, as it was read; TypeError for what no call returns."""
    texts = [output.get("text", output.get("content")) if isinstance(output, dict) else output for output in outputs]
    if not isinstance(outputs, list) or not all(text is None or isinstance(text, str) for text in texts):
        raise TypeError("outputs")
    if any(isinstance(output, dict) and not output.keys() & {"text", "content"} for output in outputs):
        raise TypeError("outputs")
    return outputs


class Journal:
    """The answered calls of one run. Threads share it.

    Answers of earlier sittings are found by query and request, and each is given out once, in the order in which
    it came: repeated samples of one prompt stay different answers. Those of this sitting are not given out.
    With `repeats`, an answer is given out whenever it is asked for again, in this sitting too: an optimizer evaluates
    the same candidate more than once, and numbers the samples that it wants to differ. A request that another thread
    has just sent waits for that answer.
    """

    def __init__(self, path: Path, *, repeats: bool = False) -> None:
        self._path = path
        self._file = disk.Appender(path)
        self._repeats = repeats
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)  # an answer did, or the call for one failed
        self._sent: dict[tuple[str, str], int] = {}  # requests on their way, with the thread that each is of
        self._earlier: dict[tuple[str, str], deque[Answer]] = defaultdict(deque)
        self._usage = Usage()
        # A torn last line is an answer that the program never saw.
        for number, line in enumerate(disk.read_lines(path, repair=True), start=1):
            try:
                row = json.loads(line)
                answer = Answer(_outputs(row["outputs"]), usage_from_json(row["usage"]), row.get("finish", "stop"))
                self._earlier[row["query_id"], row["request"]].append(answer)
                self._usage += answer.usage
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise DataError(
                    f"{path}, line {number} is damaged; remove the line to have the call made again"
                ) from None

    @property
    def usage(self) -> Usage:
        """What all calls of the run used so far."""
        with self._lock:
            return self._usage

    @contextmanager
    def turn(self, query_id: str, request: str) -> Iterator[Answer | None]:
        """The answer to a request where there is one; else None, and it is the block's to be sent and written."""
        key, thread = (query_id, request), threading.get_ident()
        if self._repeats:
            with self._came:
                # Not for its own: two calls that are awaited in one thread would wait for each other.
                self._came.wait_for(lambda: self._sent.get(key, thread) == thread)
                self._sent[key] = thread
        try:
            yield self.take(query_id, request)
        finally:
            with self._came:
                self._sent.pop(key, None)
                self._came.notify_all()

    def take(self, query_id: str, request: str) -> Answer | None:
        """An answer that an earlier sitting got to this request, and nobody has taken since."""
        with self._lock:
            answers = self._earlier.get((query_id, request))
            if not answers:
                return None
            return answers[0] if self._repeats else answers.popleft()

    def write(self, query_id: str, request: str, answer: Answer) -> None:
        """Put an answer on disk; it is safe when this returns. RunIncomplete when the disk is full."""
        row = {"query_id": query_id, "request": request, "outputs": answer.outputs, "usage": usage_json(answer.usage)}
        if answer.finish != "stop":
            row["finish"] = answer.finish
        try:
            line = json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace")
        except TypeError:
            return  # an output that JSON cannot hold, such as a tool call: better paid for again than changed
        try:
            self._file.append(line)
        except OSError as error:
            raise RunIncomplete(
                f"{self._path}: {error.strerror}; an answer for query {query_id!r} could not be written; make room"
            ) from None
        with self._lock:
            self._usage += answer.usage
            if self._repeats:
                self._earlier[query_id, request].append(answer)

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers copy the language model with the program; the books stay one.
        return self
