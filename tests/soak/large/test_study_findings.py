"""How often a study says what is so: 1,000 simulated studies without differences, and as many with a planted one.

`python -m pytest -s tests/soak/large/test_study_findings.py` prints the rates of docs/guide/study.md.
"""

import numpy as np

from sextant.evals.studies import significance

STUDIES = 1000
QUERIES = (25, 60, 40, 50)  # of the four tasks
EFFECT = 0.12


def draw(seed, *effects):
    """Values in [0, 1] of a baseline, a program with these effects on its tasks, and one without."""
    generator, values = np.random.default_rng(seed), {}
    for place, (many, effect) in enumerate(zip(QUERIES, effects, strict=True)):
        base, moves = generator.beta(1, 1.5, many), generator.random((3, many)) < 0.5
        noise = (
            generator.normal(0, 0.15, (3, many)) * moves
        )  # of all three, so that without an effect they are alike
        columns = {
            "bm25": base + noise[0],
            "multihop": base + effect + noise[1],
            "rewrite": base + noise[2],
        }
        columns = {row: np.clip(column, 0, 1).tolist() for row, column in columns.items()}
        values[f"task{place}"] = {row: dict(enumerate(column)) for row, column in columns.items()}
    return values


def judge(seed, *effects):
    """What a study says: (that nothing differs, the planted help, the planted harm, anything that is not so)."""
    values = draw(seed, *effects)
    found = {
        (test.row, test.tasks): test.result.difference
        for test in significance.test_rows(values, "bm25", dict.fromkeys(values, "nDCG@10"))
        if test.significant
    }
    wrong = [row == "rewrite" or tasks in {("task2",), ("task3",)} for row, tasks in found]
    helps = found.get(("multihop", ("task0",)), 0) > 0
    hurts = found.get(("multihop", ("task1",)), 0) < 0
    return not found, helps, hurts, any(wrong)


def test_a_planted_difference_is_said_and_a_study_without_says_that_there_is_none():
    nothing = np.mean([judge(seed, 0, 0, 0, 0) for seed in range(STUDIES)], axis=0)
    planted = np.mean([judge(seed, EFFECT, -EFFECT, 0, 0) for seed in range(STUDIES)], axis=0)
    names = ("no row differs", "helps on its task", "hurts on its task", "something that is not so")
    for what, rates in (("none planted", nothing), ("one planted", planted)):
        print(  # noqa: T201
            what, ", ".join(f"{name}: {rate:.3f}" for name, rate in zip(names, rates, strict=True))
        )
    assert nothing[0] > 0.94 and planted[0] < 0.02
    assert planted[1] > 0.5 and planted[2] > 0.9 and planted[3] < 0.06
