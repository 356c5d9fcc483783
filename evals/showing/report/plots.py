"""The plots of a report, each in the form of a paper's figure.

metric by task      dots with intervals
pool sweep          OBLIQ-Bench, Figure 3: a metric by the size of the pool, union dashed, oracle solid
gap                 OBLIQ-Bench, Figure 1: the best ranking of a pool with gold in it, against the best search
conditions          MultiConIR, Figures 3 and 4: Win by conditions in the query, and by conditions met
instruction         CRUMB, Figure 5: what a generic instruction, or none, changes
losses              what became of relevant documents (losses.py)

Drawn on white and for a dark page (drawing.py). Published values are hollow, and only where the tables have them.
Figure 3's smoothing and projections are left out, because what is drawn here was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.measuring.scored import Run, pair
from evals.measuring.stats import paired
from evals.showing.plots import MUTED, figure
from evals.showing.report.cells import Row, Table
from evals.showing.report.drawing import (
    KINDS,
    Panel,
    Plot,
    Point,
    Series,
    draw,
    draw_panels,
    number_names,
    series_style,
    shorten,
)
from evals.showing.report.groups import Group, System, in_file, short
from evals.showing.report.published import figures_for, is_bound
from evals.showing.report.tables import (
    LADDERS,
    condition_columns,
    leading_judgements,
    mean_over,
    measured_in,
    task_columns,
)
from programs import FLOOR

SWEPT = "R@10"  # the metric of OBLIQ-Bench's Figure 3
GAP = "nDCG@10"  # that of its Figure 1
INTERVALS = "Bars and bands are 95 % bootstrap intervals over queries."
HOLLOW = " Hollow: the systems of the paper."


def plot_by_task(group: Group, table: Table) -> Plot | None:
    """Dots with intervals for a table whose columns are tasks, by the judgements that lead; None without such rows.

    Of systems that search everything, told what the task says: pools and other instructions have plots of their own.
    """
    places = [place for place, column in enumerate(table.columns) if column.leads]
    rows = [row for row in table.of_kind("ours") if row.system and row.system.instruction == "task"]
    if not rows:
        return None
    series = [Series(row.label, _dots(row, places, _offset(n, len(rows))), n) for n, row in enumerate(rows)]
    ticks = {float(at): table.columns[place].label for at, place in enumerate(places)}
    published = [point for row in table.of_kind("published") if row.ranked for point in _dots(row, places, 0.0)]
    panel = Panel("", "", table.columns[0].metric, series, ticks, published)
    caption = INTERVALS + (HOLLOW if published else "")
    title = f"{table.title} by task: {group.title}"
    return draw("task", f"{table.stem}-by-task", title, caption, lambda: draw_panels([panel]))


def _offset(number: int, many: int) -> float:
    """How far beside its tick one of `many` series stands."""
    return (number - (many - 1) / 2) * min(0.12, 0.7 / many)


def _dots(row: Row, places: Sequence[int], offset: float) -> list[Point]:
    cells = [row.cells[place] for place in places]
    return [Point(at + offset, cell.value, cell.low, cell.high) for at, cell in enumerate(cells) if cell is not None]


def plot_sweep(group: Group, table: Table) -> Plot:
    """A line for each row of a table whose columns are sizes of pools."""
    rows = [(row, row.system) for row in table.rows if row.system]
    numbers = number_names(sorted(system.name for _, system in rows))
    sizes = [float(column.label) for column in table.columns]
    series = []
    for row, system in rows:
        cells = [(size, cell) for size, cell in zip(sizes, row.cells, strict=True) if cell is not None]
        points = [Point(size, cell.value, cell.low, cell.high) for size, cell in cells]
        series.append(Series(row.label, points, numbers[system.name], dashed=system.pool == "union"))
    metric = table.columns[0].metric
    panel = Panel("", "documents in the pool, gold that was put in aside", metric, series, lines=True)
    caption = (
        "As OBLIQ-Bench's Figure 3. Dashed: the union as retrieved, a lower bound. Solid: the same with every "
        f"missing relevant document put in, an upper bound. {INTERVALS}"
    )
    return draw("sweep", table.stem, f"{table.title}: {group.title}", caption, lambda: draw_panels([panel]))


@dataclass(frozen=True, slots=True)
class Spot:
    """A task in the gap plot."""

    label: str
    ceiling: Point  # x is not used
    best: Point
    systems: str  # which runs these are
    published: bool = False


def find_spots(group: Group, metric: str = "") -> list[Spot]:
    """Tasks for which both the best search and the best ranking of the largest pool with gold in it are known."""
    found = []
    for task in group.tasks:
        runs, named = group.of_task(task), metric or GAP
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
    measured = [(run, found[1]) for run in runs if (found := measured_in(run, metric, leading_judgements(run)))]
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
    ceiling, best = (max(known, key=lambda figure: figure.value) for known in (ceilings, systems))
    what = f"{short(task)}, published: {best.system} against {ceiling.system} ({best.table})"
    return Spot(short(task), Point(0, ceiling.value), Point(0, best.value), what, published=True)


def plot_gap(groups: Sequence[Group], metric: str = "") -> Plot | None:
    """OBLIQ-Bench's Figure 1 over groups of the same data and split; None without a task for it."""
    spots = [spot for group in groups for spot in find_spots(group, metric)]
    if not spots:
        return None
    first, named = groups[0], metric or GAP
    title = f"{named} of the best search against the ceiling, {first.data} data, split {first.split}"
    caption = (
        "As OBLIQ-Bench's Figure 1. On the diagonal a search reaches what recognising relevant documents in a pool "
        f"allows; below it documents can be recognised and are not found. {'; '.join(spot.systems for spot in spots)}."
    )
    stem = f"{first.data}-{first.split}{first.part}-gap-{in_file(named)}"
    return draw("gap", stem, title, caption, lambda: _gap_figure(spots, named))


