"""Agents that evals.run starts as a process for each query: what they find, cost, break and leave behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import mcp_agents
import psutil
import pytest
from conftest import ROOT
from waiting import wait_for

TASK = ("--task", "congress", "--split", "dev")
AGENT = f"{sys.executable} {mcp_agents.__file__}"


def rows(runs):
    (path,) = Path(runs).rglob("outcomes.jsonl")
    return {one["query_id"]: one for one in map(json.loads, path.read_text().splitlines())}


def steps(outcome):
    return [
        {name: value for name, value in one.items() if name not in ("started", "seconds")}
        for one in outcome["trace"]["steps"]
        if one["tool"] != "note"
    ]


@pytest.fixture
def ask(run, tmp_path):
    def asked(how, *options):
        result = run("--program", f"command:{AGENT} {how}", *TASK, "--runs", tmp_path / how, "--json", *options)
        return result, rows(tmp_path / how)

    return asked


def test_an_agent_does_what_a_function_does_and_says_what_it_cost(run, ask, tmp_path):
    assert run("--program", "mcp_agents:in_process", *TASK, "--runs", tmp_path / "ours").code == 0
    ours = rows(tmp_path / "ours")
    result, found = ask("answers", "--max-concurrent", 4)
    assert result.code == 0 and found.keys() == ours.keys()
    for query_id, one in found.items():
        assert (one["ranking"], steps(one)) == (ours[query_id]["ranking"], steps(ours[query_id]))
        assert one["usage"] | {"calls": 5, "input_tokens": 150, "paid_usd": 0.25} == one["usage"]
        assert "total_cost_usd" in one["trace"]["notes"][-1]
    assert result.json["usage"]["paid_usd"] == pytest.approx(0.25 * len(ours))


def test_an_agent_that_gives_up_is_scored_by_its_trace_and_one_that_only_breaks_has_failed(ask):
    result, found = ask("gives up", "--limit", 2)
    assert result.code == 0 and result.json["failed"] == 0
    assert all(len(one["ranking"]) >= 5 and one["error"] is None for one in found.values())
    assert all(one["usage"]["paid_usd"] is None for one in found.values()), "nobody said what it cost"
    result, found = ask("fails", "--limit", 2)
    assert result.code == 7 and result.json["failed"] == 2
    assert all(one["error"].endswith("exit code 1: ValueError: no idea") for one in found.values())


def sleepers(text):
    return [one for one in psutil.process_iter(["cmdline"]) if text in " ".join(one.info["cmdline"] or ())]


@pytest.mark.parametrize("ends", ["its time is up", "Ctrl-C"])
def test_nothing_of_an_agent_that_hangs_goes_on_after_its_time_or_ctrl_c(ends, tmp_path, shell):
    words = ["--program", f"command:{AGENT} hangs {tmp_path}", *TASK, "--limit", "1", "--runs", str(tmp_path / "runs")]
    words += ["--query-timeout", "8s"] if ends == "its time is up" else []
    process = subprocess.Popen([*shell, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    wait_for(lambda: [one for one in sleepers(f"hangs {tmp_path}") if one.pid != process.pid])
    (agent,) = [one for one in sleepers(f"hangs {tmp_path}") if one.pid != process.pid]
    if ends == "Ctrl-C":
        wait_for(lambda: agent.children(recursive=True))
        process.send_signal(signal.SIGINT)
    family = [agent, *agent.children(recursive=True)]
    assert process.wait(60) == (130 if ends == "Ctrl-C" else 7)
    wait_for(lambda: not any(one.is_running() and one.status() != "zombie" for one in family))
    assert not [*tmp_path.rglob("outcomes.jsonl")], "its query is pending"


def test_what_cannot_be_started_is_said_at_once(run):
    result = run("--program", "command:no-such-agent -p", *TASK)
    assert result.code == 2 and "no-such-agent" in result.err
