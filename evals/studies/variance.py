"""What moves the score of a study: the variance of its factors on each task, as tables and plots.

The statistics are in evals/scoring/variance.py. Tasks are apart, as they have different queries. Rows
without a factor in which they differ have none.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from sextant.evals.reporting.plots import Panel, Plot, Point, Series, draw
from sextant.evals.reporting.report_page import ReportSection
from sextant.evals.scoring.scored_run import ScoredRun, read_scored_run
from sextant.evals.scoring.variance import Decomposition, Turn, decompose, level_means, list_turns
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform import files
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import ResultTable, figure_cell, tabulate
from sextant.tools.records import JsonMapping, JsonObject

CELLS_FILE = "cells.json"  # in the folder of a study
_TURNS = 10  # that are listed
NOTES = [
    "shares of the variance of a query's score; intervals are over queries, for these levels and seeds",
    "x query: how much the effect differs between queries",
]


class FactorRun(NamedTuple):
    """A run of a study, with its level of each factor."""

    task: str
    factors: Mapping[str, str]
    run: ScoredRun


class TaskVariance(NamedTuple):
    """What moves a metric on a task of a study."""

    task: str
    metric: str
    left_out: int  # queries without a value in some run
    decomposition: Decomposition
    levels: Mapping[str, Mapping[str, float]]  # factor -> level -> mean
    turns: Sequence[Turn]
    pairs: Mapping[str, Mapping[str, Mapping[str, float]]]  # "A x B" -> level of A -> of B -> mean

    def json(self) -> JsonObject:
        """Return it as plain data."""
        parts = [part._asdict() for part in self.decomposition.components]
        return {
            **self._asdict(),
            "decomposition": {**self.decomposition._asdict(), "components": parts},
            "turns": [turn._asdict() for turn in self.turns],
        }


def name_levels(factors: JsonMapping) -> dict[str, str]:
    """Return the levels of a cell's factors as they are shown."""
    return {name.removesuffix("="): str(level) for name, level in factors.items()}


def read_runs(folder: Path) -> list[FactorRun]:
    """Return the finished runs of a study by its folder. DataError for no folder of a study."""
    try:
        cells = files.read_object((folder / CELLS_FILE).read_text(encoding="utf-8"))
    except OSError:
        cells = None
    if not cells:
        raise DataError(
            f"{folder} is no folder of a study; name RUNS/studies/NAME, which sextant study writes"
        )
    runs = []
    for cell in cells["cells"]:
        if cell["run"]:
            levels = name_levels(cell["factors"])
            runs.append(
                FactorRun(cell["task"], levels, read_scored_run(folder.parent.parent / cell["run"]))
            )
    return runs


def analyse(runs: Iterable[FactorRun], metric: str = "") -> list[TaskVariance]:
    """Return what moves a metric, by default each task's headline, by task.

    UsageError for a metric that a run lacks, and if no task has runs that differ in a factor.
    """
    by_task: dict[str, list[FactorRun]] = {}
    for run in runs:
        by_task.setdefault(run.task, []).append(run)
    found = [_analyse_task(members, metric) for members in by_task.values() if _varies(members)]
    if not found:
        raise UsageError(
            "no two finished runs of a task differ in a factor, so nothing moves the score"
        )
    return found


def _varies(runs: Sequence[FactorRun]) -> bool:
    return len({tuple(run.factors.values()) for run in runs}) > 1


def _analyse_task(members: Sequence[FactorRun], metric: str) -> TaskVariance:
    name = metric or members[0].run.metric
    columns = []
    for _, _, run in members:
        if name not in run.columns:
            raise UsageError(f"{run.name} has no {name}; it has {', '.join(run.columns)}")
        columns.append(run.columns[name])
    asked = {query_id for column in columns for query_id in column}
    common = [
        query_id
        for query_id in sorted(asked)
        if all(column.get(query_id) is not None for column in columns)
    ]
    scores = np.array([[column[query_id] for query_id in common] for column in columns], np.float64)
    varied = [
        name for name in members[0].factors if len({run.factors[name] for run in members}) > 1
    ]
    levels = [{factor: run.factors[factor] for factor in varied} for run in members]
    means = scores.mean(axis=1).tolist() if common else []
    pairs: dict[str, dict[str, dict[str, float]]] = {}
    for first, second in combinations(varied, 2):
        cells: dict[tuple[str, str], list[float]] = {}
        for level, mean in zip(levels, means, strict=True):
            cells.setdefault((level[first], level[second]), []).append(mean)
        of_pair = pairs.setdefault(f"{first} x {second}", {})
        for (one, other), values in cells.items():
            of_pair.setdefault(one, {})[other] = fmean(values)
    return TaskVariance(
        members[0].task,
        name,
        len(asked) - len(common),
        decompose(levels, scores),
        level_means(levels, scores),
        list_turns(levels, scores),
        pairs,
    )


def lay_out(found: Sequence[TaskVariance]) -> list[ResultTable]:
    """Return the tables of each task: shares, levels, reliability, and orders that turn around."""
    return [table for task in found for table in _lay_out_task(task)]


