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
from collections import Counter, defaultdict
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

    @property
    def size(self) -> float:
        """The smaller of its largest differences in either direction; 0 or less is no turn."""
        values = self.differences.values()
        most = max(values, default=0.0)
        least = min(values, default=0.0)
        return min(most, -least)


class Design:
    """The effects of runs: which of them share a level, and what tells an effect from those before it.

    Values of effects are vectors in the order of `labels`: effects alone, queries, effects with queries.
    """

    def __init__(self, runs: Sequence[Mapping[str, str]], *, repeated: bool) -> None:
        """`runs` have a level of every factor; `repeated` tells whether some differ in their seeds alone."""
        factors = tuple(runs[0])
        effects: list[tuple[str, ...]] = [()]
        for size in (1, 2, len(factors)):
            effects += combinations(factors, size)
        levels: dict[str, list[object]] = {}
        for effect in effects:
            name = " x ".join(effect) or MEAN
            if len(effect) > 2:
                name = MORE
            levels[name] = [[run[factor] for factor in effect] for run in runs]
        levels[SEED if repeated else REST] = list(range(len(runs)))
        self.inseparable: dict[str, str] = {}
        names: list[str] = []
        kernels: list[Matrix] = []  # 1 where two runs share a level, shape (runs, runs)
        self._bases: list[Matrix] = []  # of what an effect has beyond those before
        for name, groups in levels.items():
            rows = [[float(one == other) for other in groups] for one in groups]
            kernel = np.array(rows)
            beyond = kernel
            for basis in self._bases:
                beyond = beyond - basis @ (basis.T @ beyond)
            vectors, singular, _ = np.linalg.svd(beyond)
            if singular[0] < _TOLERANCE * len(runs):
                self.inseparable[name] = names[-1]
                continue
            names.append(name)
            kernels.append(kernel)
            has_any = singular > _TOLERANCE * len(runs)
            self._bases.append(vectors[:, has_any])
        self._kernels = np.array(kernels)
        degrees = [basis.shape[1] for basis in self._bases]
        self._degrees = np.array(degrees)
        alone = names[1:]
        with_queries = [f"{name} x {QUERY}" for name in alone]
        self.labels = [*alone, QUERY, *with_queries]
        counts = Counter(tuple(run.values()) for run in runs)
        grid = 1
        for factor in factors:
            grid *= len({run[factor] for run in runs})
        is_whole = len(counts) == grid
        self.is_balanced = is_whole and len(set(counts.values())) == 1

    def degrees(self, queries: int) -> Matrix:
        """Return the degrees of freedom of each effect."""
        with_queries = self._degrees * (queries - 1)
        degrees = np.append(self._degrees[1:], with_queries)
        return degrees.astype(np.float64)

    def sums_of_squares(self, scores: Matrix) -> Matrix:
        """Return the sum of squares of each effect; `scores` are (runs, queries)."""
        means = scores.mean(axis=1)
        deviations = scores - means[:, None]
        alone = []
        crossed = []
        for basis in self._bases:
            of_means = basis.T @ means
            of_queries = basis.T @ deviations
            alone.append(scores.shape[1] * np.square(of_means).sum())
            crossed.append(np.square(of_queries).sum())
        return np.array([*alone[1:], *crossed])

    def solve(self, scores: Matrix) -> Matrix:
        """Return the variance of each effect whose expected squares these are; it may be negative."""
        queries = scores.shape[1]
        squares = self.sums_of_squares(scores) / self.degrees(queries)
        shape = (len(self._bases), len(self._bases))
        expected = np.empty(shape)
        for row, basis in enumerate(self._bases):
            expected[row] = np.einsum("ij,eik,kj->e", basis, self._kernels, basis)
        expected /= self._degrees[:, None]
        alone, crossed = np.split(squares, [len(self._bases) - 1])
        beyond = (alone - crossed[1:]) / queries
        of_effects = np.linalg.solve(expected[1:, 1:], beyond)
        with_queries = np.linalg.solve(expected, crossed)
        return np.append(of_effects, with_queries)

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
        ridge = 1e-6 * np.eye(len(means))  # so that there is an inverse

        def measure_misfit(variances: Matrix) -> float:
            alone, crossed = np.split(variances, [len(self._kernels) - 1])
            of_queries = ridge + np.tensordot(crossed, self._kernels, 1)
            of_means = of_queries / queries
            of_means = of_means + np.tensordot(alone, self._kernels[1:], 1)
            weights = np.linalg.inv(of_means)
            total = float(ones @ weights @ ones)
            centred = means - (ones @ weights @ means) / total
            misfit = np.linalg.slogdet(of_queries)[1]
            misfit += np.trace(np.linalg.solve(of_queries, covariance)) / unit
            misfit *= queries - 1
            misfit += np.linalg.slogdet(of_means)[1] + math.log(total)
            return float(misfit + centred @ weights @ centred / unit)

        start = np.maximum(self.solve(scores) / unit, 1e-3)
        bounds = [(0.0, None)] * len(start)
        fitted = minimize(
            measure_misfit,
            start,
            method="L-BFGS-B",
            bounds=bounds,
        )
        return np.asarray(fitted.x) * unit


