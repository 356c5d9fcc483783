"""How often the intervals around a judge's figures hold the truth, for simulated judges of known error.

`python -m pytest -s construction/tests/soak/large/test_judge_coverage.py` prints rates of construction/docs/build.md.
"""

import numpy as np
import pytest

from sextant_construction.judge_correction import draw_true_grades, measure_judge

TRIALS = 300


@pytest.mark.parametrize(
    ("relevant", "hit", "false_alarm"), [(0.15, 0.85, 0.1), (0.3, 0.7, 0.2), (0.5, 0.9, 0.3)]
)
def test_an_interval_of_95_percent_holds_the_truth_about_that_often(relevant, hit, false_alarm):
    held = np.zeros(2)
    for seed in range(TRIALS):
        generator = np.random.default_rng(seed)
        truth = generator.random(300) < relevant
        known = np.arange(50) % 2 == 0
        said = 2 * (generator.random(300) < np.where(truth, hit, false_alarm))
        said_of_known = 2 * (generator.random(50) < np.where(known, hit, false_alarm))
        sample = [
            (float(true), int(grade)) for true, grade in zip(known, said_of_known, strict=True)
        ]
        judge = measure_judge(
            said.tolist(),
            list(draw_true_grades(sample, said.tolist(), draws=200, seed=seed)),
            bool,
        )
        precision = (truth & (said > 0)).sum() / (said > 0).sum()
        held += [
            judge.relevant.low <= truth.mean() <= judge.relevant.high,
            judge.precision.low <= precision <= judge.precision.high,
        ]
    rates = held / TRIALS
    print(f"{relevant}, {hit}, {false_alarm}: share {rates[0]:.3f}, precision {rates[1]:.3f}")  # noqa: T201
    assert np.all(np.abs(rates - 0.95) < 4 * np.sqrt(0.95 * 0.05 / TRIALS))
