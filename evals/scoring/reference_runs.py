"""Find the runs next to a run that are its bounds. No corpus, no model.

    floor    `retrieve` over the program's own retriever, without a pool: a search, no model
    best     the best of all runs of `retrieve`, whatever the retriever
    union    a ranking of the hits of several retrievers: a lower bound on the best possible system
    ceiling  a run over pools that have every relevant document: the reach of recognising alone

After OBLIQ-Bench, section 3 (docs/decisions/pools.md). Only runs of the same contract, the pool
aside, bound each other. A bound of another system (program, parameters, model or retriever) is
named in full, and no distance to it is given.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

from sextant.evals import run_folder
from sextant.evals.scoring.metrics import orient
from sextant.evals.scoring.scored_run import CONTRACT, ScoredRun, T, align_columns, read_scores
from sextant.evals.scoring.statistics import Interval, PairedTest, paired, share_closed
from sextant.programs import FLOOR
from sextant.tools import pool_kinds
from sextant.tools.errors import SextantError
from sextant.tools.records import JsonMapping, JsonObject

ReferenceKind = Literal["floor", "best", "union", "ceiling"]
LABELS: dict[ReferenceKind, str] = {
    "floor": "floor",
    "best": "best bare retriever",
    "union": "lower bound",
    "ceiling": "ceiling",
}
_POOLS: dict[ReferenceKind, Sequence[str]] = {
    "union": (pool_kinds.UNION,),
    "ceiling": pool_kinds.WITH_RELEVANT,
}


class ReferenceRuns(NamedTuple):
    """A run between its bounds, by a metric.

    Differences are paired by query, and None if a bound is missing.
    """

    run: ScoredRun
    metric: str
    bounds: dict[ReferenceKind, ScoredRun]  # bounds that have been run

    def mean(self, reference: ReferenceKind | None = None) -> float | None:
        """Return the figure of a bound, or the run's own."""
        run = self.bounds.get(reference) if reference else self.run
        return None if run is None else run.mean(self.metric)

    def describe(self, reference: ReferenceKind) -> str:
        """Name the system of a bound, with the parameters in which the same program differs.

        "" if there is no such bound.
        """
        if reference not in self.bounds:
            return ""
        bound = self.bounds[reference]
        config, own = bound.config, self.run.config
        words = [f"{config['program']} over {bound.retriever}"]
        if config["program"] == own["program"]:
            for name, value in config["parameters"].items():
                if value != own["parameters"].get(name):
                    words.append(f"{name}={value}")
        if config["program"] != FLOOR:
            words.append(config["lm"]["name"])
        if compiled := config.get("compiled"):
            words.append(f"compiled ({compiled.get('digest')})")
        if pool := config.get("pool"):
            words.append(f"{bound.pool} pool of {pool['size']} by {' and '.join(pool['of'])}")
        return ", ".join(words)

    def is_own(self, reference: ReferenceKind) -> bool:
        """Return whether there is such a bound of the program's own system.

        A floor is of the own system if it has the same retriever.
        """
        bound = self.bounds.get(reference)
        if bound is None:
            return False
        difference = _differ(bound, self.run)
        return not (difference.retriever if bound.is_floor else any(difference))

    @property
    def others(self) -> str:
        """The bounds that are another system's, in full."""
        descriptions = []
        for reference, label in LABELS.items():
            if reference in self.bounds and not self.is_own(reference):
                mean = self.mean(reference)
                descriptions.append(f"{label} {mean:.4f}: {self.describe(reference)}")
        return "; ".join(descriptions)

    def json(self) -> JsonObject:
        """Return the bounds as plain data, by kind."""
        data: JsonObject = {"metric": self.metric, **dict.fromkeys(LABELS)}
        for reference, run in self.bounds.items():
            data[reference] = {
                "mean": self.mean(reference),
                "run": run.name,
                "what": self.describe(reference),
            }
        return data

    def compare(self) -> tuple[PairedTest | None, PairedTest | None, Interval | None]:
        """Return program - floor, own ceiling - program, and the share of the gap that is closed.

        The gap is own ceiling - floor.
        """
        floor = self.bounds.get("floor")
        ceiling = self.bounds["ceiling"] if self.is_own("ceiling") else None
        return (
            self._compute(paired, floor, self.run),
            self._compute(paired, self.run, ceiling),
            self._compute(share_closed, floor, self.run, ceiling),
        )

    def _compute(self, function: Callable[..., T], *runs: ScoredRun | None) -> T | None:
        columns = [run.columns.get(self.metric, {}) for run in runs if run is not None]
        if len(columns) < len(runs):
            return None
        rows = align_columns(*columns).values()
        return function(*zip(*rows, strict=True)) if rows else None


