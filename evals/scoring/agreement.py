"""How far two judges agree who gave values to the same items: exact agreement, Cohen's kappa,
Spearman's rho, macro-F1.

Intervals are by bootstrap over items: what was judged of one item is drawn together.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

from evals.scoring.statistics import Interval, means_of_resamples

Pairs = Sequence[tuple[str, str]]  # two judges' values for one thing


class Agreement(NamedTuple):
    """How far two judges agree; None is what the values do not define."""

    agreement: Interval  # share of equal values
    kappa: (
        Interval | None
    )  # Cohen 1960; None where a judge gives one value only: the formula has 0, whatever is said
    macro_f1: float  # mean over the values that occur; the same whoever comes first
    spearman: float | None  # where values have an order, and neither judge gives one only
    kappa_undefined: str = ""  # why there is no kappa


def agree(items: Sequence[Pairs], order: Sequence[str] = ()) -> Agreement | None:
    """Compare the pairs of each item, whose values may have an order, from low to high; None
    where there is no pair.
    """
    if not (items := [pairs for pairs in items if pairs]):
        return None
    values = order or sorted({value for pairs in items for pair in pairs for value in pair})
    place = {value: number for number, value in enumerate(values)}
    many = len(values)
    tables = np.zeros((len(items), many, many))
    for table, pairs in zip(tables, items, strict=True):
        for first, second in pairs:
            table[place[first], place[second]] += 1
    firsts, seconds = np.transpose(
        [(place[first], place[second]) for pairs in items for first, second in pairs]
    )
    constant = {
        name: values[own[0]]
        for name, own in (("first", firsts), ("second", seconds))
        if len(set(own)) == 1
    }
    resampled = means_of_resamples(tables.reshape(len(items), -1)).reshape(-1, many, many)
    drawn = np.vstack([tables.mean(axis=0)[None], resampled])  # what is observed comes first
    drawn /= drawn.sum(axis=(1, 2), keepdims=True)
    given = drawn[0].sum(axis=0) + drawn[0].sum(axis=1)
    share = np.trace(drawn, axis1=1, axis2=2)
    chance = (drawn.sum(axis=1) * drawn.sum(axis=2)).sum(axis=1)
    varied = (drawn.sum(axis=1).max(axis=1) < 1 - 1e-12) & (
        drawn.sum(axis=2).max(axis=1) < 1 - 1e-12
    )
    kappa = (share - chance) / np.where(varied, 1 - chance, np.nan)
    return Agreement(
        agreement=_interval(share, len(items)),
        kappa=None if constant else _interval(kappa, len(items)),
        macro_f1=float((2 * np.diag(drawn[0])[given > 0] / given[given > 0]).mean()),
        spearman=float(spearmanr(firsts, seconds).statistic) if order and not constant else None,
        kappa_undefined=_say_undefined(constant),
    )


def _say_undefined(constant: Mapping[str, str]) -> str:
    """Return why kappa is undefined: which judges always give one value; "" where it is defined."""
    if len(constant) == 2 and len(set(constant.values())) == 1:
        return f"both always say {constant['first']!r}"
    return " and ".join(f"the {name} always says {value!r}" for name, value in constant.items())


def _interval(
    values: np.ndarray, items: int
) -> Interval:  # of the first; resamples that define none are left out
    drawn = values[1:][~np.isnan(values[1:])]
    low, high = np.quantile(drawn, [0.025, 0.975]) if items > 1 and len(drawn) else (None, None)
    return Interval(float(values[0]), low, high)
