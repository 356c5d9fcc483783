"""What moves a score: the variance of a study's factors, of queries, seeds and their pairs.

A study is a design: runs by queries, each run with a level of each factor. Queries are random; a
factor's component is that of its present levels. With S the covariance of runs over queries, and P
the projection on the runs' space of an effect, which is taken after all effects before it, sums of
squares are Q times the mean's, y'Py, and with queries (Q - 1) tr(PS); components solve their expected
values (Henderson's method III; Cornfield and Tukey 1956). In a grid with a combination of levels missing,
they are fitted by restricted maximum likelihood (Patterson and Thompson 1971), from there.

Generalizability as Bodoff and Li (SIGIR 2007) have it, after Tague-Sutcliffe and Blustein (1995);
interactions with queries as Ferro and Silvello (2018). Left out: effects of three factors, which are in the
rest, and queries that have no value in some run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, permutations
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats
from scipy.optimize import minimize

from sextant.tools.errors import UsageError

Matrix = NDArray[np.float64]
Effect = tuple[str, ...]  # names of factors; () is the mean, with queries the queries

MEAN = "mean"
QUERY = "query"
SEED = "seed"
MORE = "three or more factors"
REST = "rest"
RELIABLE = (0.8, 0.9, 0.95)
SEEDS = (1, 3, 5, 10)
_GROUPS = 50  # of queries, of which a jackknife leaves out one at a time
_TOLERANCE = 1e-9


class Component(NamedTuple):
    """An effect's variance, as a share of the sum of all, with the 95 % interval of the share."""

    effect: str
    degrees: int  # of freedom
    sum_of_squares: float
    variance: float  # of a query's score; 0 if it was estimated below
    share: float
    low: float
    high: float
    is_negative: bool  # whether its estimate was below 0


class Decomposition(NamedTuple):
    """The variance of a study's scores on a task."""

    components: list[Component]
    inseparable: dict[str, str]  # effect -> those before it that its runs do not tell it from
    is_balanced: bool
    queries: int
    runs: int
    # reliability -> seeds -> queries from which a difference between two systems is so reliable; None: never
    needed: dict[float, dict[int, int | None]]
    reliability: float  # of these queries and seeds
    seed_noise: float | None  # standard deviation of a run's mean between seeds


class Turn(NamedTuple):
    """Two levels of a factor whose order another factor changes."""

    factor: str
    levels: tuple[str, str]
    by: str
    # level of `by` -> mean of the first level less that of the second
    differences: dict[str, float]


