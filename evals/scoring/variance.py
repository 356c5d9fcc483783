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
from collections import Counter
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
    """The effects of runs: which of them share a level, and what tells an effect from those before it.

    Values of effects are vectors in the order of `labels`: effects alone, queries, effects with queries.
    """

    def __init__(self, runs: Sequence[Mapping[str, str]], *, repeated: bool) -> None:
        """`runs` have a level of every factor; `repeated` tells whether some differ in their seeds alone."""
        factors = tuple(runs[0])
        effects = [(), *((factor,) for factor in factors), *combinations(factors, 2), factors]
        levels: dict[str, list[object]] = {}
        for effect in effects:
            name = MORE if len(effect) > 2 else " x ".join(effect) or MEAN
            levels[name] = [[run[factor] for factor in effect] for run in runs]
        levels[SEED if repeated else REST] = list(range(len(runs)))
        self.inseparable: dict[str, str] = {}
        names: list[str] = []
        kernels: list[Matrix] = []  # 1 where two runs share a level, shape (runs, runs)
        self._bases: list[Matrix] = []  # of what an effect has beyond those before
        for name, groups in levels.items():
            kernel = np.array([[float(one == other) for other in groups] for one in groups])
            beyond = kernel
            for basis in self._bases:
                beyond = beyond - basis @ (basis.T @ beyond)
            vectors, singular, _ = np.linalg.svd(beyond)
            if singular[0] < _TOLERANCE * len(runs):
                self.inseparable[name] = names[-1]
                continue
            names.append(name)
            kernels.append(kernel)
            self._bases.append(vectors[:, singular > _TOLERANCE * len(runs)])
        self._kernels = np.array(kernels)
        self._degrees = np.array([basis.shape[1] for basis in self._bases])
        self.labels = [*names[1:], QUERY, *(f"{name} x {QUERY}" for name in names[1:])]
        counts = Counter(tuple(run.values()) for run in runs)
        grid = math.prod(len({run[factor] for run in runs}) for factor in factors)
        self.is_balanced = len(counts) == grid and len(set(counts.values())) == 1

    def degrees(self, queries: int) -> Matrix:
        """Return the degrees of freedom of each effect."""
        return np.append(self._degrees[1:], self._degrees * (queries - 1)).astype(np.float64)

    def sums_of_squares(self, scores: Matrix) -> Matrix:
        """Return the sum of squares of each effect; `scores` are (runs, queries)."""
        means = scores.mean(axis=1)
        deviations = scores - means[:, None]
        alone = [np.square(basis.T @ means).sum() for basis in self._bases[1:]]
        crossed = [np.square(basis.T @ deviations).sum() for basis in self._bases]
        return np.array([scores.shape[1] * value for value in alone] + crossed)

    def solve(self, scores: Matrix) -> Matrix:
        """Return the variance of each effect whose expected squares these are; it may be negative."""
        queries = scores.shape[1]
        squares = self.sums_of_squares(scores) / self.degrees(queries)
        expected = np.empty((len(self._bases), len(self._bases)))
        for row, basis in enumerate(self._bases):
            expected[row] = np.einsum("ij,eik,kj->e", basis, self._kernels, basis)
        expected /= self._degrees[:, None]
        crossed = squares[len(self._bases) - 1 :]
        beyond = squares[: len(self._bases) - 1] - crossed[1:]
        alone = np.linalg.solve(expected[1:, 1:], beyond / queries)
        return np.append(alone, np.linalg.solve(expected, crossed))

    def fit(self, scores: Matrix) -> Matrix:
        """Return the variances by restricted maximum likelihood, none of which is negative.

        Contrasts of queries have the runs' covariance A of effects with queries; the mean over Q of
        them has A / Q and that of effects alone, around one mean.
        """
        queries = scores.shape[1]
        means = scores.mean(axis=1)
        covariance = np.cov(scores)
        unit = float(np.trace(covariance)) / len(means)  # in which variances are about 1
        ones = np.ones(len(means))

        def measure_misfit(variances: Matrix) -> float:
            alone, crossed = np.split(variances, [len(self._kernels) - 1])
            of_queries = np.tensordot(crossed, self._kernels, 1)
            of_means = of_queries / queries + np.tensordot(alone, self._kernels[1:], 1)
            weights = np.linalg.inv(of_means)
            total = float(ones @ weights @ ones)
            centred = means - (ones @ weights @ means) / total
            misfit = np.linalg.slogdet(of_queries)[1]
            misfit += np.trace(np.linalg.solve(of_queries, covariance)) / unit
            misfit *= queries - 1
            misfit += np.linalg.slogdet(of_means)[1] + math.log(total)
            return float(misfit + centred @ weights @ centred / unit)

        start = np.maximum(self.solve(scores) / unit, 1e-3)
        bounds = [(0.0, None)] * (len(start) - 1) + [(1e-6, None)]  # so that there is an inverse
        fitted = minimize(measure_misfit, start, method="L-BFGS-B", bounds=bounds)
        return np.asarray(fitted.x) * unit


