"""An agent of pydantic-ai that searches by the tools of sextant serve; what its model used comes with `submit`.

README.md has the commands. This client itself takes the queries and hands in, so that no query is left open.
"""

import asyncio
import sys

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.mcp import MCPToolset

TASK = "Search until you have the documents that meet the request. Select them, the best first."


async def main(model, url="http://127.0.0.1:8400/mcp"):
    async with MCPToolset(url, read_timeout=60) as sextant:
        tools = sextant.filtered(lambda _, tool: tool.name not in ("next_query", "submit"))
        agent = Agent(model, instructions=TASK, toolsets=[tools])
        while True:
            try:
                task = await sextant.direct_call_tool("next_query", {})
            except ModelRetry as nothing_left:
                print(nothing_left)
                break
            result = await agent.run(str(task))
            used = result.usage
            usage = {"calls": used.requests, "tokens_in": used.input_tokens}
            usage["tokens_out"] = used.output_tokens
            answer = {"answer": result.output}
            await sextant.direct_call_tool("submit", answer, metadata={"sextant/usage": usage})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
