"""The outcome of a command over many runs, as evals.study and evals.reproduce end."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tools.cli import print_stderr
from tools.errors import SextantError


class CommandResult(NamedTuple):
    """What came of a study, or of a paper's table."""

    json: dict[str, Any]  # as --json prints it
    text: str  # as a person reads it
    problem: SextantError | None = None  # why cells are unfinished, if any are
    failed: int = 0  # queries that programs failed, which score 0
    reasons: Sequence[str] = ()  # a line for each problem, where there are several

    def end(self) -> int:
        """Return the exit code, or raise the problem after the reasons: 7 where queries failed."""
        for reason in self.reasons:
            print_stderr(reason)
        if self.problem:
            raise self.problem
        return 7 if self.failed else 0
