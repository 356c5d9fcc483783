"""The plots of a report, each in the form of a paper's figure, and which runs would make those that are not there.

metric by task      dots with intervals
pool sweep          OBLIQ-Bench, Figure 3: a metric by the size of the pool, union dashed, oracle solid
gap                 OBLIQ-Bench, Figure 1: the best ranking of a pool with gold in it, against the best search
conditions          MultiConIR, Figures 3 and 4: Win by conditions in the query, and by conditions met
instruction         CRUMB, Figure 5: what a generic instruction, or none, changes
losses              what became of relevant documents (evals/showing/report/losses.py)

Drawn twice, on white and for a dark page. Published values are hollow, and only where the tables have them. Left out:
Figure 3's smoothing and projections, because what is drawn here was measured.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from evals.measuring.bounds import FLOOR
from evals.measuring.scored import Run
from evals.showing import plots
from evals.showing.report.groups import Group, System, in_file, readable, short
from evals.showing.report.tables import (
    LADDERS,
    Row,
    Table,
    condition_columns,
    figures_for,
    is_bound,
    leading,
    mean_over,
    measured_in,
    task_columns,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SWEPT = "R@10"  # the metric of OBLIQ-Bench's Figure 3
GAP = "nDCG@10"  # that of its Figure 1
KINDS = ("task", "sweep", "gap", "complexity", "monotonicity", "conditions", "instruction", "losses")
LONGEST = 60  # characters of a name in a legend
INTERVALS = "Bars and bands are 95 % bootstrap intervals over queries."


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot, drawn."""

    kind: str  # one of KINDS
    stem: str  # of its file's name
    title: str
    caption: str
    light: str  # SVG, on white
    dark: str


@dataclass(frozen=True, slots=True)
class Point:
    """A value at a place, with its interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together; `number` is its colour and marker."""

    label: str
    points: list[Point]
    number: int
    dashed: bool = False


@dataclass(slots=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    series: list[Series]
    ticks: dict[float, str] = field(default_factory=dict)  # where the axis has names instead of numbers
    published: list[Point] = field(default_factory=list)
    lines: bool = False
    zero: bool = False  # a line at 0: values are differences


# Drawing


# Ink, faint lines and paper, on white and on a dark page; nothing else in a plot has one of these colours.
INK, FAINT, PAPER = LIGHT = ("#222222", "#d9d9d9", "#ffffff")
DARK = ("#e8e6e1", "#4a4d52", "#17191c")


@contextmanager
def _colours() -> "Iterator[None]":
    """Matplotlib set up: ink on paper, no mathematics in names that have a dollar in them."""
    import matplotlib

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    papered = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    settings: Any = dict.fromkeys(inked, INK) | dict.fromkeys(papered, PAPER)
    settings |= {"grid.color": FAINT, "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False}
    settings |= {"legend.frameon": False, "legend.fontsize": 8.5, "axes.titlesize": 10.5, "font.size": 9.5}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that the font lacks is the reader's browser's affair
        yield


def drawn(kind: str, stem: str, title: str, caption: str, draw: "Callable[[], Figure]") -> Plot:
    """A plot on both papers: drawn once, since to draw is slow, with its ink and paper exchanged for the dark page."""
    with _colours():
        light = plots.svg(draw(), readable(title))
    dark = light
    for of_light, of_dark in zip(LIGHT, DARK, strict=True):
        dark = dark.replace(f": {of_light}", f": {of_dark}")
    return Plot(kind, stem, readable(title), readable(caption), light, dark)


def _style(number: int) -> dict[str, str]:
    """Colour and marker of a series; black is the ink, or it would not be seen on a dark page."""
    style = plots.style(number)
    return style | {"color": INK} if style["color"] == "#000000" else style


def _panels(panels: Sequence[Panel]) -> "Figure":
    """Panels side by side, with one legend below for all of them."""
    labels = dict.fromkeys(one.label for panel in panels for one in panel.series)
    longest = max((len(label) for label in labels), default=0)
    columns = len(panels) * (1 if longest > 44 else 2 if longest > 24 else 3)
    published = any(panel.published for panel in panels)
    rows = ceil((len(labels) + published) / columns)
    wide, high = plots.INCHES
    figure = plots.figure((wide + 2.6 * (len(panels) - 1), high - 0.2 + 0.21 * rows))
    handles: dict[str, Any] = {}
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), number)
        _panel(axes, panel, handles)
    figure.legend(handles.values(), map(_legible, handles), loc="outside lower center", ncols=columns, handlelength=3)
    return figure


