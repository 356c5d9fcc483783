"""How far a run is, for a person, on stderr: a live table on a terminal, plain lines elsewhere.

Everything is drawn by one thread that looks at the run four times a second; answering queries never waits for it.
Reasons to wait come from providers, so they are stripped of control characters before they are printed.
"""

import math
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evals.folder import Outcome
from evals.running.events import Beginning, Events, Pending, Progress, QueryDone, Resumed, Tally, Waiting, Waits
from tools.console import clean, say
from tools.console import queries as counted
from tools.models.terms import Status

LOOK_SECONDS = 0.25  # between two looks; the table is not drawn more often
PROGRESS_SECONDS = 1.0  # between two events of progress
# A plain line is due when this share of the queries has ended since the last one; when some have, after so many
# seconds; and when none has, after so many more, because their calls and dollars may have gone on.
PLAIN_SHARE = 0.25
PLAIN_SECONDS = 5.0
STILL_SECONDS = 60.0


class _Talk(Console):
    """The console for talk: when nobody listens, because the pipe is closed or the disk full, it falls silent."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        self.quiet = True  # rich would end the program


class Watch:
    """Follows one run while the block runs: for a person on `console`, for other programs through `events`."""

    def __init__(
        self,
        tally: Tally,
        status: Callable[[], Status],
        *,
        quiet: bool = False,
        events: Events | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tally` has the queries that were answered before; `status` says what the model's calls are doing."""
        self._tally = tally
        self._status = status
        self._events = events or Events(None)
        self._clock = clock
        self._waits = Waits()
        self._started = clock()
        self._told = self._started  # when progress was last told to another program
        console = console or _Talk()
        self._table = _LiveTable(console) if console.is_terminal and not quiet else None
        self._lines = None if quiet or self._table else _Lines(tally.queries, tally.ended, self._started)
        self._leaving = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)

    @classmethod
    def of(cls, beginning: Beginning, events: Events, *, quiet: bool) -> Self:
        """Return the watch of a run that begins; it tells `events` so, and unless `quiet` a person."""
        started, earlier = beginning.started, beginning.earlier
        events.tell(started)
        if not quiet:
            resumed = f", {len(earlier)} answered before" if earlier else ""
            say(f"{started.task}: {counted(started.queries)}{resumed}")
        tally = Tally.after(started.queries, earlier, beginning.metric, beginning.failed)
        return cls(tally, beginning.status, quiet=quiet, events=events)

    def add(self, outcome: Outcome, value: float | None) -> None:
        """Count an answered query, with its value of the headline metric; None where that is undefined for it."""
        query_id, error, usage = outcome["query_id"], outcome["error"], outcome["usage"]
        self._tally.add(query_id, value, usage, failed=error is not None)
        self._events.tell(QueryDone(query_id, error, outcome["seconds"], usage, self._tally.metric, value))
        self._wake_when_due()

    def leave(self, query_id: str, reason: str) -> None:
        """Count a query that was begun and has no outcome, for this reason; it stays pending."""
        self._tally.leave(query_id)
        self._events.tell(Pending(query_id, reason))
        self._wake_when_due()

    def _wake_when_due(self) -> None:
        if self._lines and self._lines.due(self._tally.ended, self._clock()):
            self._wake.set()

    def look(self, *, last: bool = False) -> None:
        """Look at the run once, and show and tell what is due."""
        now = self._clock()
        progress = self._tally.progress(self._status(), now - self._started)
        change = self._waits.look(progress.status, now)
        if change:
            self._events.tell(change)
        if last or now - self._told >= PROGRESS_SECONDS:
            self._told = now
            self._events.tell(progress)
        if self._table:
            self._table.draw(progress, waits=self._waits.told)
        if self._lines:
            self._lines.look(progress, change, now, last=last)

    def _follow(self) -> None:
        while not self._leaving:
            self.look()
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()

    def __enter__(self) -> Self:
        if self._table:
            self._table.start()
        if self._table or self._lines or self._events.heard:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._thread.ident is None:
            return  # nobody watches
        self._leaving = True
        self._wake.set()
        self._thread.join(1.0)
        if self._thread.is_alive():
            return  # Ctrl-S holds the terminal, and would hold the end of the run as well
        self.look(last=True)
        if self._table:
            self._table.stop()


