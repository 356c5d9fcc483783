"""The plots of a report, each in the form of a paper's figure.

Drawn on white and for a dark page. Published values are hollow, and only there if the tables have
them. The smoothing of MultiConIR's Figure 3 and the projections of OBLIQ-Bench's Figure 3 are left out,
because only measured values are drawn here.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from sextant.evals.reporting import plots
from sextant.evals.reporting.loss_tables import LOSSES, LossRow
from sextant.evals.reporting.plots import Panel, Plot, Point, Series, draw, draw_panels
from sextant.evals.reporting.run_groups import Group, short_task_name
from sextant.evals.reporting.system_table import ResultRow, SystemTable
from sextant.evals.run_descriptions import printable
from sextant.evals.run_schemas import FATE_LABELS, Fate
from sextant.evals.scoring.metrics import orient
from sextant.evals.scoring.scored_run import ScoredRun
from sextant.programs import FLOOR
from sextant.tools.pool_kinds import WITH_RELEVANT

INTERVALS = "Bars and bands are 95 % intervals over queries."

# As in the page: found documents in blue, then the warmer, the earlier they were lost.
_COLOURS = {
    Fate.FOUND: "#4a67dd",
    Fate.UNKNOWN: "#c4c4c4",
    Fate.ERROR: "#55516b",
    Fate.LIMIT: "#8a86a0",
    Fate.RANKED_LOW: "#d6d2cb",
    Fate.FORGOTTEN: "#e3d0c4",
    Fate.NOT_SELECTED: "#dcbcaa",
    Fate.SHOWN_IN_PART: "#d69e84",
    Fate.NOT_SHOWN: "#ca7b5e",
    Fate.NEVER_SURFACED: "#b5523b",
}
# Characters of a bar's name.
LONGEST = 70


def shift_dots(number: int, rows: int) -> float:
    """Return how far the dots of a row stand from a column's place, so that rows do not overlap."""
    return (number - (rows - 1) / 2) * min(0.12, 0.7 / rows)


def make_panel(
    table: SystemTable, rows: Sequence[ResultRow], kind: plots.SeriesKind = "points"
) -> Panel:
    """Return the figures of rows at each column that leads: as dots next to each other, or as lines."""
    columns = [index for index, column in enumerate(table.columns) if column.leads]
    metrics = {table.columns[index].metric for index in columns}
    ticks = {float(x): table.columns[index].label for x, index in enumerate(columns)}
    panel = Panel("", metrics.pop() if len(metrics) == 1 else "value", [], ticks)
    printed = list[Point]()
    for number, row in enumerate(rows):
        shift = shift_dots(number, len(rows)) if kind == "points" else 0.0
        series = Series(row.label, row.points(columns, shift), number, kind)
        panel.series.append(series._replace(kind="dashed") if row.kind == "union" else series)
    for row in table.of_kind("published"):
        if row.ranked:
            printed += row.points(columns)
    if printed:
        panel.series.append(Series("published", printed, kind="hollow"))
    return panel


def plot_table(group: Group, table: SystemTable) -> Plot | None:
    """Dots with intervals for a table, of systems that search everything and are told of the task.

    Conditions are along lines, as in MultiConIR's Figures 3 to 5, and so are sizes of pools, as in
    OBLIQ-Bench's Figure 3, where the union as retrieved, a lower bound, is dashed.
    """
    rows = []
    for row in table.rows:
        if row.system and row.system.instruction in ("ours", "paper"):
            rows.append(row)
    ours = [row for row in rows if row.kind == "ours"]
    if not rows or not (ours or table.is_ordered):
        return None
    kind: plots.SeriesKind = "line" if table.is_ordered else "points"
    panel = make_panel(table, ours or rows, kind)
    notes = [f"{note[:1].upper()}{note[1:]}." for note in table.notes]
    if panel.series[-1].kind == "hollow":
        notes.append("Hollow: the systems of the paper.")
    caption = " ".join([INTERVALS, *notes])
    title = f"{table.title}: {group.title}"
    return draw(f"{table.stem}-plot", title, caption, lambda: draw_panels([panel]))


def plot_gap(groups: Sequence[Group]) -> Plot | None:
    """A point for each task that was searched, and ranked over pools with all that is relevant.

    As OBLIQ-Bench's Figure 1: below the diagonal, documents are recognised that no search finds.
    None if there is no such task.
    """
    metrics = dict[str, None]()
    series = list[Series]()
    for group in groups:
        points = []
        for task in group.tasks:
            runs = group.of_task(task)
            metric = runs[0].metric
            searched = best_mean(runs, metric, [""])
            verified = best_mean(runs, metric, WITH_RELEVANT)
            if searched is not None and verified is not None:
                metrics[metric] = None
                points.append(Point(verified, searched, label=short_task_name(task)))
        if points:
            series.append(Series(group.title, points, len(series)))
    if not series:
        return None
    name = ", ".join(metrics)
    x = f"{name} of the best run over a pool with all that is relevant"
    panel = Panel(x, f"{name} of the best search", series, diagonal=True)
    caption = (
        "As OBLIQ-Bench's Figure 1. Below the diagonal, documents are recognised that no search "
        "finds."
    )
    return draw("gap", "Search and verification", caption, lambda: draw_panels([panel]))


def best_mean(
    runs: Sequence[ScoredRun],
    metric: str,
    pools: Sequence[str],
) -> float | None:
    """Return the best mean of the runs over these kinds of pools, "" for none; None if there are
    no such runs.
    """
    means = []
    for run in runs:
        mean = run.mean(metric)
        # A bare retriever over a pool verifies nothing.
        counts = run.pool == "" or run.config["program"] != FLOOR
        if run.pool in pools and counts and mean is not None:
            means.append(mean)
    return max(means, key=partial(orient, metric), default=None)


def plot_losses(group: Group, rows: Sequence[LossRow]) -> Plot | None:
    """The losses of a group as bars, a bar for each system and task; None if no run has shares."""
    if not rows:
        return None
    cutoffs = {row.cutoff for row in rows}
    recall = f"R@{cutoffs.pop()}" if len(cutoffs) == 1 else "recall"
    title = f"{LOSSES}, {recall}: {group.title}"
    caption = (
        "The blue part is recall; the others sum to what it misses, the redder the earlier it was "
        "lost."
    )
    return draw(f"{group.stem}-losses", title, caption, lambda: _draw_bars(rows))


@matplotlib.rc_context(plots.SETTINGS)
def _draw_bars(rows: Sequence[LossRow]) -> Figure:
    drawing = plots.NotebookFigure(
        figsize=(plots.WIDTH + 1.5, 1.1 + 0.26 * len(rows)), layout="constrained"
    )
    axes = drawing.add_subplot()
    positions = range(len(rows))
    starts = [0.0] * len(rows)
    for fate, colour in _COLOURS.items():
        widths = [row.shares.get(fate, 0.0) for row in rows]
        if any(widths):
            label = FATE_LABELS[fate].format(k="k")
            look: Any = {"edgecolor": plots.PAPER, "linewidth": 0.6}
            axes.barh(positions, widths, left=starts, color=colour, label=label, **look)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    names = [printable(f"{row.task}: {row.system}") for row in rows]
    axes.set_yticks(positions, [name[:LONGEST] for name in names])
    # The first is on top.
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    drawing.legend(loc="outside lower center", ncols=3, handlelength=1.2)
    return drawing
