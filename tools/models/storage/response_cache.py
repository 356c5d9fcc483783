"""Every request sent to a model and every answer that came back, on disk before the program sees
it.

A SQLite file, RUNS/answers.sqlite3, is the cache of answers, under a key of everything that shapes
an answer, and the ledger of each run (requests, failures with reasons, costs), so that a crash
cannot part them. Each request is a row; an answer that was paid for before is a row without text.
Requests are kept next to it, in parts (tools/models/storage/request_store.py). Left out: several
machines, and file systems without locks, which WAL needs.
"""

import logging
import sqlite3
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sextant.tools.errors import DataError, RunIncomplete, SextantError
from sextant.tools.models.storage import request_store
from sextant.tools.models.storage.request_store import parse_row, translate_sqlite_errors
from sextant.tools.platform import files
from sextant.tools.platform.cli import AT_END
from sextant.tools.platform.sqlite import LONGEST_WAIT, begin_writing, close_when_unused
from sextant.tools.records import JsonObject, Usage, requests_json, usage_from_json

_LOG = logging.getLogger("sextant")
NAME = "answers.sqlite3"
# In the place of a fault: nothing was sent because an answer was there; work for an index, and
# vectors of queries.
CACHED = "cached"
INDEX = "index"

# A key is 16 hex digits of BLAKE2b: among a million answers, two are the same by chance once in 37
# million times.
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
# Rows of a shard's run, ?2, that are not in the joined run, ?1.
_UNGATHERED = (
    "run = ?2 AND calls.id > (SELECT coalesce(max(last), 0) FROM gathered WHERE run = ?1 AND "
    "shard = ?2)"
)
_UNWRITTEN = 100  # rows that nobody waits for, and that a kill may lose
LONGEST_WORD = 100  # characters kept of why an answer ended or failed: servers may send anything


class ModelResponse(NamedTuple):
    """The answer of a model, and the tokens and dollars that it used."""

    outputs: list[Any]
    usage: Usage
    finish: str = "stop"  # or why the answer ended otherwise
    seconds: float = 0.0  # that it took
    reasoning: str = ""  # of the model before it; it is kept, and not given to the program
    first: float | None = None  # seconds to its first token; None where it was not streamed


class UsageTotals(NamedTuple):
    """The number of requests that a run has sent, and their usage."""

    sent: int = 0
    answered: int = 0
    cached: int = 0
    faults: Mapping[str, int] = {}
    usage: Usage = (
        Usage()
    )  # of answered requests, and failed ones that reported any; list prices of cached ones, too

    def json(self) -> JsonObject:
        """Return the totals as --json prints them."""
        failed = {"failed": sum(self.faults.values()), "faults": dict(sorted(self.faults.items()))}
        return {
            "sent": self.sent,
            "answered": self.answered,
            **failed,
            "cached": self.cached,
            **requests_json(self.usage),
        }


class AnswerFilter(NamedTuple):
    """Which of the stored answers are meant; an empty field leaves none out."""

    model: str = ""
    run: str = ""  # the beginning of the run that used them: TASK/FOLDER/
    key: str = ""
    before: float = 0.0  # when they were answered at the latest, in seconds since 1970

    def where(self) -> tuple[str, list[Any]]:
        """Return the condition in SQL, and its values."""
        conditions = ["fault = '' AND outputs IS NOT NULL"]
        values: list[Any] = []
        if self.model:
            conditions.append("model = ?")
            values.append(self.model)
        if self.run:
            conditions.append("key IN (SELECT key FROM calls WHERE substr(run, 1, ?) = ?)")
            values += [len(self.run), self.run]
        if self.key:
            conditions.append("key = ?")
            values.append(self.key)
        if self.before:
            conditions.append("at < ?")
            values.append(self.before)
        return " AND ".join(conditions), values


Row = JsonObject  # of one request, by the names of the columns, of which each row has the same


class _WriteBatch:
    """Rows that are written in a transaction."""

    def __init__(self) -> None:
        self.rows = list[Row]()
        self.parts = dict[int, bytes]()
        self.done = Future[None]()
        self.led = False  # whether a thread is going to write it


