"""Uncertainty of a mean over queries. Pure functions of numbers; every seed is an argument."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """A mean and its 95 % interval; the bounds are None where there is no spread to estimate them from."""

    mean: float
    low: float | None
    high: float | None


def bootstrap_mean(
    values: Sequence[float], weights: Sequence[float] | None = None, *, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """The mean with its percentile bootstrap interval (Efron and Tibshirani 1993, chapter 13).

    Queries are the unit that is resampled; `weights`, one a value and above 0, say how much each counts. With one
    value there is a mean and no interval; with none, ValueError.
    """
    if not values:
        raise ValueError("no values to average")
    array = np.asarray(values, dtype=np.float64)
    weight = np.ones(len(array)) if weights is None else np.asarray(weights, dtype=np.float64)
    mean = float(np.average(array, weights=weight))
    if len(array) < 2:
        return Interval(mean, None, None)
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    step = max(1, 2_000_000 // len(array))  # resamples at a time: 16 MB of draws, whatever the queries
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        draws = generator.integers(0, len(array), size=(count, len(array)))
        means[start : start + count] = (array * weight)[draws].sum(axis=1) / weight[draws].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(mean, float(low), float(high))


class Resampled(NamedTuple):
    """A mean over bootstrap resamples and their standard deviation, which BIRCO prints as mean and error."""

    mean: float
    error: float


def resampled_mean(values: Sequence[float], *, resamples: int = 1000, seed: int = 42) -> Resampled:
    """BIRCO's figure for a metric: the mean of `resamples` resampled means, and their standard deviation.

    Its script seeds NumPy's global generator (Mersenne Twister) with 42 anew for each metric and draws as
    many queries as there are, with replacement. With ValueError for no values.
    """
    if not values:
        raise ValueError("no values to average")
    array = np.asarray(values, dtype=np.float64)
    generator = np.random.RandomState(seed)
    means = [array[generator.choice(len(array), len(array), replace=True)].mean() for _ in range(resamples)]
    return Resampled(float(np.mean(means)), float(np.std(means)))
