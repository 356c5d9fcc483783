"""Every request sent to a model and every answer that came back, on disk before the program sees it.

A SQLite file, RUNS/answers.sqlite3, is the cache of answers, under a key of everything that shapes
an answer, and the ledger of each run (requests, failures with reasons, costs), so that a crash
cannot part them. Each request is a row; an answer that was paid for before is a row without text.

Requests are kept next to it in parts, each compressed and written once, as most of a request repeats.
A request is cut if a JSON object begins: each message does, and each passage in a prompt. Equal
parts (system prompts, earlier turns, documents that come back) are a row under a hash, and a call has
the list of its parts. Secrets of the environment are taken out before. request_store.py reads them.

Left out: requests for embeddings, whose texts are the corpus' own; several machines, and file systems
without locks, which WAL needs. Limits on what may be sent are in tools/models/call_limits.py.
"""

import json
import logging
import math
import re
import sqlite3
import threading
import time
import uuid
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, NamedTuple

import zstandard

from sextant.tools.errors import (
    DataError,
    ProviderRefused,
    RunIncomplete,
    SessionRefusal,
    SextantError,
)
from sextant.tools.models.storage.request_store import parse_row, translate_sqlite_errors
from sextant.tools.platform import files
from sextant.tools.platform.cli import AT_END
from sextant.tools.platform.interrupts import is_interrupted
from sextant.tools.platform.sqlite import LONGEST_WAIT, close_when_unused
from sextant.tools.records import JsonObject, Usage, requests_json, usage_from_json, usage_json

_PARTS = """
CREATE TABLE IF NOT EXISTS parts (
    number INTEGER PRIMARY KEY,  -- texts lie in the order in which they came: by id, each would write a page anew
    id INTEGER NOT NULL UNIQUE,  -- 64 bits of BLAKE2b over the text
    text BLOB NOT NULL           -- compressed by Zstandard
);
"""
# Columns of calls that files of earlier versions lack; NULL where nothing was kept.
_COLUMNS = (
    "request TEXT",  # the parts of what was sent: a JSON list of ids, in order
    "reasoning TEXT",  # of the model, where the provider shows it
    "first REAL",  # seconds to the first token, where the answer was streamed
)
_BEGINS = re.compile(rb'\{\\?"')  # an object, also in a text
_SHORTEST = 300  # bytes of a part, but for the last: a row has a cost, too
_KNOWN = 100_000  # parts that a process remembers: 10 MB
_AT_ONCE = 1000  # rows of a statement; SQLite takes 32,766 values
_COMPRESSION = threading.local()  # a compressor is for one thread

Packed = tuple[str, Mapping[int, bytes]]
"""A request: the list of its parts, and the texts of those that were not known."""


class StoredPartIds(set[int]):
    """Parts that are on disk, as far as a process remembers them."""

    def note(self, parts: Iterable[int]) -> None:
        """Add parts."""
        if len(self) > _KNOWN:
            self.clear()
        self.update(parts)


def split_and_compress(
    request: bytes, known_parts: Collection[int], secrets: Sequence[bytes] = ()
) -> Packed:
    """Cut a request into parts, without the `secrets`; return their list, and those not `known` to be on disk."""
    for secret in secrets:
        request = request.replace(secret, b"***")
    if not hasattr(_COMPRESSION, "compress"):
        _COMPRESSION.compress = zstandard.ZstdCompressor(level=1).compress
    ids = []
    new_parts = {}
    for piece in _cut(request):
        ids.append(
            number := int.from_bytes(blake2b(piece, digest_size=8).digest(), "big", signed=True)
        )
        if number not in known_parts and number not in new_parts:
            new_parts[number] = _COMPRESSION.compress(piece)
    return json.dumps(ids), new_parts


def _cut(request: bytes) -> Iterator[bytes]:
    start = 0
    for beginning in _BEGINS.finditer(request):
        if beginning.start() - start >= _SHORTEST:
            yield request[start : beginning.start()]
            start = beginning.start()
    yield request[start:]


