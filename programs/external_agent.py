"""`served:NAME`: the program of a run whose queries an agent outside answers;
`sextant serve` hands them out.
"""

from typing import ClassVar

from sextant.programs.base import Program
from sextant.tools.errors import UsageError
from sextant.tools.records import Query, Submission


class Served(Program):
    """An agent outside, by its name: it searches by way of sextant serve."""

    called: ClassVar[str] = ""  # what follows the colon

    def forward(self, query: Query) -> Submission:
        """Refuse: nothing here can answer."""
        raise UsageError("the agent of this run is outside; sextant serve hands its queries out")
