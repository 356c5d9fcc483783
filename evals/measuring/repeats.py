"""Repeated runs of one system: runs whose configurations differ in nothing but the seed, or in nothing at all.

Repeats are nested in queries, they are not more queries: ten runs over 24 queries are evidence from 24 queries. So what
is paired is a query's mean over its repeats, and what is resampled are queries, each with all its repeats. Of the two
two-level bootstraps of Davison and Hinkley (1997, section 3.8) it is the first, which they prefer, and the one that
Field and Welsh (2007) call the cluster bootstrap. The other draws repeats within queries once more, and so counts the
noise between repeats twice: it is in the queries' means already. tests/fast/measuring/test_stats.py shows what both
cover. Runs of other code or library versions are other systems.
"""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from evals import folder as run_folder
from evals.measuring.scored import USED, Run, pair

# Where a configuration has a seed: of the model's sampling, and of a program's shuffles.
SEEDS = ("lm", "parameters")


@dataclass(frozen=True)
class System:
    """What answers, with each of its runs, in the order in which they were named."""

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run that stands for all where they do not differ."""
        return self.runs[0]

    @property
    def name(self) -> str:
        """The path of its first run as given."""
        return self.first.name

    @property
    def metrics(self) -> list[str]:
        """The metrics that all its runs have, in the order of the first run's table."""
        return [name for name in self.first.columns if all(name in run.columns for run in self.runs)]

    def values(self, metric: str) -> dict[str, float]:
        """Query -> its mean over the repeats, for queries in which all of them have the metric."""
        rows = pair(*(run.columns[metric] for run in self.runs))
        return {query_id: math.fsum(row) / len(row) for query_id, row in rows.items()}

    def spread(self, metric: str) -> float | None:
        """The standard deviation between the means of the repeats, over the same queries; None for one run."""
        return measure_spread(self.runs, metric, self.values(metric))

    def used(self, key: str) -> float | None:
        """How much of one of `USED` its runs used together; None where one of them does not know."""
        known = [run.scores["usage"][key] for run in self.runs if run.usage_known]
        return None if None in known or len(known) < len(self.runs) else sum(known)


def group_repeats(runs: Sequence[Run]) -> list[System]:
    """The runs, repeats of one system together, in the order in which systems were first named."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        config = {key: value for key, value in run.config.items() if key != run_folder.PROVENANCE}
        config |= {key: {name: value for name, value in config[key].items() if name != "seed"} for key in SEEDS}
        grouped.setdefault(json.dumps([config, run.scores["judgements"]], sort_keys=True), []).append(run)
    return [System(tuple(same)) for same in grouped.values()]


def measure_spread(runs: Sequence[Run], metric: str, query_ids: Collection[str]) -> float | None:
    """The standard deviation (n - 1) between the runs' means of a metric over these queries; None for one run."""
    if len(runs) < 2 or not query_ids:
        return None
    means = [math.fsum(run.columns[metric][one] or 0.0 for one in query_ids) / len(query_ids) for run in runs]
    centre = math.fsum(means) / len(means)
    return math.sqrt(math.fsum((mean - centre) ** 2 for mean in means) / (len(means) - 1))


def cost_per_query(system: System) -> dict[str, float | int | str | None]:
    """The average cost of a query, a key for each of `USED`; None for what is not known."""
    queries = sum(run.scores["queries"] for run in system.runs)
    failed = sum(run.scores["failed"] for run in system.runs)
    costs = {f"{key}_per_query": None if (used := system.used(key)) is None else used / queries for key in USED}
    return {"run": system.name, "queries": queries, "failed": failed, **costs}
