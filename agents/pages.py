"""An agent that goes on in its rankings: search, more, and reading in parts.

Going on in a ranking surfaces documents that a new search would not (Pi-Serini, arXiv 2605.10848). The
loop is that of agents/react.py.
"""

from sextant.agents.react import React


class Pages(React):
    """A model that searches, goes on in rankings, and reads in parts."""

    tools: str = "search,more,read"
