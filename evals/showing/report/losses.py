"""Where relevant documents were lost, for every run of a report: a table, and a plot of bars for each group of tasks.

The shares of a row sum to 1: what was found in the first k is R@k, the rest is what it misses
(evals/measuring/traces.py). A system's mean over its tasks stands below them, each task counted once. Runs that an
earlier version scored have no row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from evals.measuring.traces import WORDS, Fate
from evals.showing.plots import INCHES, figure
from evals.showing.report.groups import Group, System, short
from evals.showing.report.page import Words
from evals.showing.report.plots import PAPER, Plot, draw

# As in the page: what was found in blue, then the warmer, the earlier it was lost.
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
MEAN = "mean of tasks"
LONGEST = 70  # characters of a bar's name


@dataclass(frozen=True, slots=True)
class _Row:
    system: System
    task: str
    cutoff: int
    shares: Mapping[str, float]  # fate -> share of recall
    queries: str = ""
    run: str = ""


def losses_table(groups: Sequence[Group]) -> Words | None:
    """Every run's shares; None where no run has them."""
    known = [(group, row) for group in groups for row in _rows(group)]
    if not known:
        return None
    fates = [fate for fate in WORDS if any(row.shares.get(fate) for _, row in known)]
    cells = []
    for group, row in known:
        shares = [f"{row.shares.get(fate, 0.0):.4f}" for fate in fates]
        cells.append([str(row.system), row.task, f"R@{row.cutoff}", *shares, row.queries, group.title, row.run])
    names = ["system", "task", "of", *(fate.replace("_", " ") for fate in fates)]
    notes = [
        "of the recall in the third column: found is that, and the others sum to what it misses",
        f"{MEAN}: each task counts once; fates that no document had are left out",
    ]
    more = ["queries", "group", "run"]
    return Words("losses", LOSSES, names, cells, {1, 2}, set(), more, notes)


def plot_losses(group: Group) -> Plot | None:
    """The same of a group as bars, one for each system and task; None where no run has shares."""
    rows = list(_rows(group))
    if not rows:
        return None
    cutoffs = {row.cutoff for row in rows}
    recall = f"R@{cutoffs.pop()}" if len(cutoffs) == 1 else "recall"
    title = f"What became of relevant documents, {recall}: {group.title}"
    caption = "The blue part is recall; the others sum to what it misses, the redder the earlier it was lost."
    return draw("losses", f"{group.stem}-losses", title, caption, lambda: _draw_bars(rows))


def _rows(group: Group) -> Iterator[_Row]:
    """A row for every run that has shares, systems in their order, a mean after several."""
    by_system: dict[System, list[_Row]] = {}
    for task in group.tasks:
        for run in group.of_task(task):
            losses, system = run.scores.get("losses") or {}, group.system(run)
            if many := losses.get("queries"):
                shares = losses["at"][str(losses["cutoff"])]
                row = _Row(system, short(task), losses["cutoff"], shares, str(many), run.name)
                by_system.setdefault(system, []).append(row)
    for system, rows in by_system.items():
        yield from rows
        if len(rows) > 1 and len({row.cutoff for row in rows}) == 1:
            shares = {fate: sum(row.shares.get(fate, 0.0) for row in rows) / len(rows) for fate in WORDS}
            yield _Row(system, MEAN, rows[0].cutoff, shares)


def _draw_bars(rows: Sequence[_Row]) -> Figure:
    drawing = figure((INCHES[0] + 1.5, 1.1 + 0.26 * len(rows)))
    axes = drawing.add_subplot()
    places, left = range(len(rows)), [0.0] * len(rows)
    for fate, colour in _COLOURS.items():
        widths = [row.shares.get(fate, 0.0) for row in rows]
        if any(widths):
            label = "found" if fate is Fate.FOUND else WORDS[fate].replace(" the first {k}", " k")
            axes.barh(places, widths, left=left, color=colour, label=label, edgecolor=PAPER, linewidth=0.6)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    names = [f"{row.task}: {row.system}" for row in rows]
    axes.set_yticks(places, [name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..." for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.margins(y=0.01)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    drawing.legend(loc="outside lower center", ncols=3, handlelength=1.2)
    return drawing