def _insert_many(writer: sqlite3.Connection, into: str, rows: Sequence[Sequence[Any]]) -> None:
    """Insert many rows by a statement: Python's lock is given away and taken again once, and not
    once a row.
    """
    for first in range(0, len(rows), _AT_ONCE):
        batch = rows[first : first + _AT_ONCE]
        row_places = ", ".join("?" * len(batch[0]))
        places = ", ".join([f"({row_places})"] * len(batch))
        writer.execute(f"INSERT {into} VALUES {places}", [value for row in batch for value in row])


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
_LONGEST_LOCK = 60.0  # seconds for another process that has locked the file
_LAST_WAIT = 1.0  # seconds of these after an interrupt
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
        return {
            "sent": self.sent,
            "answered": self.answered,
            "failed": sum(self.faults.values()),
            "faults": dict(sorted(self.faults.items())),
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
        self.writer.execute("PRAGMA busy_timeout = 200")  # `_begin_writing` waits for longer
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
                    _begin_writing(self.writer)
                    _insert_many(
                        self.writer, "OR IGNORE INTO parts (id, text)", list(batch.parts.items())
                    )
                    columns = ", ".join(batch.rows[0]) if batch.rows else ""
                    _insert_many(
                        self.writer,
                        f"INTO calls ({columns})",
                        [[*row.values()] for row in batch.rows],
                    )
            except Exception as error:  # noqa: BLE001  # raised by all that wait, who would else wait forever
                batch.done.set_exception(error)
            else:
                batch.done.set_result(None)


def _begin_writing(connection: sqlite3.Connection) -> None:
    """Begin a transaction that writes; wait for another process that has locked the file, but not
    long after Ctrl-C.

    SQLite itself would wait with its own timeout, which nothing interrupts. The connection has a
    short one.
    """
    started = time.monotonic()
    interrupted = None
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            time_now = time.monotonic()
            if interrupted is None and is_interrupted():
                interrupted = time_now
            has_waited = time_now - started > _LONGEST_LOCK or (
                interrupted is not None and time_now - interrupted > _LAST_WAIT
            )
            if "locked" not in str(error) or has_waited:
                raise
        else:
            return


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
                StoredPartIds()
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
        best = (
            "WHERE key = ? AND fault = '' AND outputs IS NOT NULL "
            "ORDER BY (run = ? AND query_id = ?) DESC, (run = ?) DESC, id LIMIT 1"
        )
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
            "anew: the answers stay, and are not paid for again"
        )
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
    opened.executescript(_TABLE + _PARTS)
    for column in _COLUMNS:
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


# Seconds; a query with less time left may fail for that alone: no pause between two attempts is
# longer
_SHORT = 15.0

_Failure = tuple[Exception, TracebackType | None]  # of a request that others wait for as well
_Price = Callable[[Usage], float | None]


def open_ledger(folder: Path, *, runs: Path | None = None) -> "Ledger":
    """Open the ledger of the run in `folder`, RUNS/task/name, or of a compilation anywhere in `runs`, or begin it."""
    mark = folder / "run-id"
    try:
        if not mark.exists():
            files.replace(mark, uuid.uuid4().hex[:12] + "\n")
        run = f"{folder.parent.name}/{folder.name}/{mark.read_text(encoding='utf-8').strip()}"
    except ValueError:
        mend = "sextant cache list --json has the run's id, to be put back"
        raise DataError(f"{mark} is not UTF-8; {mend}") from None
    except OSError as error:
        raise RunIncomplete(f"{mark}: {error.strerror or error}; {files.remedy(error)}") from None
    return Ledger(open_answers((runs or folder.parent.parent) / NAME), run)


