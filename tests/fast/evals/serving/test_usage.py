"""What agents report that their own models used: booked while their query is open, and refused after it."""

import json
import math
import socket
import threading
from functools import partial

import anyio
import pytest
from rest_client import Client, opened, outcomes

pytest.importorskip("fastapi")
pytest.importorskip("mcp")

from mcp_agents import come_in
from starlette.applications import Starlette
from waiting import wait_for

from sextant.evals import serve
from sextant.evals.running.request import Request
from sextant.evals.serving import episode_server as hosts
from sextant.evals.serving import mcp, rest
from sextant.evals.serving.episode import RewardSettings
from sextant.evals.serving.episode_server import NoQueryAvailable
from sextant.evals.serving.rl_training import open_training
from sextant.tools.errors import SessionRefusal, UsageError
from sextant.tools.records import Usage, usage_json

REPORT = {"calls": 1, "tokens_in": 900, "tokens_out": 40, "usd": 0.002}


class RestAgent:
    """Reports what it used in a request of its own."""

    def __init__(self, port):
        self._client, self._session = Client(port), ""

    def open(self, report):
        self._session, _ = self._client.open()
        return self.report(report)

    def report(self, report):
        return self._client.ask("POST", f"/sessions/{self._session}/usage", report)[1]

    def submit(self, report):
        self.report(report)
        return self._client.act(self._session, "submit")


async def call_over_mcp(url, tools):
    """Call the tools one after another, each with a report of what it took to call it."""
    arguments = {"search": {"query": "gas bill"}, "note": {"text": "done"}}
    seen = []
    async with come_in(url, "token") as client:
        for tool in tools:
            result = await client.call_tool(tool, arguments.get(tool, {}), meta={mcp.USAGE: REPORT})
            seen.append(json.loads(result.content[0].text))
    return seen


def total_of(runs):
    (outcome,) = outcomes(runs).values()
    return {
        name: outcome["usage"][name]
        for name in ("calls", "input_tokens", "output_tokens", "paid_usd")
    }


def test_rest_books_what_is_reported_before_submit_and_refuses_what_comes_after(tmp_path):
    with opened(rest.application, tmp_path, limit=1) as (port, _):
        agent = RestAgent(port)
        assert agent.open(REPORT) == {"noted": True}
        assert agent.submit(REPORT)["submitted"] == 0
        refusal = agent.report(REPORT)
        assert "noted" not in refusal and "report it before submit" in refusal["error"]
    assert total_of(tmp_path) == {
        "calls": 2,
        "input_tokens": 1800,
        "output_tokens": 80,
        "paid_usd": 0.004,
    }


def test_mcp_books_the_usage_of_every_call_up_to_submit_and_refuses_what_comes_after(tmp_path):
    servers = []

    def open_door(host, place):
        servers.append(mcp.McpServer(mcp.McpSessions(host)).web(place))
        return Starlette()  # beside the server of the protocol, without answers

    with opened(open_door, tmp_path, limit=1, token="token"):
        tools = ("next_query", "search", "submit", "note", "next_query")
        seen = anyio.run(call_over_mcp, f"http://127.0.0.1:{servers[0].port}/mcp", tools)
        servers[0].stop()
    assert "query" in seen[0] and "submitted" in seen[2]
    for refusal in seen[3:]:
        assert "report it before submit" in refusal["error"]
    assert total_of(tmp_path) == {
        "calls": 3,
        "input_tokens": 2700,
        "output_tokens": 120,
        "paid_usd": 0.006,
    }


def test_nothing_is_booked_on_an_episode_that_is_over_and_its_usage_stays():
    for end in ("submit", "cut", "leave"):
        episode = open_training(data="mini").open()
        episode.charge(REPORT)
        episode.act("submit", {}) if end == "submit" else getattr(episode, end)()
        before = usage_json(episode.desk.session.usage)
        with pytest.raises(SessionRefusal, match="not booked"):
            episode.charge(REPORT)
        assert usage_json(episode.desk.session.usage) == before == usage_json(episode.reported)


def report_and_submit(host, report=REPORT):
    """Answer queries, each with a report where there is one, until the host is done."""
    while not host.done:
        episode = host.open()
        if report:
            episode.charge(report)
        host.act(episode, "submit", {})


BUDGETS = [
    ({"budget_calls": 2}, REPORT, 2, "budget of 2 model calls is used up"),
    ({"budget_tokens": 1800}, REPORT, 2, "budget of 1,800 tokens is used up"),
    ({"budget_usd": 0.003}, REPORT, 2, "budget of $0.003 is used up"),
    ({"budget_usd": 1.0}, {"tokens_in": 1}, 1, "use --budget-calls"),
    ({"budget_tokens": 1800}, None, 1, "use --budget-calls"),
    ({"budget_usd": 1.0}, None, 1, "use --budget-calls"),
    ({"budget_calls": 2}, None, 2, "budget of 2 model calls is used up"),
    ({"time_limit": 0.001}, REPORT, 0, "time limit"),
]


@pytest.mark.parametrize(("budget", "report", "answered", "words"), BUDGETS)
def test_no_query_is_handed_out_once_reports_have_used_the_budget_up_also_after_a_restart(
    tmp_path, budget, report, answered, words
):
    fields = {
        "program": "served:x",
        "task": "congress",
        "split": "dev",
        "limit": 4,
        "runs": tmp_path,
    }
    for _ in range(2):
        result = hosts.serve_episodes(
            Request(**fields, **budget), partial(report_and_submit, report=report)
        )
        assert result.pending == 4 - answered and result.problem.exit_code == 8
        assert words in str(result.problem) and "pending; the same command" in str(result.problem)
    assert not hosts.serve_episodes(Request(**fields), report_and_submit).problem


