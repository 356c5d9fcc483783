"""Correct the grades of a model judge for a pool of documents by its errors on documents whose true
grades are known.

A judge that calls some irrelevant documents relevant inflates every score that is made of its
grades. Its errors are known on a sample that has true grades. The sample is drawn by true grade
(half of it not relevant), so it tells how often each true grade is given each of the judge's
grades, but not how common the true grades are in the pool. That follows from the judge's grades in
the pool (Rogan and Gladen 1978). This is prediction-powered inference (Angelopoulos et al. 2023)
under label shift: the predictions are the judge's grades, the rectifier is its table of errors, and
because nDCG is not linear in the grades, true grades are drawn from their posterior in place of
adding a bias.

The assumption is that the judge errs in the pool as it does on the sample, given the true grade.
Left out: the choice of the queries; intervals are for these queries.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sextant.evals.scoring.statistics import BOUNDS, Interval

PRIOR = 0.5  # added to each count (Jeffreys)
WARM_UP = 1000  # steps of the sampler that are thrown away
THINNING = 30  # steps between two draws
DRAWS = 400  # draws of all true grades


class JudgedShare(NamedTuple):
    """How right a judge was among the documents of the pool that it graded, with 95 % intervals."""

    # Of those that it calls relevant, the share that is; None if it calls none relevant
    precision: Interval | None
    # Of those that are relevant, the share that it calls so; None if none may be
    recall: Interval | None
    relevant: Interval  # the share of the pool that is relevant


def draw_true_grades(
    sample: Sequence[tuple[float, int]],
    pool: Sequence[int],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Iterator[np.ndarray]:
    """Yield draws of the true grade of each document of the pool, shape (len(pool),).

    `sample` has pairs of a true grade and the judge's, `pool` the judge's grades alone. A Gibbs
    sampler alternates the true grades, how common they are, and the judge's errors. ValueError for
    a sample with a single true grade: it cannot tell an error from a hit.
    """
    classes = sorted({true for true, _ in sample})
    if len(classes) < 2:
        raise ValueError("the sample has documents of one grade only")
    grades = sorted({grade for _, grade in sample} | set(pool))
    sampled = np.zeros((len(classes), len(grades)))
    for true, grade in sample:
        sampled[classes.index(true), grades.index(grade)] += 1
    column_of = np.asarray([grades.index(grade) for grade in pool], dtype=int)
    counts = np.bincount(column_of, minlength=len(grades))
    generator = np.random.default_rng(seed)
    # As if true grades were as common as sampled
    allocated = sampled / np.maximum(1, sampled.sum(axis=0)) * counts
    for step in range(WARM_UP + draws * THINNING):
        errors = np.stack([generator.dirichlet(row + PRIOR) for row in sampled + allocated])
        common = generator.dirichlet(allocated.sum(axis=1) + PRIOR)
        joint = common[:, None] * errors
        posterior = joint / joint.sum(axis=0)
        columns = generator.multinomial(counts, posterior.T)
        allocated = columns.T.astype(float)
        if step >= WARM_UP and (step - WARM_UP) % THINNING == 0:
            true_grades = np.zeros(len(pool))
            for column, numbers in enumerate(columns):
                labels = np.repeat(classes, numbers)
                true_grades[column_of == column] = generator.permutation(labels)
            yield true_grades


def interval_of(draws: Sequence[float] | np.ndarray) -> Interval:
    """Return the mean of draws and the range that holds 95 % of them."""
    low, high = np.quantile(draws, BOUNDS)
    return Interval(
        float(np.mean(draws)),
        float(low),
        float(high),
    )


def measure_judge(
    pool: Sequence[int], draws: Sequence[np.ndarray], is_relevant: Callable[[float], bool]
) -> JudgedShare:
    """Return precision and recall of the judge among the documents of the pool.

    The judge calls a document relevant by a grade of 1 or more; draws have the release's grades.
    """
    called = np.asarray(pool) >= 1
    relevant = np.array([[is_relevant(grade) for grade in drawn.tolist()] for drawn in draws])
    both = (called & relevant).sum(axis=1)
    relevant_counts = relevant.sum(axis=1)
    some = relevant_counts > 0
    return JudgedShare(
        precision=interval_of(both / called.sum()) if called.any() else None,
        recall=interval_of(both[some] / relevant_counts[some]) if some.any() else None,
        relevant=interval_of(relevant.mean(axis=1)),
    )
