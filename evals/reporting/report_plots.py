"""The plots of a report, each in the form of a paper's figure.

Drawn on white and for a dark page. Published values are hollow, and only there if the tables have
them. The smoothing of MultiConIR's Figure 3 and the projections of OBLIQ-Bench's Figure 3 are left out,
because only measured values are drawn here.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sextant.evals.reporting.plots import COLUMNS, INCHES, MUTED, figure, pdf, style, svg
from sextant.evals.reporting.report_tables import (
    LADDERS,
    ResultCell,
    ResultRow,
    SystemFigures,
    condition_columns,
    figures_for,
    mean_over,
)
from sextant.evals.reporting.run_groups import Group, short_task_name
from sextant.evals.run_descriptions import printable
from sextant.evals.scoring.scored_run import ScoredRun
from sextant.evals.scoring.system_names import System
from sextant.tools.platform.number_format import abbreviate

# The metric of OBLIQ-Bench's Figure 3.
SWEPT = "R@10"
INTERVALS = "Bars and bands are 95 % intervals over queries."
HOLLOW = " Hollow: the systems of the paper."


class Plot(NamedTuple):
    """A plot, drawn."""

    # The beginning of its file's name.
    stem: str
    title: str
    caption: str
    # SVG on white, and for a dark page.
    light: str
    dark: str


class Point(NamedTuple):
    """A value at a place, with its interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Series(NamedTuple):
    """Points that belong together; `number` is its colour and marker."""

    label: str
    points: list[Point]
    number: int
    dashed: bool = False


@dataclass(slots=True)
class Panel:
    """A pair of axes."""

    x: str
    y: str
    series: list[Series]
    # By position, if the axis has names instead of numbers.
    ticks: dict[float, str] = field(default_factory=dict)
    published: list[Point] = field(default_factory=list)
    lines: bool = False
    # A line at 0: values are differences.
    zero: bool = False


class PaperPlot(NamedTuple):
    """A panel that is to be drawn in the width of a paper's column."""

    stem: str
    title: str
    panel: Panel
    # A key of plots.COLUMNS.
    width_name: str


# Ink, faint lines and paper, on white and on a dark page; nothing else in a plot has one of these
# colours.
INK, FAINT, PAPER = LIGHT = ("#222222", "#d9d9d9", "#ffffff")
DARK = ("#e8e6e1", "#4a4d52", "#17191c")

_SETTINGS: Any = {
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    **{"grid.color": FAINT, "axes.spines.top": False, "axes.spines.right": False},
    **{"legend.frameon": False, "legend.fontsize": 8.5, "axes.titlesize": 10.5, "font.size": 9.5},
    # Names may have a dollar in them.
    "text.parse_math": False,
}


def draw(stem: str, title: str, caption: str, draw_figure: Callable[[], Figure]) -> Plot:
    """A plot on both papers: drawn once, since to draw is slow, with its ink and paper
    exchanged for the dark page.
    """
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # A glyph that the font lacks is left to the reader's browser.
        warnings.simplefilter("ignore")
        light = svg(draw_figure(), printable(title))
    dark = light
    for of_light, of_dark in zip(LIGHT, DARK, strict=True):
        dark = dark.replace(f": {of_light}", f": {of_dark}")
    return Plot(
        stem,
        printable(title),
        printable(caption),
        light,
        dark,
    )


def draw_for_paper(plot: PaperPlot) -> dict[str, str | bytes]:
    """Return the plot in the width of a paper's column, by the names of its files."""
    title = printable(plot.title)
    name = f"plots/{plot.stem}-{plot.width_name}"
    settings = _SETTINGS | {"font.size": 7, "legend.fontsize": 6, "axes.titlesize": 7}
    with matplotlib.rc_context(settings):
        drawing = draw_panel(plot.panel, COLUMNS[plot.width_name])
        return {f"{name}.svg": svg(drawing, title), f"{name}.pdf": pdf(drawing, title)}