def _panel(axes: "Axes", panel: Panel, handles: dict[str, Any]) -> None:
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    axes.grid(axis="y", linewidth=0.7)
    axes.set_axisbelow(True)
    if panel.ticks:
        turned = sum(map(len, panel.ticks.values())) > 64
        axes.set_xticks(
            list(panel.ticks),
            list(panel.ticks.values()),
            rotation=30 if turned else 0,
            ha="right" if turned else "center",
        )
        axes.set_xlim(min(panel.ticks) - 0.5, max(panel.ticks) + 0.5)
    if panel.zero:
        axes.axhline(0, color=INK, linewidth=0.8)
    if panel.published:
        x, y = [point.x for point in panel.published], [point.y for point in panel.published]
        drawn = axes.plot(x, y, "o", markersize=5, markerfacecolor="none", color=plots.MUTED, linestyle="none")
        handles.setdefault("published", drawn[0])
    for one in panel.series:
        handles.setdefault(one.label, _series(axes, one, lines=panel.lines))
    if not panel.zero:
        axes.set_ylim(bottom=0)
    if not panel.ticks and panel.lines:
        axes.set_xticks(sorted({point.x for one in panel.series for point in one.points}))


def _series(axes: "Axes", one: Series, *, lines: bool) -> Any:
    style = _style(one.number)
    x, y = [point.x for point in one.points], [point.y for point in one.points]
    low = [point.y if point.low is None else point.low for point in one.points]
    high = [point.y if point.high is None else point.high for point in one.points]
    if lines:
        axes.fill_between(x, low, high, color=style["color"], alpha=0.07, linewidth=0)
    else:
        axes.vlines(x, low, high, color=style["color"], linewidth=1.4, alpha=0.75)
    shape = ("--" if one.dashed else "-") if lines else "none"
    filled: Any = style | ({"markerfacecolor": axes.get_facecolor()} if one.dashed else {})
    return axes.plot(x, y, linestyle=shape, linewidth=1.6, markersize=5, **filled)[0]


def _legible(label: str) -> str:
    """A name in a legend: not too long, and not begun with what hides it there."""
    label = label if len(label) <= LONGEST else f"{label[: LONGEST - 4]} ..."
    return f" {label}" if label.startswith("_") else label


def _numbers(names: Iterable[str]) -> dict[str, int]:
    """A colour for each name, in their order."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


# Metric by task


def by_task(group: Group, table: Table) -> Plot | None:
    """Dots with intervals for a table whose columns are tasks, by the judgements that lead; None without such rows.

    Of systems that search everything, told what the task says: pools and other instructions have plots of their own.
    """
    places = [place for place, column in enumerate(table.columns) if column.leads]
    rows = [row for row in table.of_kind("ours") if row.system and row.system.instruction == "task"]
    if not rows:
        return None
    series = [Series(row.label, _dots(row, places, n, len(rows)), n) for n, row in enumerate(rows)]
    ticks = {float(at): table.columns[place].label for at, place in enumerate(places)}
    published = [point for row in table.of_kind("published") if row.ranked for point in _dots(row, places, 0, 1)]
    panel = Panel("", "", table.columns[0].metric, series, ticks, published)
    title = f"{table.title} by task: {group.title}"
    caption = INTERVALS + (" Hollow: the systems of the paper." if published else "")
    return drawn("task", f"{table.stem}-by-task", title, caption, lambda: _panels([panel]))


def _dots(row: Row, places: Sequence[int], number: int, many: int) -> list[Point]:
    """A row's cells, beside those of the other rows."""
    offset = (number - (many - 1) / 2) * min(0.12, 0.7 / many)
    cells = [row.cells[place] for place in places]
    return [Point(at + offset, cell.value, cell.low, cell.high) for at, cell in enumerate(cells) if cell is not None]


