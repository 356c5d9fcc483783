"""Two-way lines between a coordinator and a worker: any number over one connection, each for a thread at
either end.

Messages are pickled, because both sides are processes of a run and one user. A connection has the
methods of multiprocessing's: `send_bytes`, `recv_bytes`, with EOFError or OSError once the other
side is gone, and `close`, which ends a wait in another thread.
"""

import io
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import count
from queue import SimpleQueue
from typing import Any

from sextant.tools.platform.interrupts import start_thread
from sextant.tools.records import JsonObject


class PeerClosed(BaseException):
    """The other side has ended. No Exception, because it must not be taken for a fault of a model or a program."""


class Line:
    """A line, which one thread at either end uses."""

    def __init__(self, link: "Connection", number: int) -> None:
        self._link = link
        self._number = number
        self.arrived = SimpleQueue[Any]()

    def send(self, *message: Any) -> None:
        """Send a message. Gone if the other side has closed."""
        self._link.send(self._number, message)

    def receive(self) -> Any:
        """Wait for a message, a tuple. Gone if none will come."""
        if (message := self.arrived.get()) is None:
            raise PeerClosed
        return message


class Connection:
    """An end of a connection. Threads share it."""

    def __init__(
        self,
        connection: Any,
        answer: Callable[[Line], object],
        hear: Callable[[str], None],
        first: int,
    ) -> None:
        """`answer` is called with each line that the other side opens, in a thread of its own;
        `hear` with words.

        Lines of this side have the numbers `first`, which is 1 or 2, `first` + 2, and so on; 0 is
        for words.
        """
        self._connection = connection
        self._hear = hear
        self._numbers = count(first, 2)
        self._answer = answer
        self._parity = first % 2
        self._lines = dict[int, Line]()
        self._gone = False
        self._sending = threading.Lock()
        # queries that the other side is at, and whether one keeps others out
        self.busy = 0
        self.alone = False
        self.core: int | None = None  # that the other side keeps to

    @contextmanager
    def open(self) -> Iterator[Line]:
        """Open a line, for the block."""
        number = next(self._numbers)
        try:
            yield self._add(number)
        finally:
            del self._lines[number]

    def send(self, number: int, message: Any) -> None:
        """Send a message of a line. Gone as of a line."""
        file = io.BytesIO()
        _Pickler(file, 5).dump((number, message))
        try:
            with self._sending:
                self._connection.send_bytes(file.getvalue())
        except (OSError, EOFError):
            raise PeerClosed from None

    def listen(self) -> None:
        """Forward each message until the other side closes."""
        with suppress(EOFError, OSError):
            while True:
                self._hand_on(
                    *pickle.loads(self._connection.recv_bytes())
                )  # from a process of ours
        self._gone = True
        for line in list(self._lines.values()):
            line.arrived.put(None)

    def _hand_on(self, number: int, message: Any) -> None:
        if not number:
            self._hear(message)
            return
        # A number of this side's parity is a line that this side began, and that is over.
        if number not in self._lines and number % 2 != self._parity:
            start_thread(partial(self._answer, self._add(number))).add_done_callback(
                lambda _: self._lines.pop(number)
            )
        if line := self._lines.get(number):
            line.arrived.put(message)

    def close(self) -> None:
        """End the connection, and with it the other side."""
        self._connection.close()

    def _add(self, number: int) -> Line:
        line = self._lines[number] = Line(self, number)
        if self._gone:
            line.arrived.put(None)
        return line


class _Pickler(pickle.Pickler):
    """Takes exceptions apart by itself: many cannot be rebuilt by calling their constructor."""

    def reducer_override(self, pickled: Any) -> Any:
        if not isinstance(pickled, BaseException):
            return NotImplemented
        arguments = tuple(
            argument if _is_plain(argument) else str(argument) for argument in pickled.args
        )
        attributes = {name: value for name, value in vars(pickled).items() if _is_plain(value)}
        return _make_error, (
            type(pickled).__module__,
            type(pickled).__qualname__,
            arguments,
            attributes,
        )


def _is_plain(value: Any) -> bool:
    with suppress(Exception):
        pickle.loads(pickle.dumps(value))  # made here
        return True
    return False


def _make_error(
    module: str,
    name: str,
    arguments: tuple[Any, ...],
    attributes: JsonObject,
) -> Exception:
    try:
        error_type: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError):  # a class of a user's file, or of a function
        error_type = type(name.rpartition(".")[2], (Exception,), {"__module__": "builtins"})
    error: Exception = error_type.__new__(error_type, *arguments)
    error.__dict__ |= attributes
    return error
