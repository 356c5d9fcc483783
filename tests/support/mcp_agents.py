"""Scripted agents that come in over MCP and all do the same, and the same as a program of one's own."""

import json
import os
import sys
from contextlib import asynccontextmanager

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


def in_process(query, search, read, select):
    """The same as a function of one's own, for sextant.evals.run."""
    found = [hit.doc_id for hit in search(query, 5)]
    read(found[0])
    select(found[1:3])
    more = [hit.doc_id for hit in search(query[:40])]
    return list(dict.fromkeys([*found[::-1], *more]))


@asynccontextmanager
async def come_in(url, token="", **more):
    web = httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {token}"}, timeout=60
    )  # seconds, on a busy machine
    async with web, Client(streamable_http_client(url, http_client=web), **more) as client:
        yield client


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    return json.loads(result.content[0].text)


async def answer(client, before_submit=lambda: None):
    """Answer the next query; return what came of submitting, or why there is no query."""
    query = (task := await call(client, "next_query")).get("query")
    if query is None:
        return task
    found = [one["doc_id"] for one in await call(client, "search", query=query, k=5)]
    await call(client, "read", doc_id=found[0])
    await call(client, "select", doc_ids=found[1:3])
    more = [one["doc_id"] for one in await call(client, "search", query=query[:40])]
    before_submit()
    return await call(client, "submit", doc_ids=list(dict.fromkeys([*found[::-1], *more])))


async def answer_all(client):
    while "submitted" in await answer(client):
        pass


BEFORE = {
    "gives": lambda: os._exit(3),
    "hangs": lambda: os.system("sleep 600"),
}  # what an agent does before it submits


async def _main(how):
    async with come_in(os.environ["SEXTANT_MCP_URL"], os.environ["SEXTANT_TOKEN"]) as client:
        await answer(client, BEFORE.get(how, lambda: None))
    usage = {"input_tokens": 100, "cache_read_input_tokens": 50, "output_tokens": 20}
    sys.stdout.write(
        json.dumps({"type": "result", "total_cost_usd": 0.25, "num_turns": 5, "usage": usage})
    )


if __name__ == "__main__":
    if sys.argv[1] == "fails":
        sys.exit("Traceback\nValueError: no idea")
    anyio.run(_main, sys.argv[1])
