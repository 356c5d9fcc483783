"""A run as a process of its own: signals, a full disk, no reader, a terminal, no network."""

import json
import os
import pty
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import ROOT
from openai_server import annotate
from waiting import wait_for

from sextant.evals import run_folder

MULTIHOP = ("--program", "multihop", "--task", "congress", "--split", "dev")
RETRIEVE = ("--program", "retrieve", *MULTIHOP[2:])
LONGEST = 120  # seconds for a process to end; only one that hangs takes as long


def start(shell, tmp_path, *arguments, **more):
    return subprocess.Popen(
        [*shell, *map(str, arguments), "--runs", str(tmp_path / "runs")],
        cwd=ROOT, text=True, **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more),
    )  # fmt: skip


def wait_for_outcomes(tmp_path, count):
    def written():
        paths = (tmp_path / "runs").rglob("outcomes.jsonl")
        return [path for path in paths if path.read_bytes().count(b"\n") >= count]

    wait_for(written)
    return written()[0]


def test_nobody_listening_does_not_end_a_run(shell, tmp_path):
    process = start(shell, tmp_path, *MULTIHOP)
    process.stdout.close()
    process.stderr.close()
    assert process.wait(timeout=LONGEST) == 0
    process = start(shell, tmp_path, *MULTIHOP, "--limit", 11, "--json-events")
    assert json.loads(process.stdout.readline())["event"] == "started"
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(LONGEST) == 0
    counts = [
        path.read_bytes().count(b"\n") for path in (tmp_path / "runs").rglob("outcomes.jsonl")
    ]
    assert sorted(counts) == [11, 12]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_result_that_cannot_be_printed_is_in_the_folder(shell, tmp_path):
    with Path("/dev/full").open("w") as full:
        process = start(shell, tmp_path, *RETRIEVE, stdout=full)
        _, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 7 and "it is in the run folder" in err and "Traceback" not in err
    assert list((tmp_path / "runs").rglob("scores.json"))


def test_a_full_disk_loses_nothing_that_was_reported_as_done(shell, tmp_path, run):
    def little_room():
        # Stands for a full disk: no file of this process may grow over 60 kB.
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    run(*RETRIEVE, "--limit", 1)  # the index has room
    process = start(shell, tmp_path, *RETRIEVE, preexec_fn=little_room)  # about 11 kB a query
    _, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 7, err
    assert "is pending" in err and "safe" in err and "Traceback" not in err
    [path] = (
        path for path in (tmp_path / "runs").rglob("outcomes.jsonl") if path.stat().st_size > 30_000
    )
    safe = run_folder.read_outcomes(path.parent)
    assert 0 < len(safe) < 12 and f"the {len(safe)} before it are safe" in err
    assert path.read_bytes().endswith(b"\n"), "no torn line"
    resumed = run(*RETRIEVE, "--json").json
    assert resumed["owed"] == 0
    assert {q: o["ranking"] for q, o in safe.items()}.items() <= {
        q: o["ranking"] for q, o in run_folder.read_outcomes(path.parent).items()
    }.items()


UNPLUGGED = """
import runpy, socket, sys
def refuse(*arguments, **named):
    raise SystemExit(f"something went to the network: {arguments}")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.create_connection = socket.gethostbyname = refuse
sys.argv = sys.argv[1:]
runpy.run_module("sextant.evals.run", run_name="__main__")
"""


@pytest.mark.smoke
def test_the_default_run_works_with_the_network_unplugged(tmp_path):
    command = [
        sys.executable,
        "-c",
        UNPLUGGED,
        "sextant.evals.run",
        "--program",
        "multihop",
        "--task",
        "congress",
    ]
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    process = subprocess.run(
        [*command, "--runs", str(tmp_path / "runs")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert "24 queries" in process.stdout and "\x1b" not in process.stdout + process.stderr, (
        "a pipe gets plain lines"
    )


@pytest.mark.parametrize(("columns", "no_color"), [(80, None), (40, "1")])
def test_a_terminal_gets_a_live_table_as_wide_as_it_is_and_no_color_is_respected(
    columns, no_color, shell, tmp_path, server
):
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "24"}
    environment |= {"NO_COLOR": no_color} if no_color else {}
    server.delay = 0.02
    ours, theirs = pty.openpty()
    words = (*MULTIHOP, "--limit", 6, "--max-concurrent", 3, "--lm", server.spec)
    process = start(shell, tmp_path, *words, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    printed = b""
    with suppress(OSError):  # the terminal's end
        while chunk := os.read(ours, 10_000):
            printed += chunk
    assert process.wait(timeout=LONGEST) == 0
    text = printed.decode()
    frames = re.split(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)+", text)
    assert len(frames) > 2
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frames[-1])
    assert "6/6" in last and "in flight" in last and "of 3" in last and "price unknown" in last
    assert max(len(line.rstrip("\r")) for line in last.splitlines()[:5]) <= columns
    assert ("tokens" in last.splitlines()[0]) == (columns == 80)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is there again"
    colours = re.findall(r"\x1b\[[0-9;]*?(?:3[0-7]|38;[0-9;]+)m", text)
    assert bool(colours) == (no_color is None)


@pytest.mark.smoke
def test_ctrl_c_keeps_the_annotations_that_are_in_flight(shell, server, tmp_path, run):
    server.answer, server.delay = annotate, 1.0
    arguments = (*RETRIEVE, "--retriever", f"lens(bm25,model={server.spec})")
    process = start(shell, tmp_path, *arguments)
    wait_for(lambda: len(server.requests) >= 6)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LONGEST)
    assert process.returncode == 130
    asked = len(server.requests)
    server.delay = 0.0
    assert run(*arguments).code == 0
    texts = [str(request["messages"][-1]["content"]) for request in server.requests]
    assert len(server.requests) > asked and len(texts) == len(set(texts)), (
        "nothing was paid for twice"
    )


def test_the_second_ctrl_c_ends_a_run_whose_books_another_process_has_locked(
    shell, server, tmp_path
):
    server.delay = 0.3
    process = start(shell, tmp_path, *MULTIHOP, "--lm", server.spec)
    wait_for(lambda: len(server.requests) >= 6)
    locked = sqlite3.connect(tmp_path / "runs" / "answers.sqlite3", isolation_level=None)
    locked.execute("BEGIN IMMEDIATE")
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LONGEST)
    assert process.returncode == 130
    locked.close()


def test_one_ctrl_c_ends_a_run_soon_whose_books_another_process_has_locked(shell, server, tmp_path):
    server.delay = 0.3
    process = start(shell, tmp_path, *MULTIHOP, "--lm", server.spec)
    wait_for(lambda: len(server.requests) >= 6)
    locked = sqlite3.connect(tmp_path / "runs" / "answers.sqlite3", isolation_level=None)
    locked.execute("BEGIN IMMEDIATE")
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    process.communicate(timeout=LONGEST)
    assert process.returncode == 130 and time.monotonic() - started < 10
    locked.close()
