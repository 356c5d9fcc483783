"""The outcome of a command over many runs, as sextant study and sextant reproduce end."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sextant.tools.errors import SextantError
from sextant.tools.platform.result_table import render_terminal


class CommandResult(NamedTuple):
    """The result of a study, or of a paper's table."""

    # As --json prints it.
    json: dict[str, Any]
    # As a person reads it: lines and tables.
    blocks: Sequence[Any]
    # The reason why cells are unfinished, if any are.
    problem: SextantError | None = None
    # Queries that programs failed, which score 0.
    failed: int = 0
    # Draws the means of a study.
    draw: Callable[[], Any] | None = None

    @property
    def text(self) -> str:
        """Return its blocks as they are printed."""
        return render_terminal(self.blocks)

    def end(self) -> int:
        """Return the exit code, 7 if queries failed, or raise the problem."""
        if self.problem:
            raise self.problem
        return 7 if self.failed else 0
