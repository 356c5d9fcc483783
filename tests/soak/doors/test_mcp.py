"""Agents of other makes come in over MCP, by the SDKs and adapters of others, and do what our own programs do."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from conftest import ROOT
from mcp import Client, StdioServerParameters
from mcp_agents import answer, answer_all, call, come_in
from rest_client import outcomes, run_in_process, serving
from waiting import wait_for

TASK = ("--task", "congress", "--split", "dev")
TOKEN = "a secret of the test"


@pytest.fixture
def ours(run, tmp_path):
    """What a function of one's own comes to in sextant.evals.run."""
    return run_in_process(run, tmp_path / "ours")


@pytest.fixture
def serve(tmp_path):
    """Starts the server over HTTP; gives its process and its address."""
    with serving(
        sys.executable, *TASK, "--mcp", "http", "--runs", tmp_path / "runs", SEXTANT_TOKEN=TOKEN
    ) as start:

        def started(*options):
            process, port = start(*options)
            return process, f"http://127.0.0.1:{port}/mcp"

        yield started


@pytest.mark.smoke
def test_on_stdio_a_client_answers_what_it_likes_and_the_next_one_the_rest(tmp_path, ours):
    words = ["-m", "sextant.evals.serve", *TASK, "--mcp", "stdio", "--runs", str(tmp_path / "runs")]
    server = StdioServerParameters(
        command=sys.executable, args=words, cwd=ROOT, env=dict(os.environ)
    )

    async def two_come():
        async with Client(server) as client:
            assert "submitted" in await answer(client)
            await call(client, "next_query")  # which it leaves
        async with Client(server) as client:
            await answer_all(client)

    asyncio.run(two_come())
    wait_for(lambda: outcomes(tmp_path / "runs") == ours)


def test_on_stdio_what_is_piped_in_is_answered_before_the_end(tmp_path):
    lines = [
        HELLO,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        "",
        "no message",
        {**message("tools/call", name="next_query"), "id": 2.0},
        {
            **message(
                "tools/call",
                name="search",
                arguments='{"query": "half of a pair: \\ud83d", "k": "2"}',
            ),
            "id": 3,
        },
    ]
    written = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    words = [
        sys.executable,
        "-m",
        "sextant.evals.serve",
        *TASK,
        "--mcp",
        "stdio",
        "--runs",
        str(tmp_path / "runs"),
    ]
    sent = "\ufeff" + "\r\n".join(written)  # as some shells and editors write it
    ended = subprocess.run(words, input=sent.encode(), capture_output=True, cwd=ROOT, timeout=300)
    answers = {answer["id"]: answer for answer in map(json.loads, ended.stdout.splitlines())}
    assert answers.keys() == {None, 1, 2, 3}
    assert len(json.loads(answers[3]["result"]["content"][0]["text"])) == 2
    assert answers[None]["error"]["message"].startswith("this is no JSON")
    assert ended.returncode == 7, "queries are pending"


def test_over_http_clients_work_side_by_side_and_a_killed_server_goes_on(tmp_path, serve, ours):
    process, url = serve()

    async def some_come():
        async with (
            come_in(url, TOKEN) as one,
            come_in(url, TOKEN) as other,
            come_in(url, TOKEN) as third,
        ):
            left = await call(third, "next_query")
            await asyncio.gather(answer(one), answer(other))
            state = json.loads((await one.read_resource("sextant://task")).contents[0].text)
            assert (state["answered"], state["open"]) == (2, 1)
            return left["query_id"]

    left = asyncio.run(some_come())
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = outcomes(tmp_path / "runs")
    assert (
        len(kept) == 2
        and left not in kept
        and kept == {query_id: ours[query_id] for query_id in kept}
    )
    process, url = serve()

    async def others_come():
        async with come_in(url, TOKEN) as gone:
            await call(gone, "next_query")
        async with come_in(url, TOKEN) as one, come_in(url, TOKEN, mode="legacy") as other:
            await asyncio.gather(answer_all(one), answer_all(other))

    asyncio.run(others_come())
    assert process.wait(60) == 0
    assert outcomes(tmp_path / "runs") == ours


def run_of_others(command, url, **more):
    environment = {**os.environ, "SEXTANT_TOKEN": TOKEN}
    ended = subprocess.run(
        [*command, url], env=environment, capture_output=True, text=True, timeout=300, **more
    )
    assert ended.returncode == 0, ended.stderr


def install(*command, **more):
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=500, **more)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"{command[0]} could not install it here: {error}")


def test_an_agent_in_javascript_does_the_same_by_the_npm_sdk(tmp_path, serve, ours):
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("there is no node, or no npm")
    install("npm", "install", "--prefix", str(tmp_path), "@modelcontextprotocol/sdk")
    script = shutil.copy(ROOT / "tests" / "support" / "mcp_agent.mjs", tmp_path)
    process, url = serve()
    run_of_others(["node", script], url)
    assert process.wait(60) == 0 and outcomes(tmp_path / "runs") == ours


