"""Variance of a study's factors: planted components, statsmodels' sums of squares, and designs with gaps."""

import numpy as np
import pandas
import pytest
from statsmodels.formula.api import mixedlm, ols
from statsmodels.stats.anova import anova_lm

from sextant.evals.scoring.variance import Design, decompose, level_means, list_turns
from sextant.tools.errors import UsageError

PLANTED = {
    "A": 0.3,
    "B": 0.2,
    "A x B": 0.1,
    "query": 0.8,
    "A x query": 0.25,
    "B x query": 0.15,
    "A x B x query": 0.2,
}


def runs_of(a, b, seeds=1):
    return [{"A": f"a{i}", "B": f"b{j}"} for i in range(a) for j in range(b) for _ in range(seeds)]


def drawn(generator, shape, *, zero_heavy):
    """Effects of mean 0 and variance 1; or such as scores with many zeros have."""
    if not zero_heavy:
        return generator.normal(size=shape)
    values = (generator.random(shape) < 0.4) * generator.random(shape)
    return (values - 0.2) / np.sqrt(0.4 / 3 - 0.04)


def levels_of(generator, a, b):
    """Fixed effects of the levels of A, B and of their pairs, of variance 1 over these levels."""
    pairs = generator.normal(size=(a, b))
    pairs -= pairs.mean(axis=0)
    pairs -= pairs.mean(axis=1, keepdims=True)
    effects = [generator.normal(size=number) for number in (a, b)]
    centred = [effect - effect.mean() for effect in effects]
    scaled = [effect / effect.std(ddof=1) for effect in centred]
    return *scaled, pairs / np.sqrt(np.square(pairs).sum() / ((a - 1) * (b - 1)))


def simulate(generator, a, b, queries, levels, *, zero_heavy=False):
    size = {name: np.sqrt(variance) for name, variance in PLANTED.items()}
    of_a, of_b, of_pairs = levels
    scores = size["A"] * of_a[:, None, None] + size["B"] * of_b[None, :, None]
    scores = scores + size["A x B"] * of_pairs[:, :, None]
    for name, shape in (
        ("query", (1, 1, queries)),
        ("A x query", (a, 1, queries)),
        ("B x query", (1, b, queries)),
        ("A x B x query", (a, b, queries)),
    ):
        scores = scores + size[name] * drawn(generator, shape, zero_heavy=zero_heavy)
    return scores.reshape(a * b, queries)


def expected(a, b):
    """The planted components, where fixed pairs sum to 0 over the levels of a factor."""
    return PLANTED | {"A": 0.3 - 0.1 / b, "B": 0.2 - 0.1 / a}


def named(design, values):
    return dict(zip(design.labels, values.tolist(), strict=True))


@pytest.mark.parametrize("zero_heavy", [False, True])
def test_planted_components_are_met_within_5_percent(zero_heavy):
    generator = np.random.default_rng(0)
    runs = runs_of(4, 3)
    design = Design(runs, repeated=False)
    levels = levels_of(generator, 4, 3)
    found = {}
    for _ in range(1_000):
        scores = simulate(generator, 4, 3, 40, levels, zero_heavy=zero_heavy)
        for name, value in named(design, design.solve(scores)).items():
            found.setdefault(name, []).append(value)
    for name, variance in expected(4, 3).items():
        assert np.mean(found[name]) == pytest.approx(variance, rel=0.05), name


@pytest.mark.parametrize("zero_heavy", [False, True])
def test_intervals_cover_the_shares(zero_heavy):
    generator = np.random.default_rng(1)
    runs = runs_of(3, 3)
    levels = levels_of(generator, 3, 3)
    truth = expected(3, 3)
    total = sum(truth.values())
    covered = []
    for _ in range(120):
        scores = simulate(generator, 3, 3, 100, levels, zero_heavy=zero_heavy)
        for part in decompose(runs, scores).components:
            covered.append(part.low <= truth[part.effect] / total <= part.high)
    assert 0.93 <= np.mean(covered) <= 0.97


def test_sums_of_squares_are_those_of_statsmodels():
    generator = np.random.default_rng(2)
    scores = simulate(generator, 3, 2, 7, levels_of(generator, 3, 2))
    runs = runs_of(3, 2)
    table = pandas.DataFrame(
        [
            run | {"query": f"q{query}", "score": scores[number, query]}
            for number, run in enumerate(runs)
            for query in range(7)
        ]
    )
    anova = anova_lm(ols("score ~ C(A) * C(B) * C(query)", table).fit(), typ=1)["sum_sq"]
    found = {part.effect: part.sum_of_squares for part in decompose(runs, scores).components}
    named_there = {
        "A": "C(A)",
        "B": "C(B)",
        "A x B": "C(A):C(B)",
        "query": "C(query)",
        "A x query": "C(A):C(query)",
        "B x query": "C(B):C(query)",
        "A x B x query": "C(A):C(B):C(query)",
    }
    for ours, theirs in named_there.items():
        assert found[ours] == pytest.approx(anova[theirs], rel=1e-9)


