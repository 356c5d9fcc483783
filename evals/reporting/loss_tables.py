"""Losses of runs: floor and ceiling of each program, and the steps at which relevant documents
were lost.

The shares of a row of losses sum to 1: the documents found in the first k are R@k, the rest are
its misses (evals/scoring/attribution.py). A system's mean over its tasks stands below them, each task
counted once. Runs that an earlier version scored have no row.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sextant.evals.reporting.plots import INCHES, draw_points, figure
from sextant.evals.reporting.report_page import report_table
from sextant.evals.reporting.report_plots import PAPER, Plot, draw
from sextant.evals.reporting.run_groups import Group, short_task_name
from sextant.evals.run_schemas import FATE_LABELS, Fate
from sextant.evals.scoring import behaviour
from sextant.evals.scoring.metrics import orient
from sextant.evals.scoring.reference_runs import LABELS, ReferenceRuns, references_per_program
from sextant.evals.scoring.scored_run import ScoredRun
from sextant.evals.scoring.system_names import System
from sextant.programs import FLOOR
from sextant.tools.errors import DataError
from sextant.tools.platform.number_format import number
from sextant.tools.platform.result_table import ResultTable
from sextant.tools.pool_kinds import WITH_RELEVANT

HEADS = [
    "program",
    "task",
    "metric",
    "floor",
    "lower bound",
    "program's",
    "ceiling",
    "gain",
    "missing",
    "closed",
    "bounds by other systems",
]
CSV_HEADS = [
    "task's name",
    "floor is",
    "best bare",
    "best bare is",
    "lower bound is",
    "ceiling is",
    "run",
]
NOTES = [
    "floor: its bare retriever; lower bound: the same system over a pool as retrieved; ceiling: "
    "over one with gold "
    "in it; best bare retriever: of all that were run",
    "gain, missing and closed, the share of ceiling - floor, are paired by query, with 95 % "
    "intervals; that of closed is by bootstrap",
    "closed has none where the ceiling is not clearly above the floor",
]

# As in the page: found documents in blue, then the warmer, the earlier they were lost.
_COLOURS = {
    Fate.FOUND: "#4a67dd",
    Fate.UNKNOWN: "#c4c4c4",
    Fate.ERROR: "#55516b",
    Fate.LIMIT: "#8a86a0",
    Fate.RANKED_LOW: "#d6d2cb",
    Fate.NOT_SELECTED: "#dcbcaa",
    Fate.SHOWN_IN_PART: "#d69e84",
    Fate.NOT_SHOWN: "#ca7b5e",
    Fate.NEVER_SURFACED: "#b5523b",
}
LOSSES = "What became of relevant documents"
SEARCHERS = "What searchers do"
MEAN = "mean of tasks"
# Characters of a bar's name.
LONGEST = 70


def gap_table(groups: Sequence[Group], metrics: Sequence[str]) -> ResultTable | None:
    """A row for each program and metric; None if no bound was run."""
    rows = []
    for group in groups:
        for name in metrics or ("",):
            for bounds in references_per_program(group.runs, name):
                if {"best", "ceiling"} & bounds.bounds.keys():
                    rows.append(_row(group, bounds))
    if not rows:
        return None
    return report_table(
        "gap",
        "Floor and ceiling",
        HEADS,
        rows,
        words=(1, 2),
        long=(len(HEADS) - 1,),
        csv_heads=CSV_HEADS,
        notes=NOTES,
    )


def plot_gap(groups: Sequence[Group]) -> Plot | None:
    """A point for each task that was searched, and ranked over pools with all that is relevant.

    As OBLIQ-Bench's Figure 1: below the diagonal, documents are recognised that no search finds.
    None if there is no such task.
    """
    points = []
    metrics = dict[str, None]()
    for group in groups:
        for task in group.tasks:
            runs = group.of_task(task)
            metric = runs[0].metric
            searched = best_mean(runs, metric, [""])
            verified = best_mean(runs, metric, WITH_RELEVANT)
            if searched is None or verified is None:
                continue
            metrics[metric] = None
            points.append(
                {
                    "id": short_task_name(task),
                    "kind": group.title,
                    "x": verified,
                    "y": searched,
                }
            )
    if not points:
        return None
    name = ", ".join(metrics)
    axes = (
        f"{name} of the best run over a pool with all that is relevant",
        f"{name} of the best search",
    )
    caption = (
        "As OBLIQ-Bench's Figure 1. Below the diagonal, documents are recognised that no search "
        "finds."
    )
    return draw("gap", "Search and verification", caption, lambda: draw_points(points, axes))


def best_mean(
    runs: Sequence[ScoredRun],
    metric: str,
    pools: Sequence[str],
) -> float | None:
    """Return the best mean of the runs over these kinds of pools, "" for none; None if there are
    no such runs.
    """
    means = []
    for run in runs:
        mean = run.mean(metric)
        # A bare retriever over a pool verifies nothing.
        counts = run.pool == "" or run.config["program"] != FLOOR
        if run.pool in pools and counts and mean is not None:
            means.append(mean)
    return max(means, key=partial(orient, metric), default=None)


def _row(group: Group, bounds: ReferenceRuns) -> list[str]:
    run = bounds.run
    task = run.config["task"]
    floor, _, union, ceiling = (
        _figure(bounds.mean(label)) if bounds.is_own(label) else "" for label in LABELS
    )
    *differences, share = bounds.compare()
    gained, missing = (
        _interval(*difference[:3]) if difference else "" for difference in differences
    )
    closed = _interval(*share, percent=True) if share else ""
    means = [floor, union, _figure(bounds.mean()), ceiling]
    shown = [
        str(group.system(run)),
        short_task_name(task),
        bounds.metric,
        *means,
        gained,
        missing,
        closed,
        bounds.others,
    ]
    floor, best, union, ceiling = (bounds.describe(label) for label in LABELS)
    return [
        *shown,
        task,
        floor,
        _figure(bounds.mean("best")),
        best,
        union,
        ceiling,
        run.name,
    ]


def _figure(value: float | None) -> str:
    return number(value, "{:z.4f}", "")


def _interval(value: float, low: float | None, high: float | None, *, percent: bool = False) -> str:
    text = f"{value:.0%}" if percent else f"{value:+z.4f}"
    form = "{:.0%}" if percent else "{:.3f}"
    return (
        text
        if low is None or high is None
        else f"{text} ({form.format(low)} to {form.format(high)})"
    )


class _Row(NamedTuple):
    system: System
    task: str
    cutoff: int
    # Fate -> share of recall.
    shares: Mapping[str, float]
    queries: str = ""
    run: str = ""


def losses_table(groups: Sequence[Group]) -> ResultTable | None:
    """Every run's shares; None if no run has them."""
    labelled_rows = [(group, row) for group in groups for row in _rows(group)]
    if not labelled_rows:
        return None
    fates = [fate for fate in FATE_LABELS if any(row.shares.get(fate) for _, row in labelled_rows)]
    cells = []
    for group, row in labelled_rows:
        shares = [f"{row.shares.get(fate, 0.0):.4f}" for fate in fates]
        cells.append(
            [
                str(row.system),
                row.task,
                f"R@{row.cutoff}",
                *shares,
                row.queries,
                group.title,
                row.run,
            ]
        )
    names = [
        "system",
        "task",
        "of",
        *(fate.replace("_", " ") for fate in fates),
    ]
    notes = [
        "of the recall in the third column: found is that, and the others sum to what it misses",
        f"{MEAN}: each task counts once; fates that no document had are left out",
    ]
    return report_table(
        "losses",
        LOSSES,
        names,
        cells,
        words=(1, 2),
        csv_heads=("queries", "group", "run"),
        notes=notes,
    )


