"""Commands run without the system calls that macOS lacks. Nothing here has run on a Mac."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sextant.tools.platform import system_calls

ROOT = Path(__file__).parents[4]
# Of the module os, as its documentation names the systems that have each.
MISSING_ON_MACOS = {
    name
    for name in dir(os)
    if name.startswith(("sched_set", "sched_get", "SCHED_", "posix_fa", "POSIX_FADV", "pidfd_"))
} | {
    "copy_file_range",
    "eventfd",
    "fdatasync",
    "getrandom",
    "getxattr",
    "memfd_create",
    "pipe2",
    "setxattr",
    "splice",
    "O_DIRECT",
    "O_TMPFILE",
}


@pytest.fixture
def without_calls_of_linux(tmp_path):
    """The environment of processes whose module os lacks what macOS lacks."""
    lines = [
        "import os",
        f"for name in {sorted(MISSING_ON_MACOS)}:",
        "    vars(os).pop(name, None)",
    ]
    (tmp_path / "sitecustomize.py").write_text("\n".join(lines))
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def test_a_run_by_two_workers_needs_no_call_that_macos_lacks(tmp_path, without_calls_of_linux):
    command = [
        "-m",
        "sextant.evals.run",
        "--program",
        "multihop",
        "--task",
        "congress",
        "--limit",
        "4",
    ]
    ended = subprocess.run(
        [sys.executable, *command, "--workers", "2", "--runs", tmp_path / "runs"],
        env=without_calls_of_linux,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "4 queries" in ended.stdout


def test_calls_that_macos_lacks_are_in_one_module():
    for folder in ("agents", "environments", "evals", "optimizers", "programs", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            if path == Path(system_calls.__file__).resolve():
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "os":
                    assert node.attr not in MISSING_ON_MACOS, f"{path}, line {node.lineno}"


def test_space_is_set_aside_with_and_without_the_call_for_it(tmp_path, monkeypatch):
    for calls in ("present", "missing"):
        if calls == "missing":
            monkeypatch.delattr(os, "posix_fallocate")
            monkeypatch.delattr(os, "sched_getaffinity")
        path = tmp_path / calls
        path.write_bytes(b"head")
        with path.open("r+b") as file:
            system_calls.reserve_space(file, 4, 3 << 20)
        assert path.read_bytes() == b"head".ljust(3 << 20, b"\0")
        assert path.stat().st_blocks * 512 >= 3 << 20
        assert system_calls.available_cores() >= 1
    assert system_calls.list_cores() == []