def test_likelihood_and_sums_of_squares_agree_on_a_whole_grid():
    generator = np.random.default_rng(3)
    design = Design(runs_of(4, 4), repeated=False)
    scores = simulate(generator, 4, 4, 300, levels_of(generator, 4, 4))
    solved = named(design, design.solve(scores))
    fitted = named(design, design.fit(scores))
    for name, value in solved.items():
        assert fitted[name] == pytest.approx(value, rel=0.02, abs=0.002), name


def test_likelihood_is_that_of_statsmodels_for_one_factor():
    generator = np.random.default_rng(4)
    scores = 0.9 * generator.normal(size=30) + 0.5 * generator.normal(size=(4, 30))
    runs = [{"A": f"a{number}"} for number in range(4)]
    design = Design(runs, repeated=False)
    fitted = named(design, design.fit(scores))
    table = pandas.DataFrame(
        [
            {"run": f"r{run}", "query": query, "score": scores[run, query]}
            for run in range(4)
            for query in range(30)
        ]
    )
    model = mixedlm("score ~ C(run)", table, groups=table["query"]).fit(reml=True)
    assert fitted["query"] == pytest.approx(float(model.cov_re.iloc[0, 0]), rel=0.02)
    assert fitted["A x query"] == pytest.approx(model.scale, rel=0.02)


def test_a_grid_with_gaps_says_what_it_cannot_separate():
    runs = [{"A": "a0", "B": "b0"}, {"A": "a1", "B": "b1"}, {"A": "a2", "B": "b2"}]
    scores = np.random.default_rng(5).random((3, 20))
    found = decompose(runs, scores)
    assert not found.is_balanced
    assert found.inseparable["B"] == "A"
    assert "B" not in {part.effect for part in found.components}


def test_a_factor_that_only_some_systems_have_is_no_reason_to_fail():
    runs = [
        {"program": "retrieve", "retriever": "x", "hops": "default"},
        {"program": "retrieve", "retriever": "y", "hops": "default"},
        {"program": "multihop", "retriever": "x", "hops": "4"},
        {"program": "multihop", "retriever": "y", "hops": "4"},
        {"program": "multihop", "retriever": "x", "hops": "2"},
    ]
    found = decompose(runs, np.random.default_rng(8).random((5, 12)))
    assert sum(part.share for part in found.components) == pytest.approx(1)


def test_a_missing_combination_is_fitted_by_likelihood():
    generator = np.random.default_rng(6)
    levels = levels_of(generator, 4, 4)
    keep = [number for number in range(16) if number != 5]
    runs = [runs_of(4, 4)[number] for number in keep]
    found = decompose(runs, simulate(generator, 4, 4, 400, levels)[keep])
    assert not found.is_balanced
    variances = {part.effect: part.variance for part in found.components}
    for name in ("query", "A x query", "B x query", "A x B x query"):
        assert variances[name] == pytest.approx(PLANTED[name], rel=0.25), name


def test_seeds_are_noise_and_more_seeds_need_fewer_queries():
    generator = np.random.default_rng(7)
    levels = levels_of(generator, 3, 2)
    scores = np.repeat(simulate(generator, 3, 2, 200, levels), 3, axis=0)
    scores = scores + 0.3 * generator.normal(size=(18, 1)) + 0.5 * generator.normal(size=(18, 200))
    found = decompose(runs_of(3, 2, seeds=3), scores)
    variances = {part.effect: part.variance for part in found.components}
    assert variances["seed"] == pytest.approx(0.09, rel=0.8)
    assert variances["seed x query"] == pytest.approx(0.25, rel=0.05)
    assert found.seed_noise == pytest.approx(
        np.sqrt(variances["seed"] + variances["seed x query"] / 200)
    )
    by_seeds = [queries for queries in found.needed[0.8].values() if queries is not None]
    assert by_seeds == sorted(by_seeds, reverse=True)
    assert len(by_seeds) > 1


def test_orders_that_another_factor_changes_are_listed():
    runs = runs_of(2, 2)
    scores = np.array([[0.9, 0.7], [0.1, 0.3], [0.5, 0.5], [0.4, 0.4]])
    [turn] = list_turns(runs, scores)
    assert (turn.factor, turn.levels, turn.by) == ("A", ("a0", "a1"), "B")
    assert turn.differences == {"b0": pytest.approx(0.3), "b1": pytest.approx(-0.2)}
    assert level_means(runs, scores)["A"] == {"a0": pytest.approx(0.5), "a1": pytest.approx(0.45)}


def test_one_run_or_one_query_is_refused():
    with pytest.raises(UsageError, match="two runs or more"):
        decompose([{"A": "a"}], np.ones((1, 5)))