class Ledger:
    """The ledger of a run: it looks up stored answers and records the run's requests. Threads share
    it.
    """

    def __init__(self, answers: ResponseCache, run: str) -> None:
        self.answers = answers
        answers.settle()
        self.run = storable(run)
        self._lock = threading.Lock()
        # By key: requests on their way, with what an equal one waits for, if there is one
        self._sent = dict[str, Future[_Failure | None] | None]()
        self.usage_totals, self._marks = answers.books_and_marks(
            self.run
        )  # those of earlier sittings included
        self.cassette: tuple[Mapping[str, ModelResponse], str] | None = None  # as in Terms

    @contextmanager
    def turn(
        self,
        query_id: str,
        key: str,
        model: str,
        price: _Price = lambda usage: None,
        *,
        deadline: float = math.inf,
    ) -> Iterator[ModelResponse | None]:
        """Give the block an answer to its request; None if there is none, and the block has to send
        and book it.

        `price` gives the list price of an answer, if that was not known when it came. An equal
        request that is in flight is waited for, until the `deadline` by time.monotonic;
        TimeoutError then. An Exception of the block is raised by all that wait, which would
        otherwise fail in sequence. They try themselves if it may be of this query alone: a limit of
        its session, or a deadline that is near.
        """
        self._wait_for_turn(key, deadline)
        failure = None
        try:
            yield self._take(storable(query_id), key, model, price)
        except Exception as error:
            if deadline - time.monotonic() > _SHORT and not isinstance(error, SessionRefusal):
                failure = error, error.__traceback__
            raise
        finally:
            with self._lock:
                awaited = self._sent.pop(key)
            if awaited:
                awaited.set_result(failure)

    def _wait_for_turn(self, key: str, deadline: float) -> None:
        """Wait until no other request for `key` is in flight. Raises its failure, if that is for
        all.
        """
        while True:
            with self._lock:
                if key not in self._sent:
                    self._sent[key] = None
                    return
                awaited = self._sent[key] = self._sent[key] or Future()
            try:
                failure = awaited.result(min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
            except TimeoutError:
                raise TimeoutError(
                    "the same request of another query is not answered yet"
                ) from None
            if failure:
                raise failure[0].with_traceback(
                    failure[1]
                )  # where it went wrong, without those that have waited

    def _take(self, query_id: str, key: str, model: str, price: _Price) -> ModelResponse | None:
        if self.cassette is None:
            cached = self.answers.take(key, self.run, query_id)
        elif key in self.cassette[0]:
            cached = self.cassette[0][key], "", ""
        else:
            reason = (
                "it was recorded with another command, data or version; name a new file to record"
            )
            raise ProviderRefused(
                f"{self.cassette[1]} has no answer to a call of query {query_id!r}: {reason}"
            )
        if cached is None:
            return None
        answer, run, payer = cached
        if run == self.run and payer == query_id:
            return answer  # this query's own, from an earlier sitting: paid for by it, then as now
        list_usd = answer.usage.list_usd
        if list_usd is None and not answer.usage.unmetered:
            list_usd = price(answer.usage)  # nobody knew it then
        usage = replace(answer.usage, paid_usd=0.0, list_usd=list_usd, cached_calls=1)
        with self._lock:  # it is booked once, in however many sittings the query asks
            is_booked = (mark := hash((query_id, key))) in self._marks
            self._marks.add(mark)
        if not is_booked:
            self._book(cached=1, usage=Usage(list_usd=list_usd))
            row = self._row(query_id, key, model, ModelResponse([], usage, answer.finish), CACHED)
            self.answers.write([row | {"outputs": None}], wait=False)
        return answer._replace(usage=usage)

    def answered(
        self,
        query_id: str,
        key: str,
        model: str,
        answer: ModelResponse,
        sent: Packed | None = None,
    ) -> None:
        """Book an answered request, `sent` in parts; it is on disk when this returns, or RunIncomplete."""
        request, parts = sent or (None, {})
        self.answers.write(
            [self._row(query_id, key, model, answer, "") | {"request": request}], parts
        )
        self._book(sent=1, answered=1, usage=answer.usage)

    def used_by_query(self) -> dict[str, Usage]:
        """Return query_id -> the usage of its answered requests, cached answers included."""
        usage_by_query = defaultdict[str, Usage](Usage)
        condition = "WHERE run = ? AND query_id != '' AND fault IN ('', ?, ?)"
        for row in self.answers.select(("query_id", "usage"), condition, (self.run, CACHED, INDEX)):
            usage_by_query[row["query_id"]] += usage_from_json(row["usage"])
        return dict(usage_by_query)

    def gather(self, shard: "Ledger") -> None:
        """Take over the rows of a shard's ledger that are not here yet, all or none."""
        self.answers.gather(self.run, shard.answers, shard.run)

    def speed(self) -> dict[str, float]:
        """Return the median of seconds to a first token, and tokens a second from there; {} if none
        was streamed.
        """
        statement = (
            "SELECT first, seconds - first, json_extract(usage, '$.output_tokens') FROM calls"
        )
        rows = self.answers.query(
            f"{statement} WHERE run = ? AND fault = '' AND first IS NOT NULL", (self.run,)
        )
        firsts, writing, tokens = zip(*rows, strict=True) if rows else ((), (), ())
        rate = {"tokens_a_second": round(sum(tokens) / sum(writing), 1)} if sum(writing) else {}
        return {"first_token_seconds": median(firsts)} | rate if rows else {}

    def book(
        self,
        model: str,
        usage: Usage,
        *,
        fault: str = "",
        seconds: float = 0.0,
        query_id: str = "",
        key: str = "",
    ) -> None:
        """Book a request without an answer, by its `fault`; without a fault, the cost of an index."""
        row = self._row(
            query_id,
            key,
            model,
            ModelResponse([], usage, "" if fault else "stop", seconds),
            fault or INDEX,
        )
        with suppress(RunIncomplete) if fault else nullcontext():  # the failure itself is reported
            self.answers.write([row])
        calls = 0 if fault else usage.calls
        self._book(
            sent=1 if fault else calls, answered=calls, fault=fault and row["fault"], usage=usage
        )

    def _book(
        self, *, usage: Usage, sent: int = 0, answered: int = 0, cached: int = 0, fault: str = ""
    ) -> None:
        with self._lock:
            old = self.usage_totals
            faults = {**old.faults, fault: old.faults.get(fault, 0) + 1} if fault else old.faults
            self.usage_totals = UsageTotals(
                old.sent + sent,
                old.answered + answered,
                old.cached + cached,
                faults,
                old.usage + usage,
            )

    def _row(self, query_id: str, key: str, model: str, answer: ModelResponse, fault: str) -> Row:
        try:
            outputs = json.dumps(answer.outputs)
        except TypeError:
            outputs = None  # an output that JSON cannot hold: better paid for again than changed
        return {
            "key": key,
            "run": self.run,
            "query_id": storable(query_id),
            "model": storable(model),
            "at": round(time.time(), 3),
            "seconds": round(answer.seconds, 3),
            "fault": storable(fault)[:LONGEST_WORD],
            "usage": json.dumps(usage_json(answer.usage)),
            "outputs": outputs,
            "finish": storable(answer.finish)[:LONGEST_WORD],
            "request": None,
            "reasoning": storable(answer.reasoning) or None,
            "first": None if answer.first is None else round(answer.first, 3),
        }
