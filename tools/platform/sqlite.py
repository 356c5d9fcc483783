"""SQLite connections that threads share: how to close them.

A process crashes if a thread closes a connection while another thread is inside a statement of it,
and Python does not prevent this for connections made with check_same_thread=False. So a lock is
held for each statement, and for closing.
"""

import sqlite3
import threading

# Seconds for a statement of another thread; syncing one transaction to disk takes milliseconds
LONGEST_WAIT = 5.0


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
