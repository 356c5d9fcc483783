"""Floor and ceiling of each program of a report: a table, and a plot for each kind of data."""

from collections.abc import Sequence

from evals.measuring.bounds import Bounds, Kind, between
from evals.showing.report.drawing import Plot
from evals.showing.report.groups import Group, short
from evals.showing.report.page import Words
from evals.showing.report.plots import plot_gap
from tools.console.wording import number

HEADS = ["program", "task", "floor", "lower bound", "program's", "ceiling", "gain", "missing", "closed"]
HEADS += ["bounds by other systems"]
MORE = ["task's name", "floor is", "best bare", "best bare is", "lower bound is", "ceiling is", "run"]
NOTES = [
    "floor: its bare retriever; lower bound: the same system over a pool as retrieved; ceiling: over one with gold "
    "in it; best bare retriever: of all that were run",
    "gain, missing and closed, the share of ceiling - floor, are paired by query, with 95 % bootstrap intervals",
    "closed has none where the ceiling is not clearly above the floor",
]


def plot_gaps(groups: Sequence[Group], metrics: Sequence[str]) -> list[Plot]:
    """A plot for each kind of data and metric."""
    alike: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        alike.setdefault((group.data, group.split, group.asked), []).append(group)
    drawn = [plot_gap(members, name) for members in alike.values() for name in metrics or ("",)]
    return [plot for plot in drawn if plot]


def gap_table(groups: Sequence[Group], metrics: Sequence[str]) -> Words | None:
    """A row for each program and metric; None where nobody has run a bound."""
    rows = []
    for group in groups:
        for name in metrics or ("",):
            for bounds in between(group.runs, name):
                if {"best", "ceiling"} & bounds.found.keys() and name in ("", bounds.metric):
                    rows.append((bounds.metric, *_row(group, bounds)))
    if not rows:
        return None
    used = {metric for metric, _, _ in rows}
    if len(used) == 1:  # then it is said once
        notes, last = [f"by {used.pop()}", *NOTES], len(HEADS) - 1
        return Words(
            "gap",
            "Floor and ceiling",
            HEADS,
            [[*shown, *more, metric] for metric, shown, more in rows],
            {1},
            {last},
            [*MORE, "metric"],
            notes,
        )
    cells = [[*shown[:2], metric, *shown[2:], *more] for metric, shown, more in rows]
    return Words(
        "gap", "Floor and ceiling", [*HEADS[:2], "metric", *HEADS[2:]], cells, {1, 2}, {len(HEADS)}, MORE, NOTES
    )


def _row(group: Group, bounds: Bounds) -> tuple[list[str], list[str]]:
    """(the cells that are shown, those that only the CSV file has)."""
    run = bounds.run
    assert run is not None  # `between` has bounds of runs alone
    task = run.config["task"]
    kinds: tuple[Kind, ...] = ("floor", "union", "ceiling")
    floor, union, ceiling = (_figure(bounds.mean(kind)) if bounds.is_own(kind) else "" for kind in kinds)
    gained, missing = (_interval(*one[:3]) if one else "" for one in (bounds.gained, bounds.missing))
    closed = _interval(*bounds.closed, percent=True) if bounds.closed else ""
    best = [_figure(bounds.mean("best")), bounds.describe("best")]
    means = [floor, union, _figure(bounds.mean()), ceiling]
    shown = [str(group.system(run)), short(task), *means, gained, missing, closed, bounds.others]
    return shown, [
        task,
        bounds.describe("floor"),
        *best,
        bounds.describe("union"),
        bounds.describe("ceiling"),
        run.name,
    ]


def _figure(value: float | None) -> str:
    return number(value and value + 0.0, unknown="")


def _interval(value: float, low: float | None, high: float | None, *, percent: bool = False) -> str:
    text = f"{value:.0%}" if percent else f"{round(value, 4) + 0.0:+.4f}"
    form = "{:.0%}" if percent else "{:.3f}"
    return text if low is None or high is None else f"{text} ({form.format(low)} to {form.format(high)})"