def systems_table(groups: Sequence[Group]) -> ResultTable | None:
    """The behaviour of each run's searcher; None if no run has a search in its traces."""
    rows = []
    for group, run in [(owner, run) for owner in groups for run in owner.runs]:
        with suppress(DataError):  # an earlier version has scored it
            figures = behaviour.figure_means(run)
            if figures["searches"]:
                means = [number(mean, "{:.3f}", "") for mean in figures.values()]
                rows.append(
                    [
                        str(group.system(run)),
                        short_task_name(run.config["task"]),
                        *means,
                        group.title,
                        run.name,
                    ]
                )
    names = [
        "system",
        "task",
        *(name.replace("_", " ") for name in behaviour.FIGURES),
    ]
    notes = [f"{name.replace('_', ' ')}: {meaning}" for name, meaning in behaviour.FIGURES.items()]
    return (
        report_table(
            "searchers",
            SEARCHERS,
            names,
            rows,
            words=(1,),
            csv_heads=("group", "run"),
            notes=notes,
        )
        if rows
        else None
    )


def plot_losses(group: Group) -> Plot | None:
    """The same of a group as bars, a bar for each system and task; None if no run has shares."""
    rows = list(_rows(group))
    if not rows:
        return None
    cutoffs = {row.cutoff for row in rows}
    recall = f"R@{cutoffs.pop()}" if len(cutoffs) == 1 else "recall"
    title = f"{LOSSES}, {recall}: {group.title}"
    caption = (
        "The blue part is recall; the others sum to what it misses, the redder the earlier it was "
        "lost."
    )
    return draw(f"{group.stem}-losses", title, caption, lambda: _draw_bars(rows))


