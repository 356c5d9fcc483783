"""construction/docs/build.md, command by command, as a reader would type it."""

import os
import re
import shlex
import shutil
import subprocess
import sys

from conftest import ROOT

COMMAND = re.compile(r"^    python (-m .+)$", re.MULTILINE)


def test_the_guide_goes_from_a_folder_of_markdown_to_a_comparison_of_two_agents(tmp_path):
    shutil.copytree(ROOT / "docs/guide", tmp_path / "notes")
    commands = COMMAND.findall((ROOT / "construction/docs/build.md").read_text(encoding="utf-8"))
    surroundings = os.environ | {"PYTHONPATH": str(ROOT), "SEXTANT_HOME": str(tmp_path / "home")}
    said = []
    for command in commands:
        words = [
            str(name) for word in shlex.split(command) for name in [*tmp_path.glob(word)] or [word]
        ]
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, (command, done.stderr)
        said.append(done.stdout)
    assert len(commands) == 11 and "react" in said[-1] and "planner" in said[-1]
    assert (
        "No person has checked this benchmark." in (tmp_path / "mine/release/README.md").read_text()
    )
