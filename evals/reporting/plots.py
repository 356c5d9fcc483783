"""Plots as SVG and PDF files that look alike: the same data makes the same bytes, and text stays
text.

Each series has a colour and a marker, in an order that tells them apart without colour, too (Okabe
and Ito 2008). The plots of a report are chosen in report_plots.py, a paper's figures in
evals/papers/figures.py.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from sextant.tools.platform.cli import strip_control_characters
from sextant.tools.records import JsonMapping, JsonObject

# Without Okabe and Ito's yellow, which is too pale for a line on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MUTED = "#767676"
INCHES = (7.0, 4.2)
# Widths in papers, in inches.
COLUMNS = {
    "acl-column": 3.03,
    "acl-page": 6.3,
    "acm-column": 3.33,
    "acm-page": 7.0,
}
# Row -> column -> value.
Table = Mapping[str, Mapping[str, float | None]]


class NotebookFigure(Figure):
    """A figure that a notebook shows, also if it has not imported pyplot."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()


def figure(inches: tuple[float, float] = INCHES) -> Figure:
    """Return an empty figure; `figure().add_subplot()` has the axes."""
    return NotebookFigure(figsize=inches, layout="constrained")


def style(number: int) -> dict[str, str]:
    """Return colour and marker of the series with this number, from 0; they repeat after 49."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[(number + number // 7) % len(MARKERS)],
    }


def svg(drawing: Figure, title: str) -> str:
    """Return the figure as SVG, the same for the same data; a screen reader says `title`."""
    text = io.StringIO()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "sextant", "font.family": "sans-serif"}
    ):
        drawing.savefig(
            text, format="svg", metadata={"Date": None, "Creator": None, "Title": title}
        )
    return text.getvalue()


def pdf(drawing: Figure, title: str) -> bytes:
    """Return the figure as PDF, the same for the same data, with fonts that publishers take."""
    data = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        drawing.savefig(data, format="pdf", metadata={"CreationDate": None, "Title": title})
    return data.getvalue()


def curves_svg(result: JsonObject) -> str:
    """Return curves for equal budgets as SVG."""
    title = f"{result['metric']} of {result['task']} for equal budgets"
    return svg(draw_curves(result), title)


def draw_differences(result: JsonMapping, names: Sequence[str]) -> Figure:
    """Draw how systems differ from the first by the headline metric, with 95 % intervals.

    `names` are those of all systems of a comparison, the baseline first.
    """
    metric = result["metric"]
    rows = [row for row in result["comparisons"] if row["metric"] == metric]
    drawing = figure((INCHES[0], 1.0 + 0.4 * len(rows)))
    panel = drawing.add_subplot()
    panel.axvline(0.0, color=MUTED, linewidth=1)
    for place, row in enumerate(rows):
        if row["difference"] is None:
            continue
        if row["low"] is not None:
            panel.plot(
                [row["low"], row["high"]],
                [place, place],
                color=COLOURS[0],
            )
        panel.plot(
            row["difference"],
            place,
            color=COLOURS[0],
            marker=MARKERS[0],
        )
    panel.set_yticks(range(len(rows)), [_escape(name) for name in names[1:]])
    panel.invert_yaxis()
    panel.set_xlabel(_escape(f"{metric}: difference from {names[0]}"))
    return drawing


def draw_curves(result: JsonMapping) -> Figure:
    """Draw curves for equal budgets: a panel for each axis, with all runs, their bands, and
    the front.
    """
    axes = result["axes"]
    drawing = figure(
        (
            7.0,
            1.0 + 3.0 * len(axes),
        )
    )
    numbers = {run["label"]: number for number, run in enumerate(result["runs"])}
    panels = drawing.subplots(
        len(axes),
        1,
        squeeze=False,
    )[:, 0]
    for panel, (axis, curves) in zip(panels, axes.items(), strict=True):
        _draw_panel(panel, axis, curves, numbers)
        panel.set_ylabel(_escape(result["metric"]))
    return _finish(drawing, 2)


def _draw_panel(panel: Any, axis: str, curves: JsonObject, numbers: dict[str, int]) -> None:
    budgets = curves["budgets"]
    for row in curves["curves"]:
        _draw_curve(panel, row, budgets, style(numbers[row["label"]]))
    _draw_front(panel, curves["front"], budgets[-1])
    first = next(budget for budget in budgets if budget)
    if budgets[-1] > 50 * first:
        panel.set_xscale("symlog", linthresh=first)
    elif axis != "usd":
        # There is no half of a call.
        panel.locator_params(axis="x", integer=True)
    panel.set_xlabel(f"{curves['words']} a query, at most")
    panel.set_ylim(bottom=0)


def _draw_curve(panel: Any, row: JsonMapping, budgets: Sequence[float], look: JsonMapping) -> None:
    end = row["ended"].index(1.0) + 1
    mean = row["mean"][:end]
    x = budgets[:end]
    panel.step(
        x,
        mean,
        where="post",
        color=look["color"],
        label=_escape(row["label"]),
    )
    panel.plot(
        x[-1:],
        mean[-1:],
        linestyle="",
        **look,
    )
    if None not in row["low"]:
        low = row["low"][:end]
        high = row["high"][:end]
        panel.fill_between(
            x,
            low,
            high,
            step="post",
            color=look["color"],
            alpha=0.12,
            lw=0,
        )


def _draw_front(panel: Any, front: Sequence[Mapping[str, float]], last_budget: float) -> None:
    x = [point["budget"] for point in front] + [last_budget]
    y = [point["value"] for point in front] + [front[-1]["value"]]
    panel.step(
        x,
        y,
        where="post",
        color=MUTED,
        linestyle=(0, (1, 1.5)),
        lw=2.5,
        zorder=1,
        label="Pareto front",
    )


def draw_table(chart: str, panels: Mapping[str, Table], value: str) -> Figure:
    """Draw tables, a panel each: lines or bars for each row along the columns, or a square for each
    cell (KINDS).

    Or `pools`, whose columns are sizes, and whose rows are "MODEL, POOL": a colour for each model,
    dashes for its second pool. A curve that ends before the largest size goes on as a projection,
    see `project`.
    """
    drawing = figure(
        (
            7.0,
            1.2 + 3.2 * len(panels),
        )
    )
    numbers: dict[str, int] = {}
    axes = drawing.subplots(
        len(panels),
        1,
        squeeze=False,
    )[:, 0]
    for panel, (name, table) in zip(axes, panels.items(), strict=True):
        for row in table:
            numbers.setdefault(row, len(numbers))
        panel.set_title(_escape(name), fontsize="medium")
        _fill_panel(panel, chart, table, numbers)
        if chart != "squares":
            panel.set_ylabel(_escape(value))
    return _finish(drawing, 3)


def _fill_panel(panel: Any, chart: str, table: Table, numbers: Mapping[str, int]) -> None:
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    values = [[row.get(column) for column in columns] for row in table.values()]
    cells = np.array(values, dtype=float)
    if chart == "pools":
        _draw_pools(panel, list(table), cells, list(map(int, columns)))
        return
    panel.set_xticks(
        range(len(columns)),
        map(_escape, columns),
        rotation=25,
        ha="right",
        fontsize="small",
    )
    KINDS[chart](panel, list(table), cells, numbers)


def _finish(drawing: Figure, ncols: int) -> Figure:  # with a legend of what is in all panels
    labelled = [
        pair
        for panel in drawing.axes
        for pair in zip(*panel.get_legend_handles_labels(), strict=True)
    ]
    if handles := {label: handle for handle, label in labelled}:
        drawing.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            fontsize="small",
            ncols=ncols,
        )
    return drawing


def _draw_lines(panel: Any, rows: Sequence[str], cells: Any, numbers: Mapping[str, int]) -> None:
    for row, values in zip(rows, cells, strict=True):
        panel.plot(
            values,
            label=_escape(row),
            lw=1.4,
            markersize=4,
            **style(numbers[row]),
        )


def _draw_bars(panel: Any, rows: Sequence[str], cells: Any, numbers: Mapping[str, int]) -> None:
    width = 0.8 / len(rows)
    for position, (row, values) in enumerate(zip(rows, cells, strict=True)):
        at = np.arange(len(values)) + (position - (len(rows) - 1) / 2) * width
        panel.bar(
            at,
            values,
            width,
            label=_escape(row),
            color=style(numbers[row])["color"],
        )
    panel.axhline(0, color=MUTED, lw=0.8)


def _draw_squares(panel: Any, rows: Sequence[str], cells: Any, _: Mapping[str, int]) -> None:
    panel.imshow(cells, cmap="Blues", aspect="auto", vmin=0)
    panel.set_yticks(
        range(len(rows)),
        map(_escape, rows),
        fontsize="small",
    )
    middle = np.nanmax(cells, initial=0) / 2
    for (y, x), value in np.ndenumerate(cells):
        panel.text(
            x,
            y,
            f"{value:.2f}",
            ha="center",
            va="center",
            color="white" if value > middle else "black",
        )


def _draw_pools(panel: Any, rows: Sequence[str], cells: Any, sizes: Sequence[int]) -> None:
    models = list(dict.fromkeys(row.partition(", ")[0] for row in rows))
    drawn_models = []
    ends = set()
    largest = max(sizes)
    for row, values in zip(rows, cells, strict=True):
        model = row.partition(", ")[0]
        look: JsonObject = dict(style(models.index(model)))
        look["linestyle"] = "--" if model in drawn_models else "-"
        look["markersize"] = 4
        drawn_models.append(model)
        measured = [
            (
                sizes[i],
                values[i],
            )
            for i in np.argsort(sizes)
            if not np.isnan(values[i])
        ]
        panel.plot(
            *zip(*measured, strict=True),
            label=_escape(row),
            **look,
        )
        last_size = measured[-1][0]
        if last_size < largest and len(measured) > 1:
            ends.add(last_size)
            projected = [
                measured[-1],
                (largest, project(measured, largest)),
            ]
            panel.plot(
                *zip(*projected, strict=True),
                label="projected",
                color=look["color"],
                linestyle=":",
                alpha=0.5,
            )
    for end in ends:
        panel.axvline(end, color=MUTED, lw=0.8)
    panel.set_xscale("log")
    panel.set_xticks(sizes, map(str, sizes), fontsize="small")
    panel.minorticks_off()
    panel.set_xlabel("documents in the pool")
    panel.set_ylim(bottom=0)


def project(measured: Sequence[tuple[float, float]], size: float) -> float:
    """Return the value at `size` of the line through the last three (size, share), fitted by least
    squares over log(size).

    It begins at the last share, and stays between 0 and 1.
    """
    sizes, shares = np.array(measured[-3:]).T
    slope = np.polyfit(np.log(sizes), shares, 1)[0]
    return float(np.clip(shares[-1] + slope * np.log(size / sizes[-1]), 0, 1))


KINDS = {"lines": _draw_lines, "bars": _draw_bars, "squares": _draw_squares}


def draw_points(points: Sequence[JsonMapping], axes: tuple[str, str] | None = None) -> Figure:
    """Draw places in a plane (x, y), with a marker of its own for each `kind` of them.

    Axes without names mean nothing. Those with names go from 0 to 1, with a diagonal, and each
    place has its `id`.
    """
    drawing = figure((5.6, 5.6) if axes else (4.2, 4.2))
    panel: Any = drawing.add_subplot(**{} if axes else {"xticks": [], "yticks": []})
    if axes:
        panel.set(
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel=_escape(axes[0]),
            ylabel=_escape(axes[1]),
        )
        panel.plot(
            [0, 1],
            [0, 1],
            color=MUTED,
            linestyle=":",
        )
        for point in points:
            placement = {
                "xytext": (0, 5),
                "textcoords": "offset points",
                "ha": "center",
                "fontsize": "x-small",
            }
            panel.annotate(
                _escape(point["id"]),
                (point["x"], point["y"]),
                **placement,
            )
    for number, label in enumerate(dict.fromkeys(point["kind"] for point in points)):
        places = [
            (
                point["x"],
                point["y"],
            )
            for point in points
            if point["kind"] == label
        ]
        panel.plot(
            *zip(*places, strict=True),
            linestyle="",
            label=_escape(label),
            **style(number),
        )
    return _finish(drawing, 2)


def _escape(text: str) -> str:  # matplotlib sets what is between two dollar signs as a formula
    return strip_control_characters(text).replace("$", r"\$")