def _rows(group: Group) -> Iterator[_Row]:
    by_system: dict[System, list[_Row]] = {}
    for task, run in [(name, task_run) for name in group.tasks for task_run in group.of_task(name)]:
        losses = run.scores.get("losses") or {}
        system = group.system(run)
        if query_count := losses.get("queries"):
            cutoff = losses["cutoff"]
            shares = losses["at"][str(losses["cutoff"])]
            by_system.setdefault(system, []).append(
                _Row(
                    system,
                    short_task_name(task),
                    cutoff,
                    shares,
                    str(query_count),
                    run.name,
                )
            )
    for rows in by_system.values():
        yield from rows
        if len(rows) > 1 and len({row.cutoff for row in rows}) == 1:
            yield _mean_row(rows)


def _mean_row(rows: Sequence[_Row]) -> _Row:
    shares: dict[str, float] = {
        fate: sum(row.shares.get(fate, 0.0) for row in rows) / len(rows) for fate in FATE_LABELS
    }
    return _Row(rows[0].system, MEAN, rows[0].cutoff, shares)


def _draw_bars(rows: Sequence[_Row]) -> Figure:
    drawing = figure((INCHES[0] + 1.5, 1.1 + 0.26 * len(rows)))
    axes = drawing.add_subplot()
    positions = range(len(rows))
    starts = [0.0] * len(rows)
    for fate, colour in _COLOURS.items():
        widths = [row.shares.get(fate, 0.0) for row in rows]
        if any(widths):
            axes.barh(
                positions,
                widths,
                left=starts,
                color=colour,
                label=_fate_label(fate),
                edgecolor=PAPER,
                linewidth=0.6,
            )
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    _label_bars(axes, [_bar_name(row) for row in rows])
    drawing.legend(loc="outside lower center", ncols=3, handlelength=1.2)
    return drawing


def _label_bars(axes: Axes, names: list[str]) -> None:
    """Write the name of each bar next to it, the first on top, without marks or a line."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.margins(y=0.01)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _fate_label(fate: Fate) -> str:
    if fate is Fate.FOUND:
        return "found"
    return FATE_LABELS[fate].replace(" the first {k}", " k")


def _bar_name(row: _Row) -> str:
    name = f"{row.task}: {row.system}"
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."
