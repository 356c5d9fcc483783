"""What doors hold under load: memory over many episodes, the processor at 64 sessions, kill -9 with 32 of them open."""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack

import psutil
import pytest
from mcp_agents import answer, call, come_in
from rest_client import Client, outcomes, serving

TASK = ("--task", "congress", "--data", "mini")


async def by_mcp(port, many):
    async with come_in(f"http://127.0.0.1:{port}/mcp", "any") as client:
        for _ in range(many):
            assert "submitted" in await answer(client)


async def by_rest(port, many):
    client = Client(port)
    for _ in range(many):
        session, task = client.open()
        assert "submitted" in client.answer(session, task["query"])


@pytest.mark.parametrize(("door", "play"), [(("--http",), by_rest), (("--mcp", "http"), by_mcp)])
def test_a_thousand_episodes_over_a_wire_take_no_more_memory(door, play, tmp_path):
    with serving(sys.executable, *TASK, *door, "--repeat", "--runs", tmp_path) as start:
        process, port = start()
        asyncio.run(play(port, 1500))  # until the allocator's pools have their size
        before = psutil.Process(process.pid).memory_info().rss
        asyncio.run(play(port, 1000))
        assert psutil.Process(process.pid).memory_info().rss - before < 6e6


def test_a_call_over_mcp_costs_the_server_little_at_64_sessions(tmp_path):
    async def work(port, server):
        async with AsyncExitStack() as stack:
            url = f"http://127.0.0.1:{port}/mcp"
            clients = [await stack.enter_async_context(come_in(url, "any")) for _ in range(64)]
            await asyncio.gather(*(call(client, "next_query") for client in clients))
            before = server.cpu_times()
            for _ in range(10):
                await asyncio.gather(*(call(client, "note", text="x") for client in clients))
            return (sum(server.cpu_times()[:2]) - sum(before[:2])) / 640

    with serving(sys.executable, *TASK, "--mcp", "http", "--repeat", "--runs", tmp_path) as start:
        process, port = start()
        assert asyncio.run(work(port, psutil.Process(process.pid))) < 0.003, (
            "nearly all of it is the SDK's"
        )


def test_a_server_killed_with_32_episodes_open_goes_on_with_those_and_keeps_the_others(tmp_path):
    with serving(sys.executable, *TASK, "--split", "all", "--http", "--runs", tmp_path) as start:
        process, port = start()
        client = Client(port)
        asyncio.run(by_rest(port, 3))
        for _ in range(32):
            client.act(client.open()[0], "search", query="left behind")
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = outcomes(tmp_path)
        process, port = start()
        counts = Client(port).ask("GET", "/")[1]
        assert len(kept) == counts["answered"] == 3 and counts["open"] == 0
        asyncio.run(by_rest(port, counts["queries"] - 3))
        assert process.wait(60) == 0
        assert outcomes(tmp_path).items() >= kept.items()
