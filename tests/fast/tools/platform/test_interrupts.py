"""Signals of a command in a process of its own, which no wait can miss."""

import os
import subprocess
import sys

from conftest import ROOT

# A command whose own thread takes the signal: the main thread is blocked, and is not woken
TAKES = """
import signal, threading, time
from sextant.tools.platform.cli import CommandParser, run_and_leave
from sextant.tools.platform.interrupts import wait_until

def command(arguments):
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    wait_until(lambda: False, 30.0)
    return 0

run_and_leave(CommandParser(), command)
"""


def test_a_signal_that_does_not_wake_the_main_thread_is_heard_all_the_same():
    command = [sys.executable, "-c", TAKES]
    ended = subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
