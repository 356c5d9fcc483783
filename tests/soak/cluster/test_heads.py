"""A cluster's head that is lost ends a run in words, and the same command goes on with the next one; also by ray://."""

import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from conftest import SMALL_NODE
from run_folders import lasting
from waiting import wait_for

from sextant.tools.errors import DataError


@pytest.fixture(params=["ray", "ray://"])
def start_cluster(request, monkeypatch):
    """Starts a cluster of a head, which has a place for work, and returns it and its name for --workers."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    from ray.cluster_utils import Cluster

    started = []

    def start():
        with closing(socket.create_server(("", 0))) as free:
            port = free.getsockname()[1]
        how = SMALL_NODE | {"include_dashboard": False, "ray_client_server_port": port}
        started.append(made := Cluster(initialize_head=True, head_node_args=how))
        if request.param == "ray://":
            return made, f"ray://127.0.0.1:{port}"
        monkeypatch.setenv("RAY_ADDRESS", made.address)
        return made, "ray"

    monkeypatch.setenv("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "5")  # seconds; 30
    monkeypatch.setenv(
        "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S", "300"
    )  # a busy machine takes more than 30
    monkeypatch.setenv(
        "GRPC_ENABLE_FORK_SUPPORT", "0"
    )  # without it one of ten starts fails, after those 300
    yield start
    for one in started:
        one.shutdown()


def outcomes(place: Path):
    [path] = place.glob("*/*/outcomes.jsonl")
    return lasting(path.parent)


@pytest.mark.parametrize("retriever", ["bm25", "sharded(bm25,parts=3)"])
def test_the_same_command_goes_on_with_the_next_head(tmp_path, server, start_cluster, retriever):
    def sit(workers, runs):
        asked = [
            "--program",
            "multihop",
            "--task",
            "congress",
            "--lm",
            server.spec,
            "--workers",
            workers,
        ]
        command = [
            sys.executable,
            "-m",
            "sextant.evals.run",
            *asked,
            "--retriever",
            retriever,
            "--runs",
            str(tmp_path / runs),
        ]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    assert sit("1", "here").communicate()
    sent, server.delay = len(server.requests), 0.5
    cluster, workers = start_cluster()
    run = sit(workers, "there")
    wait_for(
        lambda: len(server.requests) > sent + 20 or run.poll() is not None, seconds=300
    )  # on a busy machine
    cluster.remove_node(cluster.head_node, allow_graceful=False)
    _, said = run.communicate(timeout=200)
    assert run.returncode == 7 and "Traceback" not in said, said
    assert "is lost; " in said and "the same command goes on" in said.splitlines()[-1]

    asked_before = len(server.requests)
    server.delay = 0
    _, workers = start_cluster()
    run = sit(workers, "there")
    assert run.communicate() and run.returncode == 0
    assert outcomes(tmp_path / "there") == outcomes(tmp_path / "here")
    assert len(server.requests) - asked_before < sent  # what was answered before is not asked again


def test_a_server_of_a_client_that_does_not_start_is_tried_three_times_and_the_heads_reason_is_said(
    monkeypatch,
):
    ray, tries = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'"), []
    from sextant.tools.retrievers.vectors import ray_embedding

    def init(address, **named):
        tries.append(address)
        raise ConnectionAbortedError(
            "Initialization failure from server:\nTraceback:\nRuntimeError: it failed"
        )

    monkeypatch.setattr(ray, "init", init)
    with (
        pytest.raises(DataError, match=r"at ray://head:1 \(RuntimeError: it failed\)"),
        ray_embedding.connect_ray("ray://head:1"),
    ):
        pass
    assert tries == ["ray://head:1"] * 3


def test_channels_that_are_closed_while_they_are_watched_leave_no_traceback_and_other_errors_do(
    monkeypatch, capsys
):
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    import grpc

    from sextant.tools.retrievers.vectors import ray_embedding

    def close_channels():
        before = set(threading.enumerate())
        for _ in range(20):  # most are still being watched when they are closed
            channel = grpc.insecure_channel("127.0.0.1:1")
            channel.subscribe(bool, try_to_connect=True)
            channel.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(10)

    met = []
    monkeypatch.setattr(threading, "excepthook", met.append)
    close_channels()
    assert met
    monkeypatch.setattr(threading, "excepthook", ray_embedding.ray_excepthook)
    close_channels()
    assert capsys.readouterr().err == ""
    (failing := threading.Thread(target=int, args=["x"])).start()
    failing.join()
    assert "ValueError: invalid literal" in capsys.readouterr().err