# Pool sweep


def sweep(group: Group, table: Table) -> Plot:
    """A line for each row of a table whose columns are sizes of pools."""
    numbers = _numbers(sorted(row.system.name for row in table.rows if row.system))
    series = [
        Series(row.label, _sized(table, row), numbers[row.system.name], dashed=row.system.pool == "union")
        for row in table.rows
        if row.system
    ]
    metric = table.columns[0].metric
    panel = Panel("", "documents in the pool, gold that was put in aside", metric, series, lines=True)
    caption = (
        "As OBLIQ-Bench's Figure 3. Dashed: the union as retrieved, a lower bound. Solid: the same with every "
        f"missing relevant document put in, an upper bound. {INTERVALS}"
    )
    return drawn("sweep", table.stem, f"{table.title}: {group.title}", caption, lambda: _panels([panel]))


def _sized(table: Table, row: Row) -> list[Point]:
    return [
        Point(float(column.label), cell.value, cell.low, cell.high)
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell is not None
    ]


# Gap


@dataclass(frozen=True, slots=True)
class Spot:
    """A task in the gap plot."""

    label: str
    ceiling: Point  # x is not used
    best: Point
    systems: str  # which runs these are
    published: bool = False


def spots(group: Group, metric: str = "") -> list[Spot]:
    """Tasks for which both the best search and the best ranking of the largest pool with gold in it are known."""
    found = []
    for task in group.tasks:
        runs = group.of_task(task)
        named = metric or GAP
        searched = _best(group, [run for run in runs if not run.config.get("pool")], named)
        oracle = [run for run in runs if group.system(run).pool == "oracle" and run.config["program"] != FLOOR]
        # The largest pool is the hardest to rank, and the nearest to all documents.
        largest = max((group.system(run).size for run in oracle), default=0)
        ranked = _best(group, [run for run in oracle if group.system(run).size == largest], named)
        if searched and ranked:
            what = f"{short(task)}: {searched[1]} against {ranked[1]}"
            found.append(Spot(short(task), ranked[0], searched[0], what))
        if printed := _published_spot(group, task, named):
            found.append(printed)
    return found


def _best(group: Group, runs: Sequence[Run], metric: str) -> tuple[Point, str] | None:
    measured = [(run, found[1]) for run in runs if (found := measured_in(run, metric, leading(run)))]
    if not measured:
        return None
    run, best = max(measured, key=lambda pair: pair[1]["mean"])
    return Point(0, best["mean"], best["low"], best["high"]), str(group.system(run))


def _published_spot(group: Group, task: str, metric: str) -> Spot | None:
    columns = task_columns(group, task, metric)
    figures = figures_for(group, columns[0]) if columns else []
    ceilings = [figure for figure in figures if is_bound(figure) and figure.system.startswith("Oracle")]
    systems = [figure for figure in figures if not is_bound(figure)]
    if not ceilings or not systems:
        return None
    ceiling = max(ceilings, key=lambda figure: figure.value)
    best = max(systems, key=lambda figure: figure.value)
    what = f"{short(task)}, published: {best.system} against {ceiling.system} ({best.table})"
    return Spot(short(task), Point(0, ceiling.value), Point(0, best.value), what, published=True)