class _BatchWriter:
    """Writes rows in batches, because a transaction costs twenty times as much as a row. Threads
    share it.

    Rows that arrive while a batch is being written are the next batch, written by the first thread
    that waits for it.
    """

    def __init__(self, writer: sqlite3.Connection) -> None:
        self.writer = writer
        self._batch = _WriteBatch()
        self.writer.execute("PRAGMA busy_timeout = 200")  # `begin_writing` waits for longer
        self._lock = threading.Lock()
        self.alone = threading.Lock()  # held while a batch is written

    def add(self, rows: list[Row], parts: Mapping[int, bytes], *, wait: bool) -> None:
        """Put rows into the next batch; with `wait`, they are on disk when this returns, or its error is raised."""
        with self._lock:
            batch = self._batch
            batch.rows += rows
            batch.parts |= parts
            leads = not batch.led and (wait or len(batch.rows) >= _UNWRITTEN)
            batch.led |= leads
        if leads:
            self.write()
        if wait:
            batch.done.result()

    def write(self) -> None:
        """Write the batch that gathers."""
        with self.alone:
            with self._lock:
                batch = self._batch
                self._batch = _WriteBatch()
            try:
                with self.writer:
                    begin_writing(self.writer)
                    request_store.insert_many(
                        self.writer, "OR IGNORE INTO parts (id, text)", list(batch.parts.items())
                    )
                    columns = ", ".join(batch.rows[0]) if batch.rows else ""
                    request_store.insert_many(
                        self.writer,
                        f"INTO calls ({columns})",
                        [[*row.values()] for row in batch.rows],
                    )
            except Exception as error:  # noqa: BLE001  # raised by all that wait, who would else wait forever
                batch.done.set_exception(error)
            else:
                batch.done.set_result(None)


