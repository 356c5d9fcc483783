"""A panel: a section of the page of a run or a query, with its script and its data.

The panels of every page are named in panels.py; how a script adds a section is in page/panels.js.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sextant.evals.viewer.loaded_run import LoadedRun


class Panel(NamedTuple):
    """A section of a run's page.

    `name` is part of addresses: small letters, digits and hyphens. `script` is JavaScript that
    calls `addPanel(name, section)`, or the path of a file of it. `data` returns, for a run and an
    argument that the script chose, a value that JSON can hold. An exported page has the answers to
    `arguments`, or to each query's id with `of_query`.
    """

    name: str
    script: str | Path
    data: Callable[[LoadedRun, str], Any]
    arguments: Sequence[str] = ("all",)
    of_query: bool = False

    def read_script(self) -> str:
        """Return its JavaScript, in a block of its own, so that its names clash with no others."""
        script = self.script
        if isinstance(script, Path):
            script = script.read_text(encoding="utf-8")
        return f"{{\n{script}}}\n"