def gap(groups: Sequence[Group], metric: str = "") -> Plot | None:
    """OBLIQ-Bench's Figure 1 over groups of the same data and split; None without a task for it."""
    found = [spot for group in groups for spot in spots(group, metric)]
    if not found:
        return None
    first = groups[0]
    named = metric or GAP
    title = f"{named} of the best search against the ceiling, {first.data} data, split {first.split}"
    caption = (
        "As OBLIQ-Bench's Figure 1. On the diagonal a search reaches what recognising relevant documents in a pool "
        f"allows; below it documents can be recognised and are not found. {'; '.join(spot.systems for spot in found)}."
    )
    stem = f"{first.data}-{first.split}{first.part}-gap-{in_file(named)}"
    return drawn("gap", stem, title, caption, lambda: _gap_figure(found, named))


def _gap_figure(found: Sequence[Spot], metric: str) -> "Figure":
    end = max(0.1, *(point.y if point.high is None else point.high for s in found for point in (s.ceiling, s.best)))
    end = min(1.0, ceil(end * 10) / 10)
    figure = plots.figure((5.4, 5.6))
    axes = figure.add_subplot()
    axes.plot([0, end], [0, end], color=plots.MUTED, linewidth=0.9, linestyle="--")
    axes.set(xlim=(0, end * 1.02), ylim=(0, end * 1.02), xlabel=f"ceiling: {metric} over a pool with gold in it")
    axes.set(ylabel=f"best search: {metric}", aspect="equal")
    axes.grid(linewidth=0.7)
    axes.set_axisbelow(True)
    numbers = _numbers(spot.label for spot in found)
    handles: dict[str, Any] = {}
    for spot in sorted(found, key=lambda spot: spot.published):
        label = "published" if spot.published else spot.label
        drawn = _spot(axes, spot, _style(numbers[spot.label]))
        if not spot.published or any(one.label == spot.label and not one.published for one in found):
            handles.setdefault(label, drawn)
        else:
            handles.setdefault(f"{spot.label}, published", drawn)
    figure.legend(handles.values(), map(_legible, handles), loc="outside lower center", ncols=4)
    return figure


def _spot(axes: "Axes", spot: Spot, style: dict[str, str]) -> Any:
    """A task with both its intervals; hollow where it is a paper's."""
    x, y = spot.ceiling, spot.best
    if y.low is not None and y.high is not None:
        axes.vlines(x.y, y.low, y.high, color=style["color"], linewidth=1, alpha=0.6)
    if x.low is not None and x.high is not None:
        axes.hlines(y.y, x.low, x.high, color=style["color"], linewidth=1, alpha=0.6)
    fill = "none" if spot.published else style["color"]
    shape: Any = style | {"markerfacecolor": fill, "linestyle": "none", "markersize": 7}
    return axes.plot([x.y], [y.y], **shape)[0]


# Conditions


def conditions(group: Group) -> Plot | None:
    """Win by the number of conditions, the mean over domains; None without any.

    Of the systems that were run in all of the group's domains; where there is none, over the domains that all share.
    """
    by_system: dict[System, dict[str, Run]] = {}
    for run in group.runs:
        if "Win(1)" in run.columns:
            by_system.setdefault(group.system(run), {})[run.config["task"]] = run
    tasks = [task for task in group.tasks if any(task in own for own in by_system.values())]
    whole = {system: own for system, own in by_system.items() if len(own) == len(tasks)}
    shared = [task for task in tasks if all(task in own for own in by_system.values())]
    chosen, tasks = (whole, tasks) if whole else (by_system, shared)
    if not tasks:
        return None
    columns = condition_columns(group, tuple(tasks))[:10]
    series = []
    for number, (system, own) in enumerate(chosen.items()):
        wins = [mean_over([own[task] for task in tasks], column.metric, "") for column in columns]
        points = [
            Point(place, win["mean"], win["low"], win["high"])
            for place, win in enumerate(wins, start=1)
            if win is not None
        ]
        series.append(Series(str(system), points, number))
    published = [
        Point(place, figure.value)
        for place, column in enumerate(columns, start=1)
        for figure in figures_for(group, column)
    ]
    left_out = sorted(str(system) for system in by_system if system not in chosen)
    return _conditions_plot(group, tasks, series, published, left_out)


