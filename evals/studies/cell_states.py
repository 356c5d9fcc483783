"""The cells of a study in a file, while they are run: `cells.json` in the folder of the study.

The page of runs draws the table that fills from it (evals/viewer/study_tables.py).
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from sextant.evals.run_folder import RunFolder
from sextant.evals.running.events import RunMonitor
from sextant.evals.running.resolve import PreparedRun
from sextant.evals.studies.study_file import StudyCell
from sextant.tools.platform import files

CELLS = "cells.json"
TO_COME = "to come"
UNDER_WAY = "under way"
FINISHED = "finished"
UNFINISHED = "unfinished"
NOT_APPLICABLE = "does not apply"


class CellStates:
    """The state of each cell, written at each change."""

    def __init__(self, folder: Path, name: str, question: str, cells: Sequence[StudyCell]) -> None:
        self._file = folder / CELLS
        self._about = {"study": name, "question": question}
        self._rows = [
            {"row": cell.row, "task": cell.task, "state": TO_COME, "run": "", "reason": ""}
            for cell in cells
        ]
        with suppress(OSError):
            # The cells are run where it cannot be written, too.
            files.mkdir_private(folder)
        self._write()

    def report(
        self, number: int, report: Callable[..., RunMonitor] | None
    ) -> Callable[..., RunMonitor]:
        """Return the report of the cell's run, which notes its folder when it begins."""

        def begin(ready: PreparedRun, folder: RunFolder) -> RunMonitor:
            self._set(number, UNDER_WAY, folder.shown)
            return (report or RunMonitor)(ready, folder)

        return begin

    def end(self, number: int, folder: Path | None, problem: str, unfit: str) -> None:
        """Note the result of a cell."""
        state = NOT_APPLICABLE if unfit else FINISHED if folder else UNFINISHED
        self._set(number, state, folder, unfit or problem)

    def _set(self, number: int, state: str, folder: Path | None, reason: str = "") -> None:
        row = self._rows[number]
        row["state"] = state
        row["reason"] = reason
        if folder:
            row["run"] = "/".join(folder.parts[-2:])
        self._write()

    def _write(self) -> None:
        with suppress(OSError):
            files.replace(self._file, json.dumps({**self._about, "cells": self._rows}) + "\n")
