"""Queries answered by the nodes of a Ray cluster come out as in one process, also where nodes die."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from openai_server import fill
from run_folders import lasting
from searchers import every_program
from waiting import still_running, wait_for

from sextant.tools.retrievers import sharded

COMMAND = [sys.executable, "-m", "sextant.evals.run", "--json", "--max-concurrent", "16"]


@pytest.fixture
def told(tmp_path):
    """The outcomes of a run, as a process of its own."""

    def sit(workers, *words):
        command = [
            *COMMAND,
            *map(str, words),
            "--workers",
            workers,
            "--runs",
            str(tmp_path / workers),
        ]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode in (0, 7) and result.stdout, (
            result.stderr
        )  # what is said fails some programs
        return lasting(Path(json.loads(result.stdout)["run"]))

    return sit


def hosts():
    """Processes of actors of ours; a process of Ray's is called after what it runs."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return [line for line in lines if line.startswith(b"ray::_Host")]


def test_every_program_and_agent_comes_out_as_in_one_process(told, server, cluster):
    server.answer = fill
    program = f"{every_program.__file__}:All"
    asked = (
        "--program",
        program,
        "--task",
        "congress",
        "--split",
        "all",
        "--data",
        "mini",
        "--lm",
        server.spec,
    )
    one = told("1", *asked)
    sent = len(server.requests)
    assert told("ray", *asked) == one and len(server.requests) == 2 * sent
    assert set(server.authorizations[sent:]) == {
        "Bearer of-node-1",
        "Bearer of-node-2",
    }  # which the nodes have sent


def test_parts_of_an_index_are_actors(run, cluster, monkeypatch, tmp_path):
    asked = ("--program", "multihop", "--task", "congress", "--limit", 2, "--json")
    one = run(*asked).json["run"]
    monkeypatch.setattr(sharded, "fork_server", None)
    parts = ("--retriever", "sharded(bm25,parts=2)", "--workers", "ray", "--runs", tmp_path / "ray")
    assert lasting(Path(run(*asked, *parts).json["run"])) == lasting(Path(one))


def lines(path, rows):
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


@pytest.fixture
def many(folder):
    """The data folder with as many queries as asked for."""

    def made(count):
        place = folder / "tip-of-tongue" / "congress" / "queries+qrels"
        queries = [
            json.dumps({"_id": f"Q{n}", "text": f"Something about bridge {n}?"})
            for n in range(count)
        ]
        lines(place / "queries.jsonl", queries)
        lines(
            place / "qrels.tsv",
            ["query-id\tcorpus-id\tscore", *(f"Q{n}\tD{n % 7}\t1" for n in range(count))],
        )
        return folder

    return made


def test_nodes_that_are_killed_give_their_queries_back(told, server, cluster, many):
    task = ("--task", "congress", "--data", many(500), "--split", "all")
    asked = ("--program", "multihop", "-P", "hops=1", *task, "--lm", server.spec)
    one = told("1", *asked)
    server.delay = 0.3
    sent, killed, found = len(server.requests), 0, []
    answering = threading.Thread(target=lambda: found.append(told("ray", *asked)))
    answering.start()
    while answering.is_alive():  # Ray starts nodes in the main thread alone
        answering.join(8)
        if answering.is_alive() and server.requests[sent:]:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            cluster.add_node(num_cpus=1, object_store_memory=100_000_000)
            killed += 1
    assert found == [one] and killed >= 2
    assert sent <= len(server.requests) - sent <= sent + 16 * killed  # what was in flight


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_actor_is_left_when_the_keeper_is_ended(tmp_path, server, cluster, end):
    words = ["--program", "multihop", "--task", "congress", "--lm", server.spec, "--workers", "ray"]
    process = subprocess.Popen(
        [*COMMAND, *words, "--runs", str(tmp_path)], stderr=subprocess.DEVNULL
    )
    while not server.requests:
        time.sleep(0.2)
    assert hosts()
    process.send_signal(end)
    assert process.wait(60) == (130 if end == signal.SIGINT else -end)
    ends = time.monotonic() + 60
    while hosts() and time.monotonic() < ends:
        time.sleep(0.2)
    assert not hosts()


def test_ten_thousand_queries_leave_the_keeper_as_large_and_nothing_behind(
    tmp_path, server, cluster, many
):
    words = [
        "--program",
        "rewrite",
        "--split",
        "all",
        "--task",
        "congress",
        "--data",
        str(many(10_000)),
        "--lm",
    ]
    command = [*COMMAND, *words, server.spec, "--workers", "ray", "--runs", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    coordinator, sizes, files = psutil.Process(process.pid), [], []
    for count in (2_000, 6_000, 9_900):
        wait_for(
            lambda count=count: len(server.requests) >= count or process.poll() is not None, 600
        )
        sizes.append(coordinator.memory_info().rss)
        files.append(coordinator.num_fds() + coordinator.num_threads())
    family = coordinator.children(recursive=True)
    assert process.wait(60) == 0 and len(server.requests) == 10_000
    assert not still_running(family, 10.0) and not hosts()
    assert max(files) - min(files) < 10 and sizes[2] - sizes[1] < 3_900 * 5_000, (
        files,
        sizes,
    )  # bytes of an outcome
