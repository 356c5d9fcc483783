"""Every request sent to a model and every answer that came back, on disk before the program sees
it.

One SQLite file, RUNS/answers.sqlite3, is the cache of answers, under a key of everything that
shapes an answer, and the ledger of each run (what it sent, what failed and why, what it paid), so
that a crash cannot part them. Each request is a row; an answer that was paid for before is a row
without text. What was sent is kept beside it, in parts (tools/models/storage/request_store.py). Left out: several
machines, and file systems without locks, which WAL needs.
"""

import json
import logging
import math
import sqlite3
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, NamedTuple

from tools import files
from tools.cli import AT_END
from tools.errors import DataError, ProviderRefused, RunIncomplete, SessionRefusal
from tools.models.storage import request_store
from tools.models.storage.request_store import parse_row, translate_sqlite_errors
from tools.records import Usage, usage_from_json, usage_json
from tools.sqlite import LONGEST_WAIT, begin_writing, close_when_unused

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
_UNWRITTEN = 100  # rows that nobody waits for, and that a kill may lose
_LONGEST_WORD = 100  # characters kept of why an answer ended or failed: servers may send anything
# seconds; a query with less time left may fail for that alone: no pause between two attempts is
# longer
_SHORT = 15.0


class ModelResponse(NamedTuple):
    """The answer of a model, and the tokens and dollars that it used."""

    outputs: list[Any]
    usage: Usage
    finish: str = "stop"  # or why the answer ended otherwise
    seconds: float = 0.0  # that it took
    reasoning: str = ""  # of the model before it; it is kept, and not given to the program
    first: float | None = None  # seconds to its first token; None where it was not streamed


class UsageTotals(NamedTuple):
    """The number of requests that one run has sent, and what they used."""

    sent: int = 0
    answered: int = 0
    cached: int = 0
    faults: Mapping[str, int] = {}
    usage: Usage = (
        Usage()
    )  # of answered requests, and failed ones that reported any; list prices of cached ones, too

    def json(self) -> dict[str, Any]:
        """Return the books as --json prints them."""
        failed = {"failed": sum(self.faults.values()), "faults": dict(sorted(self.faults.items()))}
        return {
            "sent": self.sent,
            "answered": self.answered,
            **failed,
            "cached": self.cached,
            **usage_json(self.usage),
        }


_Row = dict[str, Any]  # of one request, by the names of the columns, of which each row has the same


class _WriteBatch:
    """What goes to disk together."""

    def __init__(self) -> None:
        self.rows = list[_Row]()
        self.parts = dict[int, bytes]()
        self.done = Future[None]()
        self.led = False  # whether a thread is going to write it