def test_an_agent_of_langchain_does_the_same_by_its_adapter(tmp_path, serve, ours):
    # Which wants another version of the SDK than ours.
    python = str(tmp_path / "other" / "bin" / "python")
    if shutil.which("uv"):
        install("uv", "venv", str(tmp_path / "other"))
        install("uv", "pip", "install", "--python", python, "langchain", "langchain-mcp-adapters")
    else:
        install(sys.executable, "-m", "venv", str(tmp_path / "other"))
        install(python, "-m", "pip", "install", "langchain", "langchain-mcp-adapters")
    process, url = serve()
    run_of_others([python, str(ROOT / "tests" / "support" / "langchain_agent.py")], url)
    assert process.wait(60) == 0 and outcomes(tmp_path / "runs") == ours


def message(method, **params):
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


HELLO = message(
    "initialize",
    protocolVersion="2025-06-18",
    capabilities={},
    clientInfo={"name": "x", "version": "1"},
)
LARGE = message("tools/call", name="search", arguments={"query": "x" * 10_000_000})


def test_who_attacks_is_refused_and_harms_nobody(tmp_path, serve, ours):
    _, url = serve()
    right = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json, text/event-stream"}

    async def attack():
        async with come_in(url, TOKEN) as client, httpx2.AsyncClient(timeout=60) as web:

            async def status(told, content=HELLO, **more):
                return (
                    await web.post(url, headers={**right, **told}, json=content, **more)
                ).status_code

            async def pieces():
                yield json.dumps(HELLO).encode()

            task = await call(client, "next_query")
            assert (
                await status({"Authorization": ""})
                == await status({"Authorization": "Bearer wröng".encode()})
                == 401
            )
            assert await status({"Host": "evil.example:80"}) == 421
            assert await status({"Origin": "http://evil.example"}) == 403
            assert await status({}, LARGE) == 413
            assert await status({"Mcp-Session-Id": "0" * 32}, message("tools/list")) == 404
            assert (await web.post(url, headers=right, content=pieces())).status_code == 200
            mute = [
                socket.create_connection(("127.0.0.1", httpx2.URL(url).port)) for _ in range(100)
            ]
            for one in mute:  # which sends a lot, and reads nothing
                body = json.dumps(HELLO).encode()
                told = {
                    "Host": url[7:-4],
                    "Content-Type": "application/json",
                    "Content-Length": len(body),
                    **right,
                }
                head = "\r\n".join(
                    ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
                )
                one.sendall(20 * (head.encode() + b"\r\n\r\n" + body))
            for wrong in ("../../etc/passwd", "MINI-q01", "", "\x00"):
                assert "error" in await call(client, "read", doc_id=wrong)
            assert "error" in await call(client, "submit", doc_ids=["forged"])
            assert "error" in await call(client, "search", query=["a", "b"])
            assert "error" in await call(client, "no such tool")
            for _ in range(5):
                async with come_in(url, TOKEN) as other:
                    assert "submitted" in await answer(other)
            assert (await call(client, "next_query")) == task, "it is still its own"
            assert (await call(client, "search", query=task["query"], k=10**9))[0].keys() == {
                "doc_id",
                "title",
                "text",
            }

    asyncio.run(attack())
    kept = outcomes(tmp_path / "runs")
    assert len(kept) == 5 and kept == {query_id: ours[query_id] for query_id in kept}


@asynccontextmanager
async def recording(url):
    """Yield another address of the same server, and all bytes that come and go there."""
    seen, to = bytearray(), httpx2.URL(url)

    async def relay(reader, writer):
        while some := await reader.read(65536):
            seen.extend(some)
            writer.write(some)
        writer.close()

    async def connect(reader, writer):
        theirs = await asyncio.open_connection(to.host, to.port)
        await asyncio.gather(
            relay(reader, theirs[1]), relay(theirs[0], writer), return_exceptions=True
        )

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", seen
    server.close()


@pytest.mark.parametrize("rewards", [(), ("--rewards",)])
def test_the_socket_tells_no_judgement_no_other_query_and_no_path(rewards, tmp_path, serve, ours):
    _, url = serve(*rewards)

    async def record():
        async with recording(url) as (seen_at, seen), come_in(seen_at, TOKEN) as client:
            await client.list_tools()
            await client.list_resources()
            await answer(client)
            await client.read_resource("sextant://task")
            await call(client, "next_query")
            await client.read_resource("sextant://episode")
            return seen.decode()

    seen = asyncio.run(record())
    (answered,) = outcomes(tmp_path / "runs")
    others = [query_id for query_id in ours if query_id in seen]
    assert answered in others and len(others) == 2, "its own two queries"
    paths = str(ROOT), str(tmp_path), f"{Path.home()}/"
    for secret in (*paths, "qrels", "relevan", "grade", "gold", "judge"):
        assert secret not in seen, secret
    assert ('\\"reward\\"' in seen) == bool(rewards)