class _Lines:
    """Plain lines: one when it is due, and one at once when calls begin to wait or go on."""

    def __init__(self, queries: int, ended: int, now: float) -> None:
        self._queries = queries
        self._ended = ended  # when the last line was said
        self._said = now
        self._waited = now - PLAIN_SECONDS  # when waiting was last said
        self._waiting = False

    def due(self, ended: int, now: float) -> bool:
        """Whether a line about so many queries is due."""
        new, seconds = ended - self._ended, now - self._said
        if not new:
            return seconds >= STILL_SECONDS
        return new >= PLAIN_SHARE * self._queries or ended >= self._queries or seconds >= PLAIN_SECONDS

    def look(self, progress: Progress, change: Waiting | Resumed | None, now: float, *, last: bool) -> None:
        """Say what there is to say."""
        ended = progress.done + progress.owed
        # Many short waits in a row are one wait to a reader, and the lines below count those that wait.
        if isinstance(change, Waiting) and now - self._waited >= PLAIN_SECONDS:
            self._waited, self._waiting = now, True
            say(waiting_words(progress.status))
        if isinstance(change, Resumed) and self._waiting:
            self._waiting = False
            say(f"goes on after {clock(change.seconds)}")
        if self.due(ended, now) or (last and ended != self._ended):
            self._said, self._ended = now, ended
            say(plain_line(progress))


class _LiveTable:
    """A table that is drawn in its own place, over what it was before, each time in one write."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: tuple[Progress, bool] | None = None
        self._looks: object = None
        # What others say on stderr goes above it; on stdout too, where that is the same terminal.
        self._live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            get_renderable=self._renderable,
            vertical_overflow="crop",
        )

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def draw(self, progress: Progress, *, waits: bool) -> None:
        """Draw it, where it looks otherwise than before."""
        looks = (columns(progress), waits and waiting_words(progress.status), self._console.size)
        if looks != self._looks:
            self._looks, self._shown = looks, (progress, waits)
            self._live.refresh()

    def _renderable(self) -> RenderableType:
        if self._shown is None:
            return ""
        progress, waits = self._shown
        return table(progress, self._console.width, waits=waits)


class Column(NamedTuple):
    """A heading, what stands below it, and how soon it is left out on a narrow terminal: the largest goes first."""

    heading: str
    cells: tuple[str, str, str]  # empty ones last
    colours: tuple[str, str, str]
    least: int  # characters, so that nothing moves while numbers grow
    place: int

    @property
    def width(self) -> int:
        """Characters that it takes."""
        return max(self.least, *map(len, (self.heading, *self.cells)))


GAP = 2  # characters between columns


def columns(progress: Progress) -> list[Column]:
    """Return the columns of the table: up to three lines under each heading."""
    calls, usage, plain = progress.status, progress.status.usage, ("", "", "")
    done = f"{progress.done}/{progress.queries}"
    queries = _cells(done, _some(progress.owed, "pending"), _some(progress.failed, "failed"))
    made = [
        Column("queries", queries, ("green", "yellow", "yellow"), 8, 0),
        Column("calls", _cells(_count(usage.calls), *_apart(progress)), plain, 11, 5),
    ]
    if calls.limit:
        flight = _cells(f"{calls.in_flight} of {calls.limit}", _some(calls.waiting, "waiting"))
        made.append(Column("in flight", flight, plain, 9, 2))
    if _paid_for(calls):
        tokens = _cells(f"{_count(usage.input_tokens)} in", f"{_count(usage.output_tokens)} out")
        made += [Column("tokens", tokens, plain, 8, 6), Column("dollars", _cells(*_dollars(progress)), plain, 14, 1)]
    mean = _cells() if progress.mean is None else _cells(f"{progress.mean:.4f}", "so far")
    made.append(Column(progress.metric, mean, plain, 7, 4))
    return [*made, Column("elapsed", _cells(clock(progress.elapsed), _left(progress)), plain, 10, 3)]


def _cells(*texts: str) -> tuple[str, str, str]:
    """Return the three cells of a column, without a gap between those that say something."""
    first, second, third = [*filter(None, texts), "", "", ""][:3]
    return first, second, third


def table(progress: Progress, width: int, *, waits: bool = False) -> RenderableType:
    """Return as many of the columns as `width` characters hold, and below them what is waited for, if it `waits`."""
    shown = columns(progress)
    while len(shown) > 1 and sum(column.width + GAP for column in shown) - GAP > width:
        shown.remove(max(shown, key=lambda column: column.place))
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column in shown:
        made.add_column(Text(clean(column.heading)), no_wrap=True, min_width=column.width)
    for row in range(3):
        made.add_row(*(Text(column.cells[row], column.colours[row]) for column in shown))
    words = waiting_words(progress.status) if waits else ""
    return Group(made, Text(words, "yellow", no_wrap=True, overflow="ellipsis"))


def plain_line(progress: Progress) -> str:
    """Return the progress in one line."""
    calls, usage = progress.status, progress.status.usage
    apart = ", ".join(_apart(progress))
    parts = [
        f"{progress.done}/{progress.queries} queries",
        _some(progress.owed, "pending"),
        _some(progress.failed, "failed"),
        "" if progress.mean is None else f"{progress.metric} {progress.mean:.4f} so far",
        f"{_count(usage.calls)} calls" + (f" ({apart})" if apart else ""),
        f"{calls.in_flight} of {calls.limit} in flight" if calls.in_flight else "",
        _some(calls.waiting, "waiting"),
    ]
    if _paid_for(calls):
        parts.append(f"{_count(usage.input_tokens)} tokens in, {_count(usage.output_tokens)} out")
        parts.append(", ".join(_dollars(progress)))
    parts += [f"{clock(progress.elapsed)} elapsed", _left(progress)]
    return "  ".join(filter(None, parts))


def waiting_words(calls: Status) -> str:
    """Return what is waited for, in one line."""
    known = f" {math.ceil(calls.seconds)} s" if calls.seconds else ""
    many = f"{calls.waiting} {'call waits' if calls.waiting == 1 else 'calls wait'}"
    return f"waiting{known}: {clean(calls.reason)}; {many}"


def clock(seconds: float) -> str:
    """Write seconds as 12:34, or 5h06m from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02}m" if minutes >= 60 else f"{minutes}:{rest:02}"


