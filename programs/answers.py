"""Every request that was sent to a model and every answer that came back, on disk before the program sees it.

One SQLite file beside the run folders, RUNS/answers.sqlite3, serves all runs and compilations in it. It is two things
at once, so that a crash cannot part them: the cache of answers, under a key of everything that shapes an answer, and
the ledger of each run: what it sent, what failed and why, what it paid. A request has one row; an answer that had been
paid for before has one, too, without text. Prompts are not kept: they are twenty times as large as the answers, and
the traces say what was shown.

Left out: shared file systems whose locks do not work (SQLite's WAL needs them), and several machines.
"""

import json
import queue
import sqlite3
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from tools import disk, turns
from tools.errors import DataError, ProviderRefused, RunIncomplete
from tools.records import Usage, usage_from_json, usage_json

NAME = "answers.sqlite3"
CACHED = "cached"  # in the place of a fault: nothing was sent, because an answer was there
INDEX = "index"  # and here: what an index has cost that the run is the first to use, and what searching in it costs

# What reading a row raises when somebody has changed it.
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)

# A key is 16 hex digits of BLAKE2b: among a million answers, two are the same by chance once in 37 million times.
_TABLE = """
CREATE TABLE IF NOT EXISTS calls (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,       -- of the request
    run TEXT NOT NULL,       -- who sent it, and for which query; '' is for no query
    query_id TEXT NOT NULL,
    model TEXT NOT NULL,
    at REAL NOT NULL,        -- when it was answered, in seconds since 1970
    seconds REAL NOT NULL,   -- until then
    fault TEXT NOT NULL,     -- '' is answered, 'cached' was answered from here, 'index' is work for an index,
                             -- else what went wrong
    usage TEXT NOT NULL,     -- JSON
    outputs TEXT,            -- JSON
    finish TEXT NOT NULL     -- why the answer ended
);
CREATE INDEX IF NOT EXISTS calls_key ON calls (key) WHERE fault = '';
CREATE INDEX IF NOT EXISTS calls_run ON calls (run);
"""
_COLUMNS = ("key", "run", "query_id", "model", "at", "seconds", "fault", "usage", "outputs", "finish")
# A transaction costs twenty times what a row does, so rows wait for others: the more came together the last time, the
# longer. In seconds: for each of those, and at most.
EACH, TOGETHER = 0.002, 0.025
_MOST = 1000  # rows in a statement; SQLite takes 32,766 values


class Answer(NamedTuple):
    """What a model call returned, and what it used."""

    outputs: list[Any]
    usage: Usage
    finish: str = "stop"  # or why the answer ended otherwise
    seconds: float = 0.0  # that it took


class _Row(NamedTuple):
    """One request, in the order of the columns."""

    key: str
    run: str
    query_id: str
    model: str
    at: float
    seconds: float
    fault: str
    usage: str
    outputs: str | None
    finish: str


class Books(NamedTuple):
    """What one run sent and used.

    `usage` is of its answered requests, and of failed ones that reported any; at list price, of cached answers as well.
    """

    sent: int = 0
    answered: int = 0
    cached: int = 0
    faults: Mapping[str, int] = {}
    usage: Usage = Usage()

    def json(self) -> dict[str, Any]:
        """As --json prints it."""
        failed = {"failed": sum(self.faults.values()), "faults": dict(sorted(self.faults.items()))}
        return {"sent": self.sent, "answered": self.answered, **failed, "cached": self.cached, **usage_json(self.usage)}


class _Batch:
    """Rows that go to disk together, on an errand of who waits for them."""

    def __init__(self, rows: list[_Row], errand: turns.Errand | None) -> None:
        self.rows = rows
        self.errand = errand
        self.error: Exception | None = None


