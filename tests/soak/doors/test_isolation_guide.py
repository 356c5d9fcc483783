"""The guide on isolation works: its agents need an empty folder, an empty environment and the server alone."""

import re
import subprocess
import sys
from pathlib import Path

import mcp_agents
from conftest import ROOT
from rest_client import outcomes, serving

PAGE = (ROOT / "docs/guide/isolation.md").read_text(encoding="utf-8")
TASK = ("--task", "congress", "--split", "dev")


def test_an_agent_with_nothing_but_the_server_answers_every_query(run, tmp_path):
    [script] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    boxed = tmp_path / "boxed"
    boxed.mkdir()
    words = (*TASK, "--http", "--agent", "boxed", "--runs", tmp_path / "served")
    with serving(sys.executable, *words) as start:
        server, port = start()
        (boxed / "agent.py").write_text(script.replace("8400", str(port)))
        command = [sys.executable, "-I", "agent.py"]
        subprocess.run(command, cwd=boxed, env={"PATH": "/usr/bin:/bin"}, check=True, timeout=120)
        assert server.wait(60) == 0
    served = outcomes(tmp_path / "served")
    run("--program", "retrieve", *TASK, "--runs", tmp_path / "ours")
    ours = outcomes(tmp_path / "ours")
    assert {key: row["ranking"][:10] for key, row in served.items()} == {
        key: row["ranking"][:10] for key, row in ours.items()
    }


def test_an_agent_that_is_started_needs_three_variables(run, tmp_path):
    variables = ("SEXTANT_MCP_URL", "SEXTANT_TOKEN", "SEXTANT_QUERY")
    assert all(f"-e {name}" in PAGE for name in variables)
    given = " ".join(f"{name}=${name}" for name in variables)
    agent = f"{sys.executable} {Path(mcp_agents.__file__)} answers"
    program = f"command:env -i HOME={tmp_path} {given} {agent}"
    result = run("--program", program, *TASK, "--limit", 2, "--runs", tmp_path / "runs", "--json")
    assert result.code == 0 and result.json["failed"] == 0
    assert len(outcomes(tmp_path / "runs")) == 2
