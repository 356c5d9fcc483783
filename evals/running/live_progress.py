"""The progress of a run on a terminal, drawn in its own place.

Its words are in progress_words.py, and progress_display.py chooses between it and plain lines.
"""

import sys

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sextant.evals.running.events import Event, Progress, Tell, WaitEnded, WaitStarted
from sextant.evals.running.progress_words import plain_line, waiting_words
from sextant.tools.platform.cli import (
    guard_prints,
    is_terminal,
    own_stream,
    strip_control_characters,
)

WIDTH = 80  # characters of a terminal that does not say how wide it is


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
        shares_terminal = is_terminal(sys.stdout)
        self._live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=shares_terminal,
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
    figures = Text(strip_control_characters(plain_line(progress)), overflow="fold")
    return Group(figures, Text(words, "yellow", no_wrap=True, overflow="ellipsis"))