def _conditions_plot(
    group: Group, tasks: Sequence[str], series: list[Series], published: list[Point], left_out: list[str]
) -> Plot:
    ladder = group.variant in LADDERS
    x = "conditions met: the better document over the one that meets one less" if ladder else "conditions in the query"
    ticks = {float(k): f"{k} : {k - 1}" if ladder else str(k) for k in range(1, 11)}
    panel = Panel("", x, "Win", series, ticks, published, lines=True)
    title = f"Win by {'conditions met' if ladder else 'number of conditions'}: {group.title}"
    figure = "4" if group.variant == "monotonicity" else "5" if ladder else "3"
    over = f"mean over {', '.join(map(short, tasks))}" if len(tasks) > 1 else short(tasks[0])
    hollow = " Hollow: the systems of the paper." if published else ""
    kind = group.variant if group.variant in KINDS else "conditions"
    rest = f" Not run in all of these domains: {'; '.join(left_out)}." if left_out else ""
    caption = f"As MultiConIR's Figure {figure}, without its smoothing; {over}. {INTERVALS}{hollow}{rest}"
    return drawn(kind, f"{group.stem}-Win-by-conditions", title, caption, lambda: _panels([panel]))


# Instruction


def instructions(group: Group, metric: str = "") -> Plot | None:
    """The change from the task's instruction to a generic one, and to none, paired by query; None without such runs."""
    panels = [
        Panel(f"{kind} instruction" if kind == "generic" else "no instruction", "", "", series, zero=True)
        for kind in ("generic", "none")
        if (series := _changes(group, kind, metric))
    ]
    if not panels:
        return None
    tasks = group.tasks
    for panel in panels:
        panel.ticks = {float(place): short(task) for place, task in enumerate(tasks)}
    named = metric or group.runs[0].metric
    panels[0].y = f"change of {named}"
    title = f"Change of {named} with another instruction: {group.title}"
    caption = (
        "As CRUMB's Figure 5: the metric with that instruction, less that with the task's own; below 0 the task's own "
        f"instruction helps. {INTERVALS} They are of the paired difference."
    )
    return drawn("instruction", f"{group.stem}-instruction-{in_file(named)}", title, caption, lambda: _panels(panels))


def _changes(group: Group, kind: str, metric: str) -> list[Series]:
    """For each system, its change in every task that it was run on with both instructions."""
    by_key: dict[tuple[System, str, str], Run] = {}
    for run in group.runs:
        system = group.system(run)
        plain = System(system.name, system.pool, system.size, system.of)
        by_key[plain, run.config["task"], system.instruction] = run
    systems = list(dict.fromkeys(system for system, _, told in by_key if told != "task"))
    series = []
    for number, system in enumerate(systems):
        offset = (number - (len(systems) - 1) / 2) * min(0.12, 0.7 / len(systems))
        points = []
        for place, task in enumerate(group.tasks):
            own, other = by_key.get((system, task, "task")), by_key.get((system, task, kind))
            if own and other and (change := _change(own, other, metric or own.metric)):
                points.append(Point(place + offset, *change))
        series.append(Series(str(system), points, number))
    return [one for one in series if one.points]


def _change(own: Run, other: Run, metric: str) -> tuple[float, float | None, float | None] | None:
    """The paired difference with its interval; None where the queries are not the same, or there are none."""
    from evals.measuring.stats import paired

    if own.query_ids != other.query_ids or metric not in own.columns or metric not in other.columns:
        return None
    both = [(own.columns[metric][query_id], other.columns[metric][query_id]) for query_id in own.query_ids]
    pairs = [(before, after) for before, after in both if before is not None and after is not None]
    if not pairs:
        return None
    difference = paired([before for before, _ in pairs], [after for _, after in pairs], permutations=99)
    return difference.difference, difference.low, difference.high
