"""LangGraph agents over the same Toolbox, by name. Programs and agents share a namespace."""

import sextant

sextant.use_full_name(__name__)

# To add one: a Program (programs/base.py) with a graph inside, in its own file, named here.
AGENTS: dict[str, str] = {
    "grep": "sextant.agents.grep:Grep",
    "notes": "sextant.agents.notes:NotesAgent",
    "pages": "sextant.agents.pages:Pages",
    "planner": "sextant.agents.planner:Planner",
    "react": "sextant.agents.react:React",
    "verifier": "sextant.agents.verifier:Verifier",
}
