"""A budget on agents outside is the run's: what they used in earlier sittings counts before another one begins."""

import json
import re

import pytest

LAST_LINE = {
    "usage": {"input_tokens": 100, "output_tokens": 20},
    "num_turns": 2,
    "total_cost_usd": 0.25,
}
SAYS = f"command:echo '{json.dumps(LAST_LINE)}'"
ASKED = ("--task", "congress", "--max-concurrent", "1", "--json")


@pytest.mark.parametrize(
    ("program", "budget", "more", "first", "second"),
    [
        (SAYS, ("--budget-usd", "0.4"), ("--budget-usd", "0.6"), 2, 3),
        (SAYS, ("--budget-tokens", "200"), ("--budget-tokens", "300"), 2, 3),
        (SAYS, ("--budget-calls", "4"), ("--budget-calls", "5"), 2, 3),
        (
            "command:false",
            ("--budget-calls", "2"),
            ("--budget-calls", "3", "--again", "failed"),
            2,
            3,
        ),
    ],
)
def test_a_budget_counts_the_agents_of_earlier_sittings(
    run, tmp_path, program, budget, more, first, second
):
    command = ("--program", program, *ASKED, "--limit", "6", "--runs", tmp_path)
    outcomes_written = []
    for options in (budget, budget, more, more):
        result = run(*command, *options)
        assert result.code == 8, result.err
        says_by_how_much = "that those running at once spend" in " ".join(result.err.split())
        assert says_by_how_much == (options[0] != "--budget-calls")
        (outcomes,) = tmp_path.rglob("outcomes.jsonl")
        outcomes_written.append(len(outcomes.read_text(encoding="utf-8").splitlines()))
    assert outcomes_written == [first, first, second, second]


def test_a_budget_counts_the_agents_of_queries_that_ran_out_of_time(run, tmp_path):
    reports = f"command:sh -c \"echo '{json.dumps(LAST_LINE).replace(chr(34), chr(92) + chr(34))}'; exec sleep 60\""
    command = (
        "--program",
        reports,
        *ASKED,
        "--runs",
        tmp_path,
        "--query-timeout",
        "0.5s",
        "--limit",
        "2",
    )
    assert run(*command, "--budget-calls", "9").code == 7
    again = run(*command, "--budget-calls", "4")  # two for each query
    assert again.code == 8 and "the budget of 4 model calls is used up" in again.err


def test_a_budget_for_several_tasks_counts_what_all_of_them_have_used_before(run, tmp_path):
    tasks = (
        "--task",
        "congress,writing",
        "--limit",
        "2",
        "--max-concurrent",
        "1",
        "--runs",
        tmp_path,
    )
    first = run("--program", SAYS, *tasks, "--budget-calls", "6")
    assert first.code == 8, first.err
    for folder in (
        tmp_path / "obliq-congress"
    ).iterdir():  # the first task is begun again, the other has used two
        (folder / "outcomes.jsonl").unlink()
    second = run("--program", SAYS, *tasks, "--budget-calls", "4")
    outcomes = [path.read_text(encoding="utf-8") for path in tmp_path.glob("*/*/outcomes.jsonl")]
    assert second.code == 8 and sum(text.count("query_id") for text in outcomes) == 2, second.err


def test_an_agent_gets_its_query_and_the_variables_that_are_named(run, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTS_KEY", "sk-of-the-agent")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    command = ("--program", "command:env", *ASKED, "--limit", "1")

    def variables(*options):
        result = run(*command, "--runs", tmp_path / str(len(options)), *options)
        assert result.code == 0, result.err
        (outcomes,) = (tmp_path / str(len(options))).rglob("outcomes.jsonl")
        notes = json.loads(outcomes.read_text(encoding="utf-8"))["trace"]["notes"]
        return set(re.findall(r"^(\w+)=", notes[-1], re.MULTILINE))

    usual = {"PATH", "SEXTANT_QUERY", "SEXTANT_MCP_URL", "SEXTANT_TOKEN", "SEXTANT_MCP_CONFIG"}
    assert usual <= variables() and not variables() & {"AGENTS_KEY", "OPENAI_API_KEY"}
    monkeypatch.setenv("AGENTS_MODE", "quick")
    both = ("--env", "AGENTS_KEY", "--env", "AGENTS_MODE")
    assert {"AGENTS_KEY", "AGENTS_MODE"} < variables(*both)
    monkeypatch.setenv("AGENTS_KEY", "sk-another")
    variables(*both)
    assert len(list((tmp_path / "4").rglob("outcomes.jsonl"))) == 1, "a key is no other agent"
    monkeypatch.setenv("AGENTS_MODE", "thorough")
    again = run(*command, "--runs", tmp_path / "4", *both)
    configs = [file.read_text() for file in (tmp_path / "4").rglob("config.json")]
    assert again.code == 0 and len(configs) == 2 and "sk-" not in "".join(configs)
    missing = run(*command, "--env", "NOT_THERE")
    assert missing.code == 2 and "--env NOT_THERE" in missing.err
    other = run("--program", "retrieve", "--task", "congress", "--env", "AGENTS_KEY")
    assert other.code == 2 and "command:LINE" in other.err