class Design:
    """The effects of runs: which of them share a level, and what tells an effect from those before it."""

    def __init__(self, runs: Sequence[Mapping[str, str]], *, repeated: bool) -> None:
        """`runs` have a level of every factor; `repeated` tells whether some differ in their seeds alone."""
        factors = tuple(runs[0])
        effects: list[Effect] = [(), *((factor,) for factor in factors), *combinations(factors, 2)]
        if len(factors) > 2:
            effects.append(factors)
        levels = {
            name_effect(effect): [tuple(run[factor] for factor in effect) for run in runs]
            for effect in effects
        }
        levels[SEED if repeated else REST] = [(str(number),) for number in range(len(runs))]
        self.kernels: dict[
            str, Matrix
        ] = {}  # effect -> 1 where two runs share its level, shape (runs, runs)
        self.bases: dict[
            str, Matrix
        ] = {}  # effect -> what it has beyond those before, shape (runs, degrees)
        self.inseparable: dict[str, str] = {}
        taken = np.zeros((len(runs), 0))
        for name, groups in levels.items():
            indicators = np.array([[float(one == other) for other in groups] for one in groups])
            beyond = indicators - taken @ (taken.T @ indicators)
            vectors, singular, _ = np.linalg.svd(beyond)
            basis = vectors[:, singular > _TOLERANCE * len(runs)]
            if basis.shape[1]:
                self.kernels[name] = indicators
                self.bases[name] = basis
                taken = np.hstack([taken, basis])
            else:
                finest = [
                    other for other in self.kernels if levels[other] == groups or other != MEAN
                ]
                self.inseparable[name] = finest[-1]
        sizes = [
            groups_of.count(group)
            for groups_of in [[tuple(run.values()) for run in runs]]
            for group in set(groups_of)
        ]
        grid = math.prod(len({run[factor] for run in runs}) for factor in factors)
        self.is_balanced = len(sizes) == grid and len(set(sizes)) == 1

    def quadratics(self, scores: Matrix) -> tuple[dict[str, float], dict[str, float]]:
        """Return the sum of squares of each effect, and of each with queries; `scores` are (runs, queries)."""
        queries = scores.shape[1]
        means = scores.mean(axis=1)
        deviations = scores - means[:, None]
        alone = {
            name: queries * float(np.square(basis.T @ means).sum())
            for name, basis in self.bases.items()
        }
        crossed = {
            name: float(np.square(basis.T @ deviations).sum()) for name, basis in self.bases.items()
        }
        return alone, crossed

    def solve(self, scores: Matrix) -> tuple[dict[str, float], dict[str, float]]:
        """Return the variance of each effect, and of each with queries, whose expected sums of squares
        these are; they may be negative.
        """
        alone, crossed = self.quadratics(scores)
        queries = scores.shape[1]
        degrees = {name: basis.shape[1] for name, basis in self.bases.items()}
        expected = np.array(
            [
                [
                    float(np.einsum("ij,ik,kj", basis, kernel, basis)) / degrees[name]
                    for kernel in self.kernels.values()
                ]
                for name, basis in self.bases.items()
            ]
        )
        by_query = np.array(
            [crossed[name] / (degrees[name] * (queries - 1)) for name in self.bases]
        )
        beyond = np.array([alone[name] / degrees[name] for name in self.bases]) - by_query
        names = list(self.bases)
        with_queries = np.linalg.solve(expected, by_query)
        without = np.linalg.solve(expected[1:, 1:], beyond[1:] / queries)
        return dict(zip(names[1:], map(float, without), strict=True)), dict(
            zip(names, map(float, with_queries), strict=True)
        )

    def fit(self, scores: Matrix) -> tuple[dict[str, float], dict[str, float]]:
        """Return the variances by restricted maximum likelihood, none of which is negative.

        Contrasts of queries have the runs' covariance A of effects with queries; the mean over Q of
        them has A / Q and that of effects alone, around one mean.
        """
        alone, crossed = self.solve(scores)
        queries = scores.shape[1]
        means = scores.mean(axis=1)
        covariance = np.cov(scores)
        kernels = list(self.kernels.values())
        unit = float(np.trace(covariance)) / len(means)
        ones = np.ones(len(means))

        def loss(variances: Matrix) -> float:
            of_queries = sum(
                variance * kernel
                for variance, kernel in zip(variances[: len(kernels)], kernels, strict=True)
            )
            of_means = of_queries / queries + sum(
                (
                    variance * kernel
                    for variance, kernel in zip(variances[len(kernels) :], kernels[1:], strict=True)
                ),
                np.zeros_like(covariance),
            )
            whole = np.linalg.inv(of_means)
            centre = means - (ones @ whole @ means) / (ones @ whole @ ones)
            fitted = (queries - 1) * (
                np.linalg.slogdet(of_queries)[1]
                + np.trace(np.linalg.solve(of_queries, covariance)) / unit
            )
            fitted += (
                np.linalg.slogdet(of_means)[1]
                + np.log(ones @ whole @ ones)
                + centre @ whole @ centre / unit
            )
            return float(fitted)

        start = np.array([*crossed.values(), *alone.values()]) / unit
        least = [0.0] * len(start)
        least[len(kernels) - 1] = 1e-6  # of the rest, so that the covariance has an inverse
        found = minimize(
            loss, np.maximum(start, 1e-3), method="L-BFGS-B", bounds=[(low, None) for low in least]
        )
        values = [float(value) * unit for value in found.x]
        return dict(zip(alone, values[len(kernels) :], strict=True)), dict(
            zip(crossed, values[: len(kernels)], strict=True)
        )


def name_effect(effect: Effect) -> str:
    """Return the name of an effect of runs."""
    return MORE if len(effect) > 2 else " x ".join(effect) or MEAN


def decompose(runs: Sequence[Mapping[str, str]], scores: Matrix) -> Decomposition:
    """Return the shares of the variance of `scores`, shape (runs, queries), by the levels that `runs` have.

    UsageError for fewer than two runs or queries, or runs without a factor in which they differ.
    """
    if scores.shape[0] < 2 or scores.shape[1] < 2:
        raise UsageError("variance needs two runs or more, of two queries or more")
    repeated = len({tuple(run.values()) for run in runs}) < len(runs)
    design = Design(runs, repeated=repeated)
    alone, crossed = design.solve(scores)
    is_negative = {name: value < 0 for name, value in _name_all(alone, crossed).items()}
    estimate = design.solve if design.is_balanced else design.fit
    variances = _name_all(*estimate(scores))
    shares = _share(variances)
    errors = _jackknife(lambda part: _share(_name_all(*estimate(part))), scores)
    squares_alone, squares_crossed = design.quadratics(scores)
    del squares_alone[MEAN]
    squares = _name_all(squares_alone, squares_crossed)
    degrees = {name: basis.shape[1] for name, basis in design.bases.items()}
    all_degrees = _name_all(
        {name: degrees[name] for name in squares_alone},
        {name: count * (scores.shape[1] - 1) for name, count in degrees.items()},
    )
    components = []
    for name, share in shares.items():
        low, high = _interval(share, errors[name])
        components.append(
            Component(
                name,
                int(all_degrees[name]),
                squares[name],
                max(variances[name], 0.0),
                share,
                low,
                high,
                is_negative[name],
            )
        )
    needed, reliability = _reliability(variances, scores.shape[1], repeated=repeated)
    noise = None
    if repeated:
        per_query = variances[f"{SEED} x {QUERY}"]
        noise = math.sqrt(max(variances[SEED], 0.0) + max(per_query, 0.0) / scores.shape[1])
    return Decomposition(
        components,
        design.inseparable,
        design.is_balanced,
        scores.shape[1],
        scores.shape[0],
        needed,
        reliability,
        noise,
    )


