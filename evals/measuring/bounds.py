"""The figures that stand beside a program's: the bare retriever below it, pools with and without gold above it.

floor     `retrieve` over the program's own retriever, no pool: one search, no model
best      the best of all runs of `retrieve`, whatever the retriever: what a program has to be above to be worth it
union     a ranking of what retrievers found together: a lower bound on the best possible system
ceiling   one of pools that have every relevant document: what recognising alone would reach

After OBLIQ-Bench, section 3 (docs/decisions/pools.md). Only run folders are read, and of those only runs of one
contract, the pool aside, are taken together. A bound of another system (program, parameters, model or retriever) is
named in full, and nothing is told of the distance to it. Tasks that bring pools of their own, in which gold always is,
have no ceiling.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from evals import folder as run_folder
from evals.measuring.scored import CONTRACT, Run, pair, read_scores
from evals.measuring.stats import Interval, Paired, means_of_resamples, paired
from programs import FLOOR
from tools.errors import SextantError

Kind = Literal["floor", "best", "union", "ceiling"]
LABELS: dict[Kind, str] = {
    "floor": "floor",
    "best": "best bare retriever",
    "union": "lower bound",
    "ceiling": "ceiling",
}
POOLS: dict[Kind, str] = {"union": "union", "ceiling": "oracle"}


@dataclass(frozen=True)
class Bounds:
    """A run between its bounds, by one metric. Differences are paired by query, and None where a bound is missing."""

    run: Run | None  # None where the folder has no scores
    metric: str
    found: dict[Kind, Run]  # what nobody has run is missing

    def mean(self, kind: Kind | None = None) -> float | None:
        """The figure of a bound, or the run's own."""
        run = self.found.get(kind) if kind else self.run
        return None if run is None else run.mean(self.metric)

    def describe(self, kind: Kind) -> str:
        """Which run a bound is, in words; empty where there is none."""
        return _describe(kind, self.found[kind], self.run) if self.run and kind in self.found else ""

    def is_own(self, kind: Kind) -> bool:
        """Whether there is such a bound of the program's own system, or of its retriever alone."""
        if self.run is None or kind not in self.found:
            return False
        bound = self.found[kind]
        differs = _differences(bound, self.run)
        return not any(differs[-1:] if is_floor(bound.config) else differs)

    @property
    def others(self) -> str:
        """The bounds that are another system's, in full."""
        named = [(kind, label) for kind, label in LABELS.items() if kind in self.found and not self.is_own(kind)]
        return "; ".join(f"{label} {self.mean(kind):.4f}: {self.describe(kind)}" for kind, label in named)

    @property
    def lines(self) -> list[tuple[str, float, str]]:
        """(label, mean, which run) of each; the best bare retriever where it is another than the run's own."""
        again = self.found.get("best") is self.found.get("floor")
        return [
            (label, self.mean(kind) or 0.0, self.describe(kind))
            for kind, label in LABELS.items()
            if kind in self.found and not (kind == "best" and again)
        ]

    def json(self) -> dict[str, Any]:
        """What --json has of it."""
        bounds = {
            kind: {"mean": self.mean(kind), "run": run.name, "what": self.describe(kind)}
            for kind, run in self.found.items()
        }
        return {"metric": self.metric} | {kind: bounds.get(kind) for kind in LABELS}

    @cached_property
    def gained(self) -> Paired | None:
        """Program - floor."""
        return self._difference(self.found.get("floor"), self.run)

    @cached_property
    def missing(self) -> Paired | None:
        """Ceiling - program; None for a ceiling of another system."""
        return self._difference(self.run, self._own_ceiling)

    @cached_property
    def closed(self) -> Interval | None:
        """The share of ceiling - floor that the program has closed."""
        rows = self._rows(self.found.get("floor"), self.run, self._own_ceiling)
        return share_closed(*zip(*rows, strict=True)) if rows else None

    @property
    def _own_ceiling(self) -> Run | None:
        ceiling = self.found.get("ceiling")
        return None if self.run is None or ceiling is None or any(_differences(ceiling, self.run)) else ceiling

    def _rows(self, *runs: Run | None) -> list[tuple[float, ...]]:
        """The values of the runs for each query in which all have the metric; none where one of the runs is missing."""
        columns = [run.columns.get(self.metric, {}) for run in runs if run is not None]
        return list(pair(*columns).values()) if len(columns) == len(runs) else []

    def _difference(self, before: Run | None, after: Run | None) -> Paired | None:
        rows = self._rows(before, after)
        return paired(*zip(*rows, strict=True)) if rows else None


def beside(path: Path, metric: str = "") -> Bounds:
    """The bounds of the run in `path` among the folders beside it, by `metric` or its headline.

    Of each folder config.json and scores.json are read, nothing else; what cannot be read is passed over, so a run
    without scores has no bounds, and none of this ends a run.
    """
    own = _read_lightly(path)
    if own is None:
        return Bounds(None, metric, {})
    here = path if path.name not in ("", "..") else path.resolve()
    try:
        siblings = sorted(place for place in here.parent.iterdir() if place.name != here.name)
    except OSError:  # a folder that may be entered and not listed
        siblings = []
    return among(own, filter(None, (_read_lightly(place, like=own) for place in siblings)), metric or own.metric)


def among(own: Run, others: Iterable[Run], metric: str) -> Bounds:
    """The bounds of a run among others, by a metric."""
    return Bounds(own, metric, choose(own, others, metric))


def between(runs: Sequence[Run], metric: str = "") -> list[Bounds]:
    """For each program that searches the whole corpus: where it is between the bounds among `runs`.

    By `metric` where a run has it, else its headline. Bare retrievers and runs over pools have no row: they are the
    bounds.
    """
    programs = [run for run in runs if run.config["program"] != FLOOR and not run.config.get("pool")]
    return [
        among(run, [other for other in runs if other is not run], metric if metric in run.columns else run.metric)
        for run in programs
    ]