def test_a_query_that_is_open_goes_on_and_what_was_used_for_one_that_is_given_back_counts(tmp_path):
    def play(host):
        first, second = host.open(), host.open()
        first.charge(REPORT)
        with pytest.raises(NoQueryAvailable, match="budget of 1 model call is used up"):
            host.open()
        assert not host.done
        host.act(second, "submit", {})
        assert not host.done
        first.leave()
        assert host.done

    fields = {
        "program": "served:x",
        "task": "congress",
        "split": "dev",
        "limit": 4,
        "runs": tmp_path,
    }
    assert hosts.serve_episodes(Request(**fields, budget_calls=1), play).problem.exit_code == 8
    assert (
        hosts.serve_episodes(Request(**fields, budget_calls=2), report_and_submit).pending == 3
    ), "2 calls are used"
    assert hosts.serve_episodes(Request(**fields, budget_calls=3), report_and_submit).pending == 2


def test_the_server_ends_with_exit_code_8_once_the_budget_is_used_up(command_of, tmp_path):
    def act_outside():
        wait_for(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
        agent = RestAgent(port)
        agent.open(REPORT)
        agent.submit(REPORT)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    agent = threading.Thread(target=act_outside, daemon=True)
    agent.start()
    words = (
        "--task",
        "congress",
        "--split",
        "dev",
        "--http",
        "--port",
        port,
        "--runs",
        tmp_path,
        "--budget-calls",
        2,
    )
    done = command_of(serve)(*words)
    agent.join(60)
    assert done.code == 8 and "the budget of 2 model calls is used up" in done.err
    assert "the same command with a larger budget goes on" in done.err


WRONG = (-1, -0.001, math.nan, math.inf, -math.inf, "-1", "nan", True, 2**60, 10**400)


@pytest.mark.parametrize("amount", WRONG)
def test_an_amount_below_0_or_without_an_end_is_refused_wherever_costs_are_taken(amount):
    episode = open_training(data="mini").open()
    for name in REPORT:
        with pytest.raises(UsageError, match=name):
            episode.charge({**REPORT, name: amount})
    for name in ("search_cost", "token_cost"):
        with pytest.raises(UsageError, match=name):
            RewardSettings(**{name: amount})
    if isinstance(amount, float) and not 0 <= amount < math.inf:
        for name in ("calls", "input_tokens", "paid_usd", "list_usd"):
            with pytest.raises(ValueError, match=name):
                episode.desk.session.charge(Usage(**{name: amount}))
    assert episode.desk.session.usage == episode.reported == Usage()


def test_reports_that_no_run_could_hold_in_their_sum_are_refused():
    episode = open_training(data="mini").open()
    episode.charge({"tokens_in": 2**53})
    with pytest.raises(UsageError, match="input_tokens"):
        episode.charge({"tokens_in": 1})
    assert episode.desk.session.usage.input_tokens == 2**53


@pytest.mark.parametrize("option", ["--search-cost", "--token-cost", "--budget-usd"])
@pytest.mark.parametrize("amount", ["-1", "nan", "inf", "-inf"])
def test_the_command_line_refuses_such_costs(command_of, option, amount):
    words = ("--task", "congress", "--split", "dev", "--http", "--rewards", f"{option}={amount}")
    refused = command_of(serve)(*words)
    assert refused.code == 2 and refused.err.count("\n") == 1 and option in refused.err


@pytest.mark.parametrize(
    "words",
    [
        ("--search-cost", "0.1"),
        ("--token-cost", "0.1"),
        ("--reward", "R@5"),
        ("--shaping", "read"),
        ("--allow-test",),
    ],
)
def test_an_option_that_says_what_a_reward_is_needs_rewards(command_of, words):
    refused = command_of(serve)("--task", "congress", "--split", "dev", "--http", *words)
    assert refused.code == 2 and refused.err.count("\n") == 1
    assert words[0] in refused.err and "add --rewards" in refused.err


def test_an_own_program_cannot_hand_in_a_usage_below_0(run, tmp_path):
    (tmp_path / "refunds.py").write_text(
        "from dataclasses import replace\n"
        "from sextant.tools.records import Usage\n"
        "class Refunds:\n"
        "    def __init__(self, toolbox, depth):\n"
        "        self.toolbox = toolbox\n"
        "    def __call__(self, query):\n"
        "        session = self.toolbox.open(query)\n"
        "        found = [hit.doc_id for hit in session.search(query.text)]\n"
        "        return replace(session.submit(found), usage=Usage(paid_usd=-5.0, list_usd=-5.0))\n"
    )
    program = f"{tmp_path / 'refunds.py'}:Refunds"
    result = run(
        "--program", program, "--task", "congress", "--limit", 1, "--runs", tmp_path / "runs"
    )
    (outcome,) = outcomes(tmp_path / "runs").values()
    assert result.code == 7 and "paid_usd" in outcome["error"] and outcome["usage"]["paid_usd"] == 0


@pytest.mark.parametrize("cost", ["-3", "true", "1e999", "1" + "0" * 400])
def test_an_agents_last_line_with_no_possible_price_leaves_it_unknown_and_says_so(
    run, tmp_path, cost
):
    line = f'{{"usage": {{"input_tokens": 100, "output_tokens": 20}}, "total_cost_usd": {cost}}}'
    program = f"command:echo '{line}'"
    run("--program", program, "--task", "congress", "--limit", 1, "--runs", tmp_path)
    (outcome,) = outcomes(tmp_path).values()
    assert outcome["usage"]["paid_usd"] is None and outcome["usage"]["input_tokens"] == 100
    assert any(
        "total_cost_usd" in note and "no price" in note for note in outcome["trace"]["notes"]
    )