class ResponseCache:
    """The file of answers. Threads and processes share it."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it. DataError when it is none of ours, or damaged."""
        self.path = path
        self._lock = threading.Lock()
        with translate_sqlite_errors(path):
            files.mkdir_private(path.parent)
            files.open_file(path, "ab").close()  # SQLite gives the files beside it the same mode
            self._reader = _open_table(path)
            self._writing = _BatchWriter(_open_table(path))
            self.parts = (
                request_store.StoredPartIds()
            )  # of requests: those that this process has written, which are not made again
            # Most requests are new: looking each up would give Python's lock away, and cost a tenth
            # of a call.
            self._known = {
                hash(key)
                for (key,) in self._reader.execute("SELECT key FROM calls WHERE fault = ''")
            }
        self.close = weakref.finalize(self, _close, path, self._writing, self._reader, self._lock)
        AT_END.append(self.close)

    def take(
        self, key: str, run: str = "", query_id: str = ""
    ) -> tuple[ModelResponse, str, str] | None:
        """Return an answer, and the run and query that paid for it, or None; this query's first, then this run's."""
        if hash(key) not in self._known:
            return None
        columns = ("key", "outputs", "usage", "finish", "seconds", "reasoning", "run", "query_id")
        best = "WHERE key = ? AND fault = '' AND outputs IS NOT NULL "
        best += "ORDER BY (run = ? AND query_id = ?) DESC, (run = ?) DESC, id LIMIT 1"
        for row in list(self.select(columns, best, (key, run, query_id, run))):
            usage = usage_from_json(row["usage"])
            thought = row["reasoning"] or ""
            return (
                ModelResponse(row["outputs"], usage, row["finish"], row["seconds"], thought),
                row["run"],
                row["query_id"],
            )
        return None

    def write(self, rows: list[Row], parts: Mapping[int, bytes] = {}, *, wait: bool = True) -> None:
        """Put rows and parts of requests on disk; with `wait`, they are there when this returns, or RunIncomplete."""
        if not self.close.alive:
            raise RunIncomplete(f"{self.path} is closed; the same command goes on")
        try:
            self._writing.add(rows, parts, wait=wait)
        except (sqlite3.Error, OSError) as error:
            wrong = f"{self.path}: {error}; an answer could not be written"
            raise RunIncomplete(f"{wrong}; {files.remedy(error)}") from None
        for row in rows:
            if row["outputs"] and not row["fault"]:
                self._known.add(hash(row["key"]))
        self.parts.note(parts)

    def settle(self) -> None:
        """Wait until all rows so far are on disk, rows without a waiting thread included."""
        self.write([])

    def books_and_marks(self, run: str) -> tuple[UsageTotals, set[int]]:
        """Return a run's totals, and a hash of query and key for each cached answer in them, which counts once."""
        requests = Counter[str]()
        usage = Usage()
        marks = set()
        damage = (
            f"the books of {run} are damaged; remove the file run-id of its folder to begin them "
            f"anew: "
        )
        damage += "the answers stay, and are not paid for again"
        for row in self.select(
            ("fault", "usage", "query_id", "key"), "WHERE run = ?", (run,), damage=damage
        ):
            fault = row["fault"]
            row_usage = usage_from_json(row["usage"])
            if fault == CACHED:
                if (mark := hash((row["query_id"], row["key"]))) in marks:
                    continue
                marks.add(mark)
                row_usage = Usage(list_usd=row_usage.list_usd)
            usage += row_usage
            requests[fault] += row_usage.calls if fault == INDEX else 1
        answered = requests.pop("", 0) + requests.pop(INDEX, 0)
        cached = requests.pop(CACHED, 0)
        return UsageTotals(
            requests.total() + answered, answered, cached, dict(requests), usage
        ), marks

    def of_run(self, run: str) -> Iterator[tuple[str, ModelResponse]]:
        """Yield the key and the answer of each request of a run, by key; its own answer, if it has
        paid for one.
        """
        self.settle()
        statement = "SELECT DISTINCT key FROM calls WHERE run = ? AND fault IN ('', ?) ORDER BY key"
        for (key,) in self.query(statement, (run, CACHED)):
            cached = self.take(key, run)
            if cached is None:
                raise DataError(
                    f"the answer {key} of this run was cleared away, so the run cannot be recorded"
                )
            yield key, cached[0]

    def select(
        self,
        columns: Sequence[str],
        condition: str,
        values: Sequence[Any] = (),
        *,
        damage: str = "",
    ) -> Iterator[JsonObject]:
        """Yield columns of rows by name, with JSON read. DataError for a damaged row; `damage`
        names the remedy.
        """
        with self._lock, translate_sqlite_errors(self.path):
            statement = f"SELECT {', '.join(columns)} FROM calls {condition}"
            for row in self._reader.execute(statement, [storable(value) for value in values]):
                try:
                    yield parse_row(columns, row)
                except ValueError as error:
                    key = str(dict(zip(columns, row, strict=True)).get("key", "KEY"))[:16]
                    mend = damage or f"the answer {key} is damaged; sextant cache clear --key {key}"
                    raise DataError(f"{self.path}: {mend} ({error})") from None

    def find(self, wanted: AnswerFilter, columns: Sequence[str]) -> Iterator[JsonObject]:
        """Yield columns of stored answers, in the order in which they came, as `select` does."""
        condition, values = wanted.where()
        return self.select(columns, f"WHERE {condition} ORDER BY id", values)

    def keys(self, wanted: AnswerFilter) -> list[str]:
        """Return the keys of stored answers, in their order."""
        condition, values = wanted.where()
        statement = f"SELECT DISTINCT key FROM calls WHERE {condition} ORDER BY key"
        return [str(key) for (key,) in self.query(statement, values)]

    def runs(self, beginning: str = "") -> list[str]:
        """Return the runs in the file whose names begin so, those that wrote last at the end."""
        statement = (
            "SELECT run FROM calls WHERE substr(run, 1, ?) = ? GROUP BY run ORDER BY max(id)"
        )
        return [str(run) for (run,) in self.query(statement, (len(beginning), beginning))]

    def clear(self, wanted: AnswerFilter) -> int:
        """Remove the text of answers, and their requests; return how many there were.

        Their rows stay, as the books of runs need them.
        """
        where, values = wanted.where()
        count: int = self.query(f"SELECT count(*) FROM calls WHERE {where}", values)[0][0]
        self.query(
            f"UPDATE calls SET outputs = NULL, request = NULL, reasoning = NULL WHERE {where}",
            values,
        )
        needed = "SELECT value FROM calls, json_each(calls.request) WHERE request IS NOT NULL"
        self.query(f"DELETE FROM parts WHERE id NOT IN ({needed})")
        self.parts.clear()
        self.query("VACUUM")
        return count

    def gather(self, run: str, shard: "ResponseCache", shard_run: str) -> None:
        """Copy what a shard of a run has booked since the last time, and its requests, all or
        none.
        """
        runs = (run, shard_run)
        names = ", ".join(
            row[1] for row in self.query("PRAGMA table_info(calls)") if row[1] not in ("id", "run")
        )
        self.query("ATTACH DATABASE ? AS part", [str(shard.path)])
        try:
            self.query("BEGIN IMMEDIATE")
            self.query(
                "CREATE TABLE IF NOT EXISTS gathered "
                "(run TEXT, shard TEXT, last INTEGER, PRIMARY KEY (run, shard))"
            )
            parts = f"SELECT value FROM part.calls, json_each(calls.request) WHERE {_UNGATHERED}"
            self.query(
                "INSERT OR IGNORE INTO parts (id, text) "
                f"SELECT id, text FROM part.parts WHERE id IN ({parts})",
                runs,
            )
            self.query(
                f"INSERT INTO calls (run, {names}) "
                f"SELECT ?1, {names} FROM part.calls WHERE {_UNGATHERED} ORDER BY id",
                runs,
            )
            self.query(
                "INSERT OR REPLACE INTO gathered "
                "SELECT ?1, ?2, max(id) FROM part.calls WHERE run = ?2",
                runs,
            )
            self.query("COMMIT")
        except BaseException:
            with suppress(SextantError):
                self.query("ROLLBACK")
            raise
        finally:
            self.query("DETACH DATABASE part")

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows."""
        with self._lock, translate_sqlite_errors(self.path):
            return self._reader.execute(
                statement, [storable(value) for value in parameters]
            ).fetchall()


def _open_table(path: Path) -> sqlite3.Connection:
    """Connect to the file at `path`; written data is on disk when the statement ends."""
    opened = sqlite3.connect(path, timeout=60.0, isolation_level=None, check_same_thread=False)
    opened.execute("PRAGMA journal_mode = WAL")
    opened.execute("PRAGMA synchronous = FULL")
    opened.executescript(_TABLE + request_store.TABLE)
    for column in request_store.COLUMNS:
        with suppress(sqlite3.OperationalError):  # it is there
            opened.execute(f"ALTER TABLE calls ADD COLUMN {column}")
    return opened


def _close(
    path: Path, writing: _BatchWriter, reader: sqlite3.Connection, reading: threading.Lock
) -> None:
    """Put everything into the main file; of several processes that have it open, the last process
    completes that.
    """
    writing.write()
    close_when_unused(writing.writer, writing.alone)
    if not reading.acquire(timeout=LONGEST_WAIT):
        return  # a thread that hangs is in a statement of the reader
    try:
        reader.execute("PRAGMA busy_timeout = 0")
        reader.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        _LOG.warning(
            f"{path}: {error}; its last answers may be in {path.name}-wal alone: keep both"
        )
    finally:
        reader.close()
        reading.release()


def storable(value: Any) -> Any:
    """Return a value that SQLite takes: lone surrogates, as in a name not in UTF-8, become question marks."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


_OPENED = weakref.WeakValueDictionary[Path, ResponseCache]()
_OPENING = threading.Lock()


def open_answers(path: Path) -> ResponseCache:
    """Open the answers kept in the file `path`, once in a process: its rows are written by a
    thread.
    """
    path = path.resolve()
    with _OPENING:
        answers = _OPENED.get(path)
        if answers is None or not answers.close.alive:
            answers = _OPENED[path] = ResponseCache(path)
        return answers
