"""A run for a person: how far it is, on stderr, as a live table on a terminal or as lines, and its
scores.

Reasons to wait come from providers, so they are stripped of control characters before they are
printed. The words are in progress_words.py, the table in live_progress.py. Other programs read
events.py's events, or the status file of run_status.py.
"""

import sys
from functools import partial

from sextant.evals.run_folder import RunFolder
from sextant.evals.running.cost_estimate import expect_calls
from sextant.evals.running.events import Event, Progress, RunMonitor, WaitEnded, WaitStarted
from sextant.evals.running.progress_words import clock, plain_line, waiting_words
from sextant.evals.running.ready import PreparedRun
from sextant.tools.platform.cli import is_terminal, print_stderr
from sextant.tools.platform.number_format import queries

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
    speed = ready.model.lm.caller.meter.speed
    paced = f"; {ready.model.name} {speed}" if speed.read and speed.write else ""
    print_stderr(f"{ready.environment.task}: {queries(len(asked))}{before}{paced}")
    pending = [query for query in asked if query.query_id not in folder.outcomes]
    tell = PlainProgress(done).tell
    if is_terminal(sys.stderr):
        from sextant.evals.running.live_progress import start_live  # rich: only for a terminal

        tell = start_live()
    return RunMonitor(
        ready,
        folder,
        tell,
        expect=partial(expect_calls, ready, pending),
    )


class PlainProgress:
    """Plain lines: when they are due, and at once when calls begin to wait or go on."""

    def __init__(self, earlier: int = 0) -> None:
        self._ended = earlier  # queries, when the last line was said
        self._said = 0.0  # when that was, in seconds of the sitting, as the next
        self._waited = -PLAIN_SECONDS  # when waiting was last said
        self._change: Event | None = None
        self._waiting = False
        self._forecast = False  # whether the forecast of a slow run was said

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
        due = seconds >= STILL_SECONDS or (bool(event.expected_calls) and not self._forecast)
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
            self._forecast = self._forecast or bool(event.expected_calls)
            print_stderr(plain_line(event))
