"""`served:NAME`: the program of a run whose queries an agent outside answers;
`sextant serve` hands them out.
"""

from typing import ClassVar

from sextant.programs import DEFAULT_TOOLS
from sextant.programs.base import Program
from sextant.programs.corpus_tools import list_tools
from sextant.tools.errors import UsageError
from sextant.tools.records import Query, Submission


class Served(Program):
    """An agent outside, by its name: it searches by way of sextant serve."""

    called: ClassVar[str] = ""  # what follows the colon

    tools: str = DEFAULT_TOOLS  # names, with commas between: programs/corpus_tools.py
    show_left: bool = False  # tell the agent what its limits leave

    def __post_init__(self) -> None:
        self.functions = list_tools(self.tools)

    def forward(self, query: Query) -> Submission:
        """Refuse: nothing here can answer."""
        raise UsageError("the agent of this run is outside; sextant serve hands its queries out")
