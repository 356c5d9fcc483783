"""Find the runs next to one that are its bounds. No corpus, no model.

floor     `retrieve` over the program's own retriever, no pool: one search, no model
best      the best of all runs of `retrieve`, whatever the retriever
union     a ranking of what retrievers found together: a lower bound on the best possible system
ceiling   one of pools that have every relevant document: what recognising alone would reach

After OBLIQ-Bench, section 3 (docs/decisions/pools.md). Only runs of one contract, the pool aside,
bound each other. A bound of another system (program, parameters, model or retriever) is named in
full, and no distance to it is given.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from evals import run_folder
from evals.scoring.scored_run import CONTRACT, ScoredRun, T, align_columns, read_scores
from evals.scoring.statistics import Interval, PairedTest, paired, share_closed
from programs import FLOOR
from tools.errors import SextantError

ReferenceKind = Literal["floor", "best", "union", "ceiling"]
LABELS: dict[ReferenceKind, str] = {
    "floor": "floor",
    "best": "best bare retriever",
    "union": "lower bound",
    "ceiling": "ceiling",
}
_POOLS: dict[ReferenceKind, str] = {"union": "union", "ceiling": "oracle"}


class ReferenceRuns(NamedTuple):
    """A run between its bounds, by one metric. Differences are paired by query, and None where a bound is missing."""

    run: ScoredRun
    metric: str
    found: dict[ReferenceKind, ScoredRun]  # what nobody has run is missing

    def mean(self, kind: ReferenceKind | None = None) -> float | None:
        """Return the figure of a bound, or the run's own."""
        run = self.found.get(kind) if kind else self.run
        return None if run is None else run.mean(self.metric)

    def describe(self, kind: ReferenceKind) -> str:
        """Name the run that a bound is: its program, and its system where that is not the
        run's own; "" for none.
        """
        if kind not in self.found:
            return ""
        one = self.found[kind]
        own = self.run
        config = one.config
        if kind in ("floor", "best"):
            return f"{FLOOR} over {config['retriever']['name'] if one.retriever == own.retriever else one.retriever}"
        pool = config["pool"]
        system = str(config["program"])
        if any(_differ(one, own)):
            theirs = config["parameters"]
            ours = own.config["parameters"]
            changed = [
                f"{name}={theirs[name]}" for name in theirs if theirs[name] != ours.get(name)
            ]
            if system == own.config["program"] and changed:
                system += f" with {', '.join(changed)}"
            compiled = (
                f", compiled ({config['compiled'].get('digest')})" if config.get("compiled") else ""
            )
            system += f" over {one.retriever}, {config['lm']['name']}{compiled}"
        by = f" by {' and '.join(pool['of'])}" if pool["of"] != [own.retriever] else ""
        return f"{system}, {pool['kind']} pool of {pool['size']}{by}"

    def is_own(self, kind: ReferenceKind) -> bool:
        """Return whether there is such a bound of the program's own system, or of its
        retriever alone.
        """
        bound = self.found.get(kind)
        return bound is not None and not any(
            _differ(bound, self.run)[-1 if bound.is_floor else 0 :]
        )

    @property
    def others(self) -> str:
        """The bounds that are another system's, in full."""
        named = [
            (kind, label)
            for kind, label in LABELS.items()
            if kind in self.found and not self.is_own(kind)
        ]
        return "; ".join(
            f"{label} {self.mean(kind):.4f}: {self.describe(kind)}" for kind, label in named
        )

    def json(self) -> dict[str, Any]:
        """Return the bounds as plain data, by kind."""
        made: dict[str, Any] = {"metric": self.metric, **dict.fromkeys(LABELS)}
        for kind, run in self.found.items():
            made[kind] = {"mean": self.mean(kind), "run": run.name, "what": self.describe(kind)}
        return made

    def compare(self) -> tuple[PairedTest | None, PairedTest | None, Interval | None]:
        """Return program - floor, own ceiling - program, and the share of own ceiling - floor
        that is closed.
        """
        floor = self.found.get("floor")
        ceiling = self.found["ceiling"] if self.is_own("ceiling") else None
        gained = self._compute(paired, floor, self.run)
        missing = self._compute(paired, self.run, ceiling)
        return gained, missing, self._compute(share_closed, floor, self.run, ceiling)

    def _compute(self, function: Callable[..., T], *runs: ScoredRun | None) -> T | None:
        columns = [run.columns.get(self.metric, {}) for run in runs if run is not None]
        rows = align_columns(*columns).values() if len(columns) == len(runs) else ()
        return function(*zip(*rows, strict=True)) if rows else None


