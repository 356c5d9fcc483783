"""What stands beside a program's figure: the bare retriever below it, pools with and without gold above it.

floor     `retrieve` over the program's own retriever, no pool: one search, no model
best      the best of all runs of `retrieve`, whatever the retriever: what a program has to be above to be worth it
union     a ranking of what retrievers found together: a lower bound on the best possible system
ceiling   one of pools that have every relevant document: what recognising alone would reach

After OBLIQ-Bench, section 3 (docs/decisions/pools.md). Only run folders are read, and of those only runs of one
contract, the pool aside, are taken together. A bound of another system (program, parameters, model or retriever) is
named in full, and nothing is told of the distance to it. The share of the gap closed is (program - floor) / (ceiling -
floor). Left out: a ceiling for tasks that bring pools of their own, in which gold always is.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evals import folder as run_folder
from evals.measuring.scored import CONTRACT, Run
from tools.errors import SextantError

if TYPE_CHECKING:
    from evals.measuring.stats import Interval, Paired

Kind = Literal["floor", "best", "union", "ceiling"]
LABELS: dict[Kind, str] = {
    "floor": "floor",
    "best": "best bare retriever",
    "union": "lower bound",
    "ceiling": "ceiling",
}
POOLS: dict[Kind, str] = {"union": "union", "ceiling": "oracle"}
FLOOR = "retrieve"  # the program that is the floor of all others


@dataclass(frozen=True, slots=True)
class Bound:
    """One figure beside a run's own."""

    path: Path
    mean: float
    what: str  # which run it is, in words


@dataclass(frozen=True, slots=True)
class Bounds:
    """What there is to put beside a run's figure; None for what nobody has run."""

    metric: str
    floor: Bound | None = None
    best: Bound | None = None
    union: Bound | None = None
    ceiling: Bound | None = None

    @property
    def told(self) -> list[tuple[str, Bound]]:
        """Each with its label; the best bare retriever where it is another than the run's own."""
        known: list[tuple[str, Bound | None]] = [(label, getattr(self, kind)) for kind, label in LABELS.items()]
        return [(label, one) for label, one in known if one and (one != self.floor or label == LABELS["floor"])]

    def json(self) -> dict[str, Any]:
        """What --json has of it."""
        found: dict[str, Bound | None] = {kind: getattr(self, kind) for kind in LABELS}
        return {"metric": self.metric} | {
            kind: one and {"mean": one.mean, "run": str(one.path), "what": one.what} for kind, one in found.items()
        }


def beside(path: Path, metric: str = "") -> Bounds:
    """The bounds of the run in `path` among the folders beside it, by `metric` or its headline.

    Of each folder config.json and scores.json are read, nothing else; what cannot be read is passed over, so a run
    without scores has no bounds, and none of this ends a run.
    """
    own = _light(path)
    if own is None:
        return Bounds(metric)
    metric = metric or own.metric
    here = path if path.name not in ("", "..") else path.resolve()
    try:
        siblings = sorted(place for place in here.parent.iterdir() if place.name != here.name)
    except OSError:  # a folder that may be entered and not listed
        siblings = []
    return among(own, [one for place in siblings if (one := _light(place, like=own)) is not None], metric)


def among(own: Run, others: Iterable[Run], metric: str) -> Bounds:
    """The bounds of a run among others, by a metric."""
    found = choose(own, others, metric)
    made = {kind: Bound(one.path, _mean(one, metric) or 0.0, words(kind, one, own)) for kind, one in found.items()}
    return Bounds(metric, *map(made.get, LABELS))


def _light(path: Path, like: Run | None = None) -> Run | None:
    """The run in `path` without its values; None: no run, no scores, damaged, or asked something else than `like`."""
    try:
        config = run_folder.read_config(path)
        if like and any(config.get(key) != like.config.get(key) for key in CONTRACT if key != "pool"):
            return None
        scores = json.loads((path / "scores.json").read_text(encoding="utf-8"))
        one = Run(path, config, scores, {**scores["metrics"]}, {}, [])
        return one if one.metric and not scores.get("owed") and _asked(one) == _asked(like or one) else None
    except (SextantError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, StopIteration):
        return None


def _asked(run: Run) -> dict[str, Any]:
    """What was asked and how that was judged, the pool aside."""
    return {key: value for key, value in run.contract.items() if key != "pool"}