def draw_panel(panel: Panel, width: float = INCHES[0]) -> Figure:
    """Draw a panel, as wide as a page of ours or as a paper's column, with a legend below."""
    columns = _legend_columns(panel, width)
    rows = ceil((len(panel.series) + bool(panel.published)) / columns)
    drawing = figure(
        (
            width,
            min(INCHES[1] - 0.2, 0.8 * width) + 0.21 * rows,
        )
    )
    axes = drawing.add_subplot()
    _prepare_axes(axes, panel, width)
    handles: dict[str, Any] = {}
    if panel.published:
        handles["published"] = _draw_published(axes, panel.published)
    for line in panel.series:
        handles.setdefault(
            line.label,
            _draw_series(
                axes,
                line,
                lines=panel.lines,
            ),
        )
    if not panel.zero:
        axes.set_ylim(bottom=0)
    if not panel.ticks and panel.lines:
        axes.set_xticks(sorted({point.x for line in panel.series for point in line.points}))
    drawing.legend(
        handles.values(),
        map(shorten, handles),
        loc="outside lower center",
        ncols=columns,
        handlelength=3,
    )
    return drawing


def _legend_columns(panel: Panel, width: float) -> int:
    longest = max((len(line.label) for line in panel.series), default=0)
    columns = 3
    if longest > 24:
        columns = 1 if longest > 44 else 2
    return max(1, int(columns * width / INCHES[0]))


def _prepare_axes(axes: Axes, panel: Panel, width: float) -> None:
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.grid(axis="y", linewidth=0.7)
    axes.set_axisbelow(True)
    if panel.ticks:
        # Characters that fit next to each other.
        room = 64 * min(1, width / INCHES[0])
        turned: Any = {}
        if sum(map(len, panel.ticks.values())) > room:
            turned = {"rotation": 30, "ha": "right"}
        axes.set_xticks(
            list(panel.ticks),
            list(panel.ticks.values()),
            **turned,
        )
        axes.set_xlim(min(panel.ticks) - 0.5, max(panel.ticks) + 0.5)
    if panel.zero:
        axes.axhline(0, color=INK, linewidth=0.8)


def _draw_published(axes: Axes, points: Sequence[Point]) -> Any:
    x = [point.x for point in points]
    y = [point.y for point in points]
    lines = axes.plot(
        x,
        y,
        "o",
        markersize=5,
        markerfacecolor="none",
        color=MUTED,
        linestyle="none",
    )
    return lines[0]


def _draw_series(axes: Axes, line: Series, *, lines: bool) -> Any:
    look = style(line.number)
    # Black would not be seen on a dark page.
    look["color"] = look["color"].replace("#000000", INK)
    x = [point.x for point in line.points]
    y = [point.y for point in line.points]
    low = [point.y if point.low is None else point.low for point in line.points]
    high = [point.y if point.high is None else point.high for point in line.points]
    if lines:
        axes.fill_between(
            x,
            low,
            high,
            color=look["color"],
            alpha=0.07,
            linewidth=0,
        )
    else:
        axes.vlines(
            x,
            low,
            high,
            color=look["color"],
            linewidth=1.4,
            alpha=0.75,
        )
    shape = ("--" if line.dashed else "-") if lines else "none"
    filled: Any = look | ({"markerfacecolor": axes.get_facecolor()} if line.dashed else {})
    return axes.plot(
        x,
        y,
        linestyle=shape,
        linewidth=1.6,
        markersize=5,
        **filled,
    )[0]


def shorten(label: str) -> str:
    """A name in a legend: not too long, and not begun with an underscore, which would hide it."""
    label = abbreviate(label)
    return f" {label}" if label.startswith("_") else label


def plot_by_task(group: Group, table: SystemFigures) -> Plot | None:
    """Dots with intervals for a table by task, of systems that search everything and are told of the task."""
    leading = [index for index, column in enumerate(table.columns) if column.leads]
    told = ("ours", "paper")
    rows = [row for row in table.of_kind("ours") if row.system and row.system.instruction in told]
    if not rows:
        return None

    def dots(row: ResultRow, offset: float = 0.0) -> list[Point]:
        positions = [x + offset for x in range(len(leading))]
        return locate_cells(positions, [row.cells[index] for index in leading])

    distance = min(0.12, 0.7 / len(rows))
    middle = (len(rows) - 1) / 2
    series = []
    for index, row in enumerate(rows):
        series.append(Series(row.label, dots(row, (index - middle) * distance), index))
    ticks = {float(x): table.columns[index].label for x, index in enumerate(leading)}
    published = [point for row in table.of_kind("published") if row.ranked for point in dots(row)]
    panel = Panel(
        "",
        table.columns[0].metric,
        series,
        ticks,
        published,
    )
    caption = INTERVALS + HOLLOW if published else INTERVALS
    title = f"{table.title} by task: {group.title}"
    return draw(f"{table.stem}-by-task", title, caption, lambda: draw_panel(panel))


