"""Every program and agent against `transformers serve`, with a model of random weights that never stops by itself.

Servers whose packages are too heavy for every installation are tried by `python -m benchmarks.servers`.
"""

import pytest

from benchmarks import servers
from sextant.agents import AGENTS
from sextant.programs import PROGRAMS

MOST = 48  # tokens of an answer
WORDS = ("--limit", "1", "--max-tokens", str(MOST))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    for package in ("transformers", "fastapi", "uvicorn"):
        pytest.importorskip(package, reason=f"transformers serve needs {package}")
    place = tmp_path_factory.mktemp("served")
    with servers.started("transformers", place) as spec:
        yield spec, place / "runs"


@pytest.mark.parametrize("system", [*PROGRAMS, *AGENTS])
def test_a_system_ends_within_its_limits_whatever_the_model_writes(system, served):
    assert servers.problems(servers.run(system, *served, WORDS), MOST) == []


def test_a_run_that_is_killed_goes_on(served):
    assert servers.killed(*served, WORDS) == []
