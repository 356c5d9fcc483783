"""Sextant's wheel beside openai-agents, inspect-ai and pydantic-ai: an agent of the first is a program."""

import shutil
import sys
from pathlib import Path

import pytest
from openai_server import OpenAIServer
from plain_installation import Shell, call

from sextant.evals import run_folder

ROOT = Path(__file__).parents[3]
OTHERS = ("openai-agents", "inspect-ai", "pydantic-ai")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The wheel and the packages that are installed together, so that one set of versions fits all."""
    folder = tmp_path_factory.mktemp("beside")
    words = ("--quiet", "--no-deps", "--wheel-dir", folder)
    call(sys.executable, "-m", "pip", "wheel", *words, ROOT)
    [wheel] = folder.glob("*.whl")
    made = folder / "environment"
    call(sys.executable, "-m", "venv", made)
    install = [made / "bin/python", "-m", "pip", "install", "--quiet"]
    if uv := shutil.which("uv", path=Path(sys.executable).parent):
        install = [uv, "pip", "install", "--quiet", "--python", made / "bin/python"]
    call(*install, wheel, *OTHERS)
    return made


def test_an_agent_of_openai_agents_is_a_program(environment, tmp_path):
    server = OpenAIServer()

    def search_and_end(prompt):
        if server.requests[-1]["messages"][-1]["role"] == "tool":
            return {"raw": "That is all."}
        return {"tool_calls": [("search_corpus", {"words": "hospital nurses"})]}

    server.answer = search_and_end
    url = server.spec.partition("@")[2]
    shell = Shell(environment, tmp_path, tmp_path, OPENAI_BASE_URL=url, OPENAI_API_KEY="x")
    shutil.copy(ROOT / "examples/clients/openai_agent.py", tmp_path)
    words = "--program openai_agent.py:answer --task congress --data mini --limit 2"
    shell.succeed("sextant", "run", *words.split(), "-P", "model=tiny", "--max-concurrent", 1)
    [outcomes] = [path.parent for path in tmp_path.rglob("outcomes.jsonl")]
    for outcome in run_folder.read_outcomes(outcomes).values():
        [step] = [step for step in outcome["trace"]["steps"] if step["tool"] == "search"]
        assert step["argument"] == "hospital nurses" and outcome["error"] is None
        assert outcome["ranking"] == step["doc_ids"]
    server.close()


def test_both_are_imported_by_one_script_and_no_package_lacks_what_it_needs(environment, tmp_path):
    shell = Shell(environment, tmp_path, tmp_path)
    script = "import agents, inspect_ai, pydantic_ai; from sextant.agents import AGENTS; print(agents.Agent, AGENTS)"
    said = shell.succeed("python", "-c", script).out
    assert "agents.agent.Agent" in said and "sextant.agents.react" in said
    shell.succeed("python", "-m", "pip", "check")