def _gap_figure(spots: Sequence[Spot], metric: str) -> Figure:
    ends = [point.y if point.high is None else point.high for spot in spots for point in (spot.ceiling, spot.best)]
    end = min(1.0, ceil(max(0.1, *ends) * 10) / 10)
    drawing = figure((5.4, 5.6))
    axes = drawing.add_subplot()
    axes.plot([0, end], [0, end], color=MUTED, linewidth=0.9, linestyle="--")
    axes.set(xlim=(0, end * 1.02), ylim=(0, end * 1.02), xlabel=f"ceiling: {metric} over a pool with gold in it")
    axes.set(ylabel=f"best search: {metric}", aspect="equal")
    axes.grid(linewidth=0.7)
    axes.set_axisbelow(True)
    numbers = number_names(spot.label for spot in spots)
    ours = {spot.label for spot in spots if not spot.published}
    handles: dict[str, Any] = {}
    for spot in sorted(spots, key=lambda spot: spot.published):
        hollow = "published" if spot.label in ours else f"{spot.label}, published"
        drawn = _draw_spot(axes, spot, series_style(numbers[spot.label]))
        handles.setdefault(hollow if spot.published else spot.label, drawn)
    drawing.legend(handles.values(), map(shorten, handles), loc="outside lower center", ncols=4)
    return drawing


def _draw_spot(axes: Axes, spot: Spot, style: dict[str, str]) -> Any:
    """Draw a task with both its intervals; hollow where it is a paper's."""
    x, y = spot.ceiling, spot.best
    if y.low is not None and y.high is not None:
        axes.vlines(x.y, y.low, y.high, color=style["color"], linewidth=1, alpha=0.6)
    if x.low is not None and x.high is not None:
        axes.hlines(y.y, x.low, x.high, color=style["color"], linewidth=1, alpha=0.6)
    fill = "none" if spot.published else style["color"]
    shape: Any = style | {"markerfacecolor": fill, "linestyle": "none", "markersize": 7}
    return axes.plot([x.y], [y.y], **shape)[0]


