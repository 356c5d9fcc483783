"""The progress of a run for a person, on stderr: drawn in its own place on a terminal, else as plain
lines.

Reasons to wait come from providers, so they are stripped of control characters. Other programs read
events.py's events, or the status file of run_status.py.
"""

import math
import sys

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sextant.evals.run_folder import RunFolder
from sextant.evals.running.events import (
    Event,
    Progress,
    RunMonitor,
    Tell,
    WaitEnded,
    WaitStarted,
)
from sextant.evals.running.resolve import PreparedRun
from sextant.tools.models.run_resources import CallStats
from sextant.tools.platform.cli import (
    guard_prints,
    is_terminal,
    own_stream,
    print_stderr,
    strip_control_characters,
)
from sextant.tools.platform.number_format import choose_verb, queries

WIDTH = 80  # characters of a terminal that does not say how wide it is
# A plain line is due when this share of the queries has ended since the last one; when some have,
# after so many seconds; and when none has, after STILL_SECONDS.
PLAIN_SHARE = 0.25
PLAIN_SECONDS = 5.0
STILL_SECONDS = 60.0


def report(ready: PreparedRun, folder: RunFolder) -> RunMonitor:
    """Return the watch of a run that is about to ask its queries, for a person."""
    done = len(folder.outcomes)
    before = f", {done} answered before" if done else ""
    asked = ready.environment.queries
    speed = ready.model.lm.client.meter.speed
    paced = f"; {ready.model.name} {speed}" if speed.read and speed.write else ""
    print_stderr(f"{ready.environment.task}: {queries(len(asked))}{before}{paced}")
    return RunMonitor(
        ready, folder, start_live() if is_terminal(sys.stderr) else PlainProgress(done).tell
    )


class PlainProgress:
    """Plain lines: when they are due, and at once when calls begin to wait or go on."""

    def __init__(self, earlier: int = 0) -> None:
        self._ended = earlier  # queries, when the last line was said
        self._said = 0.0  # when that was, in seconds of the sitting, as the next
        self._waited = -PLAIN_SECONDS  # when waiting was last said
        self._change: Event | None = None
        self._waiting = False

    def tell(self, event: Event, *, last: bool = False) -> None:
        """Print the news of a look; changes come before the progress."""
        if not isinstance(event, Progress):
            self._change = event if isinstance(event, WaitStarted | WaitEnded) else self._change
            return
        # Many short waits in a row are one wait to a reader.
        if isinstance(self._change, WaitStarted) and event.elapsed - self._waited >= PLAIN_SECONDS:
            self._waited = event.elapsed
            self._waiting = True
            print_stderr(waiting_words(event.status))
        if isinstance(self._change, WaitEnded) and self._waiting:
            self._waiting = False
            print_stderr(f"goes on after {clock(self._change.seconds)}")
        self._change = None
        ended = event.done + event.owed
        seconds = event.elapsed - self._said
        due = seconds >= STILL_SECONDS
        if new := ended - self._ended:
            due = (
                last
                or new >= PLAIN_SHARE * event.queries
                or ended >= event.queries
                or seconds >= PLAIN_SECONDS
            )
        if due:
            self._said = event.elapsed
            self._ended = ended
            print_stderr(plain_line(event))


def start_live() -> Tell:
    """Return the function that draws the progress on stderr, which is a terminal."""
    console = Console(
        file=own_stream(sys.stderr),
        stderr=True,
        force_terminal=True,
        highlight=False,
        soft_wrap=True,
    )
    if not console.width:  # COLUMNS=0 says nothing
        console.width = WIDTH
    return LiveProgress(console).tell