def _pool(run: Run) -> str:
    """Oracle, union, or empty."""
    return str((run.config.get("pool") or {}).get("kind", ""))


def _mean(run: Run, metric: str) -> float | None:
    measured = run.scores["metrics"].get(metric)
    mean = measured.get("mean") if isinstance(measured, dict) else None
    return float(mean) if isinstance(mean, int | float) else None


def choose(own: Run, others: Iterable[Run], metric: str) -> dict[Kind, Run]:
    """The bounds of a run among `others`; a run is no bound of itself.

    Floors have the run's own retriever. Pools are ranked by anything but the bare retriever, which recognises nothing:
    the same program first, then the same model, the same parameters, the same retriever, the larger pool. What the run
    itself or a bare retriever is above is no ceiling.
    """
    peers = [one for one in others if _asked(one) == _asked(own) and _mean(one, metric) is not None]
    means = {one.path: _mean(one, metric) or 0.0 for one in peers}
    bare = [one for one in peers if is_floor(one.config) and not is_floor(own.config)]
    found: dict[Kind, Run] = {}
    if floors := [one for one in bare if _retriever(one, own)]:
        found["floor"] = min(floors, key=lambda one: (_code(one, own), one.path.name))
    if bare:
        found["best"] = min(bare, key=lambda one: (-means[one.path], not _retriever(one, own), one.path.name))
    least = max(_mean(own, metric) or 0.0, *(means[one.path] for one in bare), 0.0)
    for kind, name in POOLS.items():
        pooled = [one for one in peers if _pool(one) == name and one.config["program"] != FLOOR and _pool(own) != name]
        if kind == "ceiling":
            pooled = [one for one in pooled if means[one.path] >= least]
        if pooled:
            found[kind] = min(pooled, key=lambda one: _preference(one, own))
    return found


def is_floor(config: run_folder.Config) -> bool:
    """Whether this is the bare retriever over everything."""
    return config["program"] == FLOOR and not config.get("pool")


def _retriever(one: Run, own: Run) -> bool:
    """Whether both search with the same retriever, parameters included."""
    return complete(one.config) == complete(own.config)


def complete(config: run_folder.Config) -> str:
    """The complete name of a run's retriever, parameters included."""
    return str(config["retriever"].get("with") or config["retriever"]["name"])


def _code(one: Run, own: Run) -> tuple[bool, ...]:
    """How far apart the code is that made two runs: the nearest first."""
    return tuple(one.config.get(key) != own.config.get(key) for key in ("code", "versions"))


def _differs(one: Run, own: Run) -> tuple[bool, ...]:
    """In what of a system two runs differ: program, model, parameters, retriever."""
    same: list[Callable[[run_folder.Config], Any]] = [
        lambda config: config["program"],
        lambda config: config["lm"]["name"],
        lambda config: (config["parameters"], (config.get("compiled") or {}).get("digest")),
        complete,
    ]
    return tuple(of(one.config) != of(own.config) for of in same)


def _preference(one: Run, own: Run) -> tuple[Any, ...]:
    """The smaller, the better a pooled run fits beside a run."""
    return (*_differs(one, own), -one.config["pool"].get("size", 0), *_code(one, own), one.path.name)


def words(kind: Kind, one: Run, own: Run) -> str:
    """Which run a bound is: the program, and all of its system where that is not the run's own."""
    config, another = one.config, any(_differs(one, own))
    if kind in ("floor", "best"):
        return f"{FLOOR} over {config['retriever']['name'] if _retriever(one, own) else complete(config)}"
    pool, system = config["pool"], str(config["program"])
    if another:
        theirs, ours = config["parameters"], own.config["parameters"]
        changed = [f"{name}={theirs[name]}" for name in theirs if theirs[name] != ours.get(name)]
        if system == own.config["program"] and changed:
            system += f" with {', '.join(changed)}"
        compiled = f", compiled ({config['compiled'].get('digest')})" if config.get("compiled") else ""
        system += f" over {complete(config)}, {config['lm']['name']}{compiled}"
    by = f" by {' and '.join(pool['of'])}" if pool.get("of", []) != [complete(own.config)] else ""
    return f"{system}, {pool['kind']} pool of {pool['size']}{by}"