class Answers:
    """The file. Threads and processes share it."""

    def __init__(self, path: Path) -> None:
        """DataError when there is a file that is none of ours, or damaged."""
        self.path = path
        self._lock = threading.Lock()
        self._queue = queue.SimpleQueue[_Batch | None]()
        self._ledgers = dict[str, Ledger]()
        with _readable(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._reader, self._writer = self._open(), self._open()
            # What is known to be there: most requests are new, and need not look.
            self._known = {int(key, 16) for (key,) in self._reader.execute("SELECT key FROM calls WHERE fault = ''")}
        threading.Thread(target=_write_all, args=(self._queue, self._writer), daemon=True, name="answers").start()
        weakref.finalize(self, self._queue.put, None).atexit = False  # nobody asks for anything any more

    def _open(self) -> sqlite3.Connection:
        opened = sqlite3.connect(self.path, timeout=60.0, isolation_level=None, check_same_thread=False)
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("PRAGMA synchronous = FULL")
        opened.executescript(_TABLE)
        return opened

    def take(self, key: str) -> tuple[Answer, str, str] | None:
        """The first answer to a request, with the run and the query that paid for it."""
        with self._lock:
            if int(key, 16) not in self._known:
                return None
            columns = "outputs, usage, finish, seconds, run, query_id"
            with _readable(self.path):
                row = self._reader.execute(
                    f"SELECT {columns} FROM calls WHERE key = ? AND fault = '' AND outputs IS NOT NULL "
                    "ORDER BY id LIMIT 1",
                    (key,),
                ).fetchone()
        if row is None:  # another process has cleared it away
            return None
        try:
            outputs, usage, finish, seconds, run, query_id = row
            return (
                Answer(checked(json.loads(outputs)), usage_from_json(json.loads(usage)), finish, seconds),
                run,
                query_id,
            )
        except _DAMAGE:
            raise DataError(
                f"{self.path}: the answer {key} is damaged; python -m programs.lm cache clear --key {key}"
            ) from None

    def write(self, rows: list[_Row], *, wait: bool = True) -> None:
        """Put rows on disk; they are safe when this returns, if it waits. RunIncomplete when the disk is full."""
        batch = _Batch(rows, turns.Errand() if wait else None)
        self._queue.put(batch)
        if not batch.errand:
            return
        batch.errand.wait()
        if batch.error:
            raise RunIncomplete(f"{self.path}: {batch.error}; an answer could not be written; make room") from None
        with self._lock:
            self._known.update(int(row.key, 16) for row in rows if not row.fault and row.outputs)

    def settle(self) -> None:
        """Wait until all that was written so far is on disk, those rows too that nobody waited for."""
        self.write([])

    def ledger(self, run: str) -> "Ledger":
        """The side of one run; there is one in a process."""
        with self._lock:
            found = self._ledgers.get(run)
        if found is None:
            found = Ledger(self, run)
            with self._lock:
                found = self._ledgers.setdefault(run, found)
        return found

    def books(self, run: str) -> Books:
        """What a run sent and used so far."""
        sent, usage = Counter[str](), Usage()
        with self._lock, _readable(self.path):
            rows = self._reader.execute("SELECT fault, usage FROM calls WHERE run = ?", (run,))
            try:
                for fault, row in rows:
                    used = usage_from_json(json.loads(row))
                    usage += Usage(list_usd=used.list_usd) if fault == CACHED else used
                    sent[fault] += used.calls if fault == INDEX else 1
            except _DAMAGE:
                raise DataError(
                    f"{self.path}: the books of {run} are damaged; move the file away to begin anew"
                ) from None
        answered, cached = sent.pop("", 0) + sent.pop(INDEX, 0), sent.pop(CACHED, 0)
        return Books(sent.total() + answered, answered, cached, dict(sent), usage)

    def of_run(self, run: str) -> Iterator[tuple[str, Answer]]:
        """Each answer that a run has used, paid by it or not, with its key and in the order of the keys."""
        self.settle()
        statement = "SELECT DISTINCT key FROM calls WHERE run = ? AND fault IN ('', ?) ORDER BY key"
        for (key,) in self.query(statement, (run, CACHED)):
            found = self.take(key)
            if found is None:
                raise DataError(f"the answer {key} of this run was cleared away, so the run cannot be recorded")
            yield key, found[0]

    def query(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """What a statement finds, or changes: for the command that lists and clears."""
        with self._lock, _readable(self.path):
            return self._reader.execute(statement, parameters).fetchall()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "disk" in str(error):
            raise RunIncomplete(f"{path}: {error}; make room") from None
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            raise RunIncomplete(f"{path}: {error} by another process; the same command goes on") from None
        raise DataError(f"{path}: {error}; move it away to have the calls made again") from None
    except OSError as error:
        raise RunIncomplete(f"{path}: {error.strerror}") from None


def _write_all(batches: "queue.SimpleQueue[_Batch | None]", opened: sqlite3.Connection) -> None:
    """Write what is there, all of it at once, until there is None."""
    more, written, pause = True, 0.0, 0.0
    while more:
        together = [batches.get()]
        time.sleep(max(0.0, written + pause - time.monotonic()))
        with suppress(queue.Empty):
            while together[-1] is not None and len(together) < _MOST:
                together.append(batches.get_nowait())
        more = together[-1] is not None
        at_hand = [batch for batch in together if batch is not None]
        error: Exception | None = None
        try:
            _insert(opened, [row for batch in at_hand for row in batch.rows])
        except Exception as caught:  # noqa: BLE001  # whoever waits for it has to hear of it
            error = caught
        for batch in at_hand:
            batch.error = error
            if batch.errand:
                batch.errand.done()
        written, pause = time.monotonic(), min(TOGETHER, EACH * len(at_hand))
    opened.close()


def _insert(opened: sqlite3.Connection, rows: list[_Row]) -> None:
    """One statement for many rows: Python's lock is given up and asked for once, and not once a row."""
    if rows:
        row = f"({', '.join('?' * len(_COLUMNS))})"
        places = ", ".join([row] * len(rows))
        values = [value for row in rows for value in row]
        opened.execute(f"INSERT INTO calls ({', '.join(_COLUMNS)}) VALUES {places}", values)


_OPENED = weakref.WeakValueDictionary[Path, Answers]()  # one for a file: its rows are written by one thread
_OPENING = threading.Lock()


def opened(path: Path) -> Answers:
    """The answers kept in `path`, a file."""
    path = path.resolve()
    with _OPENING:
        found = _OPENED.get(path)
        if found is None:
            found = _OPENED[path] = Answers(path)
        return found


def ledger(folder: Path, *, runs: Path | None = None) -> "Ledger":
    """The ledger of the run in `folder`, RUNS/task/name, or of a compilation anywhere in `runs`.

    It is new when the folder is.
    """
    mark = folder / "run-id"
    try:
        if not mark.exists():
            disk.replace(mark, uuid.uuid4().hex[:12] + "\n")
        run = f"{folder.parent.name}/{folder.name}/{mark.read_text(encoding='utf-8').strip()}"
    except OSError as error:
        raise RunIncomplete(f"{mark}: {error.strerror}; make room") from None
    return opened((runs or folder.parent.parent) / NAME).ledger(run)


class Ledger:
    """One run's side of the answers: it takes what is there, and books what it sends. Threads share it."""

    def __init__(self, answers: Answers, run: str) -> None:
        self.answers = answers
        self.run = run
        self._lock = threading.Lock()
        self._sent = dict[str, threading.Event]()  # requests on their way, that others who ask the same wait for
        self._books = answers.books(run)
        self._faults = Counter(self._books.faults)
        self._replayed: Mapping[str, Answer] | None = None
        self._source = ""

    def replay(self, answers: Mapping[str, Answer], source: str) -> None:
        """From here on, answer every request from these, which are of `source`, and send none."""
        self._replayed, self._source = answers, source

    @property
    def books(self) -> Books:
        """What the run sent and used so far, in earlier sittings as well."""
        with self._lock:
            return self._books._replace(faults=dict(self._faults))

    @contextmanager
    def turn(
        self, query_id: str, key: str, model: str, price: Callable[[Usage], float | None] = lambda usage: None
    ) -> Iterator[Answer | None]:
        """The answer to a request where there is one; else None, and it is the block's to be sent and booked.

        `price` says what an answer is worth at list price, where that was not known when it came.
        """
        while True:
            with self._lock:
                event = self._sent.get(key)
                if event is None:
                    self._sent[key] = mine = threading.Event()
                    break
            with turns.aside():
                event.wait()
        try:
            yield self._take(query_id, key, model, price)
        finally:
            with self._lock:
                del self._sent[key]
            mine.set()

    def _take(self, query_id: str, key: str, model: str, price: Callable[[Usage], float | None]) -> Answer | None:
        if self._replayed is not None:
            answer = self._replayed.get(key)
            if answer is None:
                raise ProviderRefused(
                    f"{self._source} has no answer to a call of query {query_id!r}: it was recorded with another "
                    "command, data or version; name a new file to record"
                )
            found: tuple[Answer, str, str] | None = answer, "", ""
        else:
            found = self.answers.take(key)
        if found is None:
            return None
        answer, run, payer = found
        if run == self.run and payer == query_id:
            return answer  # this query's own, from an earlier sitting: paid for by it, then as now
        listed = answer.usage.list_usd
        if listed is None and not answer.usage.unmetered:
            listed = price(answer.usage)  # nobody knew it then
        usage = replace(answer.usage, paid_usd=0.0, list_usd=listed, cached_calls=1)
        row = self._row(query_id, key, model, Answer([], usage, answer.finish), CACHED)
        self.answers.write([row._replace(outputs=None)], wait=False)
        with self._lock:
            books = self._books
            worth = Usage(list_usd=usage.list_usd)
            self._books = books._replace(cached=books.cached + 1, usage=books.usage + worth)
        return answer._replace(usage=usage)

    def answered(self, query_id: str, key: str, model: str, answer: Answer) -> None:
        """Book a request that was answered; the answer is safe when this returns. RunIncomplete when it cannot be."""
        self.answers.write([self._row(query_id, key, model, answer, "")])
        self._book(1, answer.usage)

    def failed(self, query_id: str, key: str, model: str, fault: str, usage: Usage, seconds: float) -> None:
        """Book a request that was left without an answer that can be used."""
        self.answers.write([self._row(query_id, key, model, Answer([], usage, "", seconds), fault)], wait=False)
        with self._lock:
            self._faults[fault] += 1
        self._book(0, usage)

    def index(self, model: str, usage: Usage, query_id: str = "") -> None:
        """Book what an index has cost this run, or the vector of a query's text."""
        self.answers.write([self._row(query_id, "", model, Answer([], usage), INDEX)])
        with self._lock:
            books = self._books
            sent, answered = books.sent + usage.calls, books.answered + usage.calls
            self._books = books._replace(sent=sent, answered=answered, usage=books.usage + usage)

    def _book(self, answered: int, usage: Usage) -> None:
        with self._lock:
            books = self._books
            self._books = books._replace(
                sent=books.sent + 1, answered=books.answered + answered, usage=books.usage + usage
            )

    def _row(self, query_id: str, key: str, model: str, answer: Answer, fault: str) -> _Row:
        try:
            outputs = json.dumps(answer.outputs)
        except TypeError:
            outputs = None  # an output that JSON cannot hold: better paid for again than changed
        usage = json.dumps(usage_json(answer.usage))
        at, seconds = round(time.time(), 3), round(answer.seconds, 3)
        return _Row(key, self.run, query_id, model, at, seconds, fault, usage, outputs, answer.finish)

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers copy the language model with the program; the books stay one.
        return self


def checked(outputs: Any) -> list[Any]:
    """What a call returned, as it was read; TypeError for what no call returns."""
    texts = [output.get("text", output.get("content")) if isinstance(output, dict) else output for output in outputs]
    if not isinstance(outputs, list) or not all(text is None or isinstance(text, str) for text in texts):
        raise TypeError("outputs")
    if any(isinstance(output, dict) and not output.keys() & {"text", "content"} for output in outputs):
        raise TypeError("outputs")
    return outputs
