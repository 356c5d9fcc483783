"""A judge that is killed goes on where it was, asks about nothing twice, and ends in the same words and bytes."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
import zlib
from collections import Counter

import run_folders
from conftest import ROOT
from openai_server import ids

KILLS, WORKERS = 6, 2


def answer(prompt):
    """A grade that is a digest of the passage; a fifth of the passages have none, and are asked for alone."""
    shown = ids(prompt.rpartition("[[ ## passages ## ]]")[2])
    said = [one for one in shown if len(shown) == 1 or zlib.crc32(one.encode()) % 5]
    rows = [
        {"id": one, "grade": zlib.crc32(one.encode()) % 3, "reason": f"about {one}"} for one in said
    ]
    return {"verdicts": json.dumps(rows)}


def start(server, place):
    """`sextant_construction.judge` on the runs in a folder, as a process."""
    words = (
        "--task",
        "twitter",
        "--runs",
        "runs",
        "--lm",
        server.spec,
        "--name",
        "killed",
        "--depth",
        "20",
        "--json",
    )
    command = [
        sys.executable,
        "-m",
        "sextant_construction.judge",
        *words,
        "--max-concurrent",
        str(WORKERS),
    ]
    surroundings = os.environ | {
        "PYTHONPATH": str(ROOT),
        "SEXTANT_HOME": str(place.parent / "home"),
    }
    return subprocess.Popen(
        command, cwd=place, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def judgements(place):
    """What was judged, without times and in any order."""
    [file] = place.glob("runs/*/judged-killed-*/outcomes.jsonl")
    rows = map(json.loads, file.read_text().splitlines())
    return sorted((row["query_id"], row["ranking"], row["scores"], row["answer"]) for row in rows)


def test_killed_several_times_a_judge_ends_as_one_in_one_sitting_and_no_answer_is_asked_for_again(
    server, tmp_path
):
    one, two = tmp_path / "one", tmp_path / "two"
    for retriever in ("bm25", "rank_bm25(k1=3.0)"):
        words = (
            "--program",
            "retrieve",
            "--task",
            "twitter",
            "--split",
            "all",
            "--retriever",
            retriever,
        )
        run_folders.run_in(one, *words)
    shutil.copytree(one, two)
    server.answer = answer
    process = start(server, one)
    said, complained = process.communicate()
    assert process.returncode == 0, complained
    whole = Counter(json.dumps(body, sort_keys=True) for body in server.requests)
    assert set(whole.values()) == {1} and whole.total() > 2 * KILLS
    server.requests.clear()

    drawn = random.Random(3)
    for _ in range(KILLS):
        process, wanted = (
            start(server, two),
            len(server.requests) + drawn.randint(1, whole.total() // KILLS),
        )
        while process.poll() is None and len(server.requests) < wanted:
            time.sleep(0.002)
        assert process.poll() is None
        process.kill()
        process.communicate()
    process = start(server, two)
    assert (
        process.communicate()[0].replace(str(two).encode(), str(one).encode()) == said
        and process.returncode == 0
    )
    assert judgements(two) == judgements(one)
    sent = Counter(json.dumps(body, sort_keys=True) for body in server.requests)
    assert sent.keys() == whole.keys(), "what is asked does not depend on where it was ended"
    assert sent.total() <= whole.total() + KILLS * WORKERS, (
        "but for what was in flight, nothing is sent again"
    )
    for _ in range(2):
        process = start(server, two)
        assert (
            process.communicate()[0]
            and process.returncode == 0
            and len(server.requests) == sent.total()
        )