def _lay_out_task(task: TaskVariance) -> list[ResultTable]:
    parts = task.decomposition
    shares = []
    for part in parts.components:
        shares.append(
            {
                "effect": part.effect,
                "share": figure_cell(part.share, "{:.3f}"),
                "interval": f"{part.low:.3f} to {part.high:.3f}",
                "standard deviation": figure_cell(part.variance**0.5, "{:.4f}"),
                "degrees": part.degrees,
                "sum of squares": figure_cell(part.sum_of_squares, "{:.4f}"),
            }
        )
    design = (
        "every combination" if parts.is_balanced else "some combinations are missing: by likelihood"
    )
    notes = [
        *NOTES,
        f"{plural(parts.runs, 'run')} of {plural(parts.queries, 'query', 'queries')}; {design}",
    ]
    notes += [f"{name} cannot be told from {other}" for name, other in parts.inseparable.items()]
    if below := [part.effect for part in parts.components if part.is_negative]:
        notes.append(f"estimated below 0, and taken as 0: {', '.join(below)}")
    if task.left_out:
        notes.append(
            f"left out: {plural(task.left_out, 'query', 'queries')} without {task.metric} in some run"
        )
    title = f"{task.task}: what moves {task.metric}"
    tables = [tabulate(title, shares, stem=f"variance-{_stem(task.task)}", notes=notes)]
    noise = (
        ""
        if parts.seed_noise is None
        else f"seeds move a run's mean by {parts.seed_noise:.4f} (standard deviation)"
    )
    changes = []
    for factor, levels in task.levels.items():
        best, worst = max(levels, key=levels.__getitem__), min(levels, key=levels.__getitem__)
        changes.append(
            {
                "factor": factor,
                "best": best,
                "mean": figure_cell(levels[best]),
                "worst": worst,
                "its mean": figure_cell(levels[worst]),
                "change": figure_cell(levels[best] - levels[worst], "{:+.4f}"),
            }
        )
    tables.append(
        tabulate(
            "Levels", changes, stem=f"levels-{_stem(task.task)}", notes=[noise] if noise else []
        )
    )
    needed = []
    for reliable, by_seeds in parts.needed.items():
        row: JsonObject = {"reliability": f"{reliable:g}"}
        for seeds, queries in by_seeds.items():
            row[plural(seeds, "seed")] = "never" if queries is None else f"{queries:,}"
        needed.append(row)
    note = (
        f"of differences between systems as these (Bodoff and Li 2007); now {parts.reliability:.3f}"
    )
    tables.append(
        tabulate(
            "Queries for a reliability",
            needed,
            stem=f"reliability-{_stem(task.task)}",
            notes=[note],
        )
    )
    turns = []
    for turn in task.turns[:_TURNS]:
        said = "; ".join(
            f"{level}: {difference:+.4f}" for level, difference in turn.differences.items()
        )
        turns.append(
            {
                "of": turn.factor,
                "first": turn.levels[0],
                "second": turn.levels[1],
                "by": turn.by,
                "first less second": said,
            }
        )
    if turns:
        note = f"{len(turns)} of {plural(len(task.turns), 'pair')}, the clearest first; not tested"
        tables.append(
            tabulate(
                "Levels whose order another factor changes",
                turns,
                stem=f"turns-{_stem(task.task)}",
                notes=[note],
            )
        )
    return tables


def draw_plots(found: Sequence[TaskVariance]) -> list[Plot]:
    """Return for each task the shares with their intervals, and the means of two factors' levels."""
    plots = []
    for task in found:
        points = [
            Point(place, part.share, part.low, part.high)
            for place, part in enumerate(task.decomposition.components)
        ]
        ticks = {
            float(place): part.effect for place, part in enumerate(task.decomposition.components)
        }
        shares = Panel("", "share of the variance", [Series(task.metric, points)], ticks)
        title = f"{task.task}: what moves {task.metric}"
        plots.append(draw(f"variance-{_stem(task.task)}", title, NOTES[0], [shares]))
        panels = []
        for name, rows in task.pairs.items():
            places = list(dict.fromkeys(level for row in rows.values() for level in row))
            series = [
                Series(
                    level,
                    [Point(places.index(other), mean) for other, mean in row.items()],
                    number,
                    "line",
                )
                for number, (level, row) in enumerate(rows.items())
            ]
            panels.append(
                Panel(
                    name.partition(" x ")[2],
                    task.metric,
                    series,
                    dict(zip(map(float, range(len(places))), places, strict=True)),
                )
            )
        if panels:
            title = f"{task.task}: means of two factors' levels"
            plots.append(
                draw(
                    f"interactions-{_stem(task.task)}",
                    title,
                    "lines that cross are orders that turn around",
                    panels,
                )
            )
    return plots


def make_sections(runs: Sequence[FactorRun]) -> list[ReportSection]:
    """Return the section of a study's page; none if no runs differ in a factor."""
    by_task: dict[str, list[FactorRun]] = {}
    for run in runs:
        by_task.setdefault(run.task, []).append(run)
    enough = [
        run
        for members in by_task.values()
        if _varies(members) and len(members[0].run.query_ids) > 1
        for run in members
    ]
    if not enough:
        return []
    found = analyse(enough)
    return [
        ReportSection("variance", "What moves the score", [*lay_out(found), *draw_plots(found)], [])
    ]


def describe_cells(cells: Iterable[JsonMapping], runs: Path) -> JsonObject:
    """Return the content of `cells.json`; paths are below the folder of runs."""
    return {"cells": [_relative(cell, runs) for cell in cells]}


def _relative(cell: JsonMapping, runs: Path) -> JsonObject:
    run = cell["run"]
    return {**cell, "run": run and str(Path(run).resolve().relative_to(runs.resolve()))}


def _stem(task: str) -> str:
    return task.rpartition("/")[2].replace(":", "-")
