"""The plots of a report, each in the form of a paper's figure.

Published values are hollow, and only there if the tables have them. The smoothing of MultiConIR's
Figure 3 and the projections of OBLIQ-Bench's Figure 3 are left out, because only measured values are
drawn here.
"""

from collections.abc import Sequence
from functools import partial

from sextant.evals.reporting import plots
from sextant.evals.reporting.plots import Panel, Plot, Point, Series, draw
from sextant.evals.reporting.run_groups import Group, short_task_name
from sextant.evals.reporting.system_table import ResultRow, SystemTable
from sextant.evals.scoring.metrics import orient
from sextant.evals.scoring.scored_run import ScoredRun
from sextant.programs import FLOOR
from sextant.tools.pool_kinds import WITH_RELEVANT

INTERVALS = "Bars and bands are 95 % intervals over queries."


def make_panel(
    table: SystemTable, rows: Sequence[ResultRow], kind: plots.SeriesKind = "points"
) -> Panel:
    """Return the figures of rows at each column that leads: as dots next to each other, or as lines."""
    columns = [index for index, column in enumerate(table.columns) if column.leads]
    metrics = {table.columns[index].metric for index in columns}
    ticks = {float(x): table.columns[index].label for x, index in enumerate(columns)}
    panel = Panel("", metrics.pop() if len(metrics) == 1 else "value", [], ticks)
    for number, row in enumerate(rows):
        # Dots of rows do not overlap.
        gap = min(0.12, 0.7 / len(rows)) if kind == "points" else 0.0
        shift = (number - (len(rows) - 1) / 2) * gap
        row_kind: plots.SeriesKind = "dashed" if row.kind == "union" else kind
        panel.series.append(Series(row.label, row.points(columns, shift), number, row_kind))
    printed = list[Point]()
    for row in table.of_kind("published"):
        printed += row.points(columns) if row.ranked else []
    if printed:
        panel.series.append(Series("published", printed, kind="hollow"))
    return panel


def plot_table(group: Group, table: SystemTable) -> Plot | None:
    """Dots with intervals for a table, of systems that search everything and are told of the task.

    Conditions are along lines, as in MultiConIR's Figures 3 to 5, and so are sizes of pools, as in
    OBLIQ-Bench's Figure 3, where the union as retrieved, a lower bound, is dashed.
    """
    told = ("ours", "paper")
    rows = [row for row in table.rows if row.system and row.system.instruction in told]
    ours = [row for row in rows if row.kind == "ours"]
    if not rows or not (ours or table.is_ordered):
        return None
    panel = make_panel(table, ours or rows, "line" if table.is_ordered else "points")
    notes = [f"{note[:1].upper()}{note[1:]}." for note in table.notes]
    if panel.series[-1].kind == "hollow":
        notes.append("Hollow: the systems of the paper.")
    caption = " ".join([INTERVALS, *notes])
    return draw(f"{table.stem}-plot", f"{table.title}: {group.title}", caption, [panel])


def plot_gap(groups: Sequence[Group]) -> Plot | None:
    """A point for each task that was searched, and ranked over pools with all that is relevant.

    As OBLIQ-Bench's Figure 1: below the diagonal, documents are recognised that no search finds.
    None if there is no such task.
    """
    panel = Panel(
        "headline metric of the best run over a pool with all that is relevant",
        "headline metric of the best search",
        [],
        diagonal=True,
    )
    for number, group in enumerate(groups):
        points = []
        for task in group.tasks:
            runs = group.of_task(task)
            verified = best_mean(runs, runs[0].metric, WITH_RELEVANT)
            searched = best_mean(runs, runs[0].metric, [""])
            if searched is not None and verified is not None:
                points.append(Point(verified, searched, label=short_task_name(task)))
        if points:
            panel.series.append(Series(group.title, points, number))
    caption = (
        "As OBLIQ-Bench's Figure 1. Below the diagonal, documents are recognised that no search "
        "finds."
    )
    return draw("gap", "Search and verification", caption, [panel]) if panel.series else None


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
        # A bare retriever over a pool verifies nothing.
        if run.pool in pools and not (run.pool and run.config["program"] == FLOOR):
            means.append(run.mean(metric))
    known = [mean for mean in means if mean is not None]
    return max(known, key=partial(orient, metric), default=None)
