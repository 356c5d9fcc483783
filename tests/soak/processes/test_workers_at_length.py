"""10,000 queries by four workers: the keeper's memory is flat, and however it ends, nothing of theirs is left."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil
import pytest
from waiting import still_running, wait_for

QUERIES, FIRST = 10_000, 2_000
# Bytes that may come after the first ones, while queries are answered: 400 each for id, place and key, and what malloc
# keeps. Already the lines of the outcomes, 850 bytes each, would be too many beside these.
MOST = 400 * (QUERIES - FIRST) + (6 << 20)
PROGRAM = """
import dspy

predictor = dspy.Predict("description -> search")

def answer(query, search):
    return [one.doc_id for one in search(predictor(description=query).search)]
"""


@pytest.fixture
def start(tmp_path, folder, server):
    """Starts `sextant.evals.run` on so many queries, as a process whose temporary files are in a folder of its own."""
    place = folder / "tip-of-tongue" / "congress" / "queries+qrels"
    texts = [{"_id": f"Q{n}", "text": f"Something about bridge {n}?"} for n in range(QUERIES)]
    (place / "queries.jsonl").write_text("".join(f"{json.dumps(text)}\n" for text in texts))
    (place / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"Q{n}\tD1\t1\n" for n in range(QUERIES))
    )
    (tmp_path / "own.py").write_text(PROGRAM)
    (tmp_path / "temporary").mkdir()
    server.answer = lambda prompt: {"search": "the bridge"}
    asked = [
        "--program",
        tmp_path / "own.py:answer",
        "--task",
        "congress",
        "--split",
        "all",
        "--data",
        folder,
    ]
    asked += [
        "--lm",
        server.spec,
        "--max-concurrent",
        16,
        "--workers",
        4,
        "--k",
        5,
        "--runs",
        tmp_path / "runs",
    ]
    command = [sys.executable, "-m", "sextant.evals.run", *map(str, asked), "--json"]
    about = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    return lambda: psutil.Popen(
        command, env=about, stdout=subprocess.DEVNULL, stderr=(tmp_path / "err").open("w")
    )


def done(tmp_path: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("runs/*/*/outcomes.jsonl"))


def family_of(coordinator: psutil.Process) -> tuple[list[psutil.Process], set[str]]:
    """The starter and the workers, and the shared memory that they have a name for."""
    found, shared = coordinator.children(recursive=True), set[str]()
    for process in found:
        with suppress(psutil.Error):
            shared |= {
                one.path for one in process.memory_maps() if one.path.startswith("/dev/shm/")
            }
    return found, shared


def left(tmp_path: Path, family: tuple[list[psutil.Process], set[str]]) -> list[object]:
    """What is still there two seconds after the keeper's end: processes, temporary files, shared memory."""
    processes, shared = family
    alive = still_running(processes, 2.0)
    return [
        *alive,
        *(tmp_path / "temporary").iterdir(),
        *(path for path in shared if Path(path).exists()),
    ]


def test_ten_thousand_queries_take_no_more_memory_than_the_first(start, tmp_path):
    coordinator, sizes = start(), list[tuple[int, int]]()
    wait_for(lambda: done(tmp_path) >= FIRST, 600)
    family = family_of(coordinator)
    with suppress(psutil.NoSuchProcess):
        while (
            done(tmp_path) < QUERIES and coordinator.poll() is None
        ):  # scoring them takes memory of its own
            sizes.append((coordinator.memory_info().rss, coordinator.num_fds()))
            with suppress(psutil.TimeoutExpired):
                coordinator.wait(0.5)
    assert coordinator.wait() == 0 and done(tmp_path) == QUERIES
    assert len(family[0]) == 5 and not left(tmp_path, family)
    assert max(size for size, _ in sizes) - sizes[0][0] < MOST
    assert max(files for _, files in sizes) <= sizes[0][1] + 8  # some are open for a moment


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL, None])
def test_nothing_is_left_where_the_keeper_is_ended_or_the_disk_is_full(
    start, tmp_path, little_room, end
):
    with nullcontext() if end else little_room(1 << 20):  # bytes; those of some hundred answers
        coordinator = start()
    wait_for(lambda: done(tmp_path) >= 20)
    family = family_of(coordinator)
    if end:
        coordinator.send_signal(end)
    assert coordinator.wait() == {signal.SIGINT: 130, signal.SIGKILL: -9, None: 7}[end]
    assert len(family[0]) == 5 and not left(tmp_path, family)