class _BatchWriter:
    """Writes rows in batches, because a transaction costs twenty times what a row does. Threads share it.

    What comes while one batch is on its way to disk is the next one, which the first thread that waits for it writes.
    """

    def __init__(self, writer: sqlite3.Connection) -> None:
        self.writer = writer
        self._batch = _WriteBatch()
        self.writer.execute("PRAGMA busy_timeout = 200")  # `begin_writing` waits for longer
        self._lock = threading.Lock()
        self.alone = threading.Lock()  # held while a batch is written

    def add(self, rows: list[_Row], parts: Mapping[int, bytes], *, wait: bool) -> None:
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

    def write(
        self, rows: list[_Row], parts: Mapping[int, bytes] = {}, *, wait: bool = True
    ) -> None:
        """Put rows and parts of requests on disk; with `wait`, they are there when this returns, or RunIncomplete."""
        if not self.close.alive:
            raise RunIncomplete(f"{self.path} is closed; the same command goes on")
        try:
            self._writing.add(rows, parts, wait=wait)
        except (sqlite3.Error, OSError) as error:
            wrong = f"{self.path}: {error}; an answer could not be written"
            raise RunIncomplete(f"{wrong}; {files.remedy(error)}") from None
        self._known.update(hash(row["key"]) for row in rows if not row["fault"] and row["outputs"])
        self.parts.note(parts)

    def settle(self) -> None:
        """Wait until all rows so far are on disk, those that nobody waited for included."""
        self.write([])

    def ledger(self, run: str) -> "Ledger":
        """Return the ledger of one run, which has all that this process has written."""
        self.settle()
        return Ledger(self, run)

    def books_and_marks(self, run: str) -> tuple[UsageTotals, set[int]]:
        """Return a run's books, and a hash of query and key for each cached answer in them, which counts once."""
        sent = Counter[str]()
        usage = Usage()
        marks = set[int]()
        damage = (
            f"the books of {run} are damaged; remove the file run-id of its folder to begin them "
            f"anew: "
        )
        damage += "the answers stay, and are not paid for again"
        for row in self.select(
            ("fault", "usage", "query_id", "key"), "WHERE run = ?", (run,), damage=damage
        ):
            fault = row["fault"]
            used = usage_from_json(row["usage"])
            if fault == CACHED:
                if (mark := hash((row["query_id"], row["key"]))) in marks:
                    continue
                marks.add(mark)
                used = Usage(list_usd=used.list_usd)
            usage += used
            sent[fault] += used.calls if fault == INDEX else 1
        answered = sent.pop("", 0) + sent.pop(INDEX, 0)
        cached = sent.pop(CACHED, 0)
        return UsageTotals(sent.total() + answered, answered, cached, dict(sent), usage), marks

    def of_run(self, run: str) -> Iterator[tuple[str, ModelResponse]]:
        """Yield the key and the answer of each request of a run, by key; its own answer, where it has paid for one."""
        self.settle()
        statement = "SELECT DISTINCT key FROM calls WHERE run = ? AND fault IN ('', ?) ORDER BY key"
        for (key,) in self.query(statement, (run, CACHED)):
            taken = self.take(key, run)
            if taken is None:
                raise DataError(
                    f"the answer {key} of this run was cleared away, so the run cannot be recorded"
                )
            yield key, taken[0]

    def select(
        self, columns: Sequence[str], rest: str, values: Sequence[Any] = (), *, damage: str = ""
    ) -> Iterator[dict[str, Any]]:
        """Yield columns of rows by name, with JSON read. DataError for a damaged row; `damage` says what to do."""
        with self._lock, translate_sqlite_errors(self.path):
            statement = f"SELECT {', '.join(columns)} FROM calls {rest}"
            for row in self._reader.execute(statement, [_storable(value) for value in values]):
                try:
                    yield parse_row(columns, row)
                except ValueError as error:
                    key = str(dict(zip(columns, row, strict=True)).get("key", "KEY"))[:16]
                    mend = (
                        damage
                        or f"the answer {key} is damaged; python -m programs.lm cache clear --key "
                        f"{key}"
                    )
                    raise DataError(f"{self.path}: {mend} ({error})") from None

    def clear(self, where: str, values: Sequence[Any]) -> None:
        """Remove the text of answers, and what was sent for them; their rows stay, as the books of runs need them."""
        self.query(
            f"UPDATE calls SET outputs = NULL, request = NULL, reasoning = NULL WHERE {where}",
            values,
        )
        needed = "SELECT value FROM calls, json_each(calls.request) WHERE request IS NOT NULL"
        self.query(f"DELETE FROM parts WHERE id NOT IN ({needed})")
        self.parts.clear()
        self.query("VACUUM")

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement of the command that lists and clears answers; return its rows."""
        with self._lock, translate_sqlite_errors(self.path):
            return self._reader.execute(
                statement, [_storable(value) for value in parameters]
            ).fetchall()


def _open_table(path: Path) -> sqlite3.Connection:
    """Connect to the file at `path`; what is written is on disk when the statement ends."""
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
    """Put everything into the one file; of several processes that have it open, the last one completes that."""
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


def _storable(value: Any) -> Any:
    """Return a value that SQLite takes: lone surrogates, as in a name not in UTF-8, become question marks."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


_OPENED = weakref.WeakValueDictionary[Path, ResponseCache]()
_OPENING = threading.Lock()


def open_answers(path: Path) -> ResponseCache:
    """Open the answers kept in the file `path`, once in a process: its rows are written by one thread."""
    path = path.resolve()
    with _OPENING:
        answers = _OPENED.get(path)
        if answers is None or not answers.close.alive:
            answers = _OPENED[path] = ResponseCache(path)
        return answers


def open_ledger(folder: Path, *, runs: Path | None = None) -> "Ledger":
    """Open the ledger of the run in `folder`, RUNS/task/name, or of a compilation anywhere in `runs`, or begin it."""
    mark = folder / "run-id"
    try:
        if not mark.exists():
            files.replace(mark, uuid.uuid4().hex[:12] + "\n")
        run = f"{folder.parent.name}/{folder.name}/{mark.read_text(encoding='utf-8').strip()}"
    except ValueError:
        mend = "python -m programs.lm cache list --json has the run's id, to be put back"
        raise DataError(f"{mark} is not UTF-8; {mend}") from None
    except OSError as error:
        raise RunIncomplete(f"{mark}: {error.strerror or error}; {files.remedy(error)}") from None
    return open_answers((runs or folder.parent.parent) / NAME).ledger(run)


_Failure = tuple[Exception, TracebackType | None]  # of a request that others wait for as well
_Price = Callable[[Usage], float | None]


