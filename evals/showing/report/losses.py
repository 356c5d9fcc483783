"""Where relevant documents were lost, for every run of a report: a table, and a plot of bars for each group of tasks.

The shares of a row sum to 1: what was found in the first k is R@k, the rest is what it misses
(evals/measuring/attribution.py). A system's mean over its tasks stands below them, each task counted once. Left out:
runs that an earlier version scored.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evals.measuring.attribution import WORDS, Fate
from evals.showing import plots as shared
from evals.showing.report.drawing import PAPER, Plot, draw
from evals.showing.report.groups import Group, System, short
from evals.showing.report.page import Words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Shares = Mapping[str, float]  # fate -> share of recall

# As in the page: what was found in blue, then the warmer, the earlier it was lost.
_COLOURS = {
    Fate.FOUND: "#4a67dd",
    Fate.RANKED_LOW: "#d6d2cb",
    Fate.NOT_SELECTED: "#dcbcaa",
    Fate.SHOWN_IN_PART: "#d69e84",
    Fate.NOT_SHOWN: "#ca7b5e",
    Fate.NEVER_SURFACED: "#b5523b",
    Fate.LIMIT: "#8a86a0",
    Fate.ERROR: "#55516b",
    Fate.UNKNOWN: "#c4c4c4",
}
MEAN = "mean of tasks"


def losses_table(groups: Sequence[Group]) -> Words | None:
    """Every run's shares; None where no run has them."""
    known = [(group, *row) for group in groups for row in _rows(group)]
    if not known:
        return None
    fates = [fate for fate in WORDS if any(losses["shares"].get(fate) for _, _, _, losses, _ in known)]
    rows = []
    for group, system, task, losses, run in known:
        cells = [f"{losses['shares'].get(fate, 0.0):.4f}" for fate in fates]
        rows.append(
            [str(system), task, f"R@{losses['cutoff']}", *cells, str(losses.get("queries", "")), group.title, run]
        )
    names = ["system", "task", "of", *(fate.replace("_", " ") for fate in fates)]
    notes = [
        "of the recall in the third column: found is that, and the others sum to what it misses",
        f"{MEAN}: each task counts once; fates that no document had are left out",
    ]
    return Words("losses", "What became of relevant documents", names, rows, {1, 2}, set(), _MORE, notes)


_MORE = ["queries", "group", "run"]


def plot_losses(group: Group) -> Plot | None:
    """The same of a group as bars, one for each system and task; None where no run has shares."""
    rows = [
        (f"{short(task) if task != MEAN else MEAN}: {system}", losses["shares"], losses["cutoff"])
        for system, task, losses, _ in _rows(group)
    ]
    if not rows:
        return None
    cutoffs = sorted({cutoff for _, _, cutoff in rows})
    named = f"R@{cutoffs[0]}" if len(cutoffs) == 1 else "recall"
    title = f"What became of relevant documents, {named}: {group.title}"
    caption = "The blue part is recall; the others sum to what it misses, the redder the earlier it was lost."
    return draw("losses", f"{group.stem}-losses", title, caption, lambda: _figure([row[:2] for row in rows]))


def _rows(group: Group) -> Iterable[tuple[System, str, dict[str, Any], str]]:
    """(system, task, its losses, run) for every run that has some, systems in their order, a mean after several."""
    by_system: dict[System, list[tuple[str, dict[str, Any], str]]] = {}
    for task in group.tasks:
        for run in group.of_task(task):
            losses = run.scores.get("losses") or {}
            if losses.get("queries"):
                shares = losses["at"][str(losses["cutoff"])]
                known = {"cutoff": losses["cutoff"], "queries": losses["queries"], "shares": shares}
                by_system.setdefault(group.system(run), []).append((short(task), known, run.name))
    for system, rows in by_system.items():
        yield from ((system, *row) for row in rows)
        if len(rows) > 1 and len({losses["cutoff"] for _, losses, _ in rows}) == 1:
            yield (
                system,
                MEAN,
                {"cutoff": rows[0][1]["cutoff"], "shares": _mean([row[1]["shares"] for row in rows])},
                "",
            )


def _mean(shares: Sequence[Shares]) -> Shares:
    return {fate: sum(one.get(fate, 0.0) for one in shares) / len(shares) for fate in WORDS}


def _head(fate: Fate) -> str:
    return "found" if fate is Fate.FOUND else WORDS[fate].replace(" the first {k}", " k")


def _figure(rows: Sequence[tuple[str, Shares]]) -> "Figure":
    """Bars from the top, with the fates that occur in the legend."""
    wide, _ = shared.INCHES
    figure = shared.figure((wide + 1.5, 1.1 + 0.26 * len(rows)))
    axes = figure.add_subplot()
    places = range(len(rows))
    left = [0.0] * len(rows)
    for fate in (Fate.FOUND, *(fate for fate in reversed(Fate) if fate is not Fate.FOUND)):
        widths = [shares.get(fate, 0.0) for _, shares in rows]
        if any(widths):
            label = _head(fate)
            axes.barh(places, widths, left=left, color=_COLOURS[fate], label=label, edgecolor=PAPER, linewidth=0.6)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(places, [label if len(label) <= 70 else f"{label[:67]}..." for label, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.margins(y=0.01)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=3, handlelength=1.2)
    return figure
