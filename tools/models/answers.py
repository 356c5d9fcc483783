"""Every request that was sent to a model and every answer that came back, on disk before the program sees it.

One SQLite file beside the run folders, RUNS/answers.sqlite3, serves all runs and compilations in it. It is two things
at once, so that a crash cannot part them: the cache of answers, under a key of everything that shapes an answer, and
the ledger of each run: what it sent, what failed and why, what it paid. A request has one row; an answer that had been
paid for before has one, too, without text. Prompts are not kept: they are twenty times as large as the answers, and
the traces say what was shown.

Left out: shared file systems whose locks do not work (SQLite's WAL needs them), and several machines.
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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tools import disk
from tools.console import AT_END
from tools.errors import DataError, ProviderRefused, RunIncomplete, SessionRefusal
from tools.models.forms import cells
from tools.models.rows import WORDS, Batch, Row, open_table, readable, storable, write_pending
from tools.records import Usage, usage_from_json, usage_json

_LOG = logging.getLogger("sextant")
NAME = "answers.sqlite3"
CACHED = "cached"  # in the place of a fault: nothing was sent, because an answer was there
INDEX = "index"  # and here: what an index has cost that the run is the first to use, and what searching in it costs

_UNWRITTEN = 100  # rows that nobody waits for, and that a kill may lose
# Seconds. A query with less time than this left may have given a request up for that: no pause between two attempts
# is longer (tools/models/call.py).
_SHORT = 15.0


class Answer(NamedTuple):
    """The answer of a model, and the tokens and dollars that it used."""

    outputs: list[Any]
    usage: Usage
    finish: str = "stop"  # or why the answer ended otherwise
    seconds: float = 0.0  # that it took


class Books(NamedTuple):
    """The number of requests that one run has sent, and what they used.

    `usage` is of its answered requests, and of failed ones that reported any; at list price, of cached answers as well.
    """

    sent: int = 0
    answered: int = 0
    cached: int = 0
    faults: Mapping[str, int] = {}
    usage: Usage = Usage()

    def json(self) -> dict[str, Any]:
        """Return the books as --json prints them."""
        failed = {"failed": sum(self.faults.values()), "faults": dict(sorted(self.faults.items()))}
        return {"sent": self.sent, "answered": self.answered, **failed, "cached": self.cached, **usage_json(self.usage)}


class Answers:
    """The file. Threads and processes share it."""

    def __init__(self, path: Path) -> None:
        """DataError when there is a file that is none of ours, or damaged."""
        self.path = path
        self._lock = threading.Lock()
        self._pending = list[Batch]()  # to be written, by whoever comes first
        self._writing = threading.Lock()
        self._ledgers = dict[str, Ledger]()
        with readable(path):
            disk.make_private(path.parent)
            disk.open_file(path, "ab").close()  # SQLite gives the files beside it the same mode
            self._reader, self._writer = open_table(path), open_table(path)
            keys = self._reader.execute("SELECT key FROM calls WHERE fault = ''")
            self._known = {hash(key) for (key,) in keys}  # most requests are new, and need not look
        self.close = weakref.finalize(self, _close, path, self._pending, self._writing, self._writer, self._reader)
        AT_END.append(self.close)

    def take(self, key: str, run: str = "", query_id: str = "") -> tuple[Answer, str, str] | None:
        """An answer to a request, with the run and the query that paid for it.

        Where several have paid, as runs side by side do, it is the one that this query of this run has paid for; else
        one of this run; else the first.
        """
        with self._lock:
            if hash(key) not in self._known:
                return None
            columns = ("outputs", "usage", "finish", "seconds", "run", "query_id")
            with readable(self.path):
                row = self._reader.execute(
                    f"SELECT {', '.join(columns)} FROM calls WHERE key = ? AND fault = '' AND outputs IS NOT NULL "
                    "ORDER BY (run = ? AND query_id = ?) DESC, (run = ?) DESC, id LIMIT 1",
                    (key, run, query_id, run),
                ).fetchone()
        if row is None:  # another process has cleared it away
            return None
        try:
            found = cells(columns, row)
        except ValueError as error:
            raise DataError(
                f"{self.path}: the answer {key} is damaged ({error}); python -m programs.lm cache clear --key {key}"
            ) from None
        answer = Answer(found["outputs"], usage_from_json(found["usage"]), found["finish"], found["seconds"])
        return answer, found["run"], found["query_id"]

    def write(self, rows: list[Row], *, wait: bool = True) -> None:
        """Put rows on disk; they are safe when this returns, if it waits. RunIncomplete when they cannot be.

        A transaction costs twenty times what a row does. While one is under way, rows of other threads gather, and
        the first of these writes them all.
        """
        batch = Batch(rows)
        with self._lock:
            if not self.close.alive:
                raise RunIncomplete(f"{self.path} is closed; the same command goes on")
            self._pending.append(batch)
        if not wait and len(self._pending) < _UNWRITTEN:
            return
        write_pending(self._pending, self._writing, self._writer)
        if wait and batch.error:
            raise RunIncomplete(f"{self.path}: {batch.error}; an answer could not be written; make room") from None
        with self._lock:
            self._known.update(hash(row.key) for row in rows if not row.fault and row.outputs)

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
        """Return what a run has sent and used so far."""
        return self.books_and_marks(run)[0]

    def books_and_marks(self, run: str) -> tuple[Books, set[int]]:
        """Return a run's books and marks of the cached answers in them, each of which counts once for a query."""
        sent, usage, marks = Counter[str](), Usage(), set[int]()
        with self._lock, readable(self.path):
            columns = ("fault", "usage", "query_id", "key")
            rows = self._reader.execute(f"SELECT {', '.join(columns)} FROM calls WHERE run = ?", (run,))
            try:
                for row in rows:
                    found = cells(columns, row)
                    fault, query_id, key = found["fault"], found["query_id"], found["key"]
                    used = usage_from_json(found["usage"])
                    if fault == CACHED:
                        if _mark(query_id, key) in marks:
                            continue
                        marks.add(_mark(query_id, key))
                        used = Usage(list_usd=used.list_usd)
                    usage += used
                    sent[fault] += used.calls if fault == INDEX else 1
            except ValueError as error:
                raise DataError(
                    f"{self.path}: the books of {run} are damaged ({error}); remove the file run-id of its folder to "
                    "begin them anew: the answers stay, and are not paid for again"
                ) from None
        answered, cached = sent.pop("", 0) + sent.pop(INDEX, 0), sent.pop(CACHED, 0)
        return Books(sent.total() + answered, answered, cached, dict(sent), usage), marks

    def of_run(self, run: str) -> Iterator[tuple[str, Answer]]:
        """Each answer that a run has used, paid by it or not, with its key and in the order of the keys.

        Where it has paid, the answer is its own, whatever others have got for the same request.
        """
        self.settle()
        statement = "SELECT DISTINCT key FROM calls WHERE run = ? AND fault IN ('', ?) ORDER BY key"
        for (key,) in self.query(statement, (run, CACHED)):
            found = self.take(key, run)
            if found is None:
                raise DataError(f"the answer {key} of this run was cleared away, so the run cannot be recorded")
            yield key, found[0]

    def query(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, for the command that lists and clears answers, and return what it finds."""
        values = [storable(value) if isinstance(value, str) else value for value in parameters]
        with self._lock, readable(self.path):
            return self._reader.execute(statement, values).fetchall()


def _close(
    path: Path, pending: list[Batch], writing: threading.Lock, writer: sqlite3.Connection, reader: sqlite3.Connection
) -> None:
    """Put everything into the one file. Where another process has it open as well, the last of them completes that."""
    write_pending(pending, writing, writer)
    try:
        writer.close()
        reader.execute("PRAGMA busy_timeout = 0")
        reader.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        _LOG.warning(f"{path}: {error}; its last answers may be in {path.name}-wal alone: keep both")
    finally:
        reader.close()


def _mark(query_id: str, key: str) -> int:
    """Stands for a query and a key in this process; a number, because there may be a million of them."""
    return hash((query_id, key))


_OPENED = weakref.WeakValueDictionary[Path, Answers]()  # one for a file: its rows are written by one thread
_OPENING = threading.Lock()


def open_answers(path: Path) -> Answers:
    """The answers kept in `path`, a file."""
    path = path.resolve()
    with _OPENING:
        found = _OPENED.get(path)
        if found is None or not found.close.alive:
            found = _OPENED[path] = Answers(path)
        return found


def open_ledger(folder: Path, *, runs: Path | None = None) -> "Ledger":
    """The ledger of the run in `folder`, RUNS/task/name, or of a compilation anywhere in `runs`.

    It is new when the folder is.
    """
    mark = folder / "run-id"
    try:
        if not mark.exists():
            disk.replace(mark, uuid.uuid4().hex[:12] + "\n")
        run = f"{folder.parent.name}/{folder.name}/{mark.read_text(encoding='utf-8').strip()}"
    except ValueError:
        raise DataError(
            f"{mark} is not UTF-8; python -m programs.lm cache list --json has the run's id, to be put back"
        ) from None
    except OSError as error:
        raise RunIncomplete(f"{mark}: {error.strerror}; make room") from None
    return open_answers((runs or folder.parent.parent) / NAME).ledger(run)


_Failure = tuple[Exception, TracebackType | None]  # of a request that others wait for as well


class Ledger:
    """The ledger of one run: it takes answers that are there and books what the run sends. Threads share it."""

    def __init__(self, answers: Answers, run: str) -> None:
        self.answers = answers
        self.run = storable(run)
        self._lock = threading.Lock()
        self._sent = dict[
            str, Future[_Failure | None]
        ]()  # requests on their way, that others who ask the same wait for
        self._books, self._marks = answers.books_and_marks(self.run)
        self._faults = Counter(self._books.faults)
        self._replayed: Mapping[str, Answer] | None = None
        self._source = ""

    def replay(self, answers: Mapping[str, Answer], source: str) -> None:
        """From here on, answer every request from these, which are of `source`, and send none."""
        self._replayed, self._source = answers, source

    @property
    def books(self) -> Books:
        """The books of the run, those of earlier sittings included."""
        with self._lock:
            return self._books._replace(faults=dict(self._faults))

    @contextmanager
    def turn(
        self,
        query_id: str,
        key: str,
        model: str,
        price: Callable[[Usage], float | None] = lambda usage: None,
        *,
        deadline: float = math.inf,
    ) -> Iterator[Answer | None]:
        """The answer to a request where there is one; else None, and it is the block's to be sent and booked.

        `price` says what an answer is worth at list price, where that was not known when it came. Who asks what is on
        its way waits for it, until its own `deadline` by time.monotonic; TimeoutError then. When the block raises an
        Exception, all who wait raise it, too: else each would ask the same in vain, one after the other. They try
        themselves where it may be of this query alone: a limit of its session, or its own deadline, which is near.
        """
        mine, failure = self._turn(key, deadline), None
        try:
            yield self._take(storable(query_id), key, model, price)
        except Exception as error:
            if deadline - time.monotonic() > _SHORT and not isinstance(error, SessionRefusal):
                failure = error, error.__traceback__
            raise
        finally:
            with self._lock:
                del self._sent[key]
            mine.set_result(failure)

    def _turn(self, key: str, deadline: float) -> "Future[_Failure | None]":
        """The turn to ask for `key`, once nobody else does. Raises the failure of whoever did, where it is for all."""
        while True:
            with self._lock:
                other = self._sent.get(key)
                if other is None:
                    mine = self._sent[key] = Future()
                    return mine
            try:
                failure = other.result(min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
            except TimeoutError:
                raise TimeoutError("the same request of another query is not answered yet") from None
            if failure:
                raise failure[0].with_traceback(failure[1])  # where it went wrong, without who else has waited

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
            found = self.answers.take(key, self.run, query_id)
        if found is None:
            return None
        answer, run, payer = found
        if run == self.run and payer == query_id:
            return answer  # this query's own, from an earlier sitting: paid for by it, then as now
        listed = answer.usage.list_usd
        if listed is None and not answer.usage.unmetered:
            listed = price(answer.usage)  # nobody knew it then
        usage = replace(answer.usage, paid_usd=0.0, list_usd=listed, cached_calls=1)
        self._cached(query_id, key, model, Answer([], usage, answer.finish))
        return answer._replace(usage=usage)

    def _cached(self, query_id: str, key: str, model: str, answer: Answer) -> None:
        """Book that a query has used what somebody else paid for; once, in however many sittings it asks."""
        with self._lock:
            if _mark(query_id, key) in self._marks:
                return
            self._marks.add(_mark(query_id, key))
            books, worth = self._books, Usage(list_usd=answer.usage.list_usd)
            self._books = books._replace(cached=books.cached + 1, usage=books.usage + worth)
        self.answers.write([self._row(query_id, key, model, answer, CACHED)._replace(outputs=None)], wait=False)

    def answered(self, query_id: str, key: str, model: str, answer: Answer) -> None:
        """Book a request that was answered; the answer is safe when this returns. RunIncomplete when it cannot be."""
        self.answers.write([self._row(query_id, key, model, answer, "")])
        self._book(1, answer.usage)

    def failed(self, query_id: str, key: str, model: str, fault: str, usage: Usage, seconds: float) -> None:
        """Book a request that was left without an answer that can be used."""
        row = self._row(query_id, key, model, Answer([], usage, "", seconds), fault)
        with suppress(RunIncomplete):  # what is told is the failure
            self.answers.write([row])
        with self._lock:
            self._faults[row.fault] += 1
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

    def _row(self, query_id: str, key: str, model: str, answer: Answer, fault: str) -> Row:
        try:
            outputs = json.dumps(answer.outputs)
        except TypeError:
            outputs = None  # an output that JSON cannot hold: better paid for again than changed
        usage = json.dumps(usage_json(answer.usage))
        at, seconds = round(time.time(), 3), round(answer.seconds, 3)
        fault, finish = storable(fault)[:WORDS], storable(answer.finish)[:WORDS]
        return Row(key, self.run, storable(query_id), storable(model), at, seconds, fault, usage, outputs, finish)

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers copy the language model with the program; the books stay one.
        return self
