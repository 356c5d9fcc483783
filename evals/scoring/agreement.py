"""How far two judges of the same items agree: exact agreement, Cohen's kappa, Spearman's rho and
macro-F1.

Intervals are by bootstrap over items: all pairs of an item are drawn together.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

from evals.scoring.statistics import Interval, means_of_resamples

Pairs = Sequence[tuple[str, str]]  # the two judges' values for parts of one item
_ROUNDING = 1e-12  # a share of values that is nearer to 1 than this is 1


class Agreement(NamedTuple):
    """How far two judges agree. A field is None if the values do not define it."""

    # Share of equal values, in [0, 1].
    agreement: Interval
    # Cohen 1960, in [-1, 1]. None if a judge gives a single value: the formula then has 0,
    # whatever the values of the second judge.
    kappa: Interval | None
    # Mean over the values that occur, in [0, 1]; the same in either order of the judges.
    macro_f1: float
    # In [-1, 1]. None if values have no order, or a judge gives a single value.
    spearman: float | None
    # Why there is no kappa; "" if there is one.
    kappa_undefined: str = ""


def agree(items: Sequence[Pairs], order: Sequence[str] = ()) -> Agreement | None:
    """Compare the pairs of values of each item; None if there is no pair.

    `order` has the possible values from low to high, if they have an order.
    """
    items = [pairs for pairs in items if pairs]
    if not items:
        return None
    all_pairs = [pair for pairs in items for pair in pairs]
    values = order or sorted({value for pair in all_pairs for value in pair})
    code_of = {value: code for code, value in enumerate(values)}
    first_codes = [code_of[first] for first, _ in all_pairs]
    second_codes = [code_of[second] for _, second in all_pairs]
    constant = _constant_values(values, first_codes, second_codes)
    confusion = _draw_confusion(items, code_of)
    share = np.trace(confusion, axis1=1, axis2=2)
    kappa = _kappa(confusion, share)
    spearman = None
    if order and not constant:
        spearman = float(spearmanr(first_codes, second_codes).statistic)
    return Agreement(
        agreement=_interval(share, len(items)),
        kappa=None if constant else _interval(kappa, len(items)),
        macro_f1=_macro_f1(confusion[0]),
        spearman=spearman,
        kappa_undefined=_explain_undefined(constant),
    )


def _draw_confusion(items: Sequence[Pairs], code_of: Mapping[str, int]) -> np.ndarray:
    """Return shares of pairs of values, shape (1 + resamples, values, values).

    The observed shares come first, then those of each resample of the items.
    """
    values = len(code_of)
    tables = np.zeros((len(items), values, values))
    for table, pairs in zip(tables, items, strict=True):
        for first, second in pairs:
            row = code_of[first]
            column = code_of[second]
            table[row, column] += 1
    observed = tables.mean(axis=0)
    flat_tables = tables.reshape(len(items), -1)
    resampled = means_of_resamples(flat_tables)
    confusion = np.vstack(
        [
            observed[None],
            resampled.reshape(-1, values, values),
        ]
    )
    totals = confusion.sum(axis=(1, 2), keepdims=True)
    shares: np.ndarray = confusion / totals
    return shares


def _kappa(confusion: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return Cohen's kappa of each draw; NaN if a judge gives a single value."""
    by_first = confusion.sum(axis=2)
    by_second = confusion.sum(axis=1)
    chance = (by_first * by_second).sum(axis=1)
    largest = 1 - _ROUNDING
    first_varies = by_first.max(axis=1) < largest
    second_varies = by_second.max(axis=1) < largest
    possible = np.where(first_varies & second_varies, 1 - chance, np.nan)
    kappa: np.ndarray = (share - chance) / possible
    return kappa


def _constant_values(
    values: Sequence[str], first_codes: Sequence[int], second_codes: Sequence[int]
) -> dict[str, str]:
    """Return the value of each judge that gives a single value."""
    constant = {}
    for judge, codes in (("first", first_codes), ("second", second_codes)):
        if len(set(codes)) == 1:
            constant[judge] = values[codes[0]]
    return constant


def _macro_f1(confusion: np.ndarray) -> float:
    totals = confusion.sum(axis=0) + confusion.sum(axis=1)
    occurs = totals > 0
    f1 = 2 * np.diag(confusion)[occurs] / totals[occurs]
    return float(f1.mean())


def _explain_undefined(constant: Mapping[str, str]) -> str:
    """Return why kappa is undefined: which judges always give the same value; "" if it is defined."""
    if len(constant) == 2 and constant["first"] == constant["second"]:
        return f"both always say {constant['first']!r}"
    return " and ".join(f"the {judge} always says {value!r}" for judge, value in constant.items())


def _interval(values: np.ndarray, items: int) -> Interval:
    """Return the first value with the 95 % interval of the others, its resamples.

    Resamples that do not define the value are NaN, and are left out.
    """
    mean = float(values[0])
    resamples = values[1:][~np.isnan(values[1:])]
    if items < 2 or not len(resamples):
        return Interval(mean, None, None)
    low, high = np.quantile(resamples, [0.025, 0.975])
    return Interval(mean, low, high)
