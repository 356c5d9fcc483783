"""An agent of openai-agents as a program: it searches as often as it likes, and all that came back is kept, in order.

Its package lies beside Sextant's (`pip install openai-agents`) and calls the model by itself: the trace has the
searches, not the calls. With a server of OpenAI's protocol in $OPENAI_BASE_URL and its key in $OPENAI_API_KEY:

    sextant run --program examples/clients/openai_agent.py:answer --task congress -P model=gpt-5-mini
"""

from openai import AsyncOpenAI

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool


async def answer(query, search, model="gpt-5-mini"):
    found = {}

    @function_tool
    async def search_corpus(words: str) -> str:
        """Search the corpus; return ids and texts of the best ten documents."""
        hits = await search(words, 10)
        found.update((hit.doc_id, hit.text) for hit in hits)
        return "\n\n".join(f"{hit.doc_id}: {hit.text}" for hit in hits)

    agent = Agent(
        name="Searcher",
        instructions="Find documents that meet the request. Search several times, in other words.",
        tools=[search_corpus],
        model=OpenAIChatCompletionsModel(model, AsyncOpenAI()),
    )
    await Runner.run(agent, query, max_turns=8, run_config=RunConfig(tracing_disabled=True))
    return list(found)