def _read_lightly(path: Path, like: Run | None = None) -> Run | None:
    """The run in `path` without its values; None: no run, no scores, damaged, or asked something else than `like`."""
    try:
        config = run_folder.read_config(path)
        if like and any(config.get(key) != like.config.get(key) for key in CONTRACT if key != "pool"):
            return None
        run = Run(path, config, read_scores(path, config), {}, {}, [])
    except (SextantError, OSError, ValueError):
        return None
    return run if run.scores["metrics"] and not run.scores.get("owed") else None


def _asked(run: Run) -> dict[str, Any]:
    """What was asked and how that was judged, the pool aside."""
    return {key: value for key, value in run.contract.items() if key != "pool"}


def choose(own: Run, others: Iterable[Run], metric: str) -> dict[Kind, Run]:
    """The bounds of a run among `others`; a run is no bound of itself.

    Floors have the run's own retriever. Pools are ranked by anything but the bare retriever, which recognises nothing:
    the same program first, then the same model, the same parameters, the same retriever, the larger pool. What the run
    itself or a bare retriever is above is no ceiling.
    """
    alike = [one for one in others if _asked(one) == _asked(own)]
    peers = [(one, mean) for one in alike if (mean := one.mean(metric)) is not None]
    bare = [(one, mean) for one, mean in peers if is_floor(one.config) and not is_floor(own.config)]
    found: dict[Kind, Run] = {}
    if floors := [one for one, _ in bare if one.retriever == own.retriever]:
        found["floor"] = min(floors, key=lambda one: (_code(one, own), one.path.name))
    if bare:
        best = min(bare, key=lambda pair: (-pair[1], pair[0].retriever != own.retriever, pair[0].path.name))
        found["best"] = best[0]
    least = max(own.mean(metric) or 0.0, *(mean for _, mean in bare), 0.0)
    for kind, name in POOLS.items():
        pooled = [
            one
            for one, mean in peers
            if one.config["program"] != FLOOR
            and _pool(one) == name != _pool(own)
            and (kind == "union" or mean >= least)
        ]
        if pooled:
            found[kind] = min(pooled, key=lambda one: _preference(one, own))
    return found


def is_floor(config: run_folder.Config) -> bool:
    """Whether this is the bare retriever over everything."""
    return config["program"] == FLOOR and not config.get("pool")


def _pool(run: Run) -> str:
    """Oracle, union, or empty."""
    return str((run.config.get("pool") or {}).get("kind", ""))


def _code(one: Run, own: Run) -> tuple[bool, ...]:
    """How far apart the code is that made two runs: the nearest first."""
    return tuple(one.config.get(key) != own.config.get(key) for key in ("code", "versions"))


def _differences(one: Run, own: Run) -> tuple[bool, ...]:
    """In what of a system two runs differ: program, model, parameters, retriever."""

    def parts(run: Run) -> tuple[Any, ...]:
        parameters = run.config["parameters"], (run.config.get("compiled") or {}).get("digest")
        return run.config["program"], run.config["lm"]["name"], parameters, run.retriever

    return tuple(a != b for a, b in zip(parts(one), parts(own), strict=True))


def _preference(one: Run, own: Run) -> tuple[Any, ...]:
    """The smaller, the better a pooled run fits beside a run."""
    return (*_differences(one, own), -one.config["pool"].get("size", 0), *_code(one, own), one.path.name)


def _describe(kind: Kind, one: Run, own: Run) -> str:
    """Which run a bound is: the program, and all of its system where that is not the run's own."""
    config = one.config
    if kind in ("floor", "best"):
        return f"{FLOOR} over {config['retriever']['name'] if one.retriever == own.retriever else one.retriever}"
    pool, system = config["pool"], str(config["program"])
    if any(_differences(one, own)):
        theirs, ours = config["parameters"], own.config["parameters"]
        changed = [f"{name}={theirs[name]}" for name in theirs if theirs[name] != ours.get(name)]
        if system == own.config["program"] and changed:
            system += f" with {', '.join(changed)}"
        compiled = f", compiled ({config['compiled'].get('digest')})" if config.get("compiled") else ""
        system += f" over {one.retriever}, {config['lm']['name']}{compiled}"
    by = f" by {' and '.join(pool['of'])}" if pool.get("of", []) != [own.retriever] else ""
    return f"{system}, {pool['kind']} pool of {pool['size']}{by}"


def share_closed(
    floor: Sequence[float], program: Sequence[float], ceiling: Sequence[float], *, resamples: int | None = None
) -> Interval | None:
    """(program - floor) / (ceiling - floor) of the means, with a percentile bootstrap over queries, all three together.

    Of as many resamples as `stats.bootstrap_mean` takes. None where the ceiling is not above the floor. The interval is
    None where that of ceiling - floor reaches 0: the ratio then has no bounded one (Fieller 1954), which is said by
    leaving it out.
    """
    rows = np.asarray([floor, program, ceiling], dtype=np.float64).T
    means = rows.mean(axis=0) if rows.size else np.zeros(3)
    if not means[2] - means[0] > 1e-12:
        return None
    share = float((means[1] - means[0]) / (means[2] - means[0]))
    of_floor, of_program, of_ceiling = means_of_resamples(rows, resamples=resamples).T
    gap = of_ceiling - of_floor
    if len(rows) < 2 or np.quantile(gap, 0.025) <= 1e-12:
        return Interval(share, None, None)
    low, high = np.quantile((of_program - of_floor) / np.maximum(gap, 1e-12), [0.025, 0.975])
    return Interval(share, float(low), float(high))
