"""Run the tests of a tier, one pytest process for each folder, and list the slowest in tests/DURATIONS.md.

    python tests/by_folder.py tests/soak construction/tests/soak

A folder that fails does not stop the others; the exit code is 1 if one of them failed.
"""

# ruff: noqa: T201  # a script that prints how far it is

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

REPORT = Path(__file__).parent / "DURATIONS.md"
LISTED = 40


class Timed(NamedTuple):
    name: str
    seconds: float  # of wall clock, with set-up and tear-down


class Folder(NamedTuple):
    path: Path
    exit_code: int
    tests: list[Timed]


def main(tiers: list[Path]) -> int:
    """Run every folder of the tiers that has tests; write the report; return the exit code."""
    folders = set()
    for tier in tiers:
        test_files = list(tier.rglob("test_*.py"))
        if not test_files:
            print(f"{tier} has no tests", file=sys.stderr)
            return 2
        folders |= {test_file.parent for test_file in test_files}
    results = [run(folder) for folder in sorted(folders)]
    REPORT.write_text(report(tiers, results), encoding="utf-8")
    failed = [str(result.path) for result in results if result.exit_code != 0]
    print(f"failed: {', '.join(failed)}" if failed else "every folder passed")
    return 1 if failed else 0


def run(folder: Path) -> Folder:
    """Run the tests of one folder in a process of their own. A file's fixtures stay in one worker."""
    print(f"== {folder}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.xml"
        options = ["--dist", "loadfile", f"--junitxml={results}", "-o", "junit_family=xunit1"]
        done = subprocess.run([sys.executable, "-m", "pytest", str(folder), *options], check=False)
        tests = read(results) if results.exists() else []
    return Folder(folder, done.returncode, tests)


def read(results: Path) -> list[Timed]:
    """Read the names and times of tests from a file in JUnit's form (xunit1 has the file of each test)."""
    tests = []
    for case in ElementTree.parse(results).iter("testcase"):
        tests.append(Timed(f"{case.get('file')}::{case.get('name')}", float(case.get("time", 0))))
    return tests


def report(tiers: list[Path], results: list[Folder]) -> str:
    """Write the times of all folders and of the slowest tests, in Markdown."""
    named = " ".join(tier.as_posix() for tier in tiers)
    lines = [
        "# Durations",
        "",
        f"`python tests/by_folder.py {named}` wrote this on {os.cpu_count()} cores: seconds of wall clock in",
        "the workers of pytest, with set-up and tear-down.",
        "",
        "| folder | tests | seconds |",
        "|---|--:|--:|",
    ]
    for result in results:
        seconds = sum(test.seconds for test in result.tests)
        failed = "" if result.exit_code == 0 else " (failed)"
        lines.append(
            f"| `{result.path.as_posix()}`{failed} | {len(result.tests)} | {seconds:.0f} |"
        )
    every_test = [test for result in results for test in result.tests]
    slowest = sorted(every_test, key=lambda test: test.seconds, reverse=True)[:LISTED]
    lines += ["", f"The slowest {len(slowest)}:", "", "| seconds | test |", "|--:|---|"]
    for test in slowest:
        name = test.name.replace("|", "\\|")
        lines.append(f"| {test.seconds:.1f} | `{name}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python tests/by_folder.py FOLDER ...")
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
