"""`served:NAME`: the program of a run whose queries an agent outside answers; python -m
evals.serve hands them out.
"""

from typing import ClassVar

from programs.base import Program
from tools.errors import UsageError
from tools.records import Query, Submission


class Served(Program):
    """An agent outside, by its name: it searches by way of python -m evals.serve."""

    called: ClassVar[str] = ""  # what follows the colon

    def forward(self, query: Query) -> Submission:
        """Refuse: nothing here can answer."""
        raise UsageError(
            "the agent of this run is outside; python -m evals.serve hands its queries out"
        )
