"""LangGraph agents over the same Toolbox, by name. Programs and agents share a namespace."""

import os

from sextant_search import require_ours

require_ours("programs", "tools")

# Where these ask for it, LangGraph would send what happens in a graph to LangSmith.
for _name in (
    "LANGSMITH_TRACING",
    "LANGSMITH_TRACING_V2",
    "LANGCHAIN_TRACING",
    "LANGCHAIN_TRACING_V2",
):
    os.environ[_name] = "false"

# To add one: a Program (programs/base.py) with a graph inside, in its own file, named here.
AGENTS: dict[str, str] = {
    "notes": "agents.notes:NotesAgent",
    "planner": "agents.planner:Planner",
    "react": "agents.react:React",
    "verifier": "agents.verifier:Verifier",
}
