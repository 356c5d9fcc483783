"""Plots as SVG files that look alike: matplotlib, set up so that the same data makes the same bytes.

One colour and one marker for each series, in an order that also tells them apart without colour (Okabe and Ito 2008).
Text stays text, so that it can be searched and read aloud.
"""

import io

import matplotlib
from matplotlib.figure import Figure

# Okabe and Ito's palette without yellow, which is too pale for a line on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GOLD = "#e69f00"
MUTED = "#767676"
INCHES = (7.0, 4.2)


def figure(inches: tuple[float, float] = INCHES) -> Figure:
    """An empty figure; `figure().add_subplot()` has the axes."""
    return Figure(figsize=inches, layout="constrained")


def style(number: int) -> dict[str, str]:
    """Colour and marker of the series with this number, from 0; they repeat after 49."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[(number + number // 7) % len(MARKERS)]}


def svg(made: Figure, title: str) -> str:
    """The figure as SVG, the same for the same data; `title` is what a screen reader says."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sextant", "font.family": "sans-serif"}):
        made.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    return text.getvalue()
