"""Plots of a report are drawn: panels with series, on white and for a dark page."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evals.showing.plots import INCHES, MUTED, figure, style, svg
from evals.showing.report.groups import readable

KINDS = ("task", "sweep", "gap", "complexity", "monotonicity", "conditions", "instruction", "losses")
LONGEST = 60  # characters of a name in a legend


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


# Ink, faint lines and paper, on white and on a dark page; nothing else in a plot has one of these colours.
INK, FAINT, PAPER = LIGHT = ("#222222", "#d9d9d9", "#ffffff")
DARK = ("#e8e6e1", "#4a4d52", "#17191c")


@contextmanager
def _settings() -> Iterator[None]:
    """Matplotlib set up: ink on paper, no mathematics in names that have a dollar in them."""
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    papered = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    settings: Any = dict.fromkeys(inked, INK) | dict.fromkeys(papered, PAPER)
    settings |= {"grid.color": FAINT, "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False}
    settings |= {"legend.frameon": False, "legend.fontsize": 8.5, "axes.titlesize": 10.5, "font.size": 9.5}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that the font lacks is the reader's browser's affair
        yield


def draw(kind: str, stem: str, title: str, caption: str, draw_figure: Callable[[], Figure]) -> Plot:
    """A plot on both papers: drawn once, since to draw is slow, with its ink and paper exchanged for the dark page."""
    with _settings():
        light = svg(draw_figure(), readable(title))
    dark = light
    for of_light, of_dark in zip(LIGHT, DARK, strict=True):
        dark = dark.replace(f": {of_light}", f": {of_dark}")
    return Plot(kind, stem, readable(title), readable(caption), light, dark)


def series_style(number: int) -> dict[str, str]:
    """Colour and marker of a series; black is the ink, or it would not be seen on a dark page."""
    look = style(number)
    return look | {"color": INK} if look["color"] == "#000000" else look


def draw_panels(panels: Sequence[Panel]) -> Figure:
    """Panels side by side, with one legend below for all of them."""
    labels = dict.fromkeys(one.label for panel in panels for one in panel.series)
    longest = max((len(label) for label in labels), default=0)
    columns = len(panels) * (1 if longest > 44 else 2 if longest > 24 else 3)
    published = any(panel.published for panel in panels)
    rows = ceil((len(labels) + published) / columns)
    wide, high = INCHES
    drawing = figure((wide + 2.6 * (len(panels) - 1), high - 0.2 + 0.21 * rows))
    handles: dict[str, Any] = {}
    for number, panel in enumerate(panels, start=1):
        axes = drawing.add_subplot(1, len(panels), number)
        _panel(axes, panel, handles)
    drawing.legend(handles.values(), map(shorten, handles), loc="outside lower center", ncols=columns, handlelength=3)
    return drawing


def _panel(axes: Axes, panel: Panel, handles: dict[str, Any]) -> None:
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
        hollow = axes.plot(x, y, "o", markersize=5, markerfacecolor="none", color=MUTED, linestyle="none")
        handles.setdefault("published", hollow[0])
    for one in panel.series:
        handles.setdefault(one.label, _series(axes, one, lines=panel.lines))
    if not panel.zero:
        axes.set_ylim(bottom=0)
    if not panel.ticks and panel.lines:
        axes.set_xticks(sorted({point.x for one in panel.series for point in one.points}))


def _series(axes: Axes, one: Series, *, lines: bool) -> Any:
    look = series_style(one.number)
    x, y = [point.x for point in one.points], [point.y for point in one.points]
    low = [point.y if point.low is None else point.low for point in one.points]
    high = [point.y if point.high is None else point.high for point in one.points]
    if lines:
        axes.fill_between(x, low, high, color=look["color"], alpha=0.07, linewidth=0)
    else:
        axes.vlines(x, low, high, color=look["color"], linewidth=1.4, alpha=0.75)
    shape = ("--" if one.dashed else "-") if lines else "none"
    filled: Any = look | ({"markerfacecolor": axes.get_facecolor()} if one.dashed else {})
    return axes.plot(x, y, linestyle=shape, linewidth=1.6, markersize=5, **filled)[0]


def shorten(label: str) -> str:
    """A name in a legend: not too long, and not begun with what hides it there."""
    label = label if len(label) <= LONGEST else f"{label[: LONGEST - 4]} ..."
    return f" {label}" if label.startswith("_") else label


def number_names(names: Iterable[str]) -> dict[str, int]:
    """A colour for each name, in their order."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}
