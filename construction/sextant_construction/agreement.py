"""How far two judges of the same items agree: exact agreement, Cohen's kappa, Spearman's rho and
macro-F1.

Intervals are by the Bayesian bootstrap over items (Rubin 1981): all pairs of an item get a weight
together. One more item, with every pair of values equally likely (Perks 1947), stands for what a
small sample lacks: without it, an interval of few items with hardly a difference covers kappa in 20
of 100 cases, and so in 88 to 98 (construction/tests/soak/large/test_kappa_intervals.py).
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr
from sklearn.metrics import f1_score

from sextant.evals.scoring.statistics import BOUNDS, Interval
from sextant.tools.platform.terminal import Cell, figure_cell

Pairs = Sequence[tuple[str, str]]  # the two judges' values for parts of one item
_DRAWS = 5_000  # of weights of the items


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


def agree(items: Sequence[Pairs], order: Sequence[str] = ()) -> Agreement | None:
    """Compare the pairs of values of each item; None if there is no pair.

    `order` has the possible values from low to high, if they have an order.
    """
    items = [pairs for pairs in items if pairs]
    if not items:
        return None
    firsts, seconds = zip(*chain.from_iterable(items), strict=True)
    values = list(order) or sorted({*firsts, *seconds})
    confusion = _draw_confusion(items, values)
    share = np.trace(confusion, axis1=1, axis2=2)
    kappa = None
    spearman = None
    if min(len({*firsts}), len({*seconds})) > 1:
        chance = (confusion.sum(axis=2) * confusion.sum(axis=1)).sum(axis=1)
        kappa = _interval((share - chance) / (1 - chance), len(items))
        if order:
            codes = (list(map(values.index, said)) for said in (firsts, seconds))
            spearman = float(spearmanr(*codes).statistic)
    macro_f1 = float(f1_score(firsts, seconds, average="macro"))
    return Agreement(
        agreement=_interval(share, len(items)),
        kappa=kappa,
        macro_f1=macro_f1,
        spearman=spearman,
    )


def _draw_confusion(items: Sequence[Pairs], values: Sequence[str]) -> np.ndarray:
    """Return shares of pairs of values, shape (1 + draws, values, values).

    The observed shares come first, then those of each draw of the items' weights.
    """
    size = len(values)
    tables = np.zeros((len(items), size**2))
    for table, pairs in zip(tables, items, strict=True):
        for first, second in pairs:
            table[values.index(first) * size + values.index(second)] += 1
    observed = tables.sum(axis=0)
    pseudo_item = np.eye(size**2) * (observed.sum() / len(items))
    rows = np.vstack([tables, pseudo_item])
    shapes = np.repeat(
        [1.0, 1 / size**2],
        [len(items), size**2],
    )
    generator = np.random.default_rng(0)
    weights = generator.standard_gamma(shapes, (_DRAWS, len(rows)))
    counts = np.vstack([observed, weights @ rows])
    shares: np.ndarray = counts / counts.sum(axis=1, keepdims=True)
    return shares.reshape(-1, size, size)


def _interval(values: np.ndarray, items: int) -> Interval:
    """Return the first value with the 95 % interval of the others, its draws; without one for a single item."""
    mean = float(values[0])
    if items < 2:
        return Interval(mean, None, None)
    low, high = np.quantile(values[1:], BOUNDS)
    return Interval(
        mean,
        min(low, mean),
        max(high, mean),
    )


def interval_cell(
    mean: float | None, low: float | None = None, high: float | None = None, form: str = "{:.2f}"
) -> Cell:
    """Return a cell of a table with a figure and its interval, as far as there are such."""
    if mean is None or low is None or high is None:
        return figure_cell(mean, form)
    return Cell(f"{form} ({form} to {form})", figures=[mean, low, high])