def decompose(runs: Sequence[Mapping[str, str]], scores: Matrix) -> Decomposition:
    """Return the shares of the variance of `scores`, shape (runs, queries), by the levels that `runs` have.

    UsageError for fewer than two runs or queries.
    """
    if scores.shape[0] < 2 or scores.shape[1] < 2:
        raise UsageError("variance needs two runs or more, of two queries or more")
    queries = scores.shape[1]
    repeated = len({tuple(run.values()) for run in runs}) < len(runs)
    design = Design(runs, repeated=repeated)
    estimate = design.solve if design.is_balanced else design.fit
    variances = np.maximum(estimate(scores), 0.0)
    shares = _share(variances)
    bounds = _list_intervals(shares, lambda part: _share(estimate(part)), scores)
    columns = zip(
        design.labels,
        design.degrees(queries).astype(int).tolist(),
        design.sums_of_squares(scores).tolist(),
        variances.tolist(),
        shares.tolist(),
        *bounds.tolist(),
        (design.solve(scores) < 0).tolist(),
        strict=True,
    )
    components = [Component(*values) for values in columns]
    by_name = {part.effect: part.variance for part in components}
    noise = None
    if repeated:
        noise = math.sqrt(by_name[SEED] + by_name[f"{SEED} x {QUERY}"] / queries)
    needed = {reliable: _count_needed(by_name, reliable, repeated) for reliable in RELIABLE}
    return Decomposition(
        components,
        design.inseparable,
        design.is_balanced,
        queries,
        scores.shape[0],
        needed,
        _measure_reliability(by_name, queries),
        noise,
    )


def _share(variances: Matrix) -> Matrix:
    positive = np.maximum(variances, 0.0)
    return positive / (float(positive.sum()) or 1.0)


def _list_intervals(shares: Matrix, estimate: Callable[[Matrix], Matrix], scores: Matrix) -> Matrix:
    """Return the ends of the shares' 95 % intervals, symmetric on the scale of log odds, shape (2, effects).

    Standard errors are those of a jackknife that leaves out groups of queries.
    """
    queries = scores.shape[1]
    order = np.random.default_rng(0).permutation(queries)
    groups = np.array_split(order, min(queries, _GROUPS))
    if len(groups) < 3:
        return np.array([np.zeros_like(shares), np.ones_like(shares)])
    parts = np.array([estimate(np.delete(scores, group, axis=1)) for group in groups])
    errors = np.sqrt(parts.var(axis=0) * (len(groups) - 1))
    inside = np.clip(shares, 1e-9, 1 - 1e-9)  # a share of 0 has an interval as well
    half = stats.t.ppf(0.975, len(groups) - 1) * errors / (inside * (1 - inside))
    odds = special.logit(inside)
    low = np.where(shares > 0, special.expit(odds - half), 0.0)
    return np.array([low, np.where(shares > 0, special.expit(odds + half), 2 * errors)])


def _split_noise(variances: Mapping[str, float]) -> tuple[float, float, float, float]:
    """Return the variance of systems, of systems with queries, and of seeds alone and with queries."""
    sums = {False: 0.0, True: 0.0}
    seeds = {False: 0.0, True: 0.0}
    for name, variance in variances.items():
        if name != QUERY:
            part = seeds if name.startswith(SEED) else sums
            part[name.endswith(QUERY)] += variance
    return sums[False], sums[True], seeds[False], seeds[True]


def _measure_reliability(variances: Mapping[str, float], queries: int) -> float:
    systems, with_queries, seed, per_answer = _split_noise(variances)
    noise = seed + (with_queries + per_answer) / queries
    return systems / (systems + noise) if systems else 0.0


def _count_needed(
    variances: Mapping[str, float], reliable: float, repeated: bool
) -> dict[int, int | None]:
    """Return how many queries make differences between systems so reliable, by the number of seeds."""
    systems, with_queries, seed, per_answer = _split_noise(variances)
    needed: dict[int, int | None] = {}
    for seeds in SEEDS if repeated else SEEDS[:1]:
        room = systems * (1 - reliable) / reliable - seed / seeds
        per_query = with_queries + per_answer / seeds
        needed[seeds] = max(1, math.ceil(per_query / room)) if room > 0 else None
    return needed


def list_turns(runs: Sequence[Mapping[str, str]], scores: Matrix) -> list[Turn]:
    """Return the pairs of levels whose order differs between levels of another factor, the clearest first."""
    turns = []
    for factor, by in permutations(runs[0], 2):
        means = pair_means(runs, scores, factor, by)
        for first, second in combinations(means, 2):
            shared = [level for level in means[first] if level in means[second]]
            differences = {level: means[first][level] - means[second][level] for level in shared}
            if differences and min(differences.values()) < 0 < max(differences.values()):
                turns.append(Turn(factor, (first, second), by, differences))
    return sorted(turns, key=_measure_turn, reverse=True)


def _measure_turn(turn: Turn) -> float:
    return min(-min(turn.differences.values()), max(turn.differences.values()))


def pair_means(
    runs: Sequence[Mapping[str, str]], scores: Matrix, first: str, second: str
) -> dict[str, dict[str, float]]:
    """Return level of the first factor -> level of the second -> the mean of their runs."""
    cells: dict[str, dict[str, list[float]]] = {}
    for run, mean in zip(runs, scores.mean(axis=1).tolist(), strict=True):
        cells.setdefault(run[first], {}).setdefault(run[second], []).append(mean)
    return {
        level: {other: fmean(means) for other, means in row.items()} for level, row in cells.items()
    }


def level_means(runs: Sequence[Mapping[str, str]], scores: Matrix) -> dict[str, dict[str, float]]:
    """Return factor -> level -> the mean of its runs."""
    means: dict[str, dict[str, float]] = {}
    for factor in runs[0]:
        same = pair_means(runs, scores, factor, factor)
        means[factor] = {level: row[level] for level, row in same.items()}
    return means
