"""Agents that sextant.evals.run starts as a process for each query: what they find, cost, break and leave behind."""

import os
import signal
import subprocess
import sys

import mcp_agents
import psutil
import pytest
from conftest import ROOT
from rest_client import outcomes, run_in_process
from waiting import still_running, wait_for

TASK = ("--task", "congress", "--split", "dev")
AGENT = f"{sys.executable} {mcp_agents.__file__}"


@pytest.fixture
def ask(run, tmp_path):
    def asked(how, *options):
        result = run(
            "--program",
            f"command:{AGENT} {how}",
            *TASK,
            "--runs",
            tmp_path / how,
            "--json",
            *options,
        )
        return result, outcomes(tmp_path / how)

    return asked


@pytest.mark.smoke
def test_an_agent_does_what_a_function_does_and_says_what_it_cost(run, ask, tmp_path):
    ours = run_in_process(run, tmp_path / "ours")
    result, found = ask("answers", "--max-concurrent", 4)
    assert result.code == 0 and found.keys() == ours.keys()
    for query_id, one in found.items():
        *steps, _said = one["trace"]["steps"]
        assert (one["ranking"], steps) == (
            ours[query_id]["ranking"],
            ours[query_id]["trace"]["steps"],
        )
        assert one["usage"] | {"calls": 5, "input_tokens": 150, "paid_usd": 0.25} == one["usage"]
        assert "total_cost_usd" in one["trace"]["notes"][-1]
    assert result.json["usage"]["paid_usd"] == pytest.approx(0.25 * len(ours))


def test_an_agent_that_gives_up_is_scored_by_its_trace_and_one_that_only_breaks_has_failed(ask):
    result, found = ask("gives up", "--limit", 2)
    assert result.code == 0 and result.json["failed"] == 0
    assert all(len(one["ranking"]) >= 5 and one["error"] is None for one in found.values())
    assert all(one["usage"]["paid_usd"] is None for one in found.values()), (
        "nobody said what it cost"
    )
    result, found = ask("fails", "--limit", 2)
    assert result.code == 7 and result.json["failed"] == 2
    assert all(one["error"].endswith("exit code 1: ValueError: no idea") for one in found.values())


def test_a_budget_counts_what_agents_say_that_they_cost_and_stops_before_the_next_query(ask):
    result, found = ask("answers", "--budget-usd", "0.6", "--max-concurrent", 1)
    assert result.code == 8 and len(found) == 3 and "$0.6 is used up ($0.7500 spent)" in result.err
    result, found = ask("gives up", "--budget-tokens", 5000, "--max-concurrent", 1)
    assert result.code == 8 and len(found) == 1 and "how many tokens" in result.err, "nobody said"


def agents(text):
    started = [
        one
        for one in psutil.process_iter(["cmdline"])
        if text in " ".join(one.info["cmdline"] or ())
    ]
    return [one for one in started if one.info["cmdline"][:2] == AGENT.split()]


@pytest.mark.parametrize("ends", ["its time is up", signal.SIGINT, signal.SIGKILL])
def test_nothing_of_an_agent_that_hangs_goes_on_after_its_time_or_our_end(ends, tmp_path, shell):
    words = [
        "--program",
        f"command:{AGENT} hangs {tmp_path}",
        *TASK,
        "--limit",
        "1",
        "--runs",
        str(tmp_path / "runs"),
    ]
    words += ["--query-timeout", "8s"] if ends == "its time is up" else []
    process = subprocess.Popen(
        [*shell, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    wait_for(lambda: agents(f"hangs {tmp_path}"))
    (agent,) = agents(f"hangs {tmp_path}")
    if ends != "its time is up":
        wait_for(lambda: len(agent.children(recursive=True)) > 1)
        process.send_signal(ends)
    family = [agent, *agent.children(recursive=True)]
    assert process.wait(60) == {signal.SIGINT: 130, signal.SIGKILL: -9}.get(ends, 7)
    if ends == "its time is up":
        said = process.stderr.read()
        assert "the agent was ended" in said and "provider" not in said
    assert not still_running(family, 60.0)
    assert not [*tmp_path.rglob("outcomes.jsonl")], "its query is pending"


def test_what_cannot_be_started_is_said_at_once(run):
    result = run("--program", "command:no-such-agent -p", *TASK)
    assert result.code == 2 and "no-such-agent" in result.err
