"""Say what a command is doing while nothing else is printed: loading, opening, compiling, scoring."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from sextant.tools.platform import cli
from sextant.tools.platform.number_format import duration

T = TypeVar("T")
# Stands for an item after the last.
END = object()
# Seconds without output after which a terminal has a line, which then counts the seconds.
TERMINAL_SECONDS = 2.0
# The same in a log, and the seconds between two lines.
LOG_SECONDS = 2.0
LOG_INTERVAL = 30.0
# Seconds between two looks.
_LOOK = 0.5
# The activities that have a line on the terminal now; an outer one leaves it to those within it.
_drawn = list[object]()
_DRAWING = threading.Lock()


@contextmanager
def announced(activity: str) -> Iterator[None]:
    """Say on stderr what takes longer than two seconds, and how long it has taken so far.

    A line in place on a terminal, which goes when the activity has ended or prints something of its
    own; in a log a line after two seconds, and then every half minute. JSON has none. Activities
    may be nested: the terminal has the innermost that takes so long, a log one of them.
    """
    if not cli.shows_progress():
        yield
        return
    ended = threading.Event()
    teller = threading.Thread(target=_tell, args=(activity, ended), daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        if ended in _drawn:
            _drawn.remove(ended)
        cli.erase_line()


def each_announced(activity: str, items: Iterable[T]) -> Iterator[T]:
    """Yield the items, of which each may take long to come, as `announced` says it."""
    iterator = iter(items)
    while True:
        with announced(activity):
            item = next(iterator, END)
        if item is END:
            return
        yield cast(T, item)


def _tell(activity: str, ended: threading.Event) -> None:
    started = time.monotonic()
    due = started + LOG_SECONDS
    while not ended.wait(_LOOK):
        now = time.monotonic()
        text = f": {duration(now - started)} so far"
        if cli.draws_on_stderr():
            if now - max(started, cli.last_output()) < TERMINAL_SECONDS:
                continue
            with _DRAWING:
                if ended not in _drawn:
                    _drawn.append(ended)
                if _drawn[-1] is ended:
                    cli.draw_line(activity, text)
            continue
        with _DRAWING:
            if now >= due and now - cli.last_output() >= LOG_SECONDS:
                due = now + LOG_INTERVAL
                cli.print_stderr(f"{activity}{text}")
