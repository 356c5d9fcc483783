"""The table of calls in SQLite: its rows, and how threads write them together."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tools.errors import DataError, RunIncomplete

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
COLUMNS = ("key", "run", "query_id", "model", "at", "seconds", "fault", "usage", "outputs", "finish")
_MOST = 1000  # rows in a statement; SQLite takes 32,766 values
WORDS = 100  # characters that are kept of why an answer ended, or of what went wrong: servers may send anything


class Row(NamedTuple):
    """The row of one request, in the order of the columns."""

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


class Batch:
    """Rows that go to disk together, and why they could not."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.error: Exception | None = None


def open_table(path: Path) -> sqlite3.Connection:
    """A connection to the file at `path`, which has the table; what it writes is on disk when the statement ends."""
    opened = sqlite3.connect(path, timeout=60.0, isolation_level=None, check_same_thread=False)
    opened.execute("PRAGMA journal_mode = WAL")
    opened.execute("PRAGMA synchronous = FULL")
    opened.executescript(_TABLE)
    return opened


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about the file at `path` into ours, which say what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "disk" in str(error):
            raise RunIncomplete(f"{path}: {error}; make room") from None
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            raise RunIncomplete(f"{path}: {error} by another process; the same command goes on") from None
        raise DataError(
            f"{path}: {error}; keep it, as its answers were paid for: sqlite3 {path} .recover | sqlite3 NEWFILE saves "
            "what can be read, to be put in its place; or choose another --runs"
        ) from None
    except OSError as error:
        raise RunIncomplete(f"{path}: {error.strerror}") from None


def write_pending(pending: list[Batch], writing: threading.Lock, opened: sqlite3.Connection) -> None:
    """Write all batches that are `pending`, all or none; another thread may have done so by now.

    Each of them notes what went wrong: whoever waits for it has to hear of it.
    """
    with writing:
        together = pending[:]
        del pending[: len(together)]
        rows = [row for batch in together for row in batch.rows]
        try:
            with opened:
                opened.execute("BEGIN")
                for first in range(0, len(rows), _MOST):
                    _insert(opened, rows[first : first + _MOST])
        except (sqlite3.Error, OSError) as error:
            for batch in together:
                batch.error = error


def _insert(opened: sqlite3.Connection, rows: list[Row]) -> None:
    """Insert many rows by one statement, so that Python's lock is released and taken once, and not once a row."""
    places = ", ".join([f"({', '.join('?' * len(COLUMNS))})"] * len(rows))
    values = [value for row in rows for value in row]
    opened.execute(f"INSERT INTO calls ({', '.join(COLUMNS)}) VALUES {places}", values)


def storable(text: object) -> str:
    """Text that SQLite takes: lone surrogates, as of a name that is not UTF-8, are question marks."""
    return str(text).encode("utf-8", "replace").decode("utf-8")
