"""What a command has left: its exit code and what it printed."""

import json
from typing import Any, NamedTuple


class Result(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The printed JSON."""
        return json.loads(self.out)
