"""Runs that may open only a few files end with one line and an exit code, and the same command goes on from there."""

import json
import subprocess
import sys

from conftest import ROOT

LIMITS = range(
    15, 21
)  # files that a run may open: from one that cannot begin to one that writes most of its files
TIMES = 2  # with each, as what fails depends on the threads

# Each run is a child of a process that has imported everything, which saves 4 seconds a run.
SCRIPT = """
import os, resource, sys
from sextant.evals import run
from sextant.evals.running import evaluate as evaluation
import sextant.agents.notes
from sextant.tools.platform import cli as console

limits, times, runs, *words = json.loads(sys.argv[1])
for limit in limits:
    for number in range(times):
        place = f"{runs}/{limit}-{number}"
        child = os.fork()
        if child == 0:
            os.dup2(os.open(place + ".txt", os.O_WRONLY | os.O_CREAT), 2)
            os.closerange(3, 100)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            sys.argv = ["sextant.evals.run", *words, "--runs", place]
            console.run_and_leave(run.parser(), run.command)
        print(place, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_run_short_of_descriptors_never_ends_by_a_signal_and_goes_on(tmp_path, run):
    words = ("--program", "notes", "--task", "congress", "--limit", "12", "--json")
    given = json.dumps([[*LIMITS], TIMES, str(tmp_path), *words, "--max-concurrent", "8"])
    script = [sys.executable, "-c", "import json\n" + SCRIPT, given]
    done = subprocess.run(
        script, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=900, check=True
    )
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(str(tmp_path))]
    codes = {place: int(code) for place, code in rows}
    assert len(codes) == len(LIMITS) * TIMES
    for place, code in codes.items():
        lines = (tmp_path / f"{place}.txt").read_text(encoding="utf-8").splitlines()
        assert code in (0, 3, 7), (place, code, lines)
        assert not any("Traceback" in line for line in lines), lines
        if code:
            assert sum(line.startswith("error: ") for line in lines) == 1, lines
    assert 7 in codes.values(), (
        "no run was short of descriptors after its start: choose other LIMITS"
    )
    ended = [place for place, code in codes.items() if code == 7]
    for place in (ended[0], ended[-1]):
        again = run(*words, "--runs", place)
        assert again.code == 0 and again.json["failed"] == 0, again.err
