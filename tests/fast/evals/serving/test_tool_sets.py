"""The tools of `--tools`: real clients list them with their schemas and call each, by every door that is installed."""

import json
import os
import shlex
import sys

import anyio
import pytest
from conftest import ROOT
from rest_client import Client, opened, outcomes
from tool_set_calls import NAMED, OPTIONS, PARAMETERS, SCHEMAS, check_steps, shape, use_each

pytest.importorskip("fastapi")
pytest.importorskip("mcp")

from mcp import Client as McpClient
from mcp import StdioServerParameters
from tool_set_agent import use_each_over_mcp

from sextant.evals import serve
from sextant.evals.serving import rest
from sextant.evals.serving.rl_training import Turns, describe_tools, open_training
from sextant.tools.errors import UnknownName

TASK = ("--task", "congress", "--split", "dev", "--limit", "1")


def test_an_agent_of_mcp_uses_each_tool_of_the_command_line_and_the_run_has_the_steps(tmp_path):
    words = ["-m", "sextant.evals.serve", *TASK, *OPTIONS, "--mcp", "stdio", "--runs", tmp_path]
    server = StdioServerParameters(
        command=sys.executable, args=list(map(str, words)), cwd=ROOT, env=dict(os.environ)
    )

    async def come():
        async with McpClient(server) as client:
            await use_each_over_mcp(client)

    anyio.run(come)
    [outcome] = outcomes(tmp_path).values()
    check_steps(outcome["trace"]["steps"])


def test_rest_describes_each_tool_and_answers_as_the_other_doors_do(tmp_path):
    with opened(rest.application, tmp_path, limit=1, parameters=PARAMETERS) as (port, _):
        client = Client(port)
        _, described = client.ask("GET", "/openapi.json")
        _, counted = client.ask("GET", "/")
        session, _ = client.open()
        path = "/sessions/{session}/"
        posts = {
            address.removeprefix(path): methods["post"]
            for address, methods in described["paths"].items()
            if address.startswith(path) and not address.endswith("/usage")
        }
        schemas = {
            name: post["requestBody"]["content"]["application/json"]["schema"]
            for name, post in posts.items()
        }
        assert {name: shape(schema) for name, schema in schemas.items()} == SCHEMAS
        assert all(post["description"] for post in posts.values()) and counted["queries"] == 1
        greps = []

        def use(tool, arguments):
            status, made = client.ask("POST", f"/sessions/{session}/{tool}", {**arguments, "x": 1})
            greps.append(tool == "grep")
            left = None if tool == "submit" else {"grep": int(not any(greps))}
            assert made.get("left") == left and made["ignored"] == ["x"]
            return json.dumps(made["result"]), status in (409, 422)

        use_each(use)
        status, refusal = client.ask("POST", "/retrieve", {"queries": ["gas"]})
        assert status == 403 and "limits" in refusal["error"]
    [outcome] = outcomes(tmp_path).values()
    check_steps(outcome["trace"]["steps"])


def test_searches_without_a_session_are_refused_where_agents_have_no_search(tmp_path):
    for named, status in (("grep,read", 403), (NAMED, 200)):
        runs = tmp_path / str(status)
        with opened(rest.application, runs, limit=1, parameters={"tools": named}) as (port, _):
            client = Client(port)
            assert client.ask("POST", "/retrieve", {"queries": ["gas"]})[0] == status
            found = client.ask("POST", f"/sessions/{client.open()[0]}/search", {"query": "gas"})
            assert found[0] == (200 if status == 200 else 404)
            assert status == 200 or "POST grep, read, note" not in found[1]["error"]


def test_gymnasium_and_texts_of_models_use_each_tool_and_are_told_what_is_left():
    gymnasium = pytest.importorskip("gymnasium")
    name = "sextant.evals.serving.gym:sextant/congress-v0"
    environment = gymnasium.make(name, data="mini", parameters=PARAMETERS)
    environment.reset(seed=1)

    def use(tool, arguments):
        call = json.dumps({"name": tool, "arguments": arguments})
        seen, _, over, _, info = environment.step(f"<tool_call>{call}</tool_call>")
        text, *left = seen.splitlines()
        assert over == (tool == "submit") == (not left)
        assert over or json.loads(left[0])["left"].keys() == {"grep"}
        return text, info["refused"]

    use_each(use)
    described = describe_tools(environment.unwrapped.world)
    assert "read(doc_id: str, from: int = 0, chars: int = 2000) -> str" in described
    assert "    from: The character to begin at" in described and "from_" not in described


def test_an_agent_as_a_process_has_the_tools_of_the_command_line(run, tmp_path, monkeypatch):
    agent = ROOT / "tests" / "support" / "tool_set_agent.py"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = run(
        *("--program", f"command:{shlex.join([sys.executable, str(agent)])}"),
        *(*TASK, *OPTIONS, "--env", "PYTHONPATH", "--runs", tmp_path / "runs"),
    )
    assert done.code == 0, done.err
    [outcome] = outcomes(tmp_path / "runs").values()
    check_steps(outcome["trace"]["steps"])


def test_a_name_that_is_no_tool_is_refused_in_one_line_before_anything_is_served(command_of):
    for words in (("--tools", "search,serch"), ("-P", "tools=serch"), ("--tools", "")):
        refused = command_of(serve)(*TASK, *words, "--http")
        assert refused.code == 2 and len(refused.err.splitlines()) == 1
        assert "error: no tool is called " in refused.err
    refused = command_of(serve)(*TASK, "-P", "max_grep=-1", "--http")
    assert refused.code == 2 and "max_grep" in refused.err
    with pytest.raises(UnknownName, match="grep"):
        open_training(data="mini", parameters={"tools": "grpe"})


def test_a_tool_of_ones_own_is_described_by_its_types_whatever_it_says_of_itself(tmp_path):
    (tmp_path / "near_tool.py").write_text(
        "from __future__ import annotations\n"
        "def near(desk, words: str, share: float, most: int = 3, sure: bool = False, more=None):\n"
        "    return desk.search(f'{words} {share} {most} {sure} {more}')\n"
    )
    named = f"read,{tmp_path / 'near_tool.py'}:near"
    world = open_training(data="mini", parameters={"tools": named})
    episode = world.open()
    sent = {"words": "gas", "share": "0.5", "most": "4", "sure": "yes"}
    assert json.loads(episode.act("near", sent).text)
    assert episode.state()["steps"][0]["argument"] == "gas 0.5 4 True None"
    refusal = json.loads(episode.act("near", {"words": "gas", "share": "half"}).text)
    assert refusal == {"error": 'near takes a float as share, not "half"'}
    assert "near(words: 'str'" in describe_tools(world)


def test_a_part_of_a_text_that_cannot_be_is_read_as_the_nearest_that_can():
    turns = Turns(open_training(data="mini", parameters={"tools": NAMED}))
    episode = turns.episode
    doc_id = json.loads(episode.act("search", {"query": "gas bill"}).text)[0]["doc_id"]

    def read(**window):
        window = {name.rstrip("_"): value for name, value in window.items()}
        return json.loads(episode.act("read", {"doc_id": doc_id, **window}).text)

    whole = read(chars=0)
    assert len(whole["text"]) == whole["of"]
    assert read(from_=-5, chars=-3) == whole, "neither counts from the end"
    assert read(from_=10**7)["text"] == ""
