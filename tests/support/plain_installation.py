"""Sextant as a user has it: its wheel with no extra, in an environment outside of the checkout, in an empty folder."""

import os
import subprocess
import sys
from pathlib import Path

from results import Result

ROOT = Path(__file__).parents[2]

STUDY = """
name = "two"
question = "Does it help to rewrite a query?"
tasks = ["code_retrieval"]

[fixed]
data = "mini"

[rows]
program = ["retrieve", "rewrite"]

[compare]
baseline = "retrieve"
"""


class Shell:
    """Runs commands in one folder, with the variables of a user who has set nothing."""

    def __init__(self, environment: Path, home: Path, folder: Path, **variables: str) -> None:
        self.folder = folder
        self._environment = environment
        self._variables = {
            "HOME": str(home),
            "PATH": f"{environment / 'bin'}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",  # several processes share the cores already
            **variables,
        }

    def __call__(self, *words: object) -> Result:
        """Run a command in a process of its own: `sextant ...` or `python -m ...`."""
        program, *arguments = [str(word) for word in words]
        command = [str(self._environment / "bin" / program), *arguments]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def succeed(self, *words: object) -> Result:
        """Run a command that has to end with 0."""
        done = self(*words)
        assert done.code == 0, (
            f"{' '.join(map(str, words))} ended with {done.code}:\n{done.err}\n{done.out}"
        )
        return done


def make_environment(folder: Path) -> Path:
    """Build the wheel and install it as .ci/install does; return the environment's folder."""
    environment, wheels = folder / "environment", folder / "wheels"
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ROOT)
    [wheel] = wheels.glob("*.whl")
    scripts = Path(sys.executable).parent  # where uv is, if there was none on the machine
    path = f"{scripts}:{os.environ['PATH']}"
    given = {"VENV": str(environment), "WHEEL": str(wheel), "PYTHON": sys.executable, "PATH": path}
    call(ROOT / ".ci" / "install", variables=given)
    return environment


def install_construction(folder: Path) -> Path:
    """Build the wheel of sextant-construction; return a folder for PYTHONPATH that has it, and what it
    needs beyond the core's own dependencies.
    """
    wheels, installed = folder / "wheels-of-construction", folder / "construction"
    pip = (sys.executable, "-m", "pip")
    call(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ROOT / "construction")
    [wheel] = wheels.glob("*.whl")
    pinned = ("--constraint", ROOT / "constraints.txt")
    call(*pip, "install", "--quiet", "--no-deps", *pinned, "--target", installed, wheel, "rensa")
    return installed


def call(*words: object, variables: dict[str, str] | None = None) -> None:
    """Run a command of the set-up, whose output is shown if it fails."""
    command = [str(word) for word in words]
    done = subprocess.run(
        command, env=os.environ | (variables or {}), capture_output=True, text=True
    )
    assert done.returncode == 0, (
        f"{words} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    )
