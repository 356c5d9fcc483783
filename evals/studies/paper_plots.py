"""The plots of a study in the widths of papers' columns.

To draw them takes as long as all the rest of a report, so a second process draws most of them
meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from evals.reporting.plots import COLUMNS
from evals.reporting.report_plots import Panel, PaperPlot, draw_for_paper
from tools import forkserver
from tools.interrupts import wait_until
from tools.system_calls import available_cores

# Name of a file -> its content.
PlotFiles = dict[str, str | bytes]
# The module that the second process runs.
WORKER = "evals.studies.plot_worker"


@contextmanager
def drawing(panels: Sequence[tuple[str, str, Panel]]) -> Iterator[Callable[[], PlotFiles]]:
    """Begin to draw panels, given with stem and title; yield the function that returns their files.

    On a single core, and if the second process ends, this process draws them all.
    """
    plots = [PaperPlot(*panel, width_name) for panel in panels for width_name in COLUMNS]
    # This process computes the tables before it draws.
    share = 2 * len(plots) // 3 if available_cores() > 1 else 0
    theirs = plots[:share]
    ours = plots[share:]
    connection = None
    with ExitStack() as stack:
        if theirs:
            with suppress(OSError):
                connection = stack.enter_context(forkserver.fork_server(WORKER))()
                connection.send(theirs)

        def finish() -> PlotFiles:
            files = draw_plots(ours)
            others: PlotFiles = {}
            with suppress(EOFError, OSError):
                if connection:
                    wait_until(connection.poll)
                    others = connection.recv()
            return (others or draw_plots(theirs)) | files

        yield finish


def draw_plots(plots: Sequence[PaperPlot]) -> PlotFiles:
    """Draw plots, and return their files."""
    files: PlotFiles = {}
    for plot in plots:
        files |= draw_for_paper(plot)
    return files