def plot_conditions(group: Group) -> Plot | None:
    """Win by the number of conditions, the mean over domains; None without any.

    Of the systems that were run in all of the group's domains; where there is none, over the domains that all share.
    """
    by_system: dict[System, dict[str, Run]] = {}
    for run in group.runs:
        if "Win(1)" in run.columns:
            by_system.setdefault(group.system(run), {})[run.config["task"]] = run
    tasks = [task for task in group.tasks if any(task in own for own in by_system.values())]
    chosen = {system: own for system, own in by_system.items() if len(own) == len(tasks)}
    if not chosen:
        chosen, tasks = by_system, [task for task in tasks if all(task in own for own in by_system.values())]
    if not tasks:
        return None
    columns = condition_columns(group, tuple(tasks))[:10]
    series = []
    for place, (system, own) in enumerate(chosen.items()):
        wins = [mean_over([own[task] for task in tasks], column.metric, "") for column in columns]
        points = [Point(at, win["mean"], win["low"], win["high"]) for at, win in enumerate(wins, start=1) if win]
        series.append(Series(str(system), points, place))
    published = [
        Point(at, figure.value) for at, column in enumerate(columns, start=1) for figure in figures_for(group, column)
    ]
    ladder = group.variant in LADDERS
    x = "conditions met: the better document over the one that meets one less" if ladder else "conditions in the query"
    ticks = {float(k): f"{k} : {k - 1}" if ladder else str(k) for k in range(1, 11)}
    panel = Panel("", x, "Win", series, ticks, published, lines=True)
    left_out = sorted(str(system) for system in by_system if system not in chosen)
    title = f"Win by {'conditions met' if ladder else 'number of conditions'}: {group.title}"
    kind = group.variant if group.variant in KINDS else "conditions"
    number = "4" if group.variant == "monotonicity" else "5" if ladder else "3"
    over = f"mean over {', '.join(map(short, tasks))}" if len(tasks) > 1 else short(tasks[0])
    caption = (
        f"As MultiConIR's Figure {number}, without its smoothing; {over}. {INTERVALS}{HOLLOW if published else ''}"
    )
    caption += f" Not run in all of these domains: {'; '.join(left_out)}." if left_out else ""
    return draw(kind, f"{group.stem}-Win-by-conditions", title, caption, lambda: draw_panels([panel]))


def plot_instructions(group: Group, metric: str = "") -> Plot | None:
    """The change from the task's instruction to a generic one, and to none, paired by query; None without such runs."""
    tasks, named = group.tasks, metric or group.runs[0].metric
    ticks = {float(place): short(task) for place, task in enumerate(tasks)}
    titles = {"generic": "generic instruction", "none": "no instruction"}
    found = {kind: measure_changes(group, kind, metric) for kind in titles}
    panels = [Panel(titles[kind], "", "", series, ticks, zero=True) for kind, series in found.items() if series]
    if not panels:
        return None
    panels[0].y = f"change of {named}"
    title = f"Change of {named} with another instruction: {group.title}"
    caption = (
        "As CRUMB's Figure 5: the metric with that instruction, less that with the task's own; below 0 the task's own "
        f"instruction helps. {INTERVALS} They are of the paired difference."
    )
    stem = f"{group.stem}-instruction-{in_file(named)}"
    return draw("instruction", stem, title, caption, lambda: draw_panels(panels))


def measure_changes(group: Group, kind: str, metric: str) -> list[Series]:
    """For each system, its change in every task that it was run on with both instructions."""
    by_key: dict[tuple[System, str, str], Run] = {}
    for run in group.runs:
        system = group.system(run)
        plain = System(system.name, system.pool, system.size, system.of)
        by_key[plain, run.config["task"], system.instruction] = run
    systems = list(dict.fromkeys(system for system, _, told in by_key if told != "task"))
    series = []
    for number, system in enumerate(systems):
        points = []
        for place, task in enumerate(group.tasks):
            own, other = by_key.get((system, task, "task")), by_key.get((system, task, kind))
            if own and other and (change := _change(own, other, metric or own.metric)):
                points.append(Point(place + _offset(number, len(systems)), *change))
        series.append(Series(str(system), points, number))
    return [one for one in series if one.points]


def _change(own: Run, other: Run, metric: str) -> tuple[float, float | None, float | None] | None:
    """The paired difference with its interval; None where the queries are not the same, or there are none."""
    pairs = pair(own.columns.get(metric, {}), other.columns.get(metric, {}))
    if own.query_ids != other.query_ids or not pairs:
        return None
    found = paired(*zip(*pairs.values(), strict=True), permutations=99)
    return found.difference, found.low, found.high
