"""A bare client of MCP as an agent without a model: it searches in the words of the query, goes on in the results once,
and hands in what it found. README.md has the commands.
"""

import asyncio
import json
import sys

from mcp import Client


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    return json.loads(result.content[0].text)


async def main(url="http://127.0.0.1:8400/mcp"):
    async with Client(url) as client:
        while "query" in (task := await call(client, "next_query")):
            await call(client, "search", query=task["query"])
            await call(client, "more", search=task["query"])
            submitted = await call(client, "submit")
            print(task["query_id"], submitted)
        print(task["error"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
