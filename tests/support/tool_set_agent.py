"""An agent over MCP that lists the tools of `--tools` and uses each, as tool_set_calls.py has it."""

import json
import os

import anyio
from mcp_agents import come_in
from tool_set_calls import SCHEMAS, shape, use_each_async

from sextant.evals.serving.mcp import DATA

SHOWING = ("search", "more", "read", "grep", "phrase")


async def use_each_over_mcp(client):
    """List and call the tools of a client of MCP; what the limits leave comes with each result."""
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    next_query = listed.pop("next_query")
    assert next_query.description
    assert {name: shape(tool.input_schema) for name, tool in listed.items()} == SCHEMAS
    assert all(tool.description for tool in listed.values())
    assert "query" in (await client.call_tool("next_query", {})).content[0].text
    greps = []

    async def use(tool, arguments):
        answer = await client.call_tool(tool, arguments | {"callId": 1})
        text, *further = [part.text for part in answer.content]
        assert (DATA in further) == (tool in SHOWING)
        told = {}
        for part in further:
            told |= json.loads(part) if part != DATA else {}
        assert told.pop("ignored") == ["callId"]
        greps.append(tool == "grep")
        assert told == ({} if tool == "submit" else {"left": {"grep": int(not any(greps))}})
        return text, answer.is_error

    await use_each_async(use)


async def _main():
    async with come_in(os.environ["SEXTANT_MCP_URL"], os.environ["SEXTANT_TOKEN"]) as client:
        await use_each_over_mcp(client)


if __name__ == "__main__":
    anyio.run(_main)
