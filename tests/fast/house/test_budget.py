"""Each package has at most so many nodes, and what a change adds is paid for elsewhere.

A node is an expression or a statement. A figure is lowered with each step, and raised only together
with a sentence in the commit that says what a user has from it.
"""

import ast

import pytest
from conftest import PRODUCT, ROOT
from test_readability import count_nodes

MOST = {
    "agents": 6_400,
    "construction/sextant_construction": 37_500,
    "environments": 23_600,
    "evals": 109_700,
    "optimizers": 11_900,
    "programs": 19_200,
    "tools": 96_000,
}


def count_package(folder):
    files = (ROOT / folder).rglob("*.py")
    return sum(count_nodes(ast.parse(path.read_text(encoding="utf-8"))) for path in files)


@pytest.mark.parametrize("folder", MOST)
def test_a_package_has_at_most_its_nodes(folder):
    assert count_package(folder) <= MOST[folder]


def test_no_package_is_without_a_bound():
    assert set(MOST) == set(PRODUCT)
