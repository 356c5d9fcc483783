"""Processes that a starter forks."""

import json
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest
from conftest import ROOT
from waiting import still_running

# Both are busy in code in C that keeps Python's lock, so none of their threads sees that a connection has ended.
STUCK = """
import re
from functools import partial
from sextant.tools.platform.forkserver import serve_forks

def serve(connection):
    connection.send_bytes(b"begun")
    re.match("(a+)+$", "a" * 60 + "b")

be_starter = partial(serve_forks, serve=serve)
"""
STARTS = """
import json, sys, time
import psutil
sys.path.insert(0, sys.argv[1])
from sextant.tools.platform.forkserver import fork_server

with fork_server("stuck") as start:
    connections = [start(), start()]
    assert all(one.recv_bytes() == b"begun" for one in connections)
    [starter] = psutil.Process().children()
    print(json.dumps([starter.pid, *(one.pid for one in starter.children())]), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("killed", ["both", "its user", "the starter"])
def test_processes_that_are_busy_end_with_their_starter_and_with_its_user(tmp_path, killed):
    (tmp_path / "stuck.py").write_text(STUCK)
    command = [sys.executable, "-c", STARTS, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout
        starter, *busy = map(psutil.Process, json.loads(user.stdout.readline()))
        assert len(busy) == 2
        try:
            for process in [user] * (killed != "the starter") + [starter] * (killed != "its user"):
                process.kill()
            assert not still_running(busy, 60.0)
        finally:
            user.kill()
            for process in busy:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
