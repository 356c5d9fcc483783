"""Runs of one system that differ in their seeds alone: means, the noise of seeds, and pass@k.

A query succeeds in a run if its headline metric reaches a threshold. With c of n repetitions
successful, pass@k, that one of k succeeds, is 1 - C(n - c, k) / C(n, k) (Chen et al. 2021), and pass^k,
that all k do, is C(c, k) / C(n, k) (Yao et al. 2024); both are unbiased, and means over queries.
"""

from collections.abc import Sequence
from math import comb
from statistics import fmean, stdev
from typing import NamedTuple

from sextant.evals.scoring.scored_run import ScoredRun
from sextant.evals.scoring.statistics import Interval, estimate_mean
from sextant.tools.errors import UsageError
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import TextBlock, figure_cell, tabulate
from sextant.tools.records import JsonObject


class Repetitions(NamedTuple):
    """What the repetitions of a system have in common, and how they differ."""

    runs: Sequence[str]
    metrics: dict[str, Interval]  # of queries' means over the runs
    spreads: dict[str, float]  # standard deviation of the runs' means
    metric: str
    threshold: float
    successes: dict[str, int]  # query_id -> runs in which it succeeded
    pass_at: dict[int, float]  # k -> share of queries
    pass_all: dict[int, float]

    def json(self) -> JsonObject:
        """Return it as plain data."""
        return {
            **self._asdict(),
            "metrics": {name: interval._asdict() for name, interval in self.metrics.items()},
        }


def repeat_scores(runs: Sequence[ScoredRun], threshold: float) -> Repetitions:
    """Return the figures of two or more runs of the same queries.

    UsageError if the headline metric is defined for no query.
    """
    headline = runs[0].metric
    metrics = {}
    spreads = {}
    for name in runs[0].columns:
        columns = [run.columns[name] for run in runs]
        rows = [[column[query_id] for column in columns] for query_id in runs[0].query_ids]
        whole = [[value for value in row if value is not None] for row in rows]
        means = [fmean(row) for row in whole if row]
        by_run = [[value for value in column.values() if value is not None] for column in columns]
        if means and all(by_run):
            metrics[name] = estimate_mean([means])
            spreads[name] = stdev(map(fmean, by_run))
    successes = {}
    for query_id in runs[0].query_ids:
        values = [run.columns[headline][query_id] for run in runs]
        if None not in values:
            successes[query_id] = sum((value or 0.0) >= threshold for value in values)
    number = len(runs)
    ks = range(1, number + 1)
    counts = list(successes.values())
    if not counts:
        raise UsageError(f"{headline} is defined for no query in all of these runs")
    return Repetitions(
        [run.name for run in runs],
        metrics,
        spreads,
        headline,
        threshold,
        successes,
        {k: fmean(1 - comb(number - count, k) / comb(number, k) for count in counts) for k in ks},
        {k: fmean(comb(count, k) / comb(number, k) for count in counts) for k in ks},
    )


def lay_out_repetitions(repetitions: Repetitions) -> list[TextBlock]:
    """Lay out the figures of repetitions as tables."""
    rows = []
    for name, interval in repetitions.metrics.items():
        bounds = "" if interval.low is None else f"{interval.low:.4f} to {interval.high:.4f}"
        rows.append(
            {
                "metric": name,
                "mean": figure_cell(interval.mean),
                "95 % interval, queries": bounds,
                "seeds move a run's mean by": figure_cell(repetitions.spreads[name]),
            }
        )
    passes = []
    for k, share in repetitions.pass_at.items():
        passes.append(
            {"k": k, "pass@k": figure_cell(share), "pass^k": figure_cell(repetitions.pass_all[k])}
        )
    runs = plural(len(repetitions.runs), "run")
    return [
        "",
        tabulate(f"{runs} of one system; the spread is a standard deviation", rows),
        tabulate(f"a query succeeds from {repetitions.metric} {repetitions.threshold:g}", passes),
    ]
