"""A budget on agents outside is the run's: what they used in earlier sittings counts before another one begins."""

import json

import pytest

LAST_LINE = {"usage": {"input_tokens": 100, "output_tokens": 20}, "num_turns": 2, "total_cost_usd": 0.25}
SAYS = f"command:echo '{json.dumps(LAST_LINE)}'"
ASKED = ("--task", "congress", "--limit", "6", "--max-concurrent", "1", "--json")


@pytest.mark.parametrize(
    ("program", "budget", "more", "first", "second"),
    [
        (SAYS, ("--budget-usd", "0.4"), ("--budget-usd", "0.6"), 2, 3),
        (SAYS, ("--budget-tokens", "200"), ("--budget-tokens", "300"), 2, 3),
        (SAYS, ("--budget-calls", "4"), ("--budget-calls", "5"), 2, 3),
        ("command:false", ("--budget-calls", "2"), ("--budget-calls", "3", "--again", "failed"), 2, 3),
    ],
)
def test_a_budget_counts_the_agents_of_earlier_sittings(run, tmp_path, program, budget, more, first, second):
    command = ("--program", program, *ASKED, "--runs", tmp_path)
    outcomes_written = []
    for options in (budget, budget, more, more):
        result = run(*command, *options)
        assert result.code == 8, result.err
        (outcomes,) = tmp_path.rglob("outcomes.jsonl")
        outcomes_written.append(len(outcomes.read_text(encoding="utf-8").splitlines()))
    assert outcomes_written == [first, first, second, second]
