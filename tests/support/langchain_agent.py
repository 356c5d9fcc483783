"""The scripted agent of mcp_agents.py as a chat model in LangChain's agent; runs in an environment of its own."""

import asyncio
import json
import os
import sys

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools


class Scripted(BaseChatModel):
    _llm_type = "scripted"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        seen = [json.loads(one.content[0]["text"]) for one in messages if one.type == "tool"]
        ids = [[hit["doc_id"] for hit in one] for one in seen if isinstance(one, list)]
        steps = [
            lambda: ("next_query", {}),
            lambda: ("search", {"query": seen[0]["query"], "k": 5}),
            lambda: ("read", {"doc_id": ids[0][0]}),
            lambda: ("select", {"doc_ids": ids[0][1:3]}),
            lambda: ("search", {"query": seen[0]["query"][:40]}),
            lambda: ("submit", {"doc_ids": list(dict.fromkeys([*ids[0][::-1], *ids[1]]))}),
        ]
        ended = len(seen) == len(steps) or (seen and "error" in seen[0])
        calls = (
            []
            if ended
            else [dict(zip(("name", "args"), steps[len(seen)](), strict=True), id=str(len(seen)))]
        )
        message = AIMessage("" if calls else json.dumps(seen[-1]), tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


async def main():
    headers = {"Authorization": f"Bearer {os.environ['SEXTANT_TOKEN']}"}
    server = {"transport": "streamable_http", "url": sys.argv[1], "headers": headers}
    async with MultiServerMCPClient({"sextant": server}).session("sextant") as session:
        agent = create_agent(Scripted(), await load_mcp_tools(session))
        while (
            "submitted"
            in (await agent.ainvoke({"messages": [("user", "go on")]}))["messages"][-1].content
        ):
            pass


asyncio.run(main())