def locate_cells(places: Sequence[float], cells: Sequence[ResultCell | None]) -> list[Point]:
    """Return the figures of a row at their places on an axis, without those that it lacks."""
    return [
        Point(x, cell.value, cell.low, cell.high)
        for x, cell in zip(places, cells, strict=True)
        if cell
    ]


def plot_sweep(group: Group, table: SystemFigures) -> Plot:
    """A line for each row of a table whose columns are sizes of pools."""
    systems = [(row, row.system) for row in table.rows if row.system]
    sizes = [float(column.label) for column in table.columns]
    names = sorted({system.name for _, system in systems})
    series = [
        Series(
            row.label,
            locate_cells(sizes, row.cells),
            names.index(system.name),
            system.pool == "union",
        )
        for row, system in systems
    ]
    x = "documents in the pool, gold that was put in aside"
    panel = Panel(
        x,
        table.columns[0].metric,
        series,
        lines=True,
    )
    caption = "As OBLIQ-Bench's Figure 3. Dashed: the union as retrieved, a lower bound. "
    caption += (
        f"Solid: the same with every missing relevant document put in, an upper bound. {INTERVALS}"
    )
    return draw(table.stem, f"{table.title}: {group.title}", caption, lambda: draw_panel(panel))


def plot_conditions(group: Group) -> Plot | None:
    """Win by the number of conditions, over all of the group's domains or over those that all
    systems share.
    """
    by_system: dict[System, dict[str, ScoredRun]] = {}
    for run in group.runs:
        if "Win(1)" in run.columns:
            by_system.setdefault(group.system(run), {})[run.config["task"]] = run
    tasks = [task for task in group.tasks if any(task in runs for runs in by_system.values())]
    chosen = {system: runs for system, runs in by_system.items() if len(runs) == len(tasks)}
    if not chosen:
        chosen = by_system
        tasks = [task for task in tasks if all(task in runs for runs in by_system.values())]
    if not tasks:
        return None
    panel = _conditions_panel(group, chosen, tasks)
    excluded = sorted(str(system) for system in by_system if system not in chosen)
    caption = _conditions_caption(group, tasks, hollow=bool(panel.published))
    if excluded:
        caption += f" Not run in all of these domains: {'; '.join(excluded)}."
    subject = "conditions met" if group.variant in LADDERS else "number of conditions"
    title = f"Win by {subject}: {group.title}"
    return draw(f"{group.stem}-Win-by-conditions", title, caption, lambda: draw_panel(panel))


def _conditions_panel(
    group: Group, systems: Mapping[System, Mapping[str, ScoredRun]], tasks: Sequence[str]
) -> Panel:
    columns = condition_columns(group, tuple(tasks))[:10]
    series = []
    for index, (system, runs) in enumerate(systems.items()):
        points = []
        for x, column in enumerate(columns, start=1):
            win = mean_over([runs[task] for task in tasks], column.metric, "")
            if win:
                points.append(Point(x, win["mean"], win["low"], win["high"]))
        series.append(Series(str(system), points, index))
    published = []
    for x, column in enumerate(columns, start=1):
        published += [Point(x, printed.value) for printed in figures_for(group, column)]
    if group.variant in LADDERS:
        label = "conditions met: the better document over the one that meets one less"
        ticks = {float(k): f"{k} : {k - 1}" for k in range(1, 11)}
    else:
        label = "conditions in the query"
        ticks = {float(k): str(k) for k in range(1, 11)}
    return Panel(label, "Win", series, ticks, published, lines=True)


def _conditions_caption(group: Group, tasks: Sequence[str], *, hollow: bool) -> str:
    number = "3"
    if group.variant in LADDERS:
        number = "4" if group.variant == "monotonicity" else "5"
    domains = ", ".join(map(short_task_name, tasks))
    if len(tasks) > 1:
        domains = f"mean over {domains}"
    caption = f"As MultiConIR's Figure {number}, without its smoothing; {domains}. {INTERVALS}"
    return caption + HOLLOW if hollow else caption