@dataclass(frozen=True, slots=True)
class Gap:
    """A program between its bounds; differences are paired by query, None where a bound is missing.

    To a ceiling of another system there is none.
    """

    run: Run
    metric: str
    floor: Run | None
    best: Run | None
    union: Run | None
    ceiling: Run | None
    gained: "Paired | None"  # program - floor
    missing: "Paired | None"  # ceiling - program
    closed: "Interval | None"  # share of ceiling - floor

    def mean(self, kind: Kind | None = None) -> float | None:
        """The figure of a bound, or the run's own."""
        run: Run | None = getattr(self, kind) if kind else self.run
        return None if run is None else _mean(run, self.metric)

    def own(self, kind: Kind) -> bool:
        """Whether there is such a bound of the program's own system, or of its retriever alone."""
        run: Run | None = getattr(self, kind)
        differs = (False,) if run is None else _differs(run, self.run)
        return run is not None and not any(differs[-1:] if is_floor(run.config) else differs)

    def what(self, kind: Kind) -> str:
        """Which run a bound is, in words; empty where there is none."""
        run: Run | None = getattr(self, kind)
        return "" if run is None else words(kind, run, self.run)

    @property
    def others(self) -> str:
        """The bounds that are another system's, in full."""
        return "; ".join(
            f"{label} {self.mean(kind):.4f}: {self.what(kind)}"
            for kind, label in LABELS.items()
            if self.what(kind) and not self.own(kind)
        )


def gaps(runs: Sequence[Run], metric: str = "") -> list[Gap]:
    """For each program that searches the whole corpus: where it is between the bounds among `runs`.

    By `metric` where a run has it, else its headline. Bare retrievers and runs over pools have no row: they are the
    bounds.
    """
    programs = [run for run in runs if run.config["program"] != FLOOR and not run.config.get("pool")]
    return [_gap(run, runs, metric if metric in run.columns else run.metric) for run in programs]


def _gap(run: Run, runs: Sequence[Run], metric: str) -> Gap:
    found = choose(run, [other for other in runs if other is not run], metric)
    floor, best, union, ceiling = map(found.get, LABELS)
    own_ceiling = None if ceiling is None or any(_differs(ceiling, run)) else ceiling
    gained = _paired(floor, run, metric) if floor else None
    missing = _paired(run, own_ceiling, metric) if own_ceiling else None
    closed = share_closed(*_columns(metric, floor, run, own_ceiling)) if floor and own_ceiling else None
    return Gap(run, metric, floor, best, union, ceiling, gained, missing, closed)


def _columns(metric: str, *runs: Run) -> list[list[float]]:
    """The values of each run, query by query, where the metric is defined in all of them."""
    columns = [run.columns.get(metric, {}) for run in runs]
    rows = [[column.get(query_id) for column in columns] for query_id in runs[0].query_ids]
    whole = [[value for value in row if value is not None] for row in rows]
    return [list(column) for column in zip(*(row for row in whole if len(row) == len(runs)), strict=True)] or [
        [] for _ in runs
    ]


def _paired(before: Run, after: Run, metric: str) -> "Paired | None":
    from evals.measuring.stats import paired

    values = _columns(metric, before, after)
    return paired(*values) if values[0] else None


def share_closed(
    floor: Sequence[float],
    program: Sequence[float],
    ceiling: Sequence[float],
    *,
    resamples: int | None = None,
    seed: int = 0,
) -> "Interval | None":
    """(program - floor) / (ceiling - floor) of the means, with a percentile bootstrap over queries, all three together.

    Of as many resamples as `stats.bootstrap_mean` takes. None where the ceiling is not above the floor. The interval is
    None where that of ceiling - floor reaches 0: the ratio then has no bounded one (Fieller 1954), which is said by
    leaving it out.
    """
    import numpy as np

    from evals.measuring.stats import Interval, means_of_resamples

    rows = np.asarray([floor, program, ceiling], dtype=np.float64).T
    means = rows.mean(axis=0) if rows.size else np.zeros(3)
    if not means[2] - means[0] > 1e-12:
        return None
    share = float((means[1] - means[0]) / (means[2] - means[0]))
    of_floor, of_program, of_ceiling = means_of_resamples(rows, resamples=resamples, seed=seed).T
    gap = of_ceiling - of_floor
    if len(rows) < 2 or np.quantile(gap, 0.025) <= 1e-12:
        return Interval(share, None, None)
    shares = (of_program - of_floor) / np.maximum(gap, 1e-12)
    low, high = np.quantile(shares, [0.025, 0.975])
    return Interval(share, float(low), float(high))
