"""Reentrant locks that say when a thread takes one against the order in which all have to be taken."""

import random
import threading
import time


class LockOrder:
    """Makes locks of named kinds, which threads have to take in the order of `kinds`; keeps each violation."""

    def __init__(self, *kinds):
        self.kinds = kinds
        self.inversions = []
        self._of_thread = threading.local()

    def make(self, kind):
        return WatchedLock(self, kind)

    @property
    def held(self):
        """The locks that this thread holds, the last one last."""
        return self._of_thread.__dict__.setdefault("locks", [])


class WatchedLock:
    def __init__(self, order, kind):
        self._order, self.kind, self._lock = order, kind, threading.RLock()

    def acquire(self, blocking=True):
        held = self._order.held
        if (
            blocking and self not in held
        ):  # who does not wait, or has it already, keeps nobody waiting
            self._check(held)
            time.sleep(random.random() * 0.0005)  # other threads come in between here
        if not self._lock.acquire(blocking):
            return False
        held.append(self)
        return True

    def _check(self, held):
        place = self._order.kinds.index
        wrong = [lock.kind for lock in held if place(lock.kind) >= place(self.kind)]
        if wrong:
            self._order.inversions.append((wrong, self.kind))
            raise AssertionError(f"{self.kind} is taken while {' and '.join(wrong)} is held")

    def release(self):
        self._order.held.remove(self)
        self._lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *error):
        self.release()
