"""Repeated runs of one system: runs whose configurations differ in nothing but the seed, or in nothing at all.

Repeats are nested in queries, they are not more queries: ten runs over 24 queries are evidence from 24 queries. So what
is paired is a query's mean over its repeats, and what is resampled are queries, each with all its repeats. Of the two
two-level bootstraps of Davison and Hinkley (1997, section 3.8) it is the first, which they prefer, and the one that
Field and Welsh (2007) call the cluster bootstrap. The other draws repeats within queries once more, and so counts the
noise between repeats twice: it is in the queries' means already. tests/fast/measuring/test_stats.py shows what both
cover.

Left out: what a whole run has in common, such as a provider's bad day; and runs of other code or library versions,
which are other systems.
"""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from evals import folder as run_folder
from evals.measuring.scored import USED, Run

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
        if len(self.runs) == 1:
            return {query_id: value for query_id, value in self.first.columns[metric].items() if value is not None}
        made = {}
        for query_id in self.first.query_ids:
            values = [run.columns[metric].get(query_id) for run in self.runs]
            if None not in values:
                made[query_id] = math.fsum(value for value in values if value is not None) / len(values)
        return made

    def spread(self, metric: str) -> float | None:
        """The standard deviation between the means of the repeats, over the same queries; None for one run."""
        return spread(self.runs, metric, self.values(metric))

    @cached_property
    def used(self) -> dict[str, float | None]:
        """What its runs used together, of each of `USED`; None where one of them does not know."""
        return {key: _sum([_usage(run, key) for run in self.runs]) for key in USED}


def systems(runs: Sequence[Run]) -> list[System]:
    """The runs, repeats of one system together, in the order in which systems were first named."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(_identity(run), []).append(run)
    return [System(tuple(same)) for same in grouped.values()]


def _identity(run: Run) -> str:
    """The configuration without its seeds, and what it was judged by."""
    config = {key: value for key, value in run.config.items() if key != run_folder.PROVENANCE}
    for key in SEEDS:
        config[key] = {name: value for name, value in config[key].items() if name != "seed"}
    return json.dumps([config, run.scores["judgements"]], sort_keys=True)


def spread(runs: Sequence[Run], metric: str, query_ids: Collection[str]) -> float | None:
    """The standard deviation (n - 1) between the runs' means of a metric over these queries; None for one run."""
    if len(runs) < 2 or not query_ids:
        return None
    means = [math.fsum(run.columns[metric][query_id] or 0.0 for query_id in query_ids) / len(query_ids) for run in runs]
    centre = math.fsum(means) / len(means)
    return math.sqrt(math.fsum((mean - centre) ** 2 for mean in means) / (len(means) - 1))


def _usage(run: Run, key: str) -> float | None:
    """What a run used; of a run that was made elsewhere and does not say, it is not known."""
    value: float | None = run.scores["usage"][key] if run.usage_known else None
    return value


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
