"""Curves for equal budgets as tables, as CSV and as a plot."""

import csv
import io
import math
from typing import Any

from evals.measuring.curves import AXES, Result
from evals.showing.plots import MUTED, figure, style, svg
from evals.showing.tables import Grid, Part, printed, system_line, task_line
from tools.console import clean, plural, queries

COLUMNS = 8  # budgets in a table, beside the end
DIGITS = 4  # of means, as in the table of a run
FRONT = 12  # points of the front that are printed


def render(result: Result) -> str:
    """The tables, with what was asked above them and what is not shown below, as they are printed."""
    parts: list[Part] = [task_line(result)]
    parts += [f"{run['label']}: {system_line(run)}" for run in result["runs"]]
    for axis, found in result["axes"].items():
        many = queries(found["curves"][0]["queries"])
        head = f"{result['metric']} by {found['words']} a query, mean of {many}"
        parts += ["", head, _table(axis, found), _front(axis, found)]
    parts += ["", "a query that has ended keeps its value; * no run does better with so much"]
    parts += [f"{one['run']} has no curve by {AXES[one['axis']].words}: {one['why']}" for one in result["refused"]]
    return printed([*parts, *(f"no run used any {AXES[axis].words}" for axis in result["unused"])])


def _table(axis: str, found: Result) -> Grid:
    """Each run at a few budgets and at its end."""
    columns = _choose_columns(found["budgets"])
    rows = []
    for row in found["curves"]:
        cells = []
        for place in columns:
            most = max(one["value"] for one in found["front"] if one["budget"] <= found["budgets"][place])
            cells.append(f"{row['mean'][place]:.{DIGITS}f}" + ("*" if row["mean"][place] >= most else " "))
        end = f"{row['end']:.{DIGITS}f}" + ("*" if row["front"] else " ")
        rows.append([row["label"], *cells, end, _amount(axis, row["cost"], mean=True)])
    heads = [found["words"], *(_amount(axis, found["budgets"][place]) for place in columns), "at its end", "after"]
    return Grid("", heads, rows)


def _choose_columns(budgets: list[float]) -> list[int]:
    """The places of the budgets in a table: 0, and 1, 2, 4, 8 ... units, or 1, 4, 16 ... where those are too many."""
    unit = next(budget for budget in budgets if budget)
    kept = [place for place, budget in enumerate(budgets) if budget and math.log2(round(budget / unit)).is_integer()]
    while len(kept) > COLUMNS:
        kept = kept[::2]
    return ([] if budgets[0] else [0]) + kept


def _front(axis: str, found: Result) -> str:
    """The points that no other point of any run is better and cheaper than."""
    points = []
    for point in found["front"]:
        if point["value"] or len(found["front"]) == 1:
            first, *others = point["runs"]
            more = f" and {plural(len(others), 'other')}" if others else ""
            points.append(f"{_amount(axis, point['budget'])}: {point['value']:.{DIGITS}f} {first}{more}")
    rest = f"; and {len(points) - FRONT} more, in --csv and --json" if len(points) > FRONT else ""
    return f"Pareto front: {'; '.join(points[:FRONT])}{rest}"


def _amount(axis: str, amount: float, *, mean: bool = False) -> str:
    if axis == "usd":
        return f"${amount:.6f}".rstrip("0").rstrip(".") if amount < 0.1 else f"${amount:,.2f}"
    return f"{amount:,.1f}" if mean and amount < 1000 else f"{amount:,.0f}"


def to_csv(result: Result) -> str:
    """A line for each run, axis and budget."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = ("mean", "low", "high", "spent", "ended")
    writer.writerow(["run", "axis", "metric", "budget", *columns, "queries", "front"])
    for axis, found in result["axes"].items():
        best = {point["budget"]: point["value"] for point in found["front"]}
        for row in found["curves"]:
            for place, budget in enumerate(found["budgets"]):
                on_front = best.get(budget) == row["mean"][place]
                cells = ["" if row[name][place] is None else repr(row[name][place]) for name in columns]
                writer.writerow([row["run"], axis, result["metric"], budget, *cells, row["queries"], int(on_front)])
    return text.getvalue()


def to_svg(result: Result) -> str:
    """A panel for each axis, one under the other: all runs with their bands, and the front."""
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


def _draw_panel(panel: Any, axis: str, found: Result, numbers: dict[str, int]) -> None:
    budgets = found["budgets"]
    for row in found["curves"]:
        until = next(place for place, share in enumerate(row["ended"]) if share == 1.0) + 1
        mean, at, look = row["mean"][:until], budgets[:until], style(numbers[row["label"]])
        panel.step(at, mean, where="post", color=look["color"], label=_escape(row["label"]))
        panel.plot(at[-1:], mean[-1:], linestyle="", **look)
        if None not in row["low"]:
            low, high = row["low"][:until], row["high"][:until]
            panel.fill_between(at, low, high, step="post", color=look["color"], alpha=0.12, lw=0)
    front = [point["budget"] for point in found["front"]], [point["value"] for point in found["front"]]
    ends = [*front[0], budgets[-1]], [*front[1], front[1][-1]]
    panel.step(*ends, where="post", color=MUTED, linestyle=(0, (1, 1.5)), lw=2.5, zorder=1, label="Pareto front")
    first = next(budget for budget in budgets if budget)
    if budgets[-1] > 50 * first:
        panel.set_xscale("symlog", linthresh=first)
    elif axis != "usd":
        panel.locator_params(axis="x", integer=True)  # nobody makes half a call
    panel.set_xlabel(f"{found['words']} a query, at most")
    panel.set_ylim(bottom=0)


def _escape(text: str) -> str:
    """Text as it is: matplotlib sets what is between two dollar signs as a formula."""
    return clean(text).replace("$", r"\$")
