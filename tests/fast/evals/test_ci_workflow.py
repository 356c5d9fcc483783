"""The example workflow examples/ci/compare.yml: its own commands compare two checkouts without a key."""

import os
import shutil
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT

WORKFLOW = yaml.safe_load((ROOT / "examples/ci/compare.yml").read_text(encoding="utf-8"))
AGENT = '''"""Search once."""


async def answer(query, search):
    return [hit.doc_id for hit in await search(query, 100)]{order}
'''


@pytest.fixture
def job(tmp_path):
    """Runs the steps with a command, as a runner does: in bash, from the job's folder, until one fails.

    `gh` is a script that keeps the text of the comment. Returns the exit code of each step.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    scripts = {
        "gh": 'cp "$5" "comment-$3.md"',
        "sextant": f'exec {sys.executable} -m sextant "$@"',
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)

    def run_steps(options: str) -> dict[str, int]:
        surroundings = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RUN": options,
            "NUMBER": "7",
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        }
        codes: dict[str, int] = {}
        for step in WORKFLOW["jobs"]["compare"]["steps"]:
            if "run" not in step or step["name"] == "Install":
                continue
            if any(codes.values()) and "!cancelled()" not in step.get("if", ""):
                continue
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]],
                cwd=tmp_path / step.get("working-directory", "."),
                env=surroundings,
                capture_output=True,
                check=False,
            )
            codes[step["name"]] = done.returncode
        return codes

    for name in ("base", "new"):
        (tmp_path / name).mkdir()
    return run_steps


def test_a_worse_agent_fails_the_job_and_the_comparison_is_commented(job, tmp_path):
    for name, order in (("base", ""), ("new", "[::-1]")):
        (tmp_path / name / "agent.py").write_text(AGENT.format(order=order))
    codes = job("--program agent.py:answer --task congress --lm offline")
    assert codes == {"Run the base": 0, "Run the pull request": 0, "Compare": 1, "Comment": 0}
    comment = (tmp_path / "comment-7.md").read_text()
    assert "| nDCG@10 |" in comment and "gate nDCG@10 failed" in comment
    assert "gate R@100 passed" in comment
    assert (tmp_path / "summary.md").read_text() == comment


def test_an_unchanged_agent_passes_from_its_cassette_when_its_server_is_gone(
    job, run, server, tmp_path
):
    options = f"--program multihop --task congress --limit 2 --lm {server.spec}"
    cassette = tmp_path / "base/ci/answers.cassette"
    cassette.parent.mkdir()
    assert run(*options.split(), "--cassette", cassette).code == 0
    server.close()
    shutil.copytree(cassette.parent, tmp_path / "new/ci")
    codes = job(f"{options} --cassette ci/answers.cassette")
    assert set(codes.values()) == {0} and len(codes) == 4
    assert "gate nDCG@10 passed" in (tmp_path / "comment-7.md").read_text()