def _name_all(alone: Mapping[str, float], crossed: Mapping[str, float]) -> dict[str, float]:
    named = dict(alone)
    for name, value in crossed.items():
        named[QUERY if name == MEAN else f"{name} x {QUERY}"] = value
    return named


def _share(variances: Mapping[str, float]) -> dict[str, float]:
    total = math.fsum(max(value, 0.0) for value in variances.values()) or 1.0
    return {name: max(value, 0.0) / total for name, value in variances.items()}


def _jackknife(
    estimate: Callable[[Matrix], dict[str, float]], scores: Matrix
) -> dict[str, tuple[float, int]]:
    """Return the standard error of each estimate, by leaving out groups of queries, and the groups."""
    queries = scores.shape[1]
    groups = np.array_split(np.random.default_rng(0).permutation(queries), min(queries, _GROUPS))
    parts = [estimate(np.delete(scores, group, axis=1)) for group in groups] if queries > 2 else []
    errors = {}
    for name in parts[0] if parts else estimate(scores):
        values = np.array([part[name] for part in parts])
        spread = float(np.square(values - values.mean()).sum()) if parts else math.nan
        errors[name] = (math.sqrt(spread * (len(parts) - 1) / max(len(parts), 1)), len(parts))
    return errors


def _interval(share: float, error: tuple[float, int]) -> tuple[float, float]:
    """Return the 95 % interval of a share, symmetric on the scale of log odds."""
    deviation, groups = error
    if not 0 < share < 1 or not deviation > 0:
        return max(0.0, share - 2 * deviation), min(1.0, share + 2 * deviation)
    half = float(stats.t.ppf(0.975, groups - 1)) * deviation / (share * (1 - share))
    low, high = special.expit(special.logit(share) + np.array([-half, half])).tolist()
    return low, high


def _reliability(
    variances: Mapping[str, float], queries: int, *, repeated: bool
) -> tuple[dict[float, dict[int, int | None]], float]:
    """Return how many queries make differences between systems reliable, and how reliable they are now."""
    seeds = {name: max(variances.get(name, 0.0), 0.0) for name in (SEED, f"{SEED} x {QUERY}")}
    systems = math.fsum(
        max(value, 0.0)
        for name, value in variances.items()
        if QUERY not in name and name not in seeds
    )
    with_queries = math.fsum(
        max(value, 0.0)
        for name, value in variances.items()
        if name.endswith(f" x {QUERY}") and name not in seeds
    )
    needed: dict[float, dict[int, int | None]] = {}
    for reliable in RELIABLE:
        needed[reliable] = {}
        for count in SEEDS if repeated else SEEDS[:1]:
            room = systems * (1 - reliable) / reliable - seeds[SEED] / count
            per_query = with_queries + seeds[f"{SEED} x {QUERY}"] / count
            needed[reliable][count] = max(1, math.ceil(per_query / room)) if room > 0 else None
    noise = seeds[SEED] + (with_queries + seeds[f"{SEED} x {QUERY}"]) / queries
    return needed, systems / (systems + noise) if systems else 0.0


def list_turns(runs: Sequence[Mapping[str, str]], scores: Matrix) -> list[Turn]:
    """Return the pairs of levels whose order differs between levels of another factor, the clearest first."""
    means = scores.mean(axis=1)
    turns = []
    for factor, by in permutations(runs[0], 2):
        cells: dict[tuple[str, str], list[float]] = {}
        for run, mean in zip(runs, means.tolist(), strict=True):
            cells.setdefault((run[factor], run[by]), []).append(mean)
        for first, second in combinations(dict.fromkeys(run[factor] for run in runs), 2):
            differences = {
                level: fmean(cells[first, level]) - fmean(cells[second, level])
                for level in dict.fromkeys(run[by] for run in runs)
                if (first, level) in cells and (second, level) in cells
            }
            if differences and min(differences.values()) < 0 < max(differences.values()):
                turns.append(Turn(factor, (first, second), by, differences))
    return sorted(
        turns,
        key=lambda turn: -min(-min(turn.differences.values()), max(turn.differences.values())),
    )


def level_means(runs: Sequence[Mapping[str, str]], scores: Matrix) -> dict[str, dict[str, float]]:
    """Return factor -> level -> the mean of its runs."""
    means = scores.mean(axis=1).tolist()
    return {
        factor: {
            level: fmean(
                mean for run, mean in zip(runs, means, strict=True) if run[factor] == level
            )
            for level in dict.fromkeys(run[factor] for run in runs)
        }
        for factor in runs[0]
    }
