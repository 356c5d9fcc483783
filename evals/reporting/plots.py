"""Every plot, drawn from one type: panels of series of points. The same data makes the same bytes, and
text stays text.

Each series has a colour and a marker, in an order that tells them apart without colour, too (Okabe
and Ito 2008). report_plots.py chooses the plots of a report. Only measured values are drawn: smoothing
and projections, as in figures of the papers, are left out.
"""

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sextant.evals.run_descriptions import printable
from sextant.tools.platform.number_format import abbreviate
from sextant.tools.records import JsonMapping

INK = "#222222"
FAINT = "#d9d9d9"
PAPER = "#ffffff"
MUTED = "#767676"
# Without Okabe and Ito's yellow, which is too pale for a line on white.
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    INK,
)
# One less than the colours, so that 42 series differ.
MARKERS = ("o", "s", "^", "D", "v", "P")
# The width of a plot on a page of ours, and the most that a panel is high, in inches.
WIDTH = 7.0
HEIGHT = 4.0
# Widths in papers, in inches.
COLUMNS = {
    "acl-column": 3.03,
    "acl-page": 6.3,
    "acm-column": 3.33,
    "acm-page": 7.0,
}
FONT = 9.5
PAPER_FONT = 7.0

SeriesKind = Literal["points", "line", "dashed", "steps", "front", "hollow"]
_LOOKS: dict[SeriesKind, dict[str, Any]] = {
    "points": {"linestyle": "none"},
    "line": {},
    "dashed": {"linestyle": "--", "markerfacecolor": PAPER},
    "steps": {"drawstyle": "steps-post", "markevery": [-1]},
    "front": {
        "drawstyle": "steps-post",
        "linestyle": ":",
        "color": MUTED,
        "marker": "",
    },
    "hollow": {
        "linestyle": "none",
        "markerfacecolor": "none",
        "color": MUTED,
        "marker": "o",
    },
}
SETTINGS: Any = {
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": "small",
    "axes.titlesize": "medium",
    # Names may have a dollar in them.
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "sextant",
    "font.family": "sans-serif",
    # Fonts that publishers take.
    "pdf.fonttype": 42,
}


class Point(NamedTuple):
    """A value at a place, with its interval, and a text next to it."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


class Series(NamedTuple):
    """Points that belong together; `number` is their colour and marker."""

    label: str
    points: list[Point]
    number: int = 0
    kind: SeriesKind = "points"


@dataclass(slots=True)
class Panel:
    """A pair of axes."""

    x: str
    y: str
    series: list[Series]
    # By position, if the axis has names instead of numbers.
    ticks: dict[float, str] = field(default_factory=dict)
    # Values are differences: the axis does not begin at 0, and 0 has a line.
    zero: bool = False
    # Both axes go from 0 to 1, with a line where they are equal.
    diagonal: bool = False
    title: str = ""
    # As Axes.set_xscale takes it.
    scale: Mapping[str, Any] = field(default_factory=dict)


class Plot(NamedTuple):
    """A plot, drawn."""

    # The beginning of its file's name.
    stem: str
    title: str
    caption: str
    svg: str


class NotebookFigure(Figure):
    """A figure that a notebook shows, also if it has not imported pyplot."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()


def draw(stem: str, title: str, caption: str, panels: Sequence[Panel]) -> Plot:
    """Return a plot of a page of ours."""
    title = printable(title)
    return Plot(stem, title, printable(caption), svg(draw_panels(panels), title))


def svg(drawing: Figure, title: str) -> str:
    """Return the figure as SVG, the same for the same data; a screen reader says `title`."""
    return _save(drawing, "svg", Date=None, Creator=None, Title=title).decode()


def pdf(drawing: Figure, title: str) -> bytes:
    """Return the figure as PDF, the same for the same data."""
    return _save(drawing, "pdf", CreationDate=None, Title=title)


def _save(drawing: Figure, form: str, **metadata: str | None) -> bytes:
    data = io.BytesIO()
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        # A glyph that the font lacks is left to the reader's browser.
        warnings.simplefilter("ignore")
        drawing.savefig(data, format=form, metadata=metadata)
    return data.getvalue()


def draw_panels(panels: Sequence[Panel], width: float = WIDTH, font: float = FONT) -> Figure:
    """Draw panels one below the other, with a legend of the series of all of them at the end."""
    labels = {series.label for panel in panels for series in panel.series}
    # Names of about 24 characters stand in a row of three on a page of ours.
    columns = max(1, int(72 * width / WIDTH / max(map(len, labels), default=24)))
    height = len(panels) * min(HEIGHT, 0.8 * width) + 0.21 * ceil(len(labels) / columns)
    handles: dict[str, Any] = {}
    with matplotlib.rc_context(SETTINGS | {"font.size": font}):
        drawing = NotebookFigure(figsize=(width, height), layout="constrained")
        subplots = drawing.subplots(len(panels), 1, squeeze=False)
        for axes, panel in zip(subplots[:, 0], panels, strict=True):
            _prepare_axes(axes, panel)
            for series in panel.series:
                handles.setdefault(series.label, _draw_series(axes, series))
            if not panel.zero:
                axes.set_ylim(bottom=0)
        names = [_shorten(label) for label in handles]
        place: Any = {"loc": "outside lower center", "ncols": columns, "handlelength": 3}
        drawing.legend(list(handles.values()), names, **place)
    return drawing