def read_reference_bounds(path: Path) -> JsonObject:
    """Return the bounds of the run in `path` among the folders next to it, as JSON.

    They are by the run's headline metric; folders that cannot be read are passed over.
    """
    run = _read_lightly(path)
    if run is None:
        return {"metric": "", **dict.fromkeys(LABELS)}
    folder = path if path.name not in ("", "..") else path.resolve()
    candidates = []
    with suppress(OSError):  # a folder that may be entered and not listed
        for sibling in sorted(folder.parent.iterdir()):
            if sibling.name == folder.name:
                continue
            candidate = _read_lightly(sibling, like=run)
            if candidate is not None:
                candidates.append(candidate)
    return references_among(run, candidates, run.metric).json()


def list_bounds(references: JsonMapping) -> list[tuple[str, JsonObject]]:
    """Return (label, bound) of the bounds in `ReferenceRuns.json`.

    The best bare retriever is left out if it is the run's own.
    """
    bounds = []
    for reference, label in LABELS.items():
        bound = references.get(reference)
        if bound and not (reference == "best" and bound == references["floor"]):
            bounds.append((label, bound))
    return bounds


def _read_lightly(path: Path, like: ScoredRun | None = None) -> ScoredRun | None:
    """Read the run in `path` without its values.

    None for no scores, damaged scores, or another contract than that of `like`.
    """
    try:
        config = run_folder.read_config(path)
        if like is not None:
            for key in CONTRACT:
                if key != "pool" and config.get(key) != like.config.get(key):
                    return None
        run = ScoredRun(
            path,
            config,
            read_scores(path, config),
            {},
            {},
            [],
        )
    except (SextantError, OSError, ValueError):
        return None
    if run.scores.get("owed") or not run.scores["metrics"]:
        return None
    return run


def references_per_program(runs: Sequence[ScoredRun], metric: str = "") -> list[ReferenceRuns]:
    """Return the bounds among `runs` of each program that searches the whole corpus.

    They are by `metric`, or by each run's headline metric.
    """
    references = []
    for run in runs:
        if run.config["program"] == FLOOR or run.config.get("pool"):
            continue
        if metric and metric not in run.columns:
            continue
        candidates = [candidate for candidate in runs if candidate is not run]
        references.append(references_among(run, candidates, metric or run.metric))
    return references


def references_among(run: ScoredRun, candidates: Iterable[ScoredRun], metric: str) -> ReferenceRuns:
    """Return the bounds of a run among candidates, by a metric.

    Floors have its retriever. Pools are ranked by the same program first, then model, parameters,
    retriever, then the paper's pool and the larger one, never by the bare retriever. A ceiling is
    at least the run and a bare retriever.
    """
    means = {}
    peers = []
    for candidate in candidates:
        mean = candidate.mean(metric)
        if mean is not None and _has_contract_of(candidate, run):
            means[candidate.path] = orient(metric, mean)
            peers.append(candidate)
    bare = [peer for peer in peers if peer.is_floor and not run.is_floor]
    bounds: dict[ReferenceKind, ScoredRun] = {}

    def code_distance(candidate: ScoredRun) -> tuple[bool, bool, str]:
        return (
            candidate.config.get("code") != run.config.get("code"),
            candidate.config.get("versions") != run.config.get("versions"),
            candidate.path.name,
        )

    floors = [peer for peer in bare if peer.retriever == run.retriever]
    if floors:
        bounds["floor"] = min(floors, key=code_distance)
    if bare:
        bounds["best"] = min(
            bare,
            key=lambda peer: (
                -means[peer.path],
                peer.retriever != run.retriever,
                peer.path.name,
            ),
        )
    mean = run.mean(metric)
    own = [] if mean is None else [orient(metric, mean)]
    least_ceiling = max([*own, *(means[peer.path] for peer in bare)], default=-inf)
    for reference, kinds in _POOLS.items():
        if run.pool in kinds:
            continue
        pooled = []
        for peer in peers:
            is_bound = reference == "union" or means[peer.path] >= least_ceiling
            if peer.pool in kinds and is_bound and peer.config["program"] != FLOOR:
                pooled.append(peer)
        if pooled:
            bounds[reference] = min(
                pooled,
                key=lambda peer: (
                    *_differ(peer, run),
                    kinds.index(peer.pool),
                    -peer.config["pool"]["size"],
                    *code_distance(peer),
                ),
            )
    return ReferenceRuns(run, metric, bounds)


def _has_contract_of(candidate: ScoredRun, run: ScoredRun) -> bool:
    return candidate.contract | {"pool": None} == run.contract | {"pool": None}


class _SystemDifference(NamedTuple):
    """In which respects the systems of two runs differ, the most important first."""

    program: bool
    model: bool
    parameters: bool
    retriever: bool


def _differ(first: ScoredRun, second: ScoredRun) -> _SystemDifference:
    first_config = first.config
    second_config = second.config
    return _SystemDifference(
        program=first_config["program"] != second_config["program"],
        model=first_config["lm"]["name"] != second_config["lm"]["name"],
        parameters=first_config["parameters"] != second_config["parameters"]
        or _compiled_digest(first) != _compiled_digest(second),
        retriever=first.retriever != second.retriever,
    )


def _compiled_digest(run: ScoredRun) -> str | None:
    compiled: dict[str, str] = run.config.get("compiled") or {}
    return compiled.get("digest")
