"""How far two judges agree who gave values to the same items: exact agreement, Cohen's kappa, Spearman's rho, macro-F1.

Intervals are by bootstrap over items: what was judged of one item is drawn together.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

from evals.measuring.stats import Interval, means_of_resamples

Pairs = Sequence[tuple[str, str]]  # two judges' values for one thing


class Agreement(NamedTuple):
    """How far two judges agree; None is what the values do not define."""

    items: int
    pairs: int
    agreement: Interval  # share of equal values
    kappa: Interval | None  # Cohen 1960; None where both give one and the same value only
    macro_f1: float  # mean over the values that occur; the same whoever comes first
    spearman: float | None  # where values have an order, and neither judge gives one only


def agree(items: Sequence[Pairs], order: Sequence[str] = ()) -> Agreement | None:
    """Compare the pairs of each item, whose values may have an order, from low to high; None where there is no pair."""
    if not (items := [pairs for pairs in items if pairs]):
        return None
    values = order or sorted({value for pairs in items for pair in pairs for value in pair})
    place, many = {value: number for number, value in enumerate(values)}, len(values)
    tables = np.zeros((len(items), many, many))
    for table, pairs in zip(tables, items, strict=True):
        for first, second in pairs:
            table[place[first], place[second]] += 1
    total = tables.sum(axis=0)
    hits, given = np.diag(total), total.sum(axis=0) + total.sum(axis=1)
    drawn = means_of_resamples(tables.reshape(len(items), -1)).reshape(-1, many, many)
    firsts, seconds = np.transpose([(place[first], place[second]) for pairs in items for first, second in pairs])
    varied = order and len(set(firsts)) > 1 and len(set(seconds)) > 1
    kappa = float(_kappa(total))
    return Agreement(
        items=len(items),
        pairs=int(total.sum()),
        agreement=_interval(float(_share(total)), _share(drawn), len(items)),
        kappa=None if np.isnan(kappa) else _interval(kappa, _kappa(drawn), len(items)),
        macro_f1=float((2 * hits[given > 0] / given[given > 0]).mean()),
        spearman=float(spearmanr(firsts, seconds).statistic) if varied else None,
    )


def _share(tables: np.ndarray) -> np.ndarray:  # of equal values, by table of the last two dimensions
    equal: np.ndarray = np.trace(tables, axis1=-2, axis2=-1) / tables.sum(axis=(-2, -1))
    return equal


def _kappa(tables: np.ndarray) -> np.ndarray:
    whole = tables.sum(axis=(-2, -1))
    chance = (tables.sum(axis=-1) * tables.sum(axis=-2)).sum(axis=-1) / whole**2
    left = np.where(1 - chance > 1e-12, 1 - chance, np.nan)
    kappa: np.ndarray = (_share(tables) - chance) / left
    return kappa


def _interval(value: float, drawn: np.ndarray, items: int) -> Interval:  # resamples that define none are left out
    drawn = drawn[~np.isnan(drawn)]
    if items < 2 or not len(drawn):
        return Interval(value, None, None)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(value, float(low), float(high))