class LiveProgress:
    """Text that is drawn in its own place, over its former text, each time in a single write."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._waits = False
        # What others say on stderr goes above it; on stdout too, where that is the same terminal.
        self._live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=is_terminal(sys.stdout),
            vertical_overflow="crop",
        )

    def tell(self, event: Event, *, last: bool = False) -> None:
        """Draw the progress; the `last` stays where it is."""
        if isinstance(event, WaitStarted | WaitEnded):
            self._waits = isinstance(event, WaitStarted)
        if isinstance(event, Progress):
            self._live.start()
            guard_prints()
            self._live.update(lay_out(event, waits=self._waits), refresh=True)
            if last:
                self._live.stop()


def lay_out(progress: Progress, *, waits: bool = False) -> RenderableType:
    """Return the progress as text, and below it the reason of a wait, if it `waits`."""
    words = waiting_words(progress.status) if waits else ""
    return Group(
        Text(strip_control_characters(plain_line(progress)), overflow="fold"),
        Text(words, "yellow", no_wrap=True, overflow="ellipsis"),
    )


def plain_line(progress: Progress) -> str:
    """Return the progress in a line."""
    calls = progress.status
    usage = calls.usage
    call_count = f"{_count(usage.calls)} {choose_verb(usage.calls, 'call', 'calls')}"
    apart = [_some(usage.cached_calls, "cached"), _some(calls.failed, "failed")]
    if any(apart):
        call_count += f" ({', '.join(filter(None, apart))})"
    figures = [
        f"{progress.done}/{queries(progress.queries)}",
        _some(progress.owed, "pending"),
        _some(progress.failed, "failed"),
        "" if progress.mean is None else f"{progress.metric} {progress.mean:.4f} so far",
        call_count,
        f"{calls.in_flight} of {calls.limit} in flight" if calls.in_flight else "",
        _some(calls.waiting, "waiting"),
    ]
    # The engine without a model has no tokens and no dollars, and no limit.
    if usage.input_tokens or usage.output_tokens or usage.paid_usd != 0:
        tokens_in = _count(usage.input_tokens)
        figures.append(f"{tokens_in} tokens in, {_count(usage.output_tokens)} out")
        figures.append(", ".join(_dollars(progress)))
    figures.append(f"{clock(progress.elapsed)} elapsed")
    if progress.left and progress.done < progress.queries:
        figures.append(f"{clock(progress.left)} left")
    return "  ".join(filter(None, figures))


def waiting_words(calls: CallStats) -> str:
    """Return the reason of a wait, in a line."""
    duration = f" {math.ceil(calls.seconds)} s" if calls.seconds else ""
    return (
        f"waiting{duration}: {strip_control_characters(calls.reason)}; "
        f"{calls.waiting} {choose_verb(calls.waiting, 'call waits', 'calls wait')}"
    )


def clock(seconds: float) -> str:
    """Write seconds as 12:34, or 5h06m from an hour on."""
    minutes, remaining = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60:02}m"
    return f"{minutes}:{remaining:02}"


def _dollars(progress: Progress) -> list[str]:
    """Return dollars so far, to come, and at list price, if a part had been paid for before."""
    usage = progress.status.usage
    to_come = progress.to_come.paid_usd
    if usage.paid_usd is None:
        return ["price unknown"]
    listed = (
        ""
        if usage.list_usd is None or usage.list_usd == usage.paid_usd
        else f"{_usd(usage.list_usd)} list"
    )
    to_pay = (
        "" if to_come is None or progress.done == progress.queries else f"{_usd(to_come)} to come"
    )
    return list(filter(None, (f"{_usd(usage.paid_usd)} so far", to_pay, listed)))


def _usd(amount: float) -> str:
    return f"${amount:.4f}" if amount < 1 else f"${amount:.2f}"


def _some(count: int, label: str) -> str:
    return f"{_count(count)} {label}" if count else ""


def _count(number: float) -> str:
    """Write a count in at most four characters: 9999, 10k, 1.2M, 3B."""
    if number < 10_000:
        return str(number)
    thousands = 0
    while number >= 999.5 and thousands < 3:
        number = number / 1000
        thousands = thousands + 1
    return f"{number:.{1 if number < 9.95 else 0}f}{' kMB'[thousands]}"
