"""Plots as SVG files that look alike: the same data makes the same bytes, and text stays text.

Each series has a colour and a marker, in an order that tells them apart without colour, too (Okabe and Ito 2008).
"""

import io
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from tools.console import clean

# Without Okabe and Ito's yellow, which is too pale for a line on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MUTED = "#767676"
INCHES = (7.0, 4.2)


def figure(inches: tuple[float, float] = INCHES) -> Figure:
    """Return an empty figure; `figure().add_subplot()` has the axes."""
    return Figure(figsize=inches, layout="constrained")


def style(number: int) -> dict[str, str]:
    """Return colour and marker of the series with this number, from 0; they repeat after 49."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[(number + number // 7) % len(MARKERS)]}


def svg(made: Figure, title: str) -> str:
    """Return the figure as SVG, the same for the same data; `title` is what a screen reader says."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sextant", "font.family": "sans-serif"}):
        made.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    return text.getvalue()


def curves_svg(result: dict[str, Any]) -> str:
    """Draw curves for equal budgets: a panel for each axis, with all runs, their bands, and the front."""
    axes = result["axes"]
    made = figure((7.0, 1.0 + 3.0 * len(axes)))
    numbers = {run["label"]: number for number, run in enumerate(result["runs"])}
    panels = made.subplots(len(axes), 1, squeeze=False)[:, 0]
    handles = dict[str, Any]()
    for panel, (axis, found) in zip(panels, axes.items(), strict=True):
        _draw_panel(panel, axis, found, numbers)
        panel.set_ylabel(_escape(result["metric"]))
        handles |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    made.legend(handles.values(), handles.keys(), loc="outside lower center", fontsize="small", ncols=2)
    return svg(made, f"{result['metric']} of {result['task']} for equal budgets")


def _draw_panel(panel: Any, axis: str, found: dict[str, Any], numbers: dict[str, int]) -> None:
    budgets = found["budgets"]
    for row in found["curves"]:
        until = row["ended"].index(1.0) + 1
        mean, at, look = row["mean"][:until], budgets[:until], style(numbers[row["label"]])
        panel.step(at, mean, where="post", color=look["color"], label=_escape(row["label"]))
        panel.plot(at[-1:], mean[-1:], linestyle="", **look)
        if None not in row["low"]:
            low, high = row["low"][:until], row["high"][:until]
            panel.fill_between(at, low, high, step="post", color=look["color"], alpha=0.12, lw=0)
    front = found["front"]
    ends = [*(one["budget"] for one in front), budgets[-1]], [*(one["value"] for one in front), front[-1]["value"]]
    panel.step(*ends, where="post", color=MUTED, linestyle=(0, (1, 1.5)), lw=2.5, zorder=1, label="Pareto front")
    first = next(budget for budget in budgets if budget)
    if budgets[-1] > 50 * first:
        panel.set_xscale("symlog", linthresh=first)
    elif axis != "usd":
        panel.locator_params(axis="x", integer=True)  # nobody makes half a call
    panel.set_xlabel(f"{found['words']} a query, at most")
    panel.set_ylim(bottom=0)


def _escape(text: str) -> str:  # matplotlib sets what is between two dollar signs as a formula
    return clean(text).replace("$", r"\$")
