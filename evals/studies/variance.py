"""What moves the score of a study: the variance of its factors on each task, as tables and plots.

The statistics are in evals/scoring/variance.py. Tasks are apart, as they have different queries. Rows
without a factor in which they differ have none.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sextant.evals.reporting.plots import Panel, Plot, Point, Series, draw
from sextant.evals.reporting.report_page import ReportSection
from sextant.evals.scoring.scored_run import ScoredRun, read_scored_run
from sextant.evals.scoring.variance import (
    Decomposition,
    Turn,
    decompose,
    level_means,
    list_turns,
    pair_means,
)
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform import files
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import ResultTable, figure_cells, tabulate
from sextant.tools.records import JsonMapping, JsonObject

CELLS_FILE = "cells.json"  # in the folder of a study
_TURNS = 10  # that are listed
# Heads, keys and forms of a component, and of a factor's levels.
SHARES = (
    ("effect", "effect", "{}"),
    ("share", "share", "{:.3f}"),
    ("from", "low", "{:.3f}"),
    ("to", "high", "{:.3f}"),
    ("variance", "variance", "{:.5f}"),
    ("degrees", "degrees", "{}"),
    ("sum of squares", "sum_of_squares", "{:.4f}"),
)
LEVELS = (
    ("factor", "factor", "{}"),
    ("best", "best", "{}"),
    ("worst", "worst", "{}"),
    ("change", "change", "{:+.4f}"),
)
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
    # (factor, factor) -> level of the first -> level of the second -> mean
    pairs: Mapping[tuple[str, str], Mapping[str, Mapping[str, float]]]

    @property
    def title(self) -> str:
        """What its tables are about."""
        return f"{self.task}: what moves {self.metric}"

    @property
    def stem(self) -> str:
        """Its part of the names of files."""
        return self.task.rpartition("/")[2].replace(":", "-")

    def json(self) -> JsonObject:
        """Return it as plain data."""
        parts = [part._asdict() for part in self.decomposition.components]
        return {
            **self._asdict(),
            "decomposition": {**self.decomposition._asdict(), "components": parts},
            "turns": [turn._asdict() for turn in self.turns],
            "pairs": {" x ".join(pair): means for pair, means in self.pairs.items()},
        }


def name_levels(factors: JsonMapping, run: ScoredRun) -> dict[str, str]:
    """Return the levels of a cell's factors as they are shown; one that its row does not set is the run's."""
    config = run.config
    used = {f"{name}=": value for name, value in config["parameters"].items()}
    used |= {"retriever": config["retriever"]["name"], "lm": config["lm"]["name"]}
    levels = {}
    for name, level in factors.items():
        present = used.get(name, "default") if level is None else level
        levels[name.removesuffix("=")] = str(present)
    return dict(files.hide_folders(levels))


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
            run = read_scored_run(folder.parent.parent / cell["run"])
            runs.append(FactorRun(cell["task"], name_levels(cell["factors"], run), run))
    return runs


def analyse(runs: Iterable[FactorRun], metric: str = "") -> list[TaskVariance]:
    """Return what moves a metric, by default each task's headline, by task.

    Tasks whose runs differ in no factor, and of one query, are left out. UsageError for a metric
    that a run lacks.
    """
    by_task: dict[str, list[FactorRun]] = {}
    for run in runs:
        by_task.setdefault(run.task, []).append(run)
    found = []
    for members in by_task.values():
        is_varied = len({tuple(run.factors.values()) for run in members}) > 1
        if is_varied and len(members[0].run.query_ids) > 1:
            found.append(_analyse_task(members, metric))
    return found


def _analyse_task(members: Sequence[FactorRun], metric: str) -> TaskVariance:
    name = metric or members[0].run.metric
    columns = []
    for _, _, run in members:
        if name not in run.columns:
            raise UsageError(f"{run.name} has no {name}; it has {', '.join(run.columns)}")
        values = run.columns[name].items()
        columns.append({query_id: value for query_id, value in values if value is not None})
    common = sorted(set(columns[0]).intersection(*columns))
    scores = np.array([[column[query_id] for query_id in common] for column in columns])
    first = members[0].factors
    varied = [
        factor for factor in first if any(run.factors[factor] != first[factor] for run in members)
    ]
    levels = [{factor: run.factors[factor] for factor in varied} for run in members]
    return TaskVariance(
        members[0].task,
        name,
        len(set().union(*columns)) - len(common),
        decompose(levels, scores),
        level_means(levels, scores),
        list_turns(levels, scores),
        {pair: pair_means(levels, scores, *pair) for pair in combinations(varied, 2)},
    )


def lay_out(found: Sequence[TaskVariance]) -> list[ResultTable]:
    """Return the tables of each task: shares, levels, reliability, and orders that turn around."""
    tables = []
    for task in found:
        tables += [_lay_out_shares(task), _lay_out_levels(task), _lay_out_reliability(task)]
        tables += [_lay_out_turns(task)] if task.turns else []
    return tables


def _lay_out_shares(task: TaskVariance) -> ResultTable:
    parts = task.decomposition
    rows = [figure_cells(part._asdict(), SHARES) for part in parts.components]
    queries = plural(parts.queries, "query", "queries")
    notes = [*NOTES, f"{plural(parts.runs, 'run')} of {queries}"]
    if not parts.is_balanced:
        notes.append("some combinations of levels are missing: fitted by likelihood")
    notes += [f"{name} cannot be told from {other}" for name, other in parts.inseparable.items()]
    if below := [part.effect for part in parts.components if part.is_negative]:
        notes.append(f"estimated below 0, and taken as 0: {', '.join(below)}")
    if task.left_out:
        notes.append(f"queries without {task.metric} in some run, left out: {task.left_out}")
    return tabulate(task.title, rows, stem=f"variance-{task.stem}", notes=notes)


def _lay_out_levels(task: TaskVariance) -> ResultTable:
    rows = []
    for factor, levels in task.levels.items():
        ordered = sorted(levels, key=levels.__getitem__)
        change = levels[ordered[-1]] - levels[ordered[0]]
        row = {"factor": factor, "best": ordered[-1], "worst": ordered[0], "change": change}
        rows.append(figure_cells(row, LEVELS))
    noise = task.decomposition.seed_noise
    notes = [] if noise is None else [f"standard deviation of a run's mean by seeds: {noise:.4f}"]
    return tabulate("Best and worst levels", rows, stem=f"levels-{task.stem}", notes=notes)


def _lay_out_reliability(task: TaskVariance) -> ResultTable:
    rows = []
    for reliable, by_seeds in task.decomposition.needed.items():
        row: JsonObject = {"reliability": f"{reliable:g}"}
        for seeds, queries in by_seeds.items():
            row[plural(seeds, "seed")] = queries or "never"
        rows.append(row)
    now = f"of these queries: {task.decomposition.reliability:.3f}"
    notes = ["of differences between systems like these (Bodoff and Li 2007)", now]
    title = "Queries for a reliability"
    return tabulate(title, rows, stem=f"reliability-{task.stem}", notes=notes)


def _lay_out_turns(task: TaskVariance) -> ResultTable:
    rows = []
    for turn in task.turns[:_TURNS]:
        by_level = [f"{level}: {mean:+.4f}" for level, mean in turn.differences.items()]
        row = {"of": turn.factor, "first": turn.levels[0], "second": turn.levels[1]}
        rows.append(row | {"by": turn.by, "first less second": "; ".join(by_level)})
    notes = [f"the clearest {len(rows)} of {len(task.turns)}; not tested"]
    title = "Levels whose order another factor changes"
    return tabulate(title, rows, stem=f"turns-{task.stem}", notes=notes)


def draw_plots(found: Sequence[TaskVariance]) -> list[Plot]:
    """Return for each task the shares with their intervals, and the means of two factors' levels."""
    plots = []
    for task in found:
        points = []
        ticks = {}
        for place, part in enumerate(task.decomposition.components):
            points.append(Point(place, part.share, part.low, part.high))
            ticks[float(place)] = part.effect
        shares = Panel("", "share of the variance", [Series(task.metric, points)], ticks)
        plots.append(draw(f"variance-{task.stem}", task.title, NOTES[0], [shares]))
        panels = [_draw_pair(task, pair) for pair in task.pairs]
        if panels:
            caption = "lines that cross are orders that turn around"
            title = f"{task.task}: means of two factors' levels"
            plots.append(draw(f"interactions-{task.stem}", title, caption, panels))
    return plots


def _draw_pair(task: TaskVariance, pair: tuple[str, str]) -> Panel:
    first, second = pair
    places = list(task.levels[second])
    series = []
    for number, (level, means) in enumerate(task.pairs[pair].items()):
        points = [Point(places.index(other), mean) for other, mean in means.items()]
        series.append(Series(f"{first} {level}", points, number, "line"))
    ticks = {float(place): level for place, level in enumerate(places)}
    return Panel(second, task.metric, series, ticks)


def make_sections(runs: Sequence[FactorRun]) -> list[ReportSection]:
    """Return the section of a study's page; none if no runs differ in a factor."""
    found = analyse(runs)
    items: list[ResultTable | Plot] = [*lay_out(found), *draw_plots(found)]
    return [ReportSection("variance", "What moves the score", items)] if found else []


def describe_cells(cells: Iterable[JsonMapping], runs: Path) -> JsonObject:
    """Return the content of `cells.json`; paths are below the folder of runs."""
    return dict(files.hide_folders({"cells": [_relative(cell, runs) for cell in cells]}))


def _relative(cell: JsonMapping, runs: Path) -> JsonObject:
    run = cell["run"]
    return {**cell, "run": run and str(Path(run).resolve().relative_to(runs.resolve()))}