def _prepare_axes(axes: Axes, panel: Panel) -> None:
    x, y, title = map(printable, (panel.x, panel.y, panel.title))
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.grid(axis="y", linewidth=0.7)
    axes.set_axisbelow(True)
    if panel.scale:
        axes.set_xscale(**panel.scale)
        axes.xaxis.set_major_formatter("{x:g}")
    if panel.ticks:
        names = [printable(name) for name in panel.ticks.values()]
        axes.set_xticks(list(panel.ticks), names, rotation=30, ha="right")
        axes.minorticks_off()
        if not panel.scale:
            axes.set_xlim(min(panel.ticks) - 0.5, max(panel.ticks) + 0.5)
    if panel.zero:
        axes.axhline(0, color=INK, linewidth=0.8)
    if panel.diagonal:
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.plot([0, 1], [0, 1], color=MUTED, linestyle=":")


def _draw_series(axes: Axes, series: Series) -> Any:
    number = series.number
    look: dict[str, Any] = {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 5,
        "linewidth": 1.6,
    }
    look |= _LOOKS[series.kind]
    x = [point.x for point in series.points]
    y = [point.y for point in series.points]
    low = [point.y if point.low is None else point.low for point in series.points]
    high = [point.y if point.high is None else point.high for point in series.points]
    if look.get("linestyle") == "none":
        axes.vlines(x, low, high, color=look["color"], linewidth=1.4, alpha=0.75)
    else:
        step: Any = "post" if "drawstyle" in look else None
        axes.fill_between(x, low, high, step=step, color=look["color"], alpha=0.09, linewidth=0)
    for point in series.points:
        # Above the point.
        offset: Any = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center"}
        axes.annotate(printable(point.label), (point.x, point.y), **offset)
    return axes.plot(x, y, **look)[0]


def _shorten(label: str) -> str:
    """Return a name for a legend: not too long, and not begun with an underscore, which would hide it."""
    label = abbreviate(printable(label))
    return f" {label}" if label.startswith("_") else label


def draw_for_paper(stem: str, title: str, panel: Panel) -> dict[str, str | bytes]:
    """Return a plot in the widths of papers' columns, by the names of its files."""
    drawn: dict[str, str | bytes] = {}
    for width_name, width in COLUMNS.items():
        drawing = draw_panels([panel], width, PAPER_FONT)
        name = f"plots/{stem}-{width_name}"
        drawn |= {f"{name}.svg": svg(drawing, title), f"{name}.pdf": pdf(drawing, title)}
    return drawn


def draw_differences(result: JsonMapping, names: Sequence[str]) -> Figure:
    """Draw how systems differ from the first by the headline metric, with 95 % intervals.

    `names` are those of all systems of a comparison, the baseline first.
    """
    metric = result["metric"]
    points = []
    for place, row in enumerate(row for row in result["comparisons"] if row["metric"] == metric):
        if row["difference"] is not None:
            points.append(Point(place, row["difference"], row["low"], row["high"]))
    series = Series(f"difference from {names[0]}", points)
    ticks = {float(place): name for place, name in enumerate(names[1:])}
    return draw_panels([Panel("", metric, [series], ticks, zero=True)])


def draw_curves(result: JsonMapping) -> Figure:
    """Draw curves for equal budgets: a panel for each axis, with all runs, their bands, and
    the front.
    """
    panels = []
    for curves in result["axes"].values():
        budgets = curves["budgets"]
        series = []
        for row in curves["curves"]:
            rows = zip(budgets, row["mean"], row["low"], row["high"], strict=True)
            points = [Point(*values) for values in rows][: row["ended"].index(1.0) + 1]
            number = [run["run"] for run in result["runs"]].index(row["run"])
            series.append(Series(row["label"], points, number, "steps"))
        front = [Point(point["budget"], point["value"]) for point in curves["front"]]
        front.append(Point(budgets[-1], front[-1].y))
        series.append(Series("Pareto front", front, kind="front"))
        panel = Panel(f"{curves['words']} a query, at most", result["metric"], series)
        first = next(budget for budget in budgets if budget)
        panel.scale = {"value": "symlog", "linthresh": first}
        panels.append(panel)
    return draw_panels(panels)


def curves_svg(result: JsonMapping) -> str:
    """Return curves for equal budgets as SVG."""
    title = f"{result['metric']} of {result['task']} for equal budgets"
    return svg(draw_curves(result), title)
