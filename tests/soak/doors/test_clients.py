"""The clients of examples/clients, each with its own package in an environment beside Sextant's, over a scripted model.

The environment is made from the package index; where that cannot be reached, the tests are skipped.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from openai_server import OpenAIServer
from rest_client import outcomes, serving

CLIENTS = Path(__file__).parents[3] / "examples" / "clients"
TOOLS = "search,more,read,grep,phrase,count,note"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter with openai-agents and pydantic-ai, and without Sextant."""
    made = tmp_path_factory.mktemp("clients") / "environment"
    subprocess.run([sys.executable, "-m", "venv", made], check=True)
    packages = ("openai-agents", "pydantic-ai-slim[mcp,openai]")
    installed = subprocess.run(
        [made / "bin/python", "-m", "pip", "install", "--quiet", *packages],
        capture_output=True,
        text=True,
    )
    if installed.returncode:
        reason = installed.stderr.strip().splitlines()[-1:]
        pytest.skip(f"{' and '.join(packages)} cannot be installed here: {reason}")
    return made / "bin/python"


@pytest.fixture
def serve(tmp_path):
    task = ("--task", "congress", "--split", "dev", "--limit", 2, "--tools", TOOLS)
    with serving(
        sys.executable, *task, "--mcp", "http", "--runs", tmp_path / "runs", SEXTANT_TOKEN=""
    ) as start:
        yield start


def answer_by(python, name, serve, *words, **environment):
    """Let a client answer all queries; return what it printed last."""
    process, port = serve("-P", "max_grep=1", "-P", "show_left=yes")
    done = subprocess.run(
        [python, CLIENTS / name, *words, f"http://127.0.0.1:{port}/mcp"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert process.wait(60) == 0
    return done.stdout.splitlines()[-1]


def test_a_bare_client_of_mcp_answers_all_queries(serve, tmp_path):
    assert "every query is answered" in answer_by(sys.executable, "mcp_client.py", serve)
    for outcome in outcomes(tmp_path / "runs").values():
        steps = [step["tool"] for step in outcome["trace"]["steps"]]
        assert steps[:2] == ["search", "more"] and steps[-1] == "stop"
        assert len(outcome["ranking"]) > 10


def list_calls(doc_id):
    """The calls of the scripted model, with a document that its first search gave."""
    return [
        ("search", {"query": "gas bill", "k": 3}),
        ("more", {"search": "gas bill", "from": 4}),
        ("read", {"doc_id": doc_id, "from": 11, "chars": 9}),
        ("grep", {"pattern": "(?i)gas bill"}),
        ("grep", {"pattern": "bill"}),
        ("phrase", {"text": "the bill", "k": 1}),
        ("count", {"words": ["gas", "bill"]}),
        ("note", {"text": "towing"}),
        ("notes", {}),
        ("select", {"doc_ids": [doc_id]}),
    ]


@pytest.mark.parametrize(
    ("name", "model"),
    [("openai_agents_client.py", "tiny"), ("pydantic_ai_client.py", "openai-chat:tiny")],
)
def test_an_agent_of_another_package_calls_each_tool_and_reports_its_usage(
    name, model, python, serve, tmp_path
):
    server, asked = OpenAIServer(), []

    def turn(prompt):
        """Call the tools one after another with what the last results gave, and end in words."""
        request = server.requests[-1]
        results = [message for message in request["messages"] if message["role"] == "tool"]
        found = re.search(r"doc_id\W+([\w-]+)", json.dumps(results))
        calls = list_calls(found[1] if found else "")
        if not results:
            asked.append(request["tools"])
        if len(results) < len(calls):
            return {"tool_calls": [calls[len(results)]]}
        return {"raw": "a towing boat"}

    def number_calls(path, body, reply=server.reply):
        """Give each call an id of its own in the conversation, as models do."""
        made = reply(path, body)
        for call in made["choices"][0]["message"].get("tool_calls", ()):
            call["id"] = f"call-{len(server.requests)}"
        return made

    server.answer, server.reply = turn, number_calls
    url = server.spec.partition("@")[2]
    environment = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "x", "NO_PROXY": "*"}
    last = answer_by(python, name, serve, model, **environment)
    assert "every query is answered" in last
    for tools in asked:
        functions = {tool["function"]["name"]: tool["function"] for tool in tools}
        assert functions.keys() == {*TOOLS.split(","), "notes", "select"}
        read = functions["read"]["parameters"]["properties"]
        assert read.keys() == {"doc_id", "from", "chars"}
        assert read["from"]["description"] == "The character to begin at; 0 is its beginning."
    assert len(asked) == len(outcomes(tmp_path / "runs")) == 2
    for outcome in outcomes(tmp_path / "runs").values():
        steps = outcome["trace"]["steps"]
        called = [name for name, _ in list_calls("")]
        assert [step["tool"] for step in steps][: len(called)] == called
        assert steps[2]["spans"] == [[[11, 20]]] and "all 1 grep calls" in steps[4]["refused"]
        assert outcome["ranking"][0] == steps[2]["argument"]
        assert outcome["answer"] == "a towing boat"
        assert outcome["usage"]["calls"] == len(called) + 1 and outcome["usage"]["input_tokens"]
    server.close()