class Ledger:
    """The ledger of one run: it takes answers that are kept and books what the run sends. Threads share it."""

    def __init__(self, answers: ResponseCache, run: str) -> None:
        self.answers = answers
        self.run = _storable(run)
        self._lock = threading.Lock()
        self._sent = dict[
            str, Future[_Failure | None]
        ]()  # by key: requests on their way; equal ones wait for them
        self.books, self._marks = answers.books_and_marks(
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
        """Give the block an answer to its request; None where there is none, and the block has to send and book it.

        `price` gives the list price of an answer, where that was not known when it came. An equal request that is in
        flight is waited for, until the `deadline` by time.monotonic; TimeoutError then. An Exception of the block is
        raised by all that wait, which would else fail one after the other. They try themselves where it may be of this
        query alone: a limit of its session, or a deadline that is near.
        """
        mine = self._wait_for_turn(key, deadline)
        failure = None
        try:
            yield self._take(_storable(query_id), key, model, price)
        except Exception as error:
            if deadline - time.monotonic() > _SHORT and not isinstance(error, SessionRefusal):
                failure = error, error.__traceback__
            raise
        finally:
            with self._lock:
                del self._sent[key]
            mine.set_result(failure)

    def _wait_for_turn(self, key: str, deadline: float) -> "Future[_Failure | None]":
        """Wait until no other request for `key` is in flight. Raises its failure, where that is for all."""
        while True:
            with self._lock:
                other = self._sent.get(key)
                if other is None:
                    mine = self._sent[key] = Future()
                    return mine
            try:
                failure = other.result(min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
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
            taken = self.answers.take(key, self.run, query_id)
        elif key in self.cassette[0]:
            taken = self.cassette[0][key], "", ""
        else:
            why = "it was recorded with another command, data or version; name a new file to record"
            raise ProviderRefused(
                f"{self.cassette[1]} has no answer to a call of query {query_id!r}: {why}"
            )
        if taken is None:
            return None
        answer, run, payer = taken
        if run == self.run and payer == query_id:
            return answer  # this query's own, from an earlier sitting: paid for by it, then as now
        listed = answer.usage.list_usd
        if listed is None and not answer.usage.unmetered:
            listed = price(answer.usage)  # nobody knew it then
        usage = replace(answer.usage, paid_usd=0.0, list_usd=listed, cached_calls=1)
        with self._lock:  # it is booked once, in however many sittings the query asks
            known = (mark := hash((query_id, key))) in self._marks
            self._marks.add(mark)
        if not known:
            self._book(cached=1, usage=Usage(list_usd=listed))
            row = self._row(query_id, key, model, ModelResponse([], usage, answer.finish), CACHED)
            self.answers.write([row | {"outputs": None}], wait=False)
        return answer._replace(usage=usage)

    def answered(
        self,
        query_id: str,
        key: str,
        model: str,
        answer: ModelResponse,
        sent: request_store.Packed | None = None,
    ) -> None:
        """Book an answered request, packed by kept.pack; it is on disk when this returns, or RunIncomplete."""
        request, parts = sent or (None, {})
        self.answers.write(
            [self._row(query_id, key, model, answer, "") | {"request": request}], parts
        )
        self._book(sent=1, answered=1, usage=answer.usage)

    def used_by_query(self) -> dict[str, Usage]:
        """Return query_id -> what its answered requests used, those included whose answers were there."""
        used = dict[str, Usage]()
        condition = "WHERE run = ? AND query_id != '' AND fault IN ('', ?, ?)"
        for row in self.answers.select(("query_id", "usage"), condition, (self.run, CACHED, INDEX)):
            query_id = row["query_id"]
            used[query_id] = used.get(query_id, Usage()) + usage_from_json(row["usage"])
        return used

    def speed(self) -> dict[str, float]:
        """Return the median of seconds to a first token, and tokens a second from there; {} where none was streamed."""
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
        """Book a request without an answer, by its `fault`; without one, what an index has cost."""
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
            old = self.books
            faults = {**old.faults, fault: old.faults.get(fault, 0) + 1} if fault else old.faults
            self.books = UsageTotals(
                old.sent + sent,
                old.answered + answered,
                old.cached + cached,
                faults,
                old.usage + usage,
            )

    def _row(self, query_id: str, key: str, model: str, answer: ModelResponse, fault: str) -> _Row:
        try:
            outputs = json.dumps(answer.outputs)
        except TypeError:
            outputs = None  # an output that JSON cannot hold: better paid for again than changed
        return {
            "key": key,
            "run": self.run,
            "query_id": _storable(query_id),
            "model": _storable(model),
            "at": round(time.time(), 3),
            "seconds": round(answer.seconds, 3),
            "fault": _storable(fault)[:_LONGEST_WORD],
            "usage": json.dumps(usage_json(answer.usage)),
            "outputs": outputs,
            "finish": _storable(answer.finish)[:_LONGEST_WORD],
            "request": None,
            "reasoning": _storable(answer.reasoning) or None,
            "first": None if answer.first is None else round(answer.first, 3),
        }
