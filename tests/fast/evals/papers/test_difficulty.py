"""Regressions of a query's value on a feature of it, against NumPy's least squares."""

import numpy as np
import pytest

from sextant import environments
from sextant.evals.papers.difficulty import FEATURES, measure_feature, regress, split_metric
from sextant.tools.text import content_words


def test_a_regression_is_the_line_of_least_squares_through_the_mean_of_the_systems():
    random = np.random.default_rng(3)
    x = random.normal(size=40)
    noise = random.normal(size=(3, 40))
    values = {f"q{number}": float(value) for number, value in enumerate(x)}
    columns = [
        {f"q{number}": float(2 * x[number] + row[number]) for number in range(40)} for row in noise
    ]
    line = regress(values, columns)
    y = 2 * x + noise.mean(axis=0)
    slope, intercept = np.polyfit(x, y, 1)
    residual = ((y - slope * x - intercept) ** 2).sum()
    assert line["slope"] == pytest.approx(slope)
    assert line["R2"] == pytest.approx(1 - residual / ((y - y.mean()) ** 2).sum())
    assert line["p"] < 0.001
    flat = regress(values, [dict(zip(values, random.normal(size=40), strict=True))])
    assert flat["p"] > 0.05


def test_queries_without_a_value_of_each_system_are_left_out_and_an_equal_feature_has_no_line():
    values = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    first = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 9.0}
    assert regress(values, [first, {**first, "d": None}])["R2"] == pytest.approx(1)
    assert regress(dict.fromkeys(values, 1.0), [first]) is None


def test_overlap_is_the_share_of_a_querys_words_that_documents_have():
    environment = environments.load("birco/arguana", "mini")
    for feature, chosen in (("overlap with relevant", True), ("overlap with pool", False)):
        measured = measure_feature(environment, feature)
        for query in environment.queries:
            words = set(content_words(query.text))
            grades = environment.qrels[query.query_id]
            pool = [doc_id for doc_id in query.candidates if not chosen or grades.get(doc_id, 0)]
            shares = [
                len(words & set(content_words(environment.documents[doc_id].text))) / len(words)
                for doc_id in pool
            ]
            assert measured[query.query_id] == pytest.approx(np.mean(shares))
    sizes = measure_feature(environment, "pool size")
    assert set(sizes.values()) == {len(query.candidates) for query in environment.queries}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_metric_of_a_regression_names_its_figure_and_its_feature(feature):
    assert split_metric(f"R2: {feature}") == ("R2", feature)
    assert split_metric(f"R3: {feature}") == ("", "")
    assert split_metric("nDCG@10") == ("", "")
