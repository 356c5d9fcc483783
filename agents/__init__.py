"""LangGraph agents over the same Toolbox, by name. Programs and agents share a namespace."""

import os

import sextant

sextant.use_full_name(__name__)

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
    "notes": "sextant.agents.notes:NotesAgent",
    "planner": "sextant.agents.planner:Planner",
    "react": "sextant.agents.react:React",
    "verifier": "sextant.agents.verifier:Verifier",
}
