"""An agent of openai-agents that searches by the tools of sextant serve; what its model used comes with `submit`.

README.md has the commands. This client itself takes the queries and hands in, so that no query is left open.
"""

import asyncio
import sys

from agents.mcp import MCPServerStreamableHttp, create_static_tool_filter
from openai import AsyncOpenAI

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner

TASK = "Search until you have the documents that meet the request. Select them, the best first."
NOT_FOR_THE_MODEL = create_static_tool_filter(blocked_tool_names=["next_query", "submit"])


async def main(model, url="http://127.0.0.1:8400/mcp"):
    async with MCPServerStreamableHttp(
        {"url": url}, client_session_timeout_seconds=60, tool_filter=NOT_FOR_THE_MODEL
    ) as sextant:
        chat = OpenAIChatCompletionsModel(model, AsyncOpenAI())
        agent = Agent(name="Searcher", instructions=TASK, mcp_servers=[sextant], model=chat)
        plain = RunConfig(tracing_disabled=True)
        while not (task := await sextant.call_tool("next_query", {})).is_error:
            query = task.content[0].text
            result = await Runner.run(agent, query, max_turns=20, run_config=plain)
            used = result.context_wrapper.usage
            usage = {"calls": used.requests, "tokens_in": used.input_tokens}
            usage["tokens_out"] = used.output_tokens
            answer = {"answer": result.final_output}
            await sextant.call_tool("submit", answer, meta={"sextant/usage": usage})
        print(task.content[0].text)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