def _left(progress: Progress) -> str:
    return f"{clock(progress.left)} left" if progress.left and progress.done < progress.queries else ""


def _paid_for(calls: Status) -> bool:
    """Say whether tokens and dollars mean anything: the engine without a model has none, and no limit."""
    usage = calls.usage
    return bool(usage.input_tokens or usage.output_tokens or usage.paid_usd != 0)


def _apart(progress: Progress) -> list[str]:
    """Return the calls that are counted apart: those that had been paid for before, and those without an answer."""
    status = progress.status
    return list(filter(None, (_some(status.usage.cached_calls, "cached"), _some(status.failed, "failed"))))


def _dollars(progress: Progress) -> list[str]:
    """Return dollars so far, to come, and at list price, where a part had been paid for before."""
    usage, to_come = progress.status.usage, progress.to_come.paid_usd
    if usage.paid_usd is None:
        return ["price unknown"]
    listed = "" if usage.list_usd is None or usage.list_usd == usage.paid_usd else f"{_usd(usage.list_usd)} list"
    more = "" if to_come is None or progress.done == progress.queries else f"{_usd(to_come)} to come"
    return list(filter(None, (f"{_usd(usage.paid_usd)} so far", more, listed)))


def _usd(amount: float) -> str:
    return f"${amount:.4f}" if amount < 1 else f"${amount:.2f}"


def _some(count: int, what: str) -> str:
    return f"{_count(count)} {what}" if count else ""


def _count(number: int) -> str:
    """Write a count in at most four characters: whole up to 9,999, then thousands, millions, billions."""
    if number < 10_000:
        return str(number)
    value, letter = number / 1e3, "k"
    for larger in "MB":
        if value >= 999.5:
            value, letter = value / 1e3, larger
    return f"{value:.1f}{letter}" if value < 9.95 else f"{value:.0f}{letter}"
