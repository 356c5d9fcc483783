"""Agents that come in by OpenEnv's own client, with the classes of examples/openenv."""

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "openenv"))

from client import SearchEnv
from models import SearchAction
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


asyncio.run({"answer_all": answer_all, "sixty_four": sixty_four}[sys.argv[1]](sys.argv[2]))
