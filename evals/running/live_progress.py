"""The progress of a run on a terminal: a table that is drawn in its own place.

Its columns are in progress_words.py, and progress_display.py chooses between it and plain lines.
"""

import sys

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evals.running.events import Event, Progress, Tell, WaitEnded, WaitStarted
from evals.running.progress_words import ProgressColumn, columns, waiting_words
from tools.cli import guard_prints, is_terminal, own_stream, strip_control_characters

GAP = 2  # characters between columns
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
    """A table that is drawn in its own place, over its former text, each time in a single write."""

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
            self._live.update(table(event, self._console.width, waits=self._waits), refresh=True)
            if last:
                self._live.stop()


def _choose_columns(progress: Progress, width: int) -> list[ProgressColumn]:
    """Return the most important columns that `width` characters hold; at least one."""
    shown = columns(progress)
    while len(shown) > 1 and sum(column.width + GAP for column in shown) - GAP > width:
        shown.remove(max(shown, key=lambda column: column.place))
    return shown


def table(progress: Progress, width: int, *, waits: bool = False) -> RenderableType:
    """Return as many columns as `width` characters hold, and below them the reason of a wait, if it
    `waits`.
    """
    shown = _choose_columns(progress, width)
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column in shown:
        drawn.add_column(
            Text(strip_control_characters(column.heading)), no_wrap=True, min_width=column.width
        )
    for row in range(3):
        cells = []
        for column in shown:
            texts = [text for text in column.cells if text]
            text = texts[row] if row < len(texts) else ""
            cells.append(Text(text, column.colours[row]))
        drawn.add_row(*cells)
    words = waiting_words(progress.status) if waits else ""
    return Group(drawn, Text(words, "yellow", no_wrap=True, overflow="ellipsis"))