def decompose(
    runs: Sequence[Mapping[str, str]],
    scores: Matrix,
) -> Decomposition:
    """Return the shares of the variance of `scores`, shape (runs, queries), by the levels that `runs` have.

    UsageError for fewer than two runs or queries.
    """
    if scores.shape[0] < 2 or scores.shape[1] < 2:
        raise UsageError("variance needs two runs or more, of two queries or more")
    queries = scores.shape[1]
    combinations_of_levels = {tuple(run.values()) for run in runs}
    repeated = len(combinations_of_levels) < len(runs)
    design = Design(runs, repeated=repeated)
    estimate = design.solve if design.is_balanced else design.fit
    estimated = estimate(scores)
    variances = np.maximum(estimated, 0.0)
    shares = _share(variances)
    bounds = _list_intervals(shares, lambda part: _share(estimate(part)), scores)
    columns = zip(
        design.labels,
        design.degrees(queries).astype(int).tolist(),
        design.sums_of_squares(scores).tolist(),
        variances.tolist(),
        shares.tolist(),
        *bounds.tolist(),
        (estimated < 0).tolist(),
        strict=True,
    )
    components = [Component(*values) for values in columns]
    by_name = {part.effect: part.variance for part in components}
    noise = None
    if repeated:
        per_answer = by_name[f"{SEED} x {QUERY}"]
        noise = math.sqrt(by_name[SEED] + per_answer / queries)
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
    """Return each variance by the sum of those above 0; one below 0 stays below, as its error is asked for."""
    total = float(np.maximum(variances, 0.0).sum())
    return variances / (total or 1.0)


def _list_intervals(shares: Matrix, estimate: Callable[[Matrix], Matrix], scores: Matrix) -> Matrix:
    """Return the ends of the shares' 95 % intervals, symmetric on the scale of log odds, shape (2, effects).

    Standard errors are those of a jackknife that leaves out groups of queries.
    """
    queries = scores.shape[1]
    generator = np.random.default_rng(0)
    order = generator.permutation(queries)
    groups = np.array_split(order, min(queries, _GROUPS))
    if len(groups) < 3:
        return np.array([np.zeros_like(shares), np.ones_like(shares)])
    parts = []
    for group in groups:
        others = np.delete(scores, group, axis=1)
        parts.append(estimate(others))
    spread = np.array(parts).var(axis=0)
    errors = np.sqrt(spread * (len(groups) - 1))
    inside = np.clip(shares, 1e-9, 1 - 1e-9)  # a share of 0 has an interval as well
    slope = inside * (1 - inside)
    quantile = stats.t.ppf(0.975, len(groups) - 1)
    half = quantile * errors / slope
    odds = special.logit(inside)
    low = special.expit(odds - half)
    high = special.expit(odds + half)
    is_above = shares > 0
    return np.array(
        [
            np.where(is_above, low, 0.0),
            np.where(is_above, high, 2 * errors),
        ]
    )


def _split_noise(variances: Mapping[str, float]) -> tuple[float, float, float, float]:
    """Return the variance of systems, of systems with queries, and of seeds alone and with queries."""
    systems = 0.0
    with_queries = 0.0
    for name, variance in variances.items():
        if name == QUERY or name.startswith(SEED):
            continue
        if name.endswith(QUERY):
            with_queries += variance
        else:
            systems += variance
    seed = variances.get(SEED, 0.0)
    per_answer = variances.get(f"{SEED} x {QUERY}", 0.0)
    return systems, with_queries, seed, per_answer


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
    odds = reliable / (1 - reliable)
    for seeds in SEEDS if repeated else SEEDS[:1]:
        room = systems / odds - seed / seeds
        per_query = with_queries + per_answer / seeds
        needed[seeds] = None
        if room > 0:
            needed[seeds] = max(1, math.ceil(per_query / room))
    return needed


def list_turns(
    runs: Sequence[Mapping[str, str]],
    scores: Matrix,
) -> list[Turn]:
    """Return the pairs of levels whose order differs between levels of another factor, the clearest first."""
    turns = []
    for factor, by in permutations(runs[0], 2):
        means = pair_means(runs, scores, factor, by)
        for first, second in combinations(means, 2):
            shared = [level for level in means[first] if level in means[second]]
            differences = {}
            for level in shared:
                differences[level] = means[first][level] - means[second][level]
            turn = Turn(factor, (first, second), by, differences)
            if turn.size > 0:
                turns.append(turn)
    return sorted(turns, key=lambda turn: turn.size, reverse=True)


def pair_means(
    runs: Sequence[Mapping[str, str]], scores: Matrix, first: str, second: str
) -> dict[str, dict[str, float]]:
    """Return level of the first factor -> level of the second -> the mean of their runs."""
    cells = defaultdict[tuple[str, str], list[float]](list)
    means = scores.mean(axis=1).tolist()
    for run, mean in zip(runs, means, strict=True):
        cells[run[first], run[second]].append(mean)
    by_level: dict[str, dict[str, float]] = {}
    for (level, other), values in cells.items():
        row = by_level.setdefault(level, {})
        row[other] = fmean(values)
    return by_level


def level_means(
    runs: Sequence[Mapping[str, str]],
    scores: Matrix,
) -> dict[str, dict[str, float]]:
    """Return factor -> level -> the mean of its runs."""
    means: dict[str, dict[str, float]] = {}
    for factor in runs[0]:
        same = pair_means(runs, scores, factor, factor)
        means[factor] = {level: row[level] for level, row in same.items()}
    return means
