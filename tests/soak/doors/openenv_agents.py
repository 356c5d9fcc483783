"""Agents that come in by OpenEnv's own client, with the classes of examples/openenv."""

import asyncio
import base64
import http.client
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "openenv"))
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from client import SearchEnv
from models import SearchAction
from tool_set_calls import SCHEMAS, shape, use_each_async
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed


async def use(env, tool, **arguments):
    result = await env.step(SearchAction(tool=tool, arguments=arguments))
    return json.loads(result.observation.text), result


async def answer(env):
    """Do what mcp_agents.in_process does."""
    query = json.loads((await env.reset()).observation.text)["query"]
    found = [one["doc_id"] for one in (await use(env, "search", query=query, k=5))[0]]
    await use(env, "read", doc_id=found[0])
    await use(env, "select", doc_ids=found[1:3])
    more = [one["doc_id"] for one in (await use(env, "search", query=query[:40]))[0]]
    return (await use(env, "submit", doc_ids=list(dict.fromkeys([*found[::-1], *more]))))[1]


async def refused(url):
    try:
        async with SearchEnv(url, connect_timeout_s=60) as env:
            await env.reset()
    except (ConnectionError, ConnectionClosed, RuntimeError):
        return True
    return False


async def answer_all(url):
    if await refused(url.replace("agent:sesame@", "")):
        sys.stdout.write("a client without the token is refused")
    async with SearchEnv(url) as gone:
        await gone.reset()  # and goes away
    async with SearchEnv(url) as one:
        for _ in range(12):
            assert (await answer(one)).done


async def sixty_four(url):
    together = asyncio.Barrier(64)

    async def work(number):
        async with SearchEnv(url, connect_timeout_s=60) as env:
            await env.reset()
            await together.wait()
            if number == 0:
                assert await refused(url), "the 65th"
            await together.wait()
            total = 0.0
            query = json.loads((await env.reset()).observation.text)["query"]
            found, result = await use(env, "search", query=query)
            total += result.reward
            _, result = await use(env, "submit", doc_ids=[one["doc_id"] for one in found])
            assert result.done and (await env.state()).step_count == 2
            return total + result.reward

    totals = await asyncio.gather(*map(work, range(64)))
    assert all(0.0 <= total <= 1.0 + 1e-9 for total in totals) and max(totals) > 0.3
    sys.stdout.write("64 at a time")


async def make_no_sense(url):
    """Send what is no message by WebSocket, and requests by HTTP alone; the session goes on."""
    host = url.removeprefix("http://")
    address, token = host.rpartition("@")[2], base64.b64encode(b"agent:sesame").decode()
    headers = {"Authorization": f"Basic {token}"}
    frames = ["5", "[]", "null", b"\xff", "[" * 5000, '{"type": "x"}', '{"type": "\\ud800"}', "{"]
    async with connect(f"ws://{address}/ws", additional_headers=headers) as socket:
        for frame in frames:
            await socket.send(frame)
            answer = json.loads(await socket.recv())
            assert answer["type"] == "error" and "\n" not in answer["data"]["message"], answer
        await socket.send('{"type": "reset"}')
        assert json.loads(await socket.recv())["type"] == "observation"
    bodies = ["5", "{", '{"action": {"tool": "search"}}', '{"action": {"\\ud800": 1}}']
    bodies += ['{"query_id": {}}', '{"query_id": "none"}', '{"query_id": "\\ud800"}']
    for path in ("/reset", "/step"):
        for body in bodies:
            asked = http.client.HTTPConnection(address, timeout=60)
            asked.request("POST", path, body, {"Content-Type": "application/json", **headers})
            answer = asked.getresponse()
            text = answer.read().decode()
            assert answer.status < 500 and "\n" not in text, (path, body, answer.status, text)
            assert answer.status == 200 or isinstance(json.loads(text)["detail"], str)
    sys.stdout.write("all answered")


async def use_each_tool(url):
    address = url.rpartition("@")[2]
    token = base64.b64encode(b"agent:sesame").decode()
    asked = http.client.HTTPConnection(address, timeout=60)
    asked.request("GET", "/schema", headers={"Authorization": f"Basic {token}"})
    action = json.loads(asked.getresponse().read())["action"]["properties"]
    described = {one["title"]: one for one in action["arguments"]["anyOf"]}
    assert {name: shape(one) for name, one in described.items()} == SCHEMAS
    assert action["tool"]["enum"] == [*described]
    async with SearchEnv(url) as env:
        await env.reset()

        async def step(tool, arguments):
            result = await env.step(SearchAction(tool=tool, arguments=arguments))
            text, *left = result.observation.text.splitlines()
            assert result.done == (tool == "submit") == (not left)
            return text, result.observation.refused

        await use_each_async(step)
    sys.stdout.write("each tool was used")


AGENTS = {
    "answer_all": answer_all,
    "sixty_four": sixty_four,
    "make_no_sense": make_no_sense,
    "use_each_tool": use_each_tool,
}
asyncio.run(AGENTS[sys.argv[1]](sys.argv[2]))
