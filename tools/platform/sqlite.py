"""SQLite connections that threads share: how to close them.

A process crashes if a thread closes a connection while another thread is inside a statement of it,
and Python does not prevent this for connections made with check_same_thread=False. So a lock is
held for each statement, and for closing.
"""

import sqlite3
import threading
import time

from sextant.tools.platform.interrupts import is_interrupted

LONGEST_LOCK = 60.0  # seconds for another process that has locked a file
LAST_WAIT = 1.0  # seconds of these after an interrupt
# Seconds for a statement of another thread; syncing one transaction to disk takes milliseconds
LONGEST_WAIT = 5.0


def begin_writing(connection: sqlite3.Connection) -> None:
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
            has_waited = time_now - started > LONGEST_LOCK or (
                interrupted is not None and time_now - interrupted > LAST_WAIT
            )
            if "locked" not in str(error) or has_waited:
                raise
        else:
            return


def close_when_unused(connection: sqlite3.Connection, lock: threading.Lock) -> None:
    """Close a connection under the lock that its statements take; later statements raise
    sqlite3.ProgrammingError.

    If a thread keeps the lock, as one that hangs does, the connection stays open: committed data is
    on disk.
    """
    if not lock.acquire(timeout=LONGEST_WAIT):
        return
    try:
        connection.close()
    finally:
        lock.release()