def read_reference_bounds(path: Path) -> dict[str, Any]:
    """Return the bounds of the run in `path` among the readable folders beside it, by its
    headline metric, as JSON.
    """
    own = _read_lightly(path)
    if own is None:
        return {"metric": "", **dict.fromkeys(LABELS)}
    here = path if path.name not in ("", "..") else path.resolve()
    siblings = list[Path]()
    with suppress(OSError):  # a folder that may be entered and not listed
        siblings = sorted(place for place in here.parent.iterdir() if place.name != here.name)
    return references_among(
        own, filter(None, (_read_lightly(place, like=own) for place in siblings)), own.metric
    ).json()


def list_bounds(found: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return (label, bound) of what `ReferenceRuns.json` has; the best bare retriever unless it is
    the run's own.
    """
    kinds = (
        kind
        for kind in LABELS
        if found.get(kind) and (kind != "best" or found["best"] != found["floor"])
    )
    return [(LABELS[kind], found[kind]) for kind in kinds]


def _read_lightly(path: Path, like: ScoredRun | None = None) -> ScoredRun | None:
    """Read the run in `path` without its values; None for no scores, damaged ones, or another
    contract than `like`.
    """
    try:
        config = run_folder.read_config(path)
        if like and any(
            config.get(key) != like.config.get(key) for key in CONTRACT if key != "pool"
        ):
            return None
        run = ScoredRun(path, config, read_scores(path, config), {}, {}, [])
    except (SextantError, OSError, ValueError):
        return None
    return run if run.scores["metrics"] and not run.scores.get("owed") else None


def references_per_program(runs: Sequence[ScoredRun], metric: str = "") -> list[ReferenceRuns]:
    """Return the bounds among `runs` of each program that searches the whole corpus, by
    `metric` or its headline.
    """
    searching = [
        run for run in runs if run.config["program"] != FLOOR and not run.config.get("pool")
    ]
    searching = [run for run in searching if not metric or metric in run.columns]
    return [
        references_among(run, [one for one in runs if one is not run], metric or run.metric)
        for run in searching
    ]


def references_among(own: ScoredRun, others: Iterable[ScoredRun], metric: str) -> ReferenceRuns:
    """Return the bounds of a run among others, by a metric.

    Floors have its retriever. Pools are ranked by the same program first, then model, parameters,
    retriever, the larger pool, never by the bare retriever. A ceiling is at least the run and a
    bare retriever.
    """
    alike = [
        one for one in others if one.contract | {"pool": None} == own.contract | {"pool": None}
    ]
    peers = [(one, mean) for one in alike if (mean := one.mean(metric)) is not None]
    bare = [(one, mean) for one, mean in peers if one.is_floor and not own.is_floor]
    found: dict[ReferenceKind, ScoredRun] = {}

    def near(one: ScoredRun) -> tuple[Any, ...]:  # the nearer the code that made it, the smaller
        return *(
            one.config.get(key) != own.config.get(key) for key in ("code", "versions")
        ), one.path.name

    if floors := [one for one, _ in bare if one.retriever == own.retriever]:
        found["floor"] = min(floors, key=near)
    if bare:
        found["best"] = min(
            bare, key=lambda pair: (-pair[1], pair[0].retriever != own.retriever, pair[0].path.name)
        )[0]
    least = max(own.mean(metric) or 0.0, *(mean for _, mean in bare), 0.0)
    for kind, pool in _POOLS.items():
        pooled = [
            one
            for one, mean in peers
            if one.pool == pool != own.pool and (kind == "union" or mean >= least)
        ]
        if pooled := [one for one in pooled if one.config["program"] != FLOOR]:
            found[kind] = min(
                pooled,
                key=lambda one: (*_differ(one, own), -one.config["pool"]["size"], *near(one)),
            )
    return ReferenceRuns(own, metric, found)


def _differ(one: ScoredRun, own: ScoredRun) -> tuple[bool, ...]:
    def parts(run: ScoredRun) -> tuple[Any, ...]:
        parameters = run.config["parameters"], (run.config.get("compiled") or {}).get("digest")
        return run.config["program"], run.config["lm"]["name"], parameters, run.retriever

    return tuple(a != b for a, b in zip(parts(one), parts(own), strict=True))
