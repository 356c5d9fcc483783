"""A connection that threads share is closed when no statement of it runs."""

import sqlite3
import threading

import pytest

from sextant.tools.platform import sqlite
from sextant.tools.platform.sqlite import close_when_unused


@pytest.fixture
def busy():
    """A connection, its lock, and events: a thread is inside a statement, and may leave it; what the statement gave."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    lock = threading.Lock()
    inside = threading.Event()
    leave = threading.Event()
    results = []

    def wait():
        inside.set()
        assert leave.wait(10)
        return 7

    def work():
        with lock:
            results.append(connection.execute("SELECT wait()").fetchone())

    connection.create_function("wait", 0, wait)
    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    yield connection, lock, leave, results
    leave.set()
    thread.join()


def test_a_connection_is_closed_after_the_statement_of_another_thread(busy):
    connection, lock, leave, results = busy
    closing = threading.Thread(target=close_when_unused, args=(connection, lock))
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    leave.set()
    closing.join(10)
    assert results == [(7,)]
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_a_connection_stays_open_where_a_thread_hangs_in_it(busy, monkeypatch):
    connection, lock, leave, results = busy
    monkeypatch.setattr(sqlite, "LONGEST_WAIT", 0.1)
    close_when_unused(connection, lock)
    leave.set()
    with lock:
        assert connection.execute("SELECT 1").fetchone() == (1,) and results == [(7,)]
