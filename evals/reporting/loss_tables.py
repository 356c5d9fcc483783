"""Losses of runs: floor and ceiling of each program, and the steps at which relevant documents
were lost.

The shares of a row of losses sum to 1: the documents found in the first k are R@k, the rest are
its misses (evals/scoring/attribution.py). A system's mean over its tasks stands below them, each task
counted once. Runs that an earlier version scored have no row.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from typing import NamedTuple

from sextant.evals.reporting.run_groups import Group, short_task_name
from sextant.evals.run_schemas import FATE_LABELS
from sextant.evals.scoring import behaviour
from sextant.evals.scoring.reach import PARTS, read_reach
from sextant.evals.scoring.reference_runs import (
    ReferenceKind,
    ReferenceRuns,
    references_per_program,
)
from sextant.evals.scoring.statistics import Interval, PairedTest
from sextant.evals.scoring.system_names import System
from sextant.tools.errors import DataError
from sextant.tools.platform.result_table import Cell, ResultTable, figure_cell, tabulate
from sextant.tools.records import JsonObject

LOSSES = "What became of relevant documents"
MEAN = "mean of tasks"


def gap_table(groups: Sequence[Group], metrics: Sequence[str]) -> ResultTable:
    """Return a row for each program and metric of which a bound was run."""
    rows = []
    for group in groups:
        for name in metrics or ("",):
            for bounds in references_per_program(group.runs, name):
                if {"best", "ceiling"} & bounds.bounds.keys():
                    rows.append(_gap_row(group, bounds))
    notes = [
        "floor: its bare retriever; lower bound: the same system over a pool as retrieved; ceiling: "
        "over one with gold in it; best bare: the best retriever of all that were run",
        "gain, missing and closed, the share of ceiling - floor, are paired by query, with 95 % "
        "intervals; that of closed is by bootstrap",
        "closed has none where the ceiling is not clearly above the floor",
    ]
    return tabulate("Floor and ceiling", rows, stem="gap", notes=notes, in_file=7)


def _gap_row(group: Group, bounds: ReferenceRuns) -> JsonObject:
    def own(label: ReferenceKind) -> Cell:
        return figure_cell(bounds.mean(label) if bounds.is_own(label) else None, "{:z.4f}", "")

    run = bounds.run
    gained, missing, closed = bounds.compare()
    return {
        "program": str(group.system(run)),
        "task": short_task_name(run.config["task"]),
        "metric": bounds.metric,
        "floor": own("floor"),
        "lower bound": own("union"),
        "mean": figure_cell(bounds.mean(), "{:z.4f}", ""),
        "ceiling": own("ceiling"),
        "gain": _interval(gained, "{:+z.4f}", "{:.3f}"),
        "missing": _interval(missing, "{:+z.4f}", "{:.3f}"),
        "closed": _interval(closed, "{:.0%}", "{:.0%}"),
        "bounds by other systems": bounds.others,
        # In the CSV only.
        "full task": run.config["task"],
        "floor is": bounds.describe("floor"),
        "best bare": figure_cell(bounds.mean("best"), "{:z.4f}", ""),
        "best bare is": bounds.describe("best"),
        "lower bound is": bounds.describe("union"),
        "ceiling is": bounds.describe("ceiling"),
        "run": run.name,
    }


def _interval(figure: PairedTest | Interval | None, form: str, bound_form: str) -> Cell:
    if figure is None:
        return Cell("")
    value, low, high, *_ = figure
    if low is None:
        return Cell(form, figures=[value])
    return Cell(f"{form} ({bound_form} to {bound_form})", figures=[value, low, high])


class LossRow(NamedTuple):
    """The shares of a run's recall, or of the mean of a system's runs, by fate."""

    system: System
    task: str
    cutoff: int
    shares: Mapping[str, float]
    # None for a mean.
    queries: int | None = None
    run: str = ""


def losses_table(groups: Sequence[Group]) -> ResultTable:
    """Return every run's shares; no row for runs without any."""
    losses = [(group.title, row) for group in groups for row in list_losses(group)]
    fates = [
        fate for fate in (*FATE_LABELS, *PARTS) if any(row.shares.get(fate) for _, row in losses)
    ]
    rows = []
    for title, row in losses:
        cells: JsonObject = {"system": str(row.system), "task": row.task, "of": f"R@{row.cutoff}"}
        for fate in fates:
            cells[fate.replace("_", " ")] = figure_cell(row.shares.get(fate, 0.0))
        rows.append(cells | {"queries": row.queries, "group": title, "run": row.run})
    notes = [
        "of the recall in the third column: found is that, and the others sum to what it misses",
        f"{MEAN}: each task counts once; fates that no document had are left out",
        *(
            f"{part.replace('_', ' ')}: of never surfaced, {words}"
            for part, words in PARTS.items()
            if part in fates
        ),
    ]
    return tabulate(LOSSES, rows, stem="losses", notes=notes, in_file=3)


def list_losses(group: Group) -> Iterator[LossRow]:
    """Yield the shares of a group's runs by system, each system's mean over several tasks last."""
    by_system: dict[tuple[System, int], list[LossRow]] = defaultdict(list)
    for run in group.runs:
        losses = run.scores.get("losses") or {}
        if losses.get("queries"):
            task = short_task_name(run.config["task"])
            cutoff = losses["cutoff"]
            shares = dict(losses["at"][str(cutoff)])
            shares |= (read_reach(run) or {"never_surfaced": {}})["never_surfaced"]
            row = LossRow(group.system(run), task, cutoff, shares, losses["queries"], run.name)
            by_system[row.system, cutoff].append(row)
    for (system, cutoff), rows in by_system.items():
        yield from rows
        if len(rows) > 1:
            means = {}
            for fate in FATE_LABELS:
                means[str(fate)] = fmean(row.shares.get(fate, 0.0) for row in rows)
            yield LossRow(system, MEAN, cutoff, means)


def behaviour_table(groups: Sequence[Group]) -> ResultTable:
    """Return the behaviour of each run's searcher; no row for runs without a search in their traces."""
    rows = []
    for group, run in [(owner, run) for owner in groups for run in owner.runs]:
        with suppress(DataError):  # an earlier version has scored it
            figures = behaviour.figure_means(run)
            if figures["searches"]:
                cells: JsonObject = {
                    "system": str(group.system(run)),
                    "task": short_task_name(run.config["task"]),
                }
                for name in behaviour.FIGURES:
                    cells[name.replace("_", " ")] = figure_cell(figures.get(name), "{:.3f}", "")
                rows.append(cells | {"group": group.title, "run": run.name})
    notes = [f"{name.replace('_', ' ')}: {text}" for name, text in behaviour.FIGURES.items()]
    return tabulate("What searchers do", rows, stem="searchers", notes=notes, in_file=2)
