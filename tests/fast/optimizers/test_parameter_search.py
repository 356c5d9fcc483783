"""Which values are tried when parameters are tuned, and in which combinations."""

import itertools

import pytest

from sextant.optimizers import parameter_search
from sextant.programs.multihop import MultiHop


def values(text, retriever="bm25(k1={w})"):
    return parameter_search.parse_ranges("multihop", MultiHop, retriever, {"w": text})["w"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1..4", ["1", "2", "3", "4"]),
        ("-1 .. 1", ["-1", "0", "1"]),
        ("0.5..1", ["0.5", "0.6", "0.7", "0.8", "0.9", "1"]),
        ("1e-1..9e-1", ["0.1", "0.26", "0.42", "0.58", "0.74", "0.9"]),
        ("1e1..2e1", ["10", "12", "14", "16", "18", "20"]),
        ("0.25|0.5|1", ["0.25", "0.5", "1"]),
    ],
)
def test_a_range_of_whole_numbers_has_each_and_one_of_others_six(text, expected):
    assert values(text) == expected


@pytest.mark.parametrize("last", [*range(15, 62), 100, 1000, 10**9])
def test_a_long_range_has_both_of_its_ends_and_is_spread_evenly(last):
    found = [int(one) for one in values(f"1..{last}")]
    assert found[0] == 1 and found[-1] == last and len(found) == min(last, 20)
    steps = [high - low for low, high in itertools.pairwise(found)]
    assert min(steps) >= 1 and max(steps) - min(steps) <= 1


@pytest.mark.parametrize("trials", [5, 7, 23, 24, 50])
def test_combinations_are_different_ones_of_the_product_and_all_where_that_is_no_more(trials):
    declared = {"hops": [1, 2, 3, 4], "w": ["a", "b", "c"], "retriever": ["bm25", "rank_bm25"]}
    product = [
        dict(zip(declared, one, strict=True)) for one in itertools.product(*declared.values())
    ]
    found = parameter_search.combinations(declared, trials, seed=3)
    assert len(found) == min(trials, 24) and all(one in product for one in found)
    assert len({tuple(one.items()) for one in found}) == len(found)
    assert found == parameter_search.combinations(declared, trials, seed=3)
    assert (found == parameter_search.combinations(declared, trials, seed=4)) == (trials >= 24)


def test_a_product_that_no_list_could_hold_is_drawn_from_all_the_same():
    declared = {f"w{number}": list(range(20)) for number in range(30)}
    found = parameter_search.combinations(declared, 16, seed=0)
    assert len(found) == 16 and all(len(one) == 30 for one in found)
