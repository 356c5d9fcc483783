"""One thread computes at a time, and those that wait for a server or a disk step aside.

Python runs one thread at a time anyway. Left alone, hundreds of threads that have something to do wake each other
some thousand times a second to ask for their turn, which takes a good part of the processor.
Here they stand in a line, which costs nothing while they wait, and each is woken when its turn has come.

It is a courtesy, not a right: who has waited for a quarter of a second takes the turn from whoever hangs in it.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PATIENCE = 0.25  # seconds

_MINE = threading.local()  # .place: this thread's in the line, if it queues at all


class _Place:
    """One thread's. It sleeps on `woken`, and has the turn when that is released."""

    def __init__(self) -> None:
        self.woken = threading.Lock()
        self.woken.acquire()
        self.aside = True


class _Line:
    """Who has the turn, and who waits for it."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._turn: _Place | None = None
        self._waiting = deque[_Place]()

    def enter(self, place: _Place) -> None:
        """Give `place` the turn, or put it into the line; from any thread."""
        with self._changing:
            if self._turn is None:
                self._turn = place
                place.woken.release()
            else:
                self._waiting.append(place)

    def await_turn(self, place: _Place) -> None:
        """Sleep until `place`, which has entered, has the turn."""
        if not place.woken.acquire(timeout=_PATIENCE):
            self.steal(place)
        place.aside = False

    def steal(self, place: _Place) -> None:
        """Give `place` the turn, whoever has it."""
        with self._changing:
            if not place.woken.acquire(blocking=False):  # it was not given in this very moment
                with suppress(ValueError):
                    self._waiting.remove(place)
                self._turn = place

    def leave(self, place: _Place) -> None:
        """Give the turn on, if `place` has it still."""
        with self._changing:
            if self._turn is place:
                self._turn = self._waiting.popleft() if self._waiting else None
                if self._turn:
                    self._turn.woken.release()


_LINE = _Line()


@contextmanager
def taking_part() -> Iterator[None]:
    """Inside, this thread waits for its turns; threads that it starts do not."""
    _MINE.place = place = _Place()
    _LINE.enter(place)
    _LINE.await_turn(place)
    try:
        yield
    finally:
        leave()
        del _MINE.place


@contextmanager
def aside() -> Iterator[None]:
    """Inside, this thread only waits, or works outside of the line; another one computes meanwhile."""
    with returning():
        leave()
        yield


@contextmanager
def returning() -> Iterator[None]:
    """Who steps aside inside, by `leave`, has the turn again at the end of the block."""
    place: _Place | None = getattr(_MINE, "place", None)
    inside = place is not None and not place.aside
    try:
        yield
    finally:
        if inside and place and place.aside:
            _LINE.enter(place)
            _LINE.await_turn(place)


class Errand:
    """Something that another thread does for this one, which steps aside and sleeps until it is done."""

    def __init__(self) -> None:
        self._place: _Place | None = getattr(_MINE, "place", None)
        self._done = threading.Lock()
        self._done.acquire()
        self._over = False

    def wait(self) -> None:
        """Sleep until `done`, and be woken once, with the turn."""
        place = self._place
        if place is None:
            self._done.acquire()
            return
        leave()
        while not place.woken.acquire(timeout=_PATIENCE):
            if self._over:
                _LINE.steal(place)
                break
        place.aside = False

    def done(self) -> None:
        """It is; said by the other thread."""
        if self._place is None:
            self._done.release()
        else:
            _LINE.enter(self._place)
        self._over = True  # after that: who steals the turn before it is in the line would be in it twice


def leave() -> None:
    """Step aside until the end of the block of `returning` that this is in."""
    place: _Place | None = getattr(_MINE, "place", None)
    if place is not None and not place.aside:
        place.aside = True
        _LINE.leave(place)
