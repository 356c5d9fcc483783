"""What a command draws in a terminal, and what becomes of it when nobody reads any more."""

import json
import os
import pty
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def in_a_terminal(command, columns):
    """What a command writes into a terminal of this width."""
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "24"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    printed = b""
    with suppress(OSError):  # the terminal's end
        while chunk := os.read(ours, 10_000):
            printed += chunk
    assert process.wait(timeout=60) == 0
    return printed.decode()


@pytest.mark.parametrize("columns", [80, 40])
def test_the_command_draws_a_table_in_a_terminal(columns, shell, tmp_path, server):
    server.delay = 0.02
    words = ("--program", "multihop", "--task", "congress", "--split", "dev", "--limit", "6", "--max-concurrent", "3")
    text = in_a_terminal([*shell, *words, "--lm", server.spec, "--runs", str(tmp_path / "runs")], columns)
    frames = re.split(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)+", text)
    assert len(frames) > 2
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frames[-1])
    assert "6/6" in last and "in flight" in last and "of 3" in last and "price unknown" in last
    assert max(len(line.rstrip("\r")) for line in last.splitlines()[:5]) <= columns
    assert ("tokens" in last.splitlines()[0]) == (columns == 80)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is there again"


MULTIHOP = ("--program", "multihop", "--task", "congress", "--split", "dev")


def test_the_command_runs_on_when_its_reader_leaves(shell, tmp_path):
    words = [*shell, *MULTIHOP, "--json-events", "--runs", str(tmp_path / "runs")]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert json.loads(process.stdout.readline())["event"] == "started"
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(60) == 0
    [path] = (tmp_path / "runs").rglob("outcomes.jsonl")
    assert path.read_text().count("\n") == 12
